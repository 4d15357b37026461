"""The end of a training: the kept weights are evaluated, beside the best possible score and simple methods."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, cast

from weft.data.samples import ReferenceScore
from weft.foreign.wrap_module import given_module
from weft.models.build import AnySpec
from weft.runs.run import Run, load
from weft.tasks.support.evaluation.data_statistics import SECONDS, DataStatistics, data_statistics
from weft.tasks.support.evaluation.example_scores import ExampleScores
from weft.tasks.support.evaluation.references import losing_to
from weft.tasks.task import PreparedData, Split
from weft.training.loop import Loop
from weft.training.plan import TrainingPlan

FINAL_EVALUATION_SHARE = 0.03  # of the time that was given, about, for metrics that are slow
STATISTICS_SHARE = 0.01  # of the time that was given, at most, for finding duplicates in the data


@dataclass(frozen=True)
class TrainingResult:
    """A finished training: the run, the plan it followed, and its metrics on the validation data.

    `references` are the scores of simple methods, `loses_to` those that the model does not beat, `best` the best
    possible score where it is known, and `leak` says so if the model scored better than that. `intervals` are of 95 %.
    `test`: the metrics on a test part, where the data have one. `scores` are those of the single validation examples,
    `data` says what the data are like and what their parts share, `trust` whether the model's probabilities, bands or
    confidences hold, on the test part if there is one.
    """

    run: Run
    plan: TrainingPlan
    steps: int
    seconds: float
    loss: float
    metrics: dict[str, Any]
    references: dict[str, float]
    best: ReferenceScore | None = None
    leak: str | None = None
    intervals: dict[str, list[float]] = field(default_factory=dict)
    loses_to: tuple[str, ...] = ()
    test: dict[str, Any] | None = None
    scores: ExampleScores | None = None
    data: DataStatistics | None = None
    trust: str | None = None


def evaluate_result(prepared: PreparedData, train: Split, validation: Split, loop: Loop) -> TrainingResult:
    """Load the run as it was kept and measure it on the whole validation data, or a share where minutes are given."""
    began = time.perf_counter()
    # A model that several processes held in parts may not fit on the device of one.
    device = str(loop.device) if loop.distribution.holds_whole_model else "cpu"
    run = load(loop.folder.path, device, module=given_module(loop.module))
    if run.task.examine(run.module, validation):
        run = replace(run, spec=run.spec.replace(facts=run.task.facts()))
        loop.folder.write_spec(run.spec)
    subset = validation
    if loop.plan.minutes is not None:
        seconds = FINAL_EVALUATION_SHARE * 60 * loop.plan.minutes
        subset = prepared.task.evaluation_subset(run.module, validation, seconds)
    task, size = run.task, loop.plan.batch
    scores = task.score_examples(run.module, subset, size)
    metrics = scores.metrics
    facts = task.baseline_facts(train)
    references = {**task.quick_references(facts, validation), **task.references(train, validation)}
    value = metrics.get(task.judged_by)
    lost = [] if value is None else losing_to(task.judged_by, value, references)
    loop.folder.write_references(
        {"metric": task.judged_by, "value": value, "references": references, "loses_to": lost, "facts": facts}
    )
    tested = None
    if prepared.test is not None:
        tested = task.score_examples(run.module, prepared.test.fit(cast(AnySpec, run.module.spec)), size)
    loss = float(metrics.get("loss", loop.best_loss))
    seconds = loop.seconds + time.perf_counter() - began
    loop.folder.add_metrics({"step": loop.step, "metrics": metrics, "seconds": round(seconds, 3)})
    leak = find_leak(prepared.best, metrics)
    test = None if tested is None else tested.metrics
    found = (metrics, references, prepared.best, leak, scores.intervals(), tuple(lost), test)
    most = SECONDS if loop.plan.minutes is None else min(SECONDS, STATISTICS_SHARE * 60 * loop.plan.minutes)
    data = data_statistics(train, validation, task.answers, most)
    if data.duplicates.flagged:
        loop.reporter.on_note(data.duplicates.describe())
    return TrainingResult(
        run, loop.plan, loop.step, seconds, loss, *found, scores, data, (tested or scores).describe_trust()
    )


def find_leak(best: ReferenceScore | None, metrics: dict[str, Any]) -> str | None:
    """A sentence if a metric is better than possible: the model must have seen what it is to predict."""
    if best is None or best.metric not in metrics:
        return None
    score = float(metrics[best.metric])
    if not best.beaten_by(score):
        return None
    return f"{best.metric} {score:.4g} is better than the best possible {best.value:.4g} ({best.why}): something leaks"
