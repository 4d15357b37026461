"""Results as one self-contained page with a picture, and the picture alone: Weft's speed over that of the best peer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.bench.reporting.text import HEADINGS, limits_of, standing_cells
from weft.bench.results import CaseResult, Ratio
from weft.figures.canvas import COLORS, GRAY, canvas_style, drawable_text, save_figure
from weft.figures.web.page import Page
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR, HEAD = 0.34, 1.0  # inches


def measured_ratios(results: Sequence[CaseResult]) -> list[tuple[str, Ratio]]:
    """(case and contest, ratio) of all ratios to peers that were measured."""
    return [
        (f"{result.case}, {contest.contest.name}", ratio)
        for result in results
        for contest in result.contests
        for ratio in contest.ratios()
        if ratio.value is not None and contest.contest.reference is None
    ]


def ratio_figure(results: Sequence[CaseResult]) -> Figure:
    """A bar per ratio with its range; the line at 1 is as fast as the other."""
    from matplotlib.figure import Figure

    found = measured_ratios(results)
    if not found:
        raise WeftError("no ratio was measured, so there is nothing to draw: see the reasons beside the contestants")
    with canvas_style():
        figure = Figure(figsize=(9.6, HEAD + BAR * len(found)), layout="constrained")
        axes = figure.add_subplot()
        for place, (_, ratio) in enumerate(found):
            assert ratio.value is not None and ratio.low is not None and ratio.high is not None
            ahead = ratio.value >= 1
            axes.barh(place, ratio.value, height=0.62, color=COLORS[0] if ahead else COLORS[1], alpha=0.85)
            axes.plot([ratio.low, ratio.high], [place, place], color=GRAY, linewidth=1.6)
            words = f" {ratio.value:.2f} x {ratio.against}"
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            axes.text(ratio.high, place, drawable_text(words), va="center", fontsize=8.5, bbox=paper, zorder=3)
        axes.axvline(1.0, color=GRAY, linewidth=1.2, linestyle=(0, (5, 3)))
        axes.set_yticks(range(len(found)), [drawable_text(f"{name}: {ratio.name}", 64) for name, ratio in found])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25 * max(ratio.high or 0.0 for _, ratio in found))
        axes.tick_params(labelsize=8.5)
        axes.set_xlabel("speed as a multiple of the fastest peer's in the same run; the line is the range over rounds")
    return figure


def draw_ratios(results: Sequence[CaseResult], path: Path) -> Path:
    """The picture as .png, .svg or .pdf."""
    return save_figure(ratio_figure(results), path)


def page_html(results: Sequence[CaseResult], machine: dict[str, Any]) -> str:
    """The page as text: the picture, then all tables."""
    page = Page("weft bench")
    page.paragraph(
        "Each contestant is a process of its own with equal threads; they are checked to compute the same and take "
        "turns. Times are medians with quartiles, ratios medians over rounds with their range."
    )
    if measured_ratios(results):
        page.figure(_svg(ratio_figure(results)), "Speed over that of the fastest peer; the dashed line is 1.")
    for result in results:
        _add_case(page, result)
    versions = ", ".join(f"{name} {found}" for name, found in machine.get("versions", {}).items())
    rest = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "versions")
    page.paragraph(f"Measured on: {rest}; {versions}.")
    return page.html()


def write_page(results: Sequence[CaseResult], machine: dict[str, Any], path: Path) -> Path:
    """The page as a file."""
    from weft.foundation.files.atomic_files import write_text

    if path.suffix.lower() not in (".html", ".htm"):
        raise WeftError(f"{path.name} is no page: end the name in .html")
    write_text(path, page_html(results, machine))
    return path


def _add_case(page: Page, result: CaseResult) -> None:
    page.heading(result.case)
    for contest in result.contests:
        page.paragraph(contest.contest.name)
        rows = [standing_cells(one, contest.contest, contest.limits) for one in contest.standings]
        page.table(HEADINGS, rows)
        for ratio in contest.ratios():
            page.paragraph(ratio.words)
        limits = ", ".join(f"{name} {value:,.4g}" for name, value in limits_of(contest))
        if limits:
            page.paragraph(f"The machine in the same run: {limits}.")
        for note in contest.contest.notes:
            page.paragraph(f"Note: {note}.")
    for table in result.tables:
        page.paragraph(table.title)
        page.table(table.headings, table.rows)
        for note in table.notes:
            page.paragraph(f"Note: {note}.")
    for sentence in result.missing:
        page.paragraph(sentence)


def _svg(figure: Figure) -> str:
    """A figure as inline SVG, without the head of a file."""
    text = io.StringIO()
    with canvas_style():
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
