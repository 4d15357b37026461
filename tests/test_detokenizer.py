"""Text from tokens as they come: complete characters only, stop strings held back until decided."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models

import weft
from weft.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from weft.inference.decoding.detokenizer import BROKEN, Detokenizer, TextStream
from weft.inference.decoding.generate import generate, stream
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling
from writers import PROMPTS, writer

WORDS = "Grüße, 世界! naïve café 👩‍👩‍👧 → x²  two  spaces\n\nnew line"


def sentencepiece_like() -> Tokenizer:
    """Llama's way: a leading space is left out, unknown characters are bytes."""
    pieces = ["<unk>", "<s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "▁a", "▁b", "c", "▁the", "."]
    engine = Engine(models.BPE(vocab={p: n for n, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.add_special_tokens(["<s>"])
    return Tokenizer(engine)


TOKENIZERS = {
    "bytes": train_tokenizer("bytes", ["a"]),
    "bpe": train_tokenizer("bpe", [WORDS * 5], 300),
    "characters": train_tokenizer("characters", [WORDS]),
    "words": train_tokenizer("words", [WORDS]),
    "sentencepiece": sentencepiece_like(),
}


def fed(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    one = TextStream(tokenizer, stop)
    return [*(one.feed(index) for index in ids), one.finish()], one


@pytest.mark.parametrize("kind", ["bytes", "bpe", "characters"])
def test_all_of_it_is_the_text_and_no_character_is_broken(kind):
    ids = TOKENIZERS[kind].encode(WORDS)
    pieces, one = fed(TOKENIZERS[kind], ids)
    assert "".join(pieces) == TOKENIZERS[kind].decode(ids) == WORDS
    assert not any(BROKEN in piece for piece in pieces) and not one.stopped
    assert len([piece for piece in pieces if piece]) > 20


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["bytes", "bpe", "words", "characters"]), st.lists(st.integers(0, 40), max_size=30))
def test_any_ids_stream_to_what_they_decode_to(kind, ids):
    tokenizer = TOKENIZERS[kind]
    ids = [(7 * n) % tokenizer.vocabulary for n in ids]
    assert "".join(fed(tokenizer, ids)[0]) == tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["<s>", "▁", "▁a", "▁b", "c", "▁the", ".", "€", "é"]), max_size=20))
def test_leading_spaces_and_bytes(pieces):
    """Special tokens vanish, the first space is left out, characters are runs of bytes."""
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = []
    for piece in pieces:
        bytes_of = [f"<0x{b:02X}>" for b in piece.encode()] if piece in "€é" else [piece]
        ids += [tokenizer.id_of(p) for p in bytes_of]
    found = fed(tokenizer, ids)[0]
    assert "".join(found) == tokenizer.decode(ids) and not any(BROKEN in piece for piece in found)


def test_bytes_that_break_later_do_not_take_text_back():
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = [tokenizer.id_of(p) for p in ("▁a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "c")]
    assert "".join(fed(tokenizer, ids)[0]) == f"a€{BROKEN}c"
    assert fed(tokenizer, ids[:3])[0] == ["a", "", "", BROKEN * 2]


@settings(max_examples=300, deadline=None)
@given(st.text("abc", max_size=14), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_stop_strings_may_span_tokens(text, stops, data):
    """What is given does not depend on how the text is cut: all up to the stop string that is complete first."""
    tokenizer = TOKENIZERS["bytes"]
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    expected = text[: min(ends)[1]] if ends else text
    ids = tokenizer.encode(text)
    one, given_out = TextStream(tokenizer, stops), ""
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        given_out += one.feed(*ids[:size])
        assert expected.startswith(given_out)
        ids = ids[size:]
    assert given_out + one.finish() == expected and one.stopped == bool(ends)
    assert not one.stopped or one.feed(*tokenizer.encode("more")) + one.finish() == ""


def test_only_what_may_be_a_stop_string_is_held_back():
    one = TextStream(TOKENIZERS["characters"], ["new line", "\n\n\n"])
    assert [one.feed(*TOKENIZERS["characters"].encode(piece)) for piece in ("x ne", "xt\n\n", "a")] == [
        "x ",
        "next",
        "\n\na",
    ]


def test_generation_stops_at_a_string():
    model = writer("nano-gpt", vocabulary=260)
    tokenizer = TOKENIZERS["bytes"]
    sampling = Sampling(temperature=3.0)
    plain = generate(model, GenerationRequest(PROMPTS, sampling, max_tokens=20, detokenizer=Detokenizer(tokenizer)))
    for one in plain:
        assert one.text == tokenizer.decode(one.tokens) and one.finish_reason == "length"
    stop = next(a + b for a, b in zip(plain[0].text[3:], plain[0].text[4:], strict=False) if BROKEN not in a + b)
    cut = generate(
        model, GenerationRequest(PROMPTS, sampling, max_tokens=20, detokenizer=Detokenizer(tokenizer, [stop]))
    )
    assert cut[0].finish_reason == "stop" and cut[0].text == plain[0].text[: plain[0].text.index(stop)]
    assert cut[0].tokens == plain[0].tokens[: len(cut[0].tokens)]
    for a, b in zip(plain[1:], cut[1:], strict=True):
        assert stop in a.text or (a.tokens, a.text, a.finish_reason) == (b.tokens, b.text, b.finish_reason)
    steps = list(
        stream(model, GenerationRequest(PROMPTS, sampling, max_tokens=20, detokenizer=Detokenizer(tokenizer, [stop])))
    )
    assert ["".join(s.text for s in steps if s.row == row) for row in range(4)] == [one.text for one in cut]


def test_stop_strings_are_a_list_of_texts():
    for stop in ("ab", [""]):
        with pytest.raises(weft.WeftError, match="stop strings are a list of texts"):
            Detokenizer(TOKENIZERS["bytes"], stop)
