"""The n-gram model of bytes: its formula, and that probabilities are probabilities."""

from __future__ import annotations

import lzma

import numpy as np
import pytest

from weft.tasks.support.evaluation.ngrams import ByteNgrams

TEXT = b"the cat sat on the mat, the rat sat on the cat; \xf0\x9f\x98\x80 that hat"


def by_hand(text: bytes, context: bytes, byte: int, order: int) -> float:
    """p_k of the docstring, counted anew."""
    found = 1 / 256
    for size in range(order):
        c = context[len(context) - size :]
        if len(c) < size:
            break
        follow = [text[n + size] for n in range(len(text) - size) if text[n : n + size] == c]
        if follow:
            kinds = len(set(follow))
            found = (follow.count(byte) + kinds * found) / (len(follow) + kinds)
    return found


@pytest.mark.parametrize("order", [1, 2, 4, 6])
def test_probabilities_are_those_of_the_formula(order):
    asked = b"the hat sat \x00 on"
    found = ByteNgrams.fit(TEXT, order).probabilities(asked)
    wanted = [by_hand(TEXT, asked[:n], asked[n], order) for n in range(len(asked))]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("context", [b"the ", b"\xff\xff\xff", b"sat on"])
def test_probabilities_of_all_bytes_sum_to_one(context):
    model = ByteNgrams.fit(TEXT)
    total = sum(model.probabilities(context + bytes([byte]))[-1] for byte in range(256))
    assert total == pytest.approx(1.0, abs=1e-12)


def test_it_learns_and_bears_empty_texts():
    text = TEXT * 30
    assert ByteNgrams.fit(text).bits_per_byte(TEXT) < 0.5 < 8 * len(lzma.compress(TEXT)) / len(TEXT)
    assert ByteNgrams.fit(b"").bits_per_byte(b"abc") == 8.0 and ByteNgrams.fit(TEXT).bits_per_byte(b"") == 0.0
    assert ByteNgrams.fit(b"ab").bits_per_byte(b"a") < 8.0
