"""Task text: windows, isolation of documents, chats, tokenizers, the known best."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import weft
from weft.data.samples import sample
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import Unconditioned
from weft.inference.decoding.generate import next_distribution
from weft.models.build import build
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.losses import mean_loss
from weft.tasks.task import GenerationOptions
from weft.tasks.text import TextOptions, TextTask

TINY = {"width": 16, "layers": 1, "mixer.heads": 2, "length": 32, "training.batch": 256, "training.threads": 1}
TEXT = "a stitch in time saves nine; many a little makes a mickle.\n" * 30


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def prepared(tmp_path, text=TEXT, name="a.txt", **options):
    (tmp_path / name).write_text(text)
    return TextTask.prepare([str(tmp_path / name)], TextOptions(**options), 0, tmp_path / "cache")


def test_windows_cover_a_text_once_and_labels_are_the_next_token(tmp_path):
    part = prepared(tmp_path).train.cut(13)
    stream = part.store.window(0, len(part.store)).tokens
    seen = []
    for examples in part.batches(61, None):
        batch = part.batch(examples)
        real = batch.labels != IGNORED
        assert batch.count == int(real.sum())
        seen.append(batch.labels[real])
        inside = batch.inputs["tokens"][:, 1:][real[:, 1:]]
        assert torch.equal(inside, batch.labels[:, :-1][real[:, 1:]])
    assert np.array_equal(torch.cat(seen).numpy(), stream[1:])


def test_training_windows_move_with_the_epoch_and_follow_from_the_seed(tmp_path):
    part = prepared(tmp_path).train.cut(13)
    assert part.batches(61, 3, 1) == part.batches(61, 3, 1) != part.batches(61, 3, 2)
    assert len(part.batches(61, 3, 1)) == len(part.batches(61, 3, 2))
    same = [part.batch([2], 3, 1).labels for _ in range(2)]
    assert torch.equal(*same)
    assert any(not torch.equal(same[0], part.batch([2], 3, epoch).labels) for epoch in range(2, 6))


def test_documents_do_not_see_each_other(tmp_path):
    rows = [{"text": text} for text in ("one two three", "four five six seven", "eight nine ten", "eleven twelve") * 5]
    found = prepared(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")
    part = found.train.cut(29)
    batch = part.batch([0])
    model = build(found.task.default_model(weft.tasks.task.Size(16, 1, 29))).double()
    loss = found.task.loss(model, batch).total
    documents = batch.inputs["documents"][0]
    alone = 0.0
    for document in documents.unique():
        mine = documents == document
        piece = batch.inputs["tokens"][:, mine]
        logits = model(piece).logits[0]
        alone += torch.nn.functional.cross_entropy(logits, batch.labels[0, mine], reduction="sum", ignore_index=IGNORED)
    assert len(documents.unique()) > 1 and abs(float((loss - alone).detach())) < 1e-9


def test_chats_learn_answers_only(tmp_path):
    chat = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Seven."}]
    text = "\n".join(json.dumps({"messages": chat}) for _ in range(30))
    found = prepared(tmp_path, text, "chats.jsonl")
    labels = torch.cat([found.train.cut(64).batch(e).labels.flatten() for e in found.train.cut(64).batches(640, None)])
    kept = labels[labels != IGNORED].tolist()
    said = found.task.tokenizer.decode(kept, keep_special=True)
    assert "Seven." in said and "How" not in said and "<User:>" not in said


@pytest.mark.parametrize("kind", ["characters", "bytes", "words", "bpe"])
def test_every_tokenizer_trains_and_continues(tmp_path, kind):
    (tmp_path / "a.txt").write_text(TEXT)
    changes = TINY | {"data.tokenizer": kind, "data.vocabulary": 300}
    run = weft.train("text", tmp_path / "a.txt", tmp_path / "run", steps=3, set=changes)
    assert isinstance(run.predict("a stitch ", max_tokens=4), str)
    scores = run.evaluate(tmp_path / "a.txt")
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    each = len(run.tokenizer.encode(TEXT)) / len(TEXT.encode())
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] / math.log(2) * each, rel=1e-3)


def test_auto_takes_letters_for_small_texts_and_pairs_for_many_signs(tmp_path):
    assert prepared(tmp_path).task.tokenizer.vocabulary < 60
    many = "".join(chr(0x4E00 + n % 700) for n in range(3000)) + TEXT
    assert prepared(tmp_path, many, "b.txt").task.tokenizer.decode([300]) is not None


def test_predictions_do_not_depend_on_company(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    run = weft.train("text", tmp_path / "a.txt", tmp_path / "run", steps=30, set=TINY)
    prompts = ["a", "many a little ", "", "time saves nine; many a little makes a mickle.\na stitch in time"]
    together = run.predict(prompts, max_tokens=9, seed=5)
    assert together == [run.predict(prompt, max_tokens=9, seed=5) for prompt in prompts]
    assert weft.load(tmp_path / "run").predict(prompts, max_tokens=9, seed=5) == together
    several = run.predict("a", max_tokens=9, seed=5, samples=3)
    assert several[0] == together[0] and len(set(several)) > 1
    assert several[1:] == [run.predict("a", max_tokens=9, seed=seed) for seed in (6, 7)]
    greedy = run.task.predict(run.module, ["a"], GenerationOptions(temperature=0.0, max_tokens=9))
    assert greedy[0].output == run.predict("a", temperature=0.0, max_tokens=9, seed=11)


@pytest.mark.parametrize("way", [{}, {"beam": 3}, {"speculative": True}], ids=["sampled", "beam", "speculative"])
def test_probabilities_take_no_second_prefill_and_only_if_asked(tmp_path, monkeypatch, way):
    (tmp_path / "a.txt").write_text(TEXT)
    run = weft.train("text", tmp_path / "a.txt", tmp_path / "run", steps=3, set=TINY)
    prompts = ["many a", "stitch"]
    rows = [run.task.prompt_ids(prompt) for prompt in prompts]
    expected = [
        {run.tokenizer.pieces([token])[0]: share for token, share in next_distribution(run.module, row, 8)}
        for row in rows
    ]
    calls = []
    original = Unconditioned.call

    def counted(self, tokens, real, state, first):
        calls.append((len(tokens), first))
        return original(self, tokens, real, state, first)

    monkeypatch.setattr(Unconditioned, "call", counted)
    answers = run.answer(prompts, max_tokens=5, samples=3, **way)
    assert sum(rows for rows, first in calls if first) == len(prompts)
    assert [answer.input for answer in answers] == ["many a"] * 3 + ["stitch"] * 3
    for answer, probabilities in zip(answers, [expected[0]] * 3 + [expected[1]] * 3, strict=True):
        assert answer.more["probabilities"] == pytest.approx(probabilities, abs=1e-5)
    assert len(run.answer(["many a"], max_tokens=2, top=3, **way)[0].more["probabilities"]) == 3
    assert "probabilities" not in run.answer(["many a"], max_tokens=2, top=0, **way)[0].more
    for module in ("generate", "beam", "speculative"):
        monkeypatch.setattr(f"weft.inference.decoding.{module}.top_probabilities", None)
    assert run.predict(prompts, max_tokens=5, samples=3, **way) == [answer.output for answer in answers]


def test_the_known_best_of_the_markov_text_is_approached_not_beaten(tmp_path):
    changes = {"width": 32, "layers": 2, "mixer.heads": 2, "length": 64, "training.batch": 1024, "training.threads": 1}
    run = weft.train("text", "sample:markov", tmp_path / "run", steps=150, set=changes)
    best = sample("markov").best
    loss = run.evaluate("sample:markov")["loss"]
    assert not best.beaten_by(loss)
    assert loss < best.value + 0.4


def test_a_split_share_and_files_of_their_own_for_validation(tmp_path):
    (tmp_path / "b.txt").write_text("time and tide wait for no man.\n" * 9)
    half = prepared(tmp_path, held_out=0.5)
    assert abs(half.train.tokens - half.validation.tokens) < 40
    own = prepared(tmp_path, validation=str(tmp_path / "b.txt"))
    assert own.train.tokens == len(TEXT) and own.validation.tokens == 31 * 9


def test_a_text_shorter_than_the_context_still_trains(tmp_path):
    (tmp_path / "a.txt").write_text("tiny text here")
    run = weft.train("text", tmp_path / "a.txt", tmp_path / "run", steps=2, set=TINY)
    assert run.predict("t", max_tokens=2)


def test_what_cannot_be_done_is_said(tmp_path):
    with pytest.raises(WeftError, match="stands alone"):
        TextTask.prepare(["sample:", "a.txt"], TextOptions(), 0, tmp_path)
    with pytest.raises(WeftError, match=r"no tokenizer\.json"):
        TextTask.restore(TextOptions(), {}, None)
    with pytest.raises(WeftError, match="1 tokens"):
        prepared(tmp_path, "x")


def test_loss_over_a_part_is_the_mean_over_tokens_however_batched(tmp_path):
    found = prepared(tmp_path)
    model = build(found.task.default_model(weft.tasks.task.Size(16, 1, 13))).double()
    part = found.validation.cut(13)
    values = [mean_loss(found.task, model, part, size) for size in (13, 61, 9999)]
    assert max(values) - min(values) < 1e-12
