from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.parts.grid_positions import GridAxes, GridSinusoids, GridTable, resize_axis, resize_grid
from weft.parts.positions import LearnedPositions, SinusoidalPositions, sinusoids
from weft.parts.relative import (
    NTK,
    Alibi,
    Linear,
    Llama3,
    Rotary,
    alibi_slopes,
    rotary_frequencies,
    rotate_pairs,
    t5_buckets,
)
from weft.parts.token_positions import TokenPositions, first_real, last_real, real_counts

pytestmark = pytest.mark.usefixtures("double")
CPU = torch.device("cpu")


def test_sinusoids_are_the_formula():
    p = sinusoids(torch.arange(7), 6, torch.float64)
    for t in range(7):
        for i in range(3):
            angle = t / 10_000 ** (2 * i / 6)
            assert float(p[t, 2 * i]) == pytest.approx(math.sin(angle))
            assert float(p[t, 2 * i + 1]) == pytest.approx(math.cos(angle))
    assert sinusoids(torch.arange(3), 5).shape == (3, 5)


def test_learned_positions_refuse_to_go_past_the_end():
    part, x = LearnedPositions(11, 6), torch.randn(2, 11, 6)
    assert torch.equal(part(x, TokenPositions.run(0, 11, CPU)), x + part.table)
    assert torch.equal(part(x[:, :3], TokenPositions.run(4, 3, CPU)), x[:, :3] + part.table[4:7])
    assert torch.equal(part(x[:, :2], TokenPositions.of(torch.tensor([[5, 2]]))), x[:, :2] + part.table[[5, 2]])
    for token_positions in (TokenPositions.run(8, 4, CPU), TokenPositions.of(torch.tensor([[0, 11]]))):
        with pytest.raises(weft.WeftError, match="12 tokens, but the learned positions hold 11: raise `length`"):
            part(torch.randn(1, token_positions.length, 6), token_positions)


def test_padding_needs_no_learned_position():
    part = LearnedPositions(5, 6)
    for side in ("left", "right"):
        token_positions = TokenPositions.of_lengths(torch.tensor([5, 2]), 9, side)
        assert part(torch.zeros(2, 9, 6), token_positions).shape == (2, 9, 6)


def test_positions_may_be_concatenated():
    x = torch.randn(2, 5, 6)
    token_positions = TokenPositions.run(0, 5, CPU)
    y = LearnedPositions(9, 4, "concatenate")(x, token_positions)
    assert y.shape == (2, 5, 10) and torch.equal(y[..., :6], x)
    y = SinusoidalPositions(4, "concatenate")(x, token_positions)
    assert torch.allclose(y[0, :, 6:], sinusoids(torch.arange(5), 4, torch.float64))


@pytest.mark.parametrize("scaling", [None, Linear(4.0), NTK(4.0), Llama3(8.0, original=32)])
def test_rotary_scores_depend_on_distance_only(scaling):
    rotary = Rotary(8, base=100.0, scaling=scaling)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    turned = lambda x, t: rotate_pairs(x, *rotary.angles(torch.tensor([[t]]), x.dtype))  # noqa: E731
    score = lambda i, j: float((turned(q, i) * turned(k, j)).sum())  # noqa: E731
    assert score(5, 2) == pytest.approx(score(105, 102))
    assert score(5, 2) != pytest.approx(score(5, 3))
    assert torch.allclose(turned(q, 9).norm(), q.norm())
    assert torch.equal(turned(q, 0), q)


def test_rotary_turns_pairs_by_the_formula_and_may_be_partial():
    x = torch.randn(1, 1, 1, 6)
    cos, sin = Rotary(6, fraction=0.67).angles(torch.tensor([[3]]), x.dtype)
    y = rotate_pairs(x, cos, sin)
    assert cos.shape[-1] == 4 and torch.equal(y[..., 4:], x[..., 4:])
    for i in range(2):
        angle = 3 * 10_000.0 ** (-2 * i / 4)
        a, b = float(x[..., i]), float(x[..., i + 2])
        assert float(y[..., i]) == pytest.approx(a * math.cos(angle) - b * math.sin(angle))
        assert float(y[..., i + 2]) == pytest.approx(b * math.cos(angle) + a * math.sin(angle))


def test_scalings_stretch_as_they_say():
    like = torch.zeros(())
    plain = rotary_frequencies(10_000.0, 16, like)
    assert torch.allclose(Linear(4.0).frequencies(10_000.0, 16, like), plain / 4)
    ntk = NTK(4.0).frequencies(10_000.0, 16, like)
    assert torch.allclose(ntk[0], plain[0]) and torch.allclose(ntk[-1], plain[-1] / 4)
    llama = Llama3(8.0, original=64).frequencies(10_000.0, 16, like)
    assert torch.allclose(llama[0], plain[0]) and torch.allclose(llama[-1], plain[-1] / 8)


def test_alibi_slopes():
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
    bias = Alibi(2).bias(torch.zeros(1, 2, 3, 4), TokenPositions.run(0, 3, CPU), TokenPositions.run(0, 3, CPU))
    assert bias[0, 0, 2].tolist() == [-2 * 2.0**-4, -(2.0**-4), 0.0]


def test_t5_buckets_are_exact_near_and_logarithmic_far():
    one_way = t5_buckets(-torch.arange(200), 32, 128, both_ways=False)
    assert one_way[:16].tolist() == list(range(16))
    assert one_way[127] == 31 and one_way[199] == 31
    assert (one_way.diff() >= 0).all()
    assert t5_buckets(torch.arange(1, 9), 32, 128, both_ways=False).tolist() == [0] * 8
    both = t5_buckets(torch.arange(-3, 4), 32, 128, both_ways=True)
    assert both.tolist() == [3, 2, 1, 0, 17, 18, 19]


def test_learned_grids_are_resized():
    table = torch.randn(1 + 3 * 5, 7)
    assert resize_grid(table, (3, 5), (3, 5), 1) is table
    resized = resize_grid(table, (3, 5), (6, 10), 1)
    assert torch.equal(resized[0], table[0])
    image = table[1:].T.reshape(1, 7, 3, 5)
    assert torch.allclose(resized[1:], F.interpolate(image, (6, 10), mode="bicubic")[0].flatten(1).T)
    assert resize_axis(table, 4).shape == (4, 7)
    assert resize_axis(table, 16) is table
    for part in (GridTable((3, 5), 8, 1), GridAxes((3, 5), 8, 1), GridSinusoids(8, 1), GridAxes((3, 5), 8)):
        extra = 0 if isinstance(part, GridAxes) and part.extra is None else 1
        for grid in ((3, 5), (4, 2)):
            x = torch.zeros(2, extra + grid[0] * grid[1], 8)
            p = part(x, grid)
            assert p.shape == x.shape
            assert len({tuple(row.tolist()) for row in p[0].detach()}) == x.shape[1]


def test_learned_axes_add_row_and_column():
    part = GridAxes((3, 5), 8)
    p = part(torch.zeros(1, 15, 8), (3, 5))[0]
    assert torch.equal(p[2 * 5 + 3], part.rows[2] + part.columns[3])


def test_places():
    left = TokenPositions.of_lengths(torch.tensor([2, 4]), 4, "left")
    assert left.positions.tolist() == [[-1, -1, 0, 1], [0, 1, 2, 3]]
    assert first_real(left).tolist() == [2, 0] and last_real(left).tolist() == [3, 3]
    assert real_counts(left, 2).tolist() == [2, 4] and real_counts(TokenPositions.run(3, 5, CPU), 2).tolist() == [5, 5]
    assert TokenPositions.of_real(torch.tensor([[True, True, False]])).pads == "right"
    assert TokenPositions.of_real(torch.tensor([[True, False, True]])).positions.tolist() == [[0, -1, 1]]
    packed = TokenPositions.of_documents(torch.tensor([[4, 4, 2, 2, 2, -1]]))
    assert packed.positions.tolist() == [[0, 1, 0, 1, 2, -1]]
    assert left.after(2).positions.tolist() == [[0, 1, -1, -1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert TokenPositions.run(0, 3, CPU).after(1).positions.tolist() == [[0, 1, 2, 3]]
    with pytest.raises(weft.WeftError, match="pack them"):
        packed.after(1)
