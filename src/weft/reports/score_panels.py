"""What the model reached: metrics with intervals beside simple methods, calibration, confusion, the worst errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.figures.panels.overlays import TilesPanel
from weft.figures.panels.panel import Panel
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.records import RecordsPanel
from weft.figures.panels.tables import TablePanel
from weft.tasks.support.evaluation.calibration import Calibration
from weft.tasks.support.evaluation.example_scores import ExampleScores
from weft.tasks.support.evaluation.references import better
from weft.training.result import TrainingResult

NOMINAL = "nominal_"
WORST = 12
MOST_CLASSES = 15
MOST_ROWS = 40
SHOWN = 240  # letters of an input


def metrics_panel(result: TrainingResult) -> RecordsPanel:
    """Numbers with their 95 % intervals, the metric that users quote first, then what simple methods reach."""
    task, metrics = result.run.task, result.metrics
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    shown = sorted((name for name in numbers if not name.startswith(NOMINAL)), key=lambda name: name != task.metric)
    columns = ("validation", "95 % interval") + (("test",) if result.test is not None else ())
    rows: list[tuple[str, ...]] = []
    marked: list[int] = []
    for name in shown:
        beside = f" ({numbers[NOMINAL + name]:g} promised)" if NOMINAL + name in numbers else ""
        test = () if result.test is None else (_number(result.test.get(name, "")),)
        rows.append((name.replace("_", " "), _number(numbers[name]) + beside, _interval(result, name), *test))
    if result.best is not None:
        best = f"{result.best.metric.replace('_', ' ')}, best possible"
        rows.append((best, _number(result.best.value), *[""] * (len(columns) - 1)))
    own = numbers.get(task.judged_by)
    for name, value in result.references.items():
        if own is not None and not better(task.judged_by, float(own), value):
            marked.append(len(rows))
        title = f"{task.judged_by.replace('_', ' ')} of a simple method, {name}"
        rows.append((title, _number(value), *[""] * (len(columns) - 1)))
    note = "Intervals by bootstrap over examples (1,000 resamples). Simple methods that are not beaten are marked."
    if result.trust is not None:
        note = f"{note} {_sentence(result.trust)}"
    return RecordsPanel("Metrics", ("", *columns), tuple(rows), tuple(marked), note)


def detail_panels(metrics: Mapping[str, Any]) -> list[RecordsPanel]:
    """Metrics that are tables: by length of the source, by column."""
    found = []
    for name, value in metrics.items():
        title = name.replace("_", " ").capitalize()
        if isinstance(value, dict) and value:
            pairs = list(value.items())[:MOST_ROWS]
            found.append(RecordsPanel(title, ("", ""), tuple((str(key), _number(one)) for key, one in pairs)))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            rows = tuple(tuple(_number(cell) for cell in row.values()) for row in value[:MOST_ROWS])
            found.append(RecordsPanel(title, tuple(value[0]), rows))
    return found


def calibration_panels(calibration: Calibration, words: str) -> list[Panel]:
    """How often answers are right as often as their probability says, and what abstaining would leave."""
    table = calibration.table()
    said = np.array([row.confidence for row in table], dtype=np.float32)
    right = np.array([row.accuracy for row in table], dtype=np.float32)
    rows = tuple((f"{row.confidence:.3f}", f"{row.accuracy:.3f}", f"{row.answers:,}") for row in table)
    panels: list[Panel] = [
        PlotPanel(
            "Calibration: how often answers of a probability are right",
            said,
            np.stack((right, said)),
            ("right", "as promised"),
            "probability that the model gives",
            "share that is right",
            f"{_sentence(words)} Each point stands for equally many answers.",
        ),
        RecordsPanel("Reliability table", ("probability", "share that is right", "answers"), rows),
    ]
    coverage, accuracy = calibration.risk_coverage()
    if len(coverage) > 1:
        shares = (coverage.astype(np.float32), accuracy[None].astype(np.float32))
        note = "Only the most probable answers are given: `weft predict RUN ... --abstain P` withholds the others."
        lines, of = ("accuracy of the answers that are given",), "share of answers that are given"
        panels.append(PlotPanel("Accuracy when the model may abstain", *shares, lines, of, "accuracy", note))
    return panels


def confusion_panel(scores: ExampleScores, classes: Sequence[str]) -> TablePanel | None:
    """Counts of what is true, down, and what the model says, across; of many classes the most frequent."""
    pairs = [
        pair
        for truth, said in zip(scores.truth, scores.answers, strict=True)
        for pair in zip(_names(truth), _names(said), strict=True)
    ]
    counts = Counter(name for pair in pairs for name in pair)
    often = set(sorted(counts, key=lambda name: -counts[name])[:MOST_CLASSES])
    kept = [name for name in classes if name in often]
    if len(kept) < 2:
        return None
    place = {name: number for number, name in enumerate(kept)}
    values = np.zeros((len(kept), len(kept)), dtype=np.float32)
    for truth, said in pairs:
        if truth in place and said in place:
            values[place[truth], place[said]] += 1
    left = "" if len(kept) == len(counts) else f" The {len(kept)} most frequent of {len(counts):,} classes."
    note = f"Rows are what is true, columns what the model says.{left}"
    names = tuple(kept)
    return TablePanel("Confusion matrix", names, names, values, row_name="true", column_name="said", note=note)


def worst_examples(scores: ExampleScores) -> list[int]:
    """The examples of the lowest quality; among those that are equally wrong, the ones the model is surest of."""
    sure = np.zeros(len(scores.quality)) if scores.confidence is None else scores.confidence
    order = np.lexsort((-sure, scores.quality))
    return [int(n) for n in order if scores.truth[n] is None or scores.truth[n] != scores.answers[n]][:WORST]


def worst_panel(scores: ExampleScores) -> RecordsPanel | None:
    """The worst errors: input, truth and answer."""
    wrong = worst_examples(scores)
    if not wrong:
        return None
    told = any(scores.truth[n] is not None for n in wrong)
    rows = [
        (
            _shortened(scores.show(n)),
            *((_shortened(scores.truth[n]),) if told else ()),
            _shortened(scores.answers[n]),
            *(() if scores.confidence is None else (f"{scores.confidence[n]:.3f}",)),
        )
        for n in wrong
    ]
    head = ("example", *(("true",) if told else ()), "the model", *(() if scores.confidence is None else ("sure",)))
    note = f"Of {len(scores.answers):,} held-out examples that were scored one by one."
    return RecordsPanel("Worst errors", head, tuple(rows), note=note)


def worst_pictures_panel(scores: ExampleScores) -> TilesPanel | None:
    """The worst errors as pictures, with what is true and what the model says."""
    wrong = worst_examples(scores)
    if scores.picture is None or not wrong:
        return None
    pixels = [np.asarray(scores.picture(n), dtype=np.float32) / 255 for n in wrong]
    colors = np.stack([np.repeat(one, 3, axis=2) if one.shape[2] == 1 else one for one in pixels])
    names = tuple(f"{scores.truth[n]}, not {scores.answers[n]}" for n in wrong)
    return TilesPanel("Worst errors as pictures", colors, names, 6)


def score_panels(result: TrainingResult) -> list[Panel]:
    """All of them that there are."""
    panels: list[Panel | None] = [metrics_panel(result), *detail_panels(result.metrics)]
    scores, classes = result.scores, result.run.task.answers
    if scores is not None and scores.calibration is not None and len(scores.calibration.right):
        panels += calibration_panels(scores.calibration, scores.calibration.describe())
        panels.append(None if classes is None else confusion_panel(scores, classes))
    if scores is not None:
        panels += [worst_panel(scores), worst_pictures_panel(scores)]
    return [panel for panel in panels if panel is not None]


def _names(answer: Any) -> list[str]:
    return [answer] if isinstance(answer, str) else list(answer)


def _interval(result: TrainingResult, name: str) -> str:
    ends = result.intervals.get(name)
    return "" if ends is None else f"{_number(ends[0])} to {_number(ends[1])}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shortened(value: Any) -> str:
    """In one line, cut after some letters; of several references the first."""
    text = (
        value
        if isinstance(value, str)
        else " ".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(value)
    )
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("." if words else "")
