"""Metrics on the terminal: one line per number, with intervals, beside what simple methods reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

Intervals = Mapping[str, Sequence[float]]
NOMINAL = "nominal_"  # what a share should be, printed beside it
HELD_OUT = "_held_out"  # how many there are, printed beside how many were taken


def print_metrics(
    out: Console,
    metrics: dict[str, Any],
    main: str,
    references: Mapping[str, float] | None = None,
    intervals: Intervals | None = None,
    judged_by: str | None = None,
) -> None:
    """One line per number, the `main` metric first and in bold; what simple methods reach stands below, dimmed.

    `judged_by` is the metric of the simple methods, `main` if left out.
    """
    references, judged_by = references or {}, judged_by or main
    # A simple method's error among the metrics is not printed again.
    hidden = {f"{name}_{judged_by}" for name in references}
    hidden |= {name for name in metrics if name.startswith(NOMINAL) or name.endswith(HELD_OUT)}
    shown = {name: value for name, value in metrics.items() if name not in hidden}
    titles = {name: name if judged_by in name else f"{name} ({judged_by.replace('_', ' ')})" for name in references}
    wide = max(map(len, (*shown, *titles.values(), "best possible")))
    for name, value in sorted(shown.items(), key=lambda item: item[0] != main):
        title = name.replace("_", " ").ljust(wide)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            out.print(f"  {title}")
            for row in value:
                out.print("    " + "  ".join(f"{key} {_number(cell)}" for key, cell in row.items()), markup=False)
        elif isinstance(value, dict):
            out.print(f"  {title} " + ", ".join(f"{k} {_number(v)}" for k, v in value.items()), markup=False)
        else:
            more = _beside(name, metrics, (intervals or {}).get(name))
            out.print(f"  {title} {_number(value)}{more}", markup=False, style="bold" if name == main else "")
    for name, value in references.items():
        out.print(f"  [dim]{escape(titles[name].ljust(wide))} {_number(value)}[/dim]")


def print_standing(
    out: Console,
    metric: str,
    metrics: Mapping[str, Any],
    references: Mapping[str, float],
    intervals: Intervals | None = None,
) -> None:
    """In words, which simple methods the model loses to, or is hardly better than."""
    from weft.tasks.support.evaluation.references import describe_standing

    if metric in metrics:
        for sentence in describe_standing(metric, metrics[metric], references, (intervals or {}).get(metric)):
            out.print(f"[bold yellow]{escape(sentence)}[/bold yellow]", soft_wrap=True)


def print_trust(
    out: Console,
    trust: str | None,
    reliability: Sequence[Mapping[str, Any]] = (),
    abstention: Mapping[str, Any] | None = None,
) -> None:
    """Whether probabilities, bands or confidences are to be trusted; a reliability table; what abstaining leaves."""
    if trust is not None:
        from weft.tasks.support.evaluation.calibration import tells_fault

        out.print(trust, markup=False, style="bold yellow" if tells_fault(trust) else "", soft_wrap=True)
    if reliability:
        out.print("[dim]probability   right   answers[/dim]")
        for row in reliability:
            out.print(f"     {row['confidence']:.4f}  {row['accuracy']:.4f}  {row['answers']:>8,}", style="dim")
    if abstention is not None:
        given, least = abstention["answered"], abstention["least"]
        right = "" if abstention["accuracy"] is None else f", {abstention['accuracy']:.1%} of them right"
        out.print(f"with --abstain {least:g}: {given:,} answers given, {abstention['coverage']:.1%} of all{right}")


def _beside(name: str, metrics: Mapping[str, Any], ends: Sequence[float] | None) -> str:
    """The interval of a metric, and what it should be where that is known."""
    said = "" if ends is None else f"  (95 %: {_number(ends[0])} to {_number(ends[1])})"
    nominal, whole = metrics.get(NOMINAL + name), metrics.get(name + HELD_OUT)
    said += "" if whole is None else f" of {_number(whole)} held out"
    return said if nominal is None else f"{said}  nominal {_number(nominal)}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
