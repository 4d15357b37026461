"""The report as a page: the table of verdicts, and the dependency matrix drawn next to the declared one."""

from __future__ import annotations

from pathlib import Path

from weft.figures.web.page import Page, svg_matrix
from weft.laws.finding import Report

COLORS = {"holds": "good", "broken": "bad", "not declared": "dull", "not testable": "dull"}


def write_page(report: Report, path: str | Path) -> Path:
    """Write the report as one self-contained HTML file."""
    page = Page(f"Laws of {report.model}")
    page.paragraph(f"{report.headline}.")
    for text in report.assumed:
        page.paragraph(f"Assumed: {text}.")
    if report.dependence is not None and report.declared is not None:
        page.heading("Who depends on whom")
        declared = [[float(cell) for cell in row] for row in report.declared]
        wrong = [
            [value > report.tolerance and not allowed for value, allowed in zip(row, seen, strict=True)]
            for row, seen in zip(report.dependence, report.declared, strict=True)
        ]
        page.figure(svg_matrix(declared), "Declared: output (down) may depend on input (across).")
        page.figure(svg_matrix(report.dependence, wrong), "Found: how much each output changes; red where it may not.")
    page.heading("Laws")
    rows = [(f.law, f.verdict, f.evidence, f.blame or "", f.cause or "") for f in report.findings]
    page.table(
        ("Law", "Verdict", "Evidence", "Blame", "Likely cause"), rows, [COLORS[f.verdict] for f in report.findings]
    )
    return page.write(path)
