"""Questions about images: read, learned, asked on the command line and from tables, evaluated by exact match."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import weft
from weft.cli.main import app
from weft.data.readers.captions import has_questions, read_questions
from weft.data.readers.files import DataError
from weft.data.samples import sample
from weft.foundation.errors import WeftError
from weft.models.teacher_forcing import IGNORED
from weft.runs.run import load
from weft.tasks.captions import CaptionsOptions, CaptionsTask
from weft.tasks.support.inputs.image_questions import commonest_answers, usual_answers
from weft.tasks.support.splits.captioned_images import Gallery, after_questions
from weft.tasks.task import GenerationOptions, Size

COLORS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}
TINY = {"width": 32, "layers": 2, "mixer.heads": 2, "stem": (8,), "patch": 4, "training.batch": 700, "data.size": 16}
QUIET = {"training.guard": False, "data.augment": "none"}
PATTERNS = ("plain", "striped", "checkered")
QUESTIONS = ("What color is the wall?", "Which pattern has it?")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Walls of three colors and three patterns, with a question about each."""
    folder = tmp_path_factory.mktemp("asked")
    kinds = [(color, pattern) for color in COLORS for pattern in PATTERNS]
    y, x = np.mgrid[:16, :16] // 4 % 2
    dark = {"plain": 0 * x, "striped": x, "checkered": x ^ y}
    rows = []
    for number in range(36):
        color, pattern = kinds[number % len(kinds)]
        picture = np.where(dark[pattern][..., None] == 1, 0, COLORS[color]).astype(np.uint8)
        Image.fromarray(picture).save(folder / f"{number}.png")
        for question, answer in zip(QUESTIONS, (color, pattern), strict=True):
            rows.append({"image": f"{number}.png", "question": question, "answer": answer})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, rows


@pytest.fixture(scope="module")
def run(asked, tmp_path_factory):
    folder, _ = asked
    out = tmp_path_factory.mktemp("runs") / "vqa"
    weft.train("captions", folder / "train.jsonl", out=out, steps=100, set={**TINY, **QUIET})
    return out


def prepared(path, cache, **options):
    return CaptionsTask.prepare([str(path)], CaptionsOptions(size=16, **options), 0, cache)


def invoke(*arguments, status=0):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == status, result.output
    return result


def test_it_answers_what_is_asked(run, asked):
    folder, rows = asked
    opened = load(run)
    for number in range(3):
        answers = [opened.predict(folder / f"{number}.png", question=question.lower()) for question in QUESTIONS]
        assert answers == [row["answer"] for row in rows[2 * number : 2 * number + 2]]
    found = opened.evaluate(folder / "train.jsonl")
    assert found["exact_match"] == 1.0 and found["questions"] == 72
    assert opened.task.metric == "exact_match" and opened.task.facts()["question"] > 0


def test_as_users_type_it(run, asked, tmp_path):
    folder, rows = asked
    question = rows[0]["question"]
    said = invoke("predict", run, folder / "0.png", "--question", question, "--json")
    answer = json.loads(said.stdout)[0]
    assert answer["output"] == rows[0]["answer"] and answer["question"] == question
    missing = invoke("predict", run, folder / "0.png", status=2)
    assert "answers questions about images, and none is asked about" in " ".join(missing.output.split())
    out = tmp_path / "answers.csv"
    invoke("predict", run, folder / "train.jsonl", "--out", out)
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["prediction"] for row in found] == [row["answer"] for row in rows] == [row["answer"] for row in found]
    picture = tmp_path / "a.png"
    look = invoke("look", run, folder / "0.png", "--question", question, "--out", picture, "--json")
    tree = json.loads(look.stdout)
    assert tree["output"] == rows[0]["answer"] and question in tree["input"] and picture.stat().st_size > 1000
    assert "wall" in tree["tokens"]
    looked = invoke("look", run, f"{folder / 'train.jsonl'}#3", "--out", picture, "--json")
    assert json.loads(looked.stdout)["output"] == rows[3]["answer"]


def test_only_the_answer_is_learned(asked, tmp_path):
    found = prepared(asked[0] / "train.jsonl", tmp_path)
    task, part = found.task, found.train
    batch = part.batch([0, 1])
    question, answer = part.questions[0], part.texts[0]
    assert batch.inputs["tokens"][0].tolist() == [*question, task.ends.start, *answer]
    assert batch.labels[0].tolist() == [IGNORED] * len(question) + [*answer, task.ends.stop]
    assert batch.count == sum(len(text) + 1 for text in part.texts[:2])
    assert part.tokens == sum(
        part.patches + len(q) + len(a) + 1 for q, a in zip(part.questions, part.texts, strict=True)
    )
    tokens, labels = after_questions([[5, 6, 7], []], torch.tensor([[1, 2], [1, 3]]), torch.tensor([[2, 9], [3, 9]]), 0)
    assert tokens.tolist() == [[5, 6, 7, 1, 2], [1, 3, 0, 0, 0]]
    assert labels.tolist() == [[IGNORED, IGNORED, IGNORED, 2, 9], [3, 9, IGNORED, IGNORED, IGNORED]]


def test_questions_of_other_lengths_in_one_batch_change_nothing(asked, tmp_path):
    folder, _ = asked
    task = prepared(folder / "train.jsonl", tmp_path).task
    spec = task.default_model(Size(24, 2)).replace(**{"initialization.zero_residual": False, "length": 29})
    module = weft.build(spec).eval()
    inputs = [
        {"image": folder / "0.png", "question": "what color is the wall?"},
        {"image": folder / "1.png", "question": "what color?"},
        {"image": folder / "2.png", "question": "which pattern is it and what color is the wall?"},
    ]
    for how in (GenerationOptions(max_tokens=5), GenerationOptions(max_tokens=5, beam=2)):
        together = [one.output for one in task.predict(module, inputs, how)]
        assert together == [task.predict(module, [one], how)[0].output for one in inputs]


def test_the_sample_and_its_baselines(tmp_path):
    found = sample("questions", size=300)
    assert len(set(found.train.questions)) == 10 and set(found.train.texts) > {"red", "circle"}
    assert found.train.pixels.shape == (300, 48, 48, 3) and found.best.value == 1.0
    parts = [
        Gallery(part.pixels, tuple(enumerate(part.texts)), part.questions) for part in (found.train, found.validation)
    ]
    said = usual_answers(commonest_answers(parts[0]), parts[1])
    right = [parts[1].answers_to(one) for one in parts[1].asked]
    share = sum(word in words for word, words in zip(said, right, strict=True)) / len(said)
    assert share < 0.5  # without looking, (1/6 + 1/4) / 2 of the answers on average
    plain = Gallery(parts[0].pixels[:2], ((0, "a"), (1, "a")))
    assert usual_answers(commonest_answers(plain), plain) == ["a", "a"]


def test_questions_in_tables_and_errors(asked, tmp_path, run):
    folder, rows = asked
    table = folder / "asked.csv"
    table.write_text(
        "answer,image,question\n" + "".join(f"{r['answer']},{r['image']},{r['question']}\n" for r in rows[:2])
    )
    assert has_questions([table]) and read_questions([table])[1] == (
        folder / "0.png",
        rows[1]["question"],
        rows[1]["answer"],
    )
    captions = folder / "captions.jsonl"
    captions.write_text("".join(json.dumps({"image": r["image"], "text": r["answer"]}) + "\n" for r in rows))
    assert not has_questions([captions])
    opened = load(run)
    with pytest.raises(DataError, match="answers questions, but the data are captions"):
        opened.evaluate(captions)
    plain = prepared(captions, tmp_path).task
    with pytest.raises(DataError, match="describes images, but the data are questions"):
        plain.read([str(table)], tmp_path)
    empty = folder / "empty.jsonl"
    empty.write_text('{"image": "0.png", "question": "", "answer": "red"}\n')
    with pytest.raises(DataError, match=r"empty.jsonl, line 1: the question or its answer is empty"):
        read_questions([empty])
    lost = folder / "lost.csv"
    lost.write_text("image,question,answer\nnone.png,what?,red\n")
    with pytest.raises(DataError, match=r"lost.csv, line 2: there is no image"):
        read_questions([lost])
    with pytest.raises(DataError, match=r"questions about images need image, question, answer: name them so"):
        read_questions([_written(folder / "half.csv", "question,answer\nwhat?,red\nwho?,7\n")])
    with pytest.raises(WeftError, match="has no image: give image and question"):
        opened.predict([{"question": "what?"}])
    with pytest.raises(WeftError, match=r"a question of \d+ tokens, but the model reads"):
        opened.predict(folder / "0.png", question="wall " * 200)


def _written(path, text):
    path.write_text(text)
    return path


def test_other_runs_take_no_question(run, asked):
    opened = load(run)
    opened.task.takes_questions = False  # as of one that learned from captions
    with pytest.raises(WeftError, match="trained without questions about images"):
        opened.predict(asked[0] / "0.png", question="what?")
