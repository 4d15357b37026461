"""`weft predict --top` and `--steps`: the distribution of the first token and of every step, however it is decoded."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import weft
from runs_on_disk import llama, write_run
from weft.cli.main import app
from weft.cli.terminal import TerminalText, bars, without_controls
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.conditioning import Unconditioned
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling, distribution
from weft.inference.decoding.speculative import speculate
from writers import PROMPTS, full_logits, given, writer

BYTES = train_tokenizer("bytes", [])
SAMPLED = Sampling(0.7, top_k=11, repetition=1.3)
FAST = {"training.threads": 1, "training.guard": False}


@pytest.fixture
def run(capsys, monkeypatch):
    """`run("predict", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "run", llama(BYTES.vocabulary), "text", BYTES)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    place = tmp_path_factory.mktemp("translation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(place / "cache"))
        (place / "a.tsv").write_text("".join(f"a {n}\tb {n}\n" for n in range(31)))
        small = {"width": 12, "layers": 1, "mixer.heads": 2, **FAST}
        weft.train("translation", place / "a.tsv", place / "run", steps=2, set=small)
    return place / "run"


# --- every way of decoding ---


def check(text, model, prompt, conditions, sampling, top):
    """Each choice by one plain call of the model on all tokens before it."""
    before = list(prompt)
    assert [choice.token for choice in text.choices][: len(text.tokens)] == text.tokens
    for choice in text.choices:
        logits = full_logits(model, before, conditions)[-1]
        own = Sampling(repetition=sampling.repetition) if sampling.greedy else sampling
        seen = torch.zeros(len(logits), dtype=torch.bool).index_fill(0, torch.tensor(before), True)
        p = distribution(logits, own, seen)
        best = p.topk(top)
        expected = [(n, share) for n, share in zip(best.indices.tolist(), best.values.tolist(), strict=True) if share]
        if choice.token not in [n for n, _ in expected]:
            expected.append((choice.token, float(p[choice.token])))
        assert [token for token, _ in choice.probabilities] == [token for token, _ in expected]
        assert [share for _, share in choice.probabilities] == pytest.approx([s for _, s in expected], abs=1e-9)
        before.append(choice.token)


@pytest.mark.parametrize("name", ["nano-gpt", "nano-rnn", "nano-seq2seq", "nano-image-text"])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), SAMPLED], ids=["greedy", "sampled"])
def test_each_token_comes_with_what_it_was_chosen_from(name, sampling):
    model = writer(name)
    rows = range(len(PROMPTS))
    conditions = given(model, list(rows))
    request = GenerationRequest(PROMPTS, sampling, max_tokens=7, stop=[2], step_top=3, seeds=5, **conditions)
    for texts in (generate(model, request), speculate(model, request)):
        for row, text in enumerate(texts):
            check(text, model, PROMPTS[row], given(model, [row]), sampling, 3)
    plain = generate(model, GenerationRequest(PROMPTS, sampling, max_tokens=7, stop=[2], seeds=5, **conditions))
    assert [text.tokens for text in plain] == [text.tokens for text in generate(model, request)]
    assert all(text.choices is None for text in plain)


@pytest.mark.parametrize("name", ["nano-gpt", "nano-seq2seq"])
def test_hypotheses_of_a_beam_have_their_choices(name):
    model = writer(name)
    request = GenerationRequest(PROMPTS, max_tokens=6, stop=[2], step_top=2, **given(model, list(range(len(PROMPTS)))))
    for row, found in enumerate(beam_search(model, request, Beam(3, best=3))):
        for text in found:
            check(text, model, PROMPTS[row], given(model, [row]), Sampling(temperature=0.0), 2)
            ended = text.finish_reason == "stop"
            assert len(text.choices) == len(text.tokens) + ended and (not ended or text.choices[-1].token == 2)


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(WeftError, match="step_top -1 is not a number of tokens"):
        GenerationRequest([[1]], step_top=-1)


# --- answers ---


def test_steps_take_no_second_prefill(folder, monkeypatch):
    opened, calls, original = weft.load(folder), [], Unconditioned.call

    def counted(self, tokens, real, state, first):
        calls.append(first)
        return original(self, tokens, real, state, first)

    monkeypatch.setattr(Unconditioned, "call", counted)
    (answer,) = opened.answer(["ab"], max_tokens=5, top=4, steps=True, seed=3)
    assert calls == [True, False, False, False, False]
    assert len(answer.more["steps"]) == 5 and len(answer.more["probabilities"]) == 4
    for step, log_probability in zip(answer.more["steps"], answer.more["log_probabilities"], strict=True):
        assert len(step["probabilities"]) in (4, 5) and step["id"] in [one["id"] for one in step["probabilities"]]
        assert log_probability < 0
    assert "steps" not in opened.answer(["ab"], max_tokens=2)[0].more
    assert opened.predict("ab", max_tokens=5, seed=3, steps=True) == answer.output


def test_bytes_of_a_character_have_names_of_their_own(folder):
    (answer,) = weft.load(folder).answer(["ab"], max_tokens=1, top=BYTES.vocabulary)
    assert len(answer.more["probabilities"]) == BYTES.vocabulary
    assert sum(answer.more["probabilities"].values()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("way", [{}, {"beam": 2}], ids=["greedy", "beam"])
def test_translations_have_them_too(translator, way):
    opened = weft.load(translator)
    (answer,) = opened.answer(["a 3"], max_tokens=4, top=2, steps=True, **way)
    tokens = [step["token"] for step in answer.more["steps"]]
    assert tokens[: len(answer.more["tokens"])] == answer.more["tokens"] and len(answer.more["probabilities"]) == 2
    likeliest = next(iter(answer.more["probabilities"].items()))
    first = answer.more["steps"][0]["probabilities"][0]
    assert (first["token"], first["probability"]) == pytest.approx(likeliest) if way else first["token"] == tokens[0]


def test_captions_have_them_too(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    random, rows = np.random.default_rng(3), []
    for n in range(12):
        Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(tmp_path / f"{n}.png")
        rows.append(json.dumps({"image": f"{n}.png", "text": f"a b {'cd'[n % 2]}"}))
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    small = {"width": 12, "layers": 1, "mixer.heads": 2, "data.size": 24, **FAST}
    opened = weft.train("captions", tmp_path / "a.jsonl", tmp_path / "run", steps=1, set=small)
    (answer,) = opened.answer([tmp_path / "0.png"], max_tokens=3, top=2, steps=True)
    assert len(answer.more["probabilities"]) == 2 and 1 <= len(answer.more["steps"]) <= 3


# --- the command ---


def test_bars_as_plain_text_and_as_json(run, folder):
    words = ("predict", folder, "ab", "--max-tokens", 3, "--seed", 1)
    code, out, err = run(*words, "--top", 4)
    assert code == 0 and err == "" and "the first new token\n" in out and out.count("%") == 4 and out.startswith("ab")
    code, out, _ = run(*words, "--top", 4, "--json")
    (answer,) = json.loads(out)
    assert len(answer["probabilities"]) == 4 and "steps" not in answer
    code, out, _ = run(*words, "--steps", "--top", 2)
    assert code == 0 and [line for line in out.splitlines() if line.startswith("step ")] != []
    assert sum(line.startswith("> ") for line in out.splitlines()) == 3 and "step 3: " in out
    code, out, _ = run(*words, "--steps", "--json")
    steps = json.loads(out)[0]["steps"]
    assert len(steps) == 3 and all(len(step["probabilities"]) in (8, 9) for step in steps)
    code, out, _ = run(*words)
    assert code == 0 and "%" not in out
    code, out, _ = run("predict", folder, "ab", "cd", "--max-tokens", 2, "--top", 2)
    assert code == 0 and out.count("%") == 4


def test_a_terminal_gets_colored_bars(run, folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = run("predict", folder, "ab", "--max-tokens", 2, "--steps", "--top", 3, "--temperature", 0)
    assert code == 0 and "\x1b[" in out and out.count("%") == 6


def test_errors_of_top_and_steps(run, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.tsv").write_text("".join(f"good {n}\tyes\nbad {n}\tno\n" for n in range(20)))
    small = {"width": 12, "layers": 1, **FAST}
    weft.train("classification", tmp_path / "a.tsv", tmp_path / "labels", steps=1, set=small)
    whole = "a run of task classification generates no tokens: leave top and steps out"
    for words, sentence in (
        ((folder, "a", "--top", 0), "--top 0 shows no token: use 1 or more, or leave it out"),
        ((folder, "a", "--top", -3), "--top -3 shows no token"),
        ((folder, "a", "--top", 261), "the 261 likeliest tokens, but the vocabulary has 260"),
        ((tmp_path / "labels", "good", "--top", 2), whole),
        ((tmp_path / "labels", "good", "--steps", "--json"), whole),
    ):
        code, out, err = run("predict", *words)
        assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1
    code, out, _ = run("predict", tmp_path / "labels", "good", "--json")
    assert code == 0 and json.loads(out)[0]["probabilities"].keys() == {"yes", "no"}


def test_plain_bars_mark_the_chosen_one():
    assert bars([("a", 0.5), ("bb", 0.25)], 4, 1).splitlines() == ["   a  50.0% ██", "> bb  25.0% █"]
    assert bars([("漢", 0.5), ("bb", 0.25)], 4).splitlines() == ["漢  50.0% ██", "bb  25.0% █"]
    assert bars([("a", 0.5)], 4) == "a  50.0% ██" and bars([]) == ""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("\x1bPdata\x1b\\a\x1b(B\x1bcb", "ab"),
        ("a\x08\x07\r\x00\x7f\x9b5mb", "a5mb"),
        ("\x1b\x1b[0m[2Ja", "[2Ja"),
        ("é漢😀", "é漢😀"),
    ],
)
def test_text_without_what_commands_a_terminal(text, left):
    assert without_controls(text) == left

    class Screen(list):
        write = list.append
        flush = lambda self: None  # noqa: E731
        isatty = lambda self: True  # noqa: E731

    screen = Screen()
    shown = TerminalText(screen)
    for sign in text:
        shown.write(sign)
    assert "".join(screen) == left and not set("".join(screen)) & {"\x1b", "\x9b", "\x07"}


def test_a_sequence_that_never_ends_is_not_held_back_for_ever():
    class Screen(list):
        write = list.append
        flush = lambda self: None  # noqa: E731
        isatty = lambda self: True  # noqa: E731

    shown = TerminalText(Screen())
    for _ in range(300):
        shown.write("\x1b]x" if not shown.stream else "x")
    assert len("".join(shown.stream)) > 200 and "\x1b" not in "".join(shown.stream)
