"""Few-shot use: labels by what a language model would write after labeled examples."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.cli.main import app
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError
from weft.tasks.support.language import few_shot as room
from weft.tasks.support.language.few_shot import Question, draw_examples, evaluate_few_shot, name_labels, score_labels
from weft.tasks.text import TextOptions, TextTask

ROWS = [("good fun", "1"), ("so bad", "0"), ("a joy", "1"), ("dull, dull, dull", "0"), ("fine", "1"), ("awful", "0")]
WORDS = {"0": "bad", "1": "great"}
PRESETS = {"nano-gpt": {"mixer.heads": 2}, "nano-rnn": {}, "gpt2": {"mixer.heads": 2, "head.kind": "tied"}}


def model(name="nano-gpt", length=211, vocabulary=260):
    sizes = {"width": 20, "layers": 2, "length": length, "vocabulary": vocabulary}
    return weft.build(weft.preset(name).replace(**sizes, **PRESETS[name])).double().eval()


def task(kind="bytes"):
    texts = [text for text, _ in ROWS] + ["Text: Label:\n 0 1 bad great N/A"]
    return TextTask(TextOptions(), train_tokenizer(kind, texts))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_scores_are_those_of_each_whole_prompt_alone(name, kind, monkeypatch):
    monkeypatch.setattr(room, "READ_AT_ONCE", 170)  # several batches
    reader = task(kind)
    module = model(name, vocabulary=reader.tokenizer.vocabulary)
    question = Question((ROWS[0], ROWS[1]), WORDS)
    texts = [text for text, _ in ROWS[2:]]
    found = score_labels(module, reader, question, texts)
    for row, text in enumerate(texts):
        start = reader.tokenizer.encode(question.prompt(text))
        for column, word in enumerate(WORDS.values()):
            ids = reader.tokenizer.encode(f"{question.prompt(text)} {word}")
            assert ids[: len(start)] == start
            chances = module(torch.tensor([ids])).logits.log_softmax(-1)[0, len(start) - 1 : -1]
            expected = chances.gather(1, torch.tensor(ids[len(start) :])[:, None]).sum()
            assert found[row, column].item() == pytest.approx(expected.item(), abs=1e-10)


def test_the_prompt_shows_examples_then_asks():
    question = Question((("good fun ", "1"),), WORDS)
    assert question.prompt(" so bad") == "Text: good fun\nLabel: great\n\nText: so bad\nLabel:"
    other = Question((("good fun ", "1"),), WORDS, "{text} It was {label}")
    assert other.prompt("so {text}") == "good fun It was great\n\nso {text} It was"
    for pattern in ("Text: {label}", "{text} is {label}.", "{text}{label}"):
        with pytest.raises(WeftError, match="must hold"):
            Question((), WORDS, pattern)


def test_examples_are_balanced_and_follow_from_the_seed():
    rows = [(str(n), "a" if n % 5 else "b") for n in range(40)]
    for seed in range(3):
        drawn = draw_examples(rows, 6, seed)
        assert drawn == draw_examples(rows, 6, seed) and len(set(drawn)) == 6
        assert sorted(rows[place][1] for place in drawn) == ["a"] * 3 + ["b"] * 3
    assert draw_examples(rows, 6, 0) != draw_examples(rows, 6, 1) and draw_examples(rows, 0) == []
    assert sorted(draw_examples(rows, 40)) == list(range(40))
    with pytest.raises(WeftError, match="41 examples of 40 rows"):
        draw_examples(rows, 41)


def test_labels_have_words_in_their_order():
    rows = [("", "10"), ("", "9"), ("", "2")]
    assert name_labels(rows) == {"2": "2", "9": "9", "10": "10"}
    assert name_labels(rows, ["x", "y", "z"]) == {"2": "x", "9": "y", "10": "z"}
    with pytest.raises(WeftError, match="2 words for 3 labels"):
        name_labels(rows, ["x", "y"])


def test_metrics_follow_from_scores_and_a_bias_is_calibrated_away(monkeypatch):
    def scored(module, task, question, texts):
        right = [0.0 if label == "0" else 0.4 for _, label in ROWS]
        return torch.tensor([[0.0, score - 1.0] for score in right])

    monkeypatch.setattr(room, "score_labels", scored)
    found = evaluate_few_shot(model(), task(), ROWS, Question((), WORDS))
    assert found["accuracy"] == 0.5 and found["calibrated_accuracy"] == 1.0 and found["most_frequent_label"] == 0.5
    assert found["macro_f1"] == pytest.approx(1 / 3) and found["examples"] == 6 and found["shots"] == 0
    losses = torch.tensor([[0.0, -1.0], [0.0, -0.6]]).log_softmax(1)
    assert found["loss"] == pytest.approx(-(losses[0, 0] + losses[1, 1]).item() / 2, abs=1e-6)


def test_what_cannot_be_asked_is_said():
    question = Question((ROWS[0],), WORDS)
    with pytest.raises(WeftError, match="none is left"):
        evaluate_few_shot(model(), task(), [], question)
    with pytest.raises(WeftError, match="label '2'"):
        evaluate_few_shot(model(), task(), [("x", "2")], question)
    with pytest.raises(WeftError, match=r"takes up to .* this model reads 31"):
        evaluate_few_shot(model(length=31), task(), ROWS, question)
    with pytest.raises(WeftError, match="same tokens"):
        evaluate_few_shot(model(), task("words"), ROWS, Question((), {"0": "unheard", "1": "unseen"}))


@pytest.fixture
def run(tmp_path):
    folder, reader = RunFolder(tmp_path / "run"), task()
    module = model().float()
    folder.path.mkdir()
    folder.write_spec(RunSpec(task="text", model=module.spec.to_tree()))
    folder.write_tokenizer(reader.tokenizer)
    folder.write_model(module.state_dict())
    (tmp_path / "dev.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in ROWS))
    return folder.path


def test_by_command_and_in_python(tmp_path, run):
    data = str(tmp_path / "dev.tsv")
    order = ["eval", str(run), data, "--shots", "2", "--labels", "bad,great", "--json"]
    found = json.loads(CliRunner().invoke(app, order).stdout)
    assert found["shots"] == 2 and found["examples"] == 4 and 0 <= found["accuracy"] <= 1
    assert {**weft.load(run).evaluate(data, shots=2, labels=["bad", "great"]), "metric": "accuracy"} == found
    elsewhere = weft.load(run).few_shot(data, 2, examples=data, seed=1)
    assert elsewhere["examples"] == 6
    assert CliRunner().invoke(app, ["eval", str(run), data, "--labels", "a,b"]).exit_code == 2
    with pytest.raises(WeftError, match="go with shots"):
        weft.load(run).evaluate(data, labels=["a", "b"])
