"""Notebooks: a lesson run cell by cell by nbclient, stored with its outputs and its source's digest, and as a page."""

from __future__ import annotations

import base64
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_atomic
from weft.lessons.budgets import BUDGETS, VARIABLE
from weft.lessons.embedded_source import MIME, source_by_name
from weft.lessons.percent_format import digest, read_cells

FACTS = "weft"  # the notebook's metadata: digest, budget, seconds
CAPTION = re.compile(r"\[picture: (.*)\]", re.S)


def lesson_notebook(lesson: Path) -> Any:
    """The notebook of a lesson, not yet run."""
    try:
        from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
    except ImportError:
        raise WeftError("building lessons needs nbformat and nbclient: pip install 'weft[lessons]'") from None
    makers: dict[str, Any] = {"code": new_code_cell, "markdown": new_markdown_cell}
    cells = []
    for number, cell in enumerate(read_cells(lesson.read_text(encoding="utf-8"), lesson.name), start=1):
        cells.append(makers[cell.kind](cell.text, id=f"cell-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def run_lesson(lesson: Path, budget: str, out: Path) -> float:
    """Run a lesson in an empty folder and store it as a notebook with outputs; the seconds that it took."""
    import nbformat
    from nbclient import NotebookClient

    notebook = lesson_notebook(lesson)
    before, started = digest(lesson), time.monotonic()
    with tempfile.TemporaryDirectory() as desk:
        client = NotebookClient(
            notebook,
            timeout=None,
            kernel_name="python3",
            resources={"metadata": {"path": desk}},
            record_timing=False,
        )
        client.execute(env={**os.environ, VARIABLE: budget, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    seconds = time.monotonic() - started
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata[FACTS] = {"digest": before, "budget": budget, "seconds": round(seconds, 1)}
    out.mkdir(parents=True, exist_ok=True)
    text = nbformat.writes(notebook)

    def write(fresh: Path) -> None:
        fresh.write_text(text + "\n", encoding="utf-8")

    write_atomic(out / f"{lesson.stem}.ipynb", write)
    return seconds


def stored_facts(notebook: Path) -> dict[str, Any]:
    """Digest, budget and seconds of a stored notebook; empty where there is none."""
    if not notebook.is_file():
        return {}
    import nbformat

    return dict(nbformat.read(notebook, as_version=4).metadata.get(FACTS, {}))


def is_stored(lesson: Path, budget: str, out: Path) -> bool:
    """Whether outputs of the present source are there, of this budget or a larger one."""
    facts = stored_facts(out / f"{lesson.stem}.ipynb")
    return facts.get("digest") == digest(lesson) and BUDGETS.index(facts["budget"]) >= BUDGETS.index(budget)


def write_page(notebook: Path, out: Path) -> Path:
    """A stored notebook as a Markdown page, with its pictures beside it; embedded source is read anew."""
    import nbformat

    read = nbformat.read(notebook, as_version=4)
    pictures = out / notebook.stem
    pictures.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for cell in read.cells:
        if cell.cell_type == "markdown":
            lines += [cell.source, ""]
            continue
        lines += ["```python", cell.source, "```", ""]
        for output in cell.outputs:
            lines += [*_output_lines(output, pictures), ""]
    page = out / f"{notebook.stem}.md"
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return page


def _output_lines(output: Any, pictures: Path) -> list[str]:
    """One output of a cell as Markdown."""
    if output.output_type == "stream":
        return _fenced(output.text)
    data = output.get("data", {})
    if MIME in data:
        return [source_by_name(*data[MIME]["names"]).markdown()]
    if "image/png" in data:
        name = f"{len(list(pictures.glob('*.png'))) + 1}.png"
        (pictures / name).write_bytes(base64.b64decode(data["image/png"]))
        found = CAPTION.search(data.get("text/plain", ""))
        caption = " ".join(found.group(1).split()) if found else "picture"
        return [f"![{caption}]({pictures.name}/{name})", "", f"*{caption}*"]
    if "text/markdown" in data:
        return [str(data["text/markdown"])]
    return _fenced(data.get("text/plain", ""))


def _fenced(text: str) -> list[str]:
    return ["```text", text.rstrip("\n"), "```"] if text.strip() else []
