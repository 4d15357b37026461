"""Notebooks: runs and what was seen show themselves, figures are inline, and a training moves a bar."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import weft
from weft.reports.notebook import NotebookReporter
from weft.training.reporting import TrainingProgress

SMALL = {"width": 16, "layers": 1, "training.guard": False, "training.threads": 1, "training.batch": 64}
CELLS = (
    """import warnings; warnings.simplefilter("ignore")
import weft
run = weft.train("text", "book.txt", out="run", steps=3, set={SMALL})""",
    "run",
    """with weft.watch(run) as seen:
    run.predict("the ", max_tokens=3, seed=1)
seen""",
    "seen.show()",
    "weft.laws.check(run.module)",
)


def test_a_training_in_a_notebook_moves_a_bar(monkeypatch):
    drawn = []
    handle = SimpleNamespace(update=lambda shown: drawn.append(shown.data))
    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: drawn.append(shown.data) or handle)
    reporter = NotebookReporter("training <text>")
    reporter.on_step(TrainingProgress(5, 20, 1.25, 1.0, 100.0, 3.0, 9.0))
    reporter.on_evaluation(5, 1.5, True)
    reporter.on_note("a & b")
    assert 'value="0.0000"' in drawn[0] and "training &lt;text&gt;" in drawn[0]
    assert 'value="0.2500"' in drawn[1] and "step 5 of 20, loss 1.2500, 9 s left" in drawn[1]
    assert "validation loss 1.5000" in drawn[-1] and "a &amp; b" in drawn[-1]


def test_train_takes_it_in_a_notebook_alone(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(
        "weft.reports.train.NotebookReporter", lambda title: made.append(title) or NotebookReporter(title)
    )
    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: None)
    (tmp_path / "book.txt").write_text("the cat sat on the mat. " * 60)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    weft.train("text", tmp_path / "book.txt", tmp_path / "plain", steps=1, set=SMALL)
    assert made == []
    monkeypatch.setattr("weft.reports.train.in_notebook", lambda: True)
    weft.train("text", tmp_path / "book.txt", tmp_path / "noted", steps=1, set=SMALL)
    assert made == ["training text"]


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")
def test_a_real_kernel_shows_figures_inline(tmp_path, monkeypatch):
    """The cells run in a kernel of Jupyter; what they show is what a reader sees."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    (tmp_path / "book.txt").write_text("the cat sat on the mat. " * 60)
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.replace("{SMALL}", repr(SMALL))) for cell in CELLS]
    )
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        {kind: data for output in cell.outputs for kind, data in output.get("data", {}).items()} for cell in book.cells
    ]
    assert 'value="1.0000"' in shown[0]["text/html"]
    assert "parameters" in shown[1]["text/html"] and "run.predict" in shown[1]["text/html"]
    assert "<svg" in shown[2]["text/html"]
    assert any(kind.startswith("application/vnd.plotly") or kind == "text/html" for kind in shown[3])
    assert "causality" in shown[4]["text/html"]
