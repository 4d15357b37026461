"""Numbers at their limits: nothing at all, one of a kind, as long as it may be and one more, and no numbers."""

from __future__ import annotations

import re

import pytest
import torch

import weft
from subjects import LENGTH, VOCABULARY, Subject, build, shrink
from weft.data.tokenizers.tokenizer import WORD_CUT, _cut_long_words, train_tokenizer
from weft.foundation.errors import LengthError, WeftError
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling
from weft.inference.fast.optimized import optimized

NAMES = [name for name in weft.presets() if weft.preset(name).family not in ("two-tower", "vision")]
DECODERS = [name for name in NAMES if weft.preset(name).family == "decoder"]
LEARNED = {"positions": {"kind": "learned"}}


def subject(name: str) -> Subject:
    return Subject(build(shrink(weft.preset(name))))


@pytest.mark.parametrize("name", NAMES)
def test_no_texts_and_texts_of_nothing(name):
    """An output of as many rows and tokens, or a sentence; never another error."""
    one = subject(name)
    for batch, length in ((0, 5), (2, 0), (0, 0)):
        content = one.content(batch, length)
        try:
            with torch.no_grad():
                found = one.run(content)
        except WeftError as error:
            told = str(error)
            assert "\n" not in told and length == 0, told
        else:
            assert found.shape[0] == batch and found.shape[1] in (length, one.declares.prefix or length)


@pytest.mark.parametrize("name", DECODERS)
def test_rows_that_may_look_nowhere_are_finite_and_alone(name):
    one = subject(name)
    content = one.content(3, 7)
    real = torch.ones(3, 7, dtype=torch.bool)
    real[1] = False
    with torch.no_grad():
        found, alone = one.module(content, mask=real).logits, one.module(content).logits
    assert found.isfinite().all()
    assert float((found[[0, 2]] - alone[[0, 2]]).abs().max()) < 1e-10
    twin = optimized(one.module.float())
    with torch.inference_mode():
        state = twin.make_state(3)
        twin(content, mask=real, state=state)
        assert twin(content[:, :1], state=state).logits.isfinite().all()
    one.module.double()


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_no_number_stays_in_its_row(name):
    """A row of NaN changes no bit of its company, wherever a mask keeps them apart."""
    one = subject(name)
    content = one.content(3, 7)
    kept = one.module.embedding.weight.detach().clone()
    content[1] = VOCABULARY - 1
    content[[0, 2]] %= VOCABULARY - 1
    with torch.no_grad():
        sound = one.module(content).logits
        one.module.embedding.weight[VOCABULARY - 1] = float("nan")
        found = one.module(content).logits
        one.module.embedding.weight.copy_(kept)
    tied = sound.shape[-1] == VOCABULARY and not hasattr(one.module.head, "linear")
    columns = slice(0, VOCABULARY - 1) if tied else slice(None)
    assert found[1].isnan().any()
    assert float((found[[0, 2]][..., columns] - sound[[0, 2]][..., columns]).abs().max()) < 1e-10


@pytest.mark.parametrize("name", DECODERS)
def test_no_texts_and_only_padding_through_a_state(name):
    """A state of no rows grows past its first capacity, with a mask; a step may hold padding alone."""
    model = subject(name).module.float()
    for twin in (model, optimized(model)):
        with torch.inference_mode():
            state = twin.make_state(0)
            for length in (LENGTH // 2, 1, LENGTH // 3):
                tokens = torch.zeros(0, length, dtype=torch.long)
                found = twin(tokens, mask=torch.ones(0, length, dtype=torch.bool), state=state).logits
                assert found.shape[:2] == (0, length)
            state, tokens = twin.make_state(2), torch.zeros(2, 3, dtype=torch.long)
            twin(tokens, state=state)
            assert twin(tokens, mask=torch.zeros(2, 3, dtype=torch.bool), state=state).logits.isfinite().all()
    model.double()


@pytest.mark.parametrize("name", ["nano-gpt", "nano-llama", "nano-rnn", "nano-conv", "nano-moe"])
def test_a_vocabulary_of_one(name):
    model = weft.build(weft.preset(name).replace(vocabulary=1, width=24, layers=1))
    for request in (
        GenerationRequest([[0], [0, 0]], max_tokens=3),
        GenerationRequest([[0]], max_tokens=3, sampling=Sampling(1.0, top_k=5, top_p=0.5, repetition=1.3), top=8),
    ):
        for text in generate(model, request):
            assert text.tokens == [0, 0, 0] and text.log_probabilities == [0.0] * 3
    assert [one.tokens for one in beam_search(model, GenerationRequest([[0]], max_tokens=2), Beam(3))[0]] == [[0, 0]]
    nothing = torch.zeros(2, 3, dtype=torch.long)
    with torch.no_grad():
        logits = model(nothing).logits
    assert float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), nothing.flatten())) == 0.0


def test_lengths_at_the_limit_and_one_past_it():
    model = build(shrink(weft.preset("nano-gpt")).replace(**LEARNED))
    tokens = torch.zeros(2, LENGTH + 1, dtype=torch.long)
    with torch.no_grad():
        assert model(tokens[:, :LENGTH]).logits.shape[1] == LENGTH
        with pytest.raises(LengthError, match=f"{LENGTH + 1}.*{LENGTH}"):
            model(tokens)
        for twin in (model, optimized(model.float())):
            state = twin.make_state(2)
            twin(tokens[:, : LENGTH - 1], state=state)
            twin(tokens[:, :1], state=state)
            with pytest.raises(LengthError):
                twin(tokens[:, :1], state=state)
        state = twin.make_state(2, capacity=3)
        twin(tokens[:, :3], state=state)
        with pytest.raises(WeftError, match="capacity"):
            twin(tokens[:, :1], state=state)
    model.float()
    for prompt in (LENGTH - 1, LENGTH, LENGTH + 1, 3 * LENGTH):
        request = GenerationRequest([[0] * prompt], max_tokens=2, overflow="slide")
        assert len(generate(model, request)[0].tokens) == 2
        request = GenerationRequest([[0] * prompt], max_tokens=2, overflow="refuse")
        if prompt + 1 > LENGTH:
            with pytest.raises(WeftError):
                generate(model, request)


@pytest.mark.parametrize("kind", ["characters", "words", "bytes", "bpe"])
def test_tokens_of_any_length(kind):
    word = "x" * 300_000  # merges of one letter would take the square of its length
    tokenizer = train_tokenizer(kind, [f"a {word} b\n", "a b"], 300)
    assert tokenizer.decode(tokenizer.encode(f"a {word} b")).replace(" ", "").startswith("ax")
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""
    if kind == "bpe":
        assert len(tokenizer.encode(word)) < 3_000  # it was learned from


def test_ordinary_words_are_not_cut():
    for text in ("", "a b " * 3000, "x" * 1023, f"{'x' * 1000} {'y' * 1000} " * 9):
        assert list(_cut_long_words(text)) == [text]
    for text in (" " * 5000, "x" * 300_000, "a b " * 999 + "y" * 2047 + " c d" * 999, "z" * 1500 + " " + "w" * 3000):
        pieces = list(_cut_long_words(text))
        assert "".join(pieces) == text
        longest = max(len(run) for piece in pieces for run in re.findall(r"\S+|\s+", piece))
        assert longest < 2 * WORD_CUT


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_by_autocast_is_finite(name):
    one = subject(name)
    one.module.float()
    content = one.content(2, 5)
    content = content.float() if content.is_floating_point() else content
    source = one.source(2)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype), torch.no_grad():
            found = one.run(content, source=source.float() if source.is_floating_point() else source)
        assert found.isfinite().all()
