"""Lessons: each has its form, the shortest run, answers are judged, outputs carry the digest of their source."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from weft import lessons
from weft.lessons import checking, embedded_source, percent_format
from weft.parts.scores import ScaledDot, scaled_dot

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "lessons"
FILES = percent_format.lesson_files(FOLDER)
SHORTEST = ("01", "05", "06")

LESSON = """# %% [markdown]
# # 1. A lesson
#
# $$y = x$$

# %%
import matplotlib.pyplot as plt

from weft import lessons
from weft.parts.scores import dot

lessons.source(dot)

# %%
figure, axis = plt.subplots()
lessons.show(figure, "nothing to see")

# %%
print("two", 1 + 1)
lessons.is_full()
"""


def call(*words, **changes):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **changes}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)


def lesson_id(path):
    return path.stem


@pytest.mark.parametrize("path", FILES, ids=lesson_id)
def test_every_lesson_has_its_form(path):
    number = int(path.name[:2])
    cells = percent_format.read_cells(path.read_text(encoding="utf-8"), path.name)
    text = "\n".join(cell.text for cell in cells if cell.kind == "markdown")
    code = "\n".join(cell.text for cell in cells if cell.kind == "code")
    assert percent_format.lesson_title(cells).startswith(f"{number}. ")
    assert re.search(r"\*\*Lecture topics?:\*\* \w", text)
    assert re.search(r"\$\$.+?\$\$", text, re.S)
    assert "lessons.source(" in code and "# change me" in code and "lessons.show(" in code
    assert re.findall(r'lessons\.check\("([\d.]+)", \.\.\.\)', code) == [f"{number}.{n}" for n in (1, 2, 3)]
    assert re.findall(r"^\*\*(\d+\.\d)\*\* ", text, re.M) == [f"{number}.{n}" for n in (1, 2, 3)]
    assert "lessons.claim(" in code


def test_lessons_are_numbered_without_gaps():
    assert [int(path.name[:2]) for path in FILES] == list(range(1, len(FILES) + 1))


@pytest.mark.parametrize("path", FILES, ids=lesson_id)
def test_every_lesson_has_questions_of_its_own(path):
    found = importlib.import_module(f"weft.lessons.answers.lesson_{path.name[:2]}").QUESTIONS
    assert list(found) == [f"{int(path.name[:2])}.{n}" for n in (1, 2, 3)]
    assert all(question.wrong for question in found.values())


@pytest.mark.parametrize("path", FILES, ids=lesson_id)
def test_stored_outputs_are_those_of_the_present_source(path):
    stored = FOLDER / "outputs" / f"{path.stem}.ipynb"
    if stored.is_file():
        notebook = json.loads(stored.read_text(encoding="utf-8"))
        facts = notebook["metadata"]["weft"]
        assert facts["digest"] == percent_format.digest(path), "run `python docs/build_lessons.py run` again"
        assert facts["budget"] in ("quick", "full")
        cells = percent_format.read_cells(path.read_text(encoding="utf-8"))
        assert ["".join(cell["source"]) for cell in notebook["cells"]] == [cell.text for cell in cells]


@pytest.mark.parametrize("path", [path for path in FILES if path.name[:2] in SHORTEST], ids=lesson_id)
def test_the_shortest_lessons_run(path, tmp_path):
    out = call(path, WEFT_LESSONS="quick", MPLBACKEND="agg")
    assert out.returncode == 0, out.stderr
    assert "Claim: " in out.stdout and "Question " in out.stdout


def test_a_lesson_becomes_a_notebook_and_a_page(tmp_path):
    """Slow to start, so once: run, stored with its digest, written as a page, and not run again."""
    pytest.importorskip("nbclient")
    from weft.lessons import notebooks

    lesson = tmp_path / "01_tiny.py"
    lesson.write_text(LESSON)
    code = "import sys; from pathlib import Path; from weft.lessons.notebooks import run_lesson; "
    out = call("-c", code + "run_lesson(Path(sys.argv[1]), 'full', Path(sys.argv[2]))", lesson, tmp_path)
    assert out.returncode == 0, out.stderr
    stored = json.loads((tmp_path / "01_tiny.ipynb").read_text())
    assert stored["metadata"]["weft"]["digest"] == percent_format.digest(lesson)
    assert notebooks.is_stored(lesson, "quick", tmp_path) and notebooks.is_stored(lesson, "full", tmp_path)
    page = notebooks.write_page(tmp_path / "01_tiny.ipynb", tmp_path / "pages").read_text()
    assert "# 1. A lesson" in page and "$$y = x$$" in page
    assert "def dot(query: Tensor, key: Tensor)" in page and "`src/weft/parts/scores.py`, line " in page
    assert "![nothing to see](01_tiny/1.png)" in page and "two 2" in page and "True" in page
    assert (tmp_path / "pages" / "01_tiny" / "1.png").read_bytes().startswith(b"\x89PNG")
    lesson.write_text(LESSON + "\n")
    assert not notebooks.is_stored(lesson, "quick", tmp_path)


def test_embedded_source_is_the_file_s():
    shown = lessons.source(scaled_dot, ScaledDot.scale_of)
    assert "e_ij = q_i^T k_j / sqrt(D_K)" in repr(shown)
    file = (ROOT / "src" / shown.parts[0].file).read_text().splitlines()
    assert file[shown.parts[0].line - 1].startswith("def scaled_dot(")
    assert shown.parts[1].text.startswith("def scale_of(")  # no longer indented
    names = [part.name for part in shown.parts]
    assert embedded_source.source_by_name(*names).parts == shown.parts
    with pytest.raises(weft.WeftError, match="not a function, method or class of Weft"):
        lessons.source(json.dumps)


def test_an_answer_is_judged(monkeypatch, capsys):
    monkeypatch.delenv("WEFT_LESSONS", raising=False)
    lessons.check("1.1", ...)
    lessons.check("1.1", 1000)
    lessons.check("1.1", 7)
    lessons.check("1.3", "no function")
    answers = capsys.readouterr().out.splitlines()
    assert "in place of the three dots" in answers[0]
    assert answers[1] == "Question 1.1: right."
    assert answers[2].startswith("Question 1.1: not yet. Does any matrix")
    assert "TypeError" in answers[3]
    assert lessons.solution("1.1") == 1000
    for number, message in (("1.9", "no question 1.9"), ("99.1", "no question"), ("one", "write it as '7.1'")):
        with pytest.raises(weft.WeftError, match=message):
            lessons.check(number, 1)


def test_a_wrong_solution_or_a_careless_judge_ends_the_build(monkeypatch):
    monkeypatch.setenv("WEFT_LESSONS", "quick")
    exact = checking.expect_number(lambda: 4.0, "count again")
    for question, message in (
        (checking.Question(exact, 5, (3,)), "solution of question 1.1 is refused: count again"),
        (checking.Question(lambda answer: "", 4, (3,)), "accepts the wrong answer 3"),
        (checking.Question(exact, 4, ()), "names no wrong answer"),
    ):
        monkeypatch.setattr(checking, "find_question", lambda number, question=question: question)
        with pytest.raises(lessons.LessonError, match=message):
            lessons.check("1.1", ...)
    monkeypatch.setattr(checking, "find_question", lambda number: checking.Question(exact, 4, (3,)))
    lessons.check("1.1", ...)
    with pytest.raises(lessons.LessonError, match="wrong answer to its own question"):
        lessons.check("1.1", 5)


def test_a_claim_is_asserted_in_full_and_reported_in_quick(monkeypatch, capsys):
    monkeypatch.delenv("WEFT_LESSONS", raising=False)
    assert not lessons.is_checked() and lessons.by_budget(quick=1, full=2) == 1
    lessons.claim("two is three", False, "2")
    assert "does not hold yet" in capsys.readouterr().out
    monkeypatch.setenv("WEFT_LESSONS", "full")
    assert lessons.is_checked() and lessons.by_budget(quick=1, full=2) == 2
    with pytest.raises(lessons.LessonError, match="'two is three' does not hold: 2"):
        lessons.claim("two is three", False, "2")
    monkeypatch.setenv("WEFT_LESSONS", "huge")
    with pytest.raises(weft.WeftError, match="quick or full"):
        lessons.is_full()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\n# %%\n", "line 1: text before the first mark"),
        ("# %% [markdown]\nprint()\n", "line 2: code in a cell of text"),
        ("# %% title\n", "line 1: '# %% title' is no mark"),
    ],
)
def test_a_lesson_of_another_form_is_refused(text, message):
    with pytest.raises(weft.WeftError, match=re.escape(message)):
        percent_format.read_cells(text)


def test_fitting_goes_down_and_ends_where_the_loss_is_not_finite():
    part = torch.nn.Linear(3, 1)
    x = torch.randn(64, 3)
    wanted = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    curve = lessons.fit(part, lambda step: (part(x) - wanted).square().mean(), 200, rate=0.05)
    assert curve[-1][0] == 199 and curve[-1][1] < 0.01 * curve[0][1] and not part.training
    curve = lessons.fit(part, lambda step: part(x).mean() * (float("nan") if step == 3 else 1.0), 10)
    assert [step for step, _ in curve] == [0, 1, 2, 3]
    with pytest.raises(lessons.LessonError, match="give at least 1"):
        lessons.fit(part, lambda step: part(x).mean(), 0)
