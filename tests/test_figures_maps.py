"""Maps, packing and panels: what a page or a still holds is what was given."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from weft.figures.panels.attention import AttentionPanel
from weft.figures.panels.maps import (
    MAP_ROWS_AT_ONCE,
    DenseMaps,
    TopWeightMaps,
    all_heads_fit,
    block_means,
    collect_maps,
)
from weft.figures.panels.panel import Axis, expect_shape, visible_token
from weft.figures.web.array_encoding import FULL_PRECISION_LIMIT, decode_array, encode_array, script_text
from weft.foundation.errors import WeftError


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    e = np.exp(2 * x)
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def rows_of(values: np.ndarray):
    return lambda layer, first, last: values[layer][:, first:last]


def test_packed_numbers_come_back():
    values = np.random.default_rng(1).normal(size=(3, 5, 7)).astype(np.float32)
    np.testing.assert_array_equal(decode_array(encode_array(values)), values)
    half = decode_array(encode_array(values, "f2"))
    assert half.dtype == np.float16 and np.abs(half - values).max() < 2e-3
    assert encode_array(values)["type"] == "f4" and encode_array(np.zeros(FULL_PRECISION_LIMIT + 1))["type"] == "f2"
    assert len(base64.b64decode(encode_array(np.arange(5), "u2")["data"])) == 10


@pytest.mark.parametrize("text", ["</script><b>", "a & b", "\u2028", "日本", "שלום", "🙂", "\ud800"])
def test_text_in_a_script_cannot_end_it(text):
    written = script_text({"text": text})
    assert not re.search(r"[<>&\u2028]", written) and written.isascii()
    assert json.loads(written)["text"] == text


def test_numbers_that_are_none_are_refused_in_scripts():
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_text({"x": float("nan")})


def test_whole_maps_with_the_mean_of_heads_first():
    values = weights(2, 3, 5, 7)
    maps = collect_maps(2, ("mean", "0", "1", "2"), (5, 7), rows_of(values))
    assert isinstance(maps, DenseMaps) and maps.size == (5, 7)
    np.testing.assert_allclose(maps.row(1, 0, 4), values[1, :, 4].mean(0), rtol=1e-6)
    np.testing.assert_array_equal(maps.values[:, 1:], values)
    np.testing.assert_array_equal(decode_array(maps.payload()["whole"]), maps.values)


def test_heads_alone_and_means_alone():
    values = weights(1, 3, 5, 5)
    assert collect_maps(1, ("0", "1", "2"), (5, 5), rows_of(values)).values.shape == (1, 3, 5, 5)
    alone = collect_maps(1, ("mean",), (5, 5), rows_of(values))
    np.testing.assert_allclose(alone.values[0, 0], values[0].mean(0), rtol=1e-6)
    with pytest.raises(WeftError, match="has shape 3x5x5, but 2x5x5 is needed"):
        collect_maps(1, ("0", "1"), (5, 5), rows_of(values))


def test_long_inputs_keep_the_largest_weights_of_each_row(monkeypatch):
    monkeypatch.setattr("weft.figures.panels.maps.DENSE_MAPS_LIMIT", 1000)
    monkeypatch.setattr("weft.figures.panels.maps.TOP_WEIGHTS_LIMIT", 2 * 4 * (MAP_ROWS_AT_ONCE + 13) * 11)
    values = weights(2, 3, MAP_ROWS_AT_ONCE + 13, MAP_ROWS_AT_ONCE + 13)
    asked = []

    def rows(layer: int, first: int, last: int) -> np.ndarray:
        asked.append((layer, last - first))
        return values[layer][:, first:last]

    maps = collect_maps(2, ("mean", "0", "1", "2"), values.shape[2:], rows)
    assert isinstance(maps, TopWeightMaps) and maps.weights.shape == (2, 4, MAP_ROWS_AT_ONCE + 13, 11)
    assert max(size for _, size in asked) == MAP_ROWS_AT_ONCE and len(asked) == 4
    best = np.sort(values[1, 2, 17])[-11:]
    row = maps.row(1, 3, 17)
    np.testing.assert_allclose(np.sort(row[row > 0]), best, rtol=1e-6)
    assert values[1, 2, 17][row > 0] == pytest.approx(row[row > 0])
    mean = values.mean(1)
    total = np.concatenate([mean[:, None], values], 1)
    assert maps.kept == pytest.approx(float(np.sort(total)[..., -11:].sum() / total.sum()), rel=1e-5)
    np.testing.assert_allclose(maps.pictures.mean((2, 3)), total.mean((2, 3)), rtol=0.02)
    tree = maps.payload()
    assert decode_array(tree["pictures"]).max() == 255 and decode_array(tree["places"]).shape == maps.places.shape


def test_shrinking_is_means_over_blocks():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_allclose(block_means(values, 2), [[4.0, 7.0], [16.0, 19.0]])
    assert block_means(values, 6) is values


def test_too_many_heads_do_not_fit():
    assert all_heads_fit(6, 6, 4096) and not all_heads_fit(48, 25, 4096)


def test_nothing_to_draw_is_said():
    with pytest.raises(WeftError, match="nothing to draw"):
        collect_maps(0, ("0",), (5, 5), rows_of(weights(1, 1, 5, 5)))
    tokens = tuple("abcdefg")
    with pytest.raises(WeftError, match="maps of 5 x 7 for 4 x 7 tokens"):
        AttentionPanel(
            "", tokens[:4], tokens, Axis("layer", ("0",)), Axis("head", ("0",)), DenseMaps(weights(1, 1, 5, 7))
        )
    with pytest.raises(WeftError, match="layer 2 of 2: choose one from 0 on"):
        Axis("layer", ("0", "1"), 2)
    with pytest.raises(WeftError, match="x has shape 2x3, but nx2 is needed"):
        expect_shape("x", np.zeros((2, 3)), None, 2)


def test_tokens_show_their_blanks():
    assert [visible_token(token) for token in (" the", "a\n", "", "  ", "\t")] == ["␣the", "a↵", "∅", "␣␣", "⇥"]


def test_options_in_words():
    axis = Axis("head", ("mean", "0", "1"))
    assert [axis.named(place) for place in range(3)] == ["mean", "head 0", "head 1"]
