"""The end of a training: the kept weights are evaluated, beside the best possible score and simple methods."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from weft.data.samples import ReferenceScore
from weft.foreign.wrap_module import given_module
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.runs.run import Run, load
from weft.tasks.support.evaluation.data_statistics import SECONDS, DataStatistics, data_statistics
from weft.tasks.support.evaluation.example_scores import ExampleScores
from weft.tasks.support.evaluation.references import losing_to
from weft.tasks.task import PreparedData, Split, Task
from weft.training.loop import Loop
from weft.training.planning.plan import FINAL_SHARE, TrainingPlan

STATISTICS_SHARE = 0.01  # of the time that was given, at most, for finding duplicates in the data


@dataclass(frozen=True)
class TrainingResult:
    """A finished training: the run, the plan it followed, and its metrics on the validation data.

    `references` are the scores of simple methods, `loses_to` those that the model does not beat, `best` the best
    possible score where it is known, and `leak` says so if the model scored better than that. `intervals` are of 95 %.
    `test`: the metrics on a test part, where the data have one. `seconds` count what `minutes` do: reading, planning,
    training and evaluating; of a number of steps, all but reading and planning. `scores` are those of the single
    validation examples, `data` says what the data are like and what their parts share, `trust` whether the model's
    probabilities, bands or confidences hold, on the test part if there is one.
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


@dataclass(frozen=True)
class SimpleScores:
    """What simple methods reach on the validation data, and facts to measure them on other data."""

    references: dict[str, float]
    facts: Tree

    @classmethod
    def of(cls, task: Task, train: Split, validation: Split) -> SimpleScores:
        """Fit and measure them: before the first step, so that the plan knows how long it took."""
        facts = task.baseline_facts(train)
        return cls({**task.quick_references(facts, validation), **task.references(train, validation)}, facts)


def evaluate_result(prepared: PreparedData, validation: Split, loop: Loop, simple: SimpleScores) -> TrainingResult:
    """Load the run as it was kept and measure it on the whole validation data, or a share where minutes are given."""
    began = loop.clock()
    # A model that several processes held in parts may not fit on the device of one.
    device = str(loop.device) if loop.distribution.holds_whole_model else "cpu"
    run = load(loop.folder.path, device, module=given_module(loop.module))
    if run.task.blend(run.module, validation):
        loop.folder.write_model(run.module.state_dict(), {"step": loop.step, "loss": loop.best_loss})
    if run.task.examine(run.module, validation):
        run = replace(run, spec=run.spec.replace(facts=run.task.facts()))
        loop.folder.write_spec(run.spec)
    subset = validation
    if loop.plan.minutes is not None:
        subset = run.task.evaluation_subset(run.module, validation, FINAL_SHARE * loop.plan.budget)
    task, size, references = run.task, loop.plan.batch, simple.references
    scores = task.score_examples(run.module, subset, size)
    metrics = scores.metrics
    value = metrics.get(task.judged_by)
    lost = [] if value is None else losing_to(task.judged_by, value, references)
    loop.folder.write_references(
        {"metric": task.judged_by, "value": value, "references": references, "loses_to": lost, "facts": simple.facts}
    )
    tested = None
    if prepared.test is not None:
        tested = task.score_examples(run.module, prepared.test.fit(cast(AnySpec, run.module.spec)), size)
    loss = float(metrics.get("loss", loop.best_loss))
    seconds = loop.seconds + loop.clock() - began
    loop.folder.add_metrics({"step": loop.step, "metrics": metrics, "seconds": round(seconds, 3)})
    leak = find_leak(prepared.best, metrics)
    test = None if tested is None else tested.metrics
    found = (metrics, references, prepared.best, leak, scores.intervals(), tuple(lost), test)
    most = SECONDS if loop.plan.minutes is None else min(SECONDS, STATISTICS_SHARE * loop.plan.budget)
    data = data_statistics(loop.train, validation, task.answers, most)
    if data.duplicates.flagged:
        loop.reporter.on_note(data.duplicates.describe())
    trust = (tested or scores).describe_trust()
    total = loop.plan.before + loop.seconds + loop.clock() - began
    return TrainingResult(run, loop.plan, loop.step, total, loss, *found, scores, data, trust)


def find_leak(best: ReferenceScore | None, metrics: dict[str, Any]) -> str | None:
    """A sentence if a metric is better than possible: the model must have seen what it is to predict."""
    if best is None or best.metric not in metrics:
        return None
    score = float(metrics[best.metric])
    if not best.beaten_by(score):
        return None
    return f"{best.metric} {score:.4g} is better than the best possible {best.value:.4g} ({best.why}): something leaks"
