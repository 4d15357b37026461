"""The plan beside what happened, the sizes that were timed and those that raced, and the curves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.figures.charts.curves import running_mean
from weft.figures.panels.panel import Panel
from weft.figures.panels.plots import PlotPanel
from weft.figures.panels.records import RecordsPanel
from weft.foundation.spec import Tree
from weft.training.result import TrainingResult

POINTS = 300  # places of a curve
WHY = {
    "time": ", to end on time",
    "regularized": ", with more dropout and weight decay: the held-out loss no longer fell with the training loss",
    "shortened": ": the held-out loss no longer fell with the training loss",
}
SMOOTHED = 40  # a running mean is taken over this part of a long curve


def plan_panel(result: TrainingResult) -> RecordsPanel:
    """What was planned, and what came of it."""
    plan = result.plan
    rows = [
        ("parameters", f"{plan.parameters:,}", ""),
        ("steps", f"{plan.steps:,}", f"{result.steps:,}"),
        ("tokens per step", f"{plan.batch:,}", ""),
        ("epochs", f"{plan.epochs:.2f}", f"{plan.epochs * result.steps / plan.steps:.2f}"),
        ("time", _seconds(plan.seconds), _seconds(result.seconds)),
        ("memory at the fullest moment", f"{plan.memory / 2**20:,.0f} MiB", ""),
        ("threads", str(plan.threads), ""),
    ]
    if plan.minutes is not None:
        rows.insert(5, ("minutes given", f"{plan.minutes:g}", f"{result.seconds / 60:.2f}"))
    if plan.head is not None:
        rows.append(("last layer", plan.head.describe(), ""))
    made = []
    for one in plan.revisions:
        speed = "" if one.speed is None else f", at {one.speed:.0%} of the planned speed"
        made.append(f"Step {one.at:,}: {one.steps:,} steps{speed}{WHY[one.reason]}.")
    note = f"The plan was revised. {' '.join(made)}" if made else ""
    return RecordsPanel("Plan and what happened", ("", "planned", "happened"), tuple(rows), note=note)


def tried_panel(result: TrainingResult) -> RecordsPanel | None:
    """The sizes that were looked at before the first step, by the formula's order."""
    tried, race = result.plan.tried, result.plan.race
    if not tried:
        return None
    names = list(dict.fromkeys(name for one in tried for name in one))
    rows = tuple(tuple(_cell(one.get(name, "")) for name in names) for one in tried)
    head = tuple(name.replace("_", " ") for name in names)
    note = (
        "Timed before the first step, or reckoned from the FLOPs of one that was. The formula expects the lowest loss "
    )
    note += "of the first."
    chosen = 0
    if race is not None:
        winner = race.entrants[race.winner]
        shapes = [(one.get("width"), one.get("layers")) for one in tried]
        chosen = shapes.index((winner.width, winner.layers))
        note += f" The race of sizes chose {winner.name}."
    return RecordsPanel("Sizes that were looked at", head, rows, marked=(chosen,), note=note)


def race_panels(result: TrainingResult) -> list[Panel]:
    """The race of sizes: held-out loss by the seconds that each was trained, and what it was extrapolated to."""
    race = result.plan.race
    if race is None:
        return []
    names = [one.name for one in race.entrants]
    names[race.winner] += " (went on)"
    curves = [np.array([(p.seconds, p.loss) for p in one.points], dtype=np.float64) for one in race.entrants]
    rows = [
        (
            name,
            f"{one.parameters:,}",
            f"{one.batch:,}",
            f"{one.expected:.4f}",
            f"{one.points[-1].loss:.4f}" if one.points else "",
            one.at_the_end,
        )
        for name, one in zip(names, race.entrants, strict=True)
    ]
    head = ("size", "parameters", "tokens per step", "formula", "last held-out loss", "extrapolated to the end")
    note = (
        f"{race.describe()}. Losses at the end are extrapolated from the last points of all, and weighed with what the "
        f"formula expects, of which a nat is {race.scale:.3g} nats here; its own number ranks sizes and is no loss."
    )
    table = RecordsPanel("The race of sizes", head, tuple(rows), marked=(race.winner,), note=note)
    shown = [(name, curve) for name, curve in zip(names, curves, strict=True) if len(curve)]
    places = np.unique(np.concatenate([curve[:, 0] for _, curve in shown]))
    values = [np.interp(places, curve[:, 0], curve[:, 1], left=np.nan, right=np.nan) for _, curve in shown]
    plot = PlotPanel(
        "Held-out loss of each size by the seconds it was trained",
        places.astype(np.float32),
        np.array(values, dtype=np.float32),
        tuple(name for name, _ in shown),
        "seconds",
        "loss in nats",
    )
    return [table, plot]


def curves_panel(rows: Iterable[Tree], result: TrainingResult) -> PlotPanel | None:
    """Training and validation loss by step, as metrics.jsonl has them, and the best possible loss where it is known."""
    rows = list(rows)
    curves = {
        "training": [(row["step"], row["loss"]) for row in rows if "loss" in row],
        "validation": [(row["step"], row["validation"]) for row in rows if "validation" in row],
        "training, measured like validation": [(row["step"], row["training"]) for row in rows if "training" in row],
    }
    points = {name: np.array(curve, dtype=np.float64) for name, curve in curves.items() if curve}
    points = {name: curve[np.isfinite(curve).all(1)] for name, curve in points.items()}
    points = {name: curve for name, curve in points.items() if len(curve)}
    if not points:
        return None
    last = max(curve[-1, 0] for curve in points.values())
    places = np.unique(np.rint(np.linspace(min(curve[0, 0] for curve in points.values()), last, POINTS)))
    values = []
    for curve in points.values():
        smooth = running_mean(curve[:, 1], max(1, len(curve) // SMOOTHED)) if len(curve) > POINTS else curve[:, 1]
        values.append(np.interp(places, curve[:, 0], smooth, left=np.nan, right=np.nan))
    names = list(points)
    if result.best is not None and result.best.metric == "loss":
        names, values = [*names, "best possible"], [*values, np.full(len(places), result.best.value)]
    title = "Loss by step, in nats per answer"
    return PlotPanel(
        title, places.astype(np.float32), np.array(values, dtype=np.float32), tuple(names), "step", "loss in nats"
    )


def plan_panels(rows: Iterable[Tree], result: TrainingResult) -> list[Panel]:
    """All of them that there are."""
    found = (plan_panel(result), tried_panel(result), *race_panels(result), curves_panel(rows, result))
    return [panel for panel in found if panel is not None]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "not planned"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
