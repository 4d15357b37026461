"""One self-contained HTML page: text, tables and inline SVG; no script, no external reference, opens from disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path

from weft.foundation.files.atomic_files import write_text

STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --dull: #6e7781; --warn: #9a6700; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem; border-bottom: 1px solid var(--line); }
td:nth-child(2) { white-space: nowrap; }
td.good { color: var(--good); } td.bad { color: var(--bad); font-weight: 600; } td.dull { color: var(--dull); }
td.warn { color: var(--warn); font-weight: 600; }
code { font: .9em ui-monospace, monospace; }
figure { display: inline-block; margin: 1rem 2rem 1rem 0; } figcaption { font-size: .9rem; color: var(--dull); }
svg text { font: 9px system-ui, sans-serif; fill: currentColor; }
"""


# In a notebook the page around is not ours: only what is inside the fragment is styled.
FRAGMENT_STYLE = """
.weft { --line: #8884; --good: #1a7f37; --bad: #cf222e; --dull: #6e7781; --warn: #9a6700; }
.weft h1 { font-size: 1.1rem; margin: .3rem 0; } .weft p { margin: .3rem 0; }
.weft table { border-collapse: collapse; } .weft th, .weft td { text-align: left; padding: .2rem .6rem; }
.weft td.good { color: var(--good); } .weft td.bad { color: var(--bad); font-weight: 600; }
.weft td.dull { color: var(--dull); } .weft td.warn { color: var(--warn); font-weight: 600; }
.weft figure { display: inline-block; margin: .5rem 1.5rem .5rem 0; }
.weft svg text { font: 9px system-ui, sans-serif; fill: currentColor; }
"""


class Page:
    """Collects headings, paragraphs, tables and figures, and writes them as one file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.pieces: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self.pieces.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        self.pieces.append(f"<p>{escape(text)}</p>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] | None = None) -> None:
        """A table; `classes` colors the second cell of each row (good, bad, dull)."""
        lines = ["<table><thead><tr>", *(f"<th>{escape(cell)}</th>" for cell in head), "</tr></thead><tbody>"]
        for number, row in enumerate(rows):
            lines.append("<tr>")
            for column, cell in enumerate(row):
                kind = f' class="{escape(classes[number])}"' if classes is not None and column == 1 else ""
                lines.append(f"<td{kind}>{escape(cell)}</td>")
            lines.append("</tr>")
        self.pieces.append("".join([*lines, "</tbody></table>"]))

    def figure(self, svg: str, caption: str) -> None:
        self.pieces.append(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>")

    @contextmanager
    def unfold(self, title: str) -> Iterator[None]:
        """What is added inside is hidden until its title is clicked."""
        self.pieces.append(f"<details><summary>{escape(title)}</summary>")
        yield
        self.pieces.append("</details>")

    def fragment(self) -> str:
        """The same for a notebook's cell: no page around it."""
        return f'<div class="weft"><style>{FRAGMENT_STYLE}</style>{"".join(self.pieces)}</div>'

    def html(self) -> str:
        head = f'<meta charset="utf-8"><title>{escape(self.title)}</title><style>{STYLE}</style>'
        return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(self.pieces)}</body></html>\n'

    def write(self, path: str | Path) -> Path:
        path = Path(path)
        write_text(path, self.html())
        return path


def svg_matrix(rows: Sequence[Sequence[float]], wrong: Sequence[Sequence[bool]] | None = None, cell: int = 14) -> str:
    """A matrix as inline SVG: queries down, keys across, darker is more; cells that are `wrong` are red."""
    height, width = len(rows), len(rows[0]) if rows else 0
    top = max((value for row in rows for value in row), default=0.0) or 1.0
    side = 22
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'width="{side + width * cell}" height="{side + height * cell}">'
    ]
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            bad = wrong is not None and wrong[i][j]
            # A square root keeps small dependence visible beside large.
            share = 0.0 if value <= 0 else 0.15 + 0.85 * (value / top) ** 0.5
            color = "207,34,46" if bad else "9,105,218"
            fill = f"rgba({color},{share:.2f})" if share else "rgba(128,128,128,0.10)"
            x, y = side + j * cell, side + i * cell
            label = f"output {i}, input {j}: {value:.3g}"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" fill="{fill}">'
                f"<title>{label}</title></rect>"
            )
    for n in range(0, max(height, width), 2):
        if n < height:
            parts.append(f'<text x="{side - 4}" y="{side + n * cell + 10}" text-anchor="end">{n}</text>')
        if n < width:
            parts.append(f'<text x="{side + n * cell + 2}" y="{side - 6}">{n}</text>')
    return "".join([*parts, "</svg>"])
