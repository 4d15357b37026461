"""The report as a page or in a notebook: the table of verdicts, and the dependency matrix beside the declared one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.figures.web.page import Page, svg_matrix
from weft.laws.finding import Finding, Report

COLORS = {"holds": "good", "broken": "bad", "caution": "warn", "not declared": "dull", "not testable": "dull"}


def write_page(report: Report, path: str | Path) -> Path:
    """Write the report as one self-contained HTML file."""
    page = Page(f"Laws of {report.model}")
    page.paragraph(f"{report.headline}. Judged in {report.precision}.")
    for text in report.assumed:
        page.paragraph(f"Assumed: {text}.")
    if report.dependence is not None:
        page.heading("Who depends on whom")
        _matrices(page, report)
    page.heading("Laws")
    _table(page, report.by_weight)
    return page.write(path)


def notebook_html(report: Report) -> str:
    """What a notebook shows: broken laws and cautions, all laws to unfold, and the matrices."""
    page = Page(f"Laws of {report.model}")
    page.paragraph(f"{report.headline} ({report.precision}, {report.seconds:.1f} s).")
    if report.broken or report.cautions:
        _table(page, (*report.broken, *report.cautions))
    with page.unfold("All laws, and what was assumed"):
        for text in report.assumed:
            page.paragraph(f"Assumed: {text}.")
        _table(page, report.by_weight)
        _matrices(page, report)
    return page.fragment()


def _table(page: Page, findings: Sequence[Finding]) -> None:
    rows = [(f.law, f.verdict, f.evidence, f.blame or "", f.cause or "") for f in findings]
    head = ("Law", "Verdict", "Evidence", "Blame", "Likely cause")
    page.table(head, rows, [COLORS[f.verdict] for f in findings])


def _matrices(page: Page, report: Report) -> None:
    if report.dependence is None or report.declared is None:
        return
    declared = [[float(cell) for cell in row] for row in report.declared]
    wrong = [
        [value > report.tolerance and not allowed for value, allowed in zip(row, seen, strict=True)]
        for row, seen in zip(report.dependence, report.declared, strict=True)
    ]
    page.figure(svg_matrix(declared), "Declared: output (down) may depend on input (across).")
    page.figure(svg_matrix(report.dependence, wrong), "Found: how much each output changes; red where it may not.")
