from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import (
    BlockSparse,
    Causal,
    Dilated,
    Documents,
    Everything,
    Graph,
    Padding,
    Prefix,
    Real,
    Window,
    strided,
    visible_pairs,
)
from weft.parts.token_positions import TokenPositions

CPU = torch.device("cpu")


def picture(mask, length=5, row=0):
    return mask.text(length, row).replace(" ", "").splitlines()


def test_pictures():
    assert picture(Causal()) == ["■····", "■■···", "■■■··", "■■■■·", "■■■■■"]
    assert picture(Causal() & Window(2)) == ["■····", "■■···", "·■■··", "··■■·", "···■■"]
    assert picture(Window(2)) == ["■■···", "■■■··", "·■■■·", "··■■■", "···■■"]
    assert picture(Prefix(3)) == ["■■■··", "■■■··", "■■■··", "■■■■·", "■■■■■"]
    assert picture(Causal() & Dilated(2)) == ["■····", "·■···", "■·■··", "·■·■·", "■·■·■"]
    assert picture(Causal() & strided(3), 7)[6] == "■··■■■■"
    assert picture(BlockSparse(2, 0), 5) == ["■■···", "■■···", "··■■·", "··■■·", "····■"]
    assert picture(Causal() & BlockSparse(2, 1), 6)[5] == "··■■■■"
    assert picture(Causal() & BlockSparse(2, 0, 1), 6)[5] == "■■··■■"
    assert picture(~Causal()) == ["·■■■■", "··■■■", "···■■", "····■", "·····"]
    assert picture(Causal() | Graph(torch.eye(5).flip(0)))[0] == "■···■"
    assert picture(Causal() & Padding(torch.tensor([3, 5]))) == ["■····", "■■···", "■■■··", "·····", "·····"]
    assert picture(Causal() & Padding(torch.tensor([3, 5]), "left"))[4] == "··■■■"
    assert picture(Documents(torch.tensor([[7, 7, 2, 2, -1]]))) == ["■■···", "■■···", "··■■·", "··■■·", "·····"]
    assert picture(Real(torch.tensor([[True, False, True, True, False]])))[0] == "■·■■·"


def test_masks_print_as_a_picture_and_draw_files(tmp_path):
    mask = Causal() & Window(3)
    assert str(mask).startswith("causal & window(3)\n■")
    for name in ("mask.png", "mask.svg", "mask.pdf"):
        path = mask.picture(tmp_path / name)
        assert path.stat().st_size > 1000
    assert b"<svg" in (tmp_path / "mask.svg").read_bytes()
    with pytest.raises(weft.WeftError, match="end the name in"):
        mask.picture(tmp_path / "mask.gif")
    with pytest.raises(weft.WeftError, match="cannot write"):
        mask.picture(tmp_path / "nowhere" / "mask.png")


masks = st.recursive(
    st.one_of(
        st.just(Causal()),
        st.just(Everything()),
        st.integers(1, 9).map(Window),
        st.integers(0, 9).map(Prefix),
        st.integers(1, 5).map(Dilated),
        st.builds(BlockSparse, st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
        inner.map(lambda m: ~m),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(masks, st.integers(0, 6), st.integers(1, 13), st.integers(0, 6), st.integers(1, 13), st.integers(1, 5))
def test_what_a_mask_knows_in_advance_is_true(mask, q0, T, k0, S, block):
    """`band`, `covers`, `form` and `extents` agree with the tensor."""
    queries, keys = TokenPositions.run(q0, T, CPU), TokenPositions.run(k0, S, CPU)
    visible = visible_pairs(mask, queries, keys).expand(1, T, S)[0]
    if mask.covers((q0, q0 + T - 1), (k0, k0 + S - 1)):
        assert visible.all()
    back, ahead = mask.band()
    distance = queries.positions[0][:, None] - keys.positions[0][None]
    assert back is None or not visible[distance > back].any()
    assert ahead is None or not visible[distance < -ahead].any()
    context = AttentionContext(queries, keys, mask)
    if context.form == "everything":
        assert visible.all()
    elif context.form == "causal":
        assert torch.equal(visible, torch.ones(T, S).tril().bool())
    assert torch.equal(context.visible.expand(1, 1, T, S)[0, 0], visible)
    outside = visible.clone()
    for a, b, c, d in context.extents(block):
        assert torch.equal(context.visible_block(a, b, c, d).expand(1, 1, b - a, d - c)[0, 0], visible[a:b, c:d])
        outside[a:b, c:d] = False
    assert not outside.any()


@settings(max_examples=300, deadline=None)
@given(masks, masks, st.integers(0, 6), st.integers(1, 13))
def test_a_mask_that_includes_another_shows_all_of_it(mask, other, start, length):
    positions = TokenPositions.run(start, length, CPU)
    wide, narrow = (visible_pairs(m, positions, positions).expand(1, length, length) for m in (mask, other))
    if mask.includes(other):
        assert not (narrow & ~wide).any()
    assert mask.includes(mask) and (mask | other).includes(mask) and mask.includes(mask & other)


def test_which_masks_include_which():
    wider = [
        (Prefix(3), Causal()), (Prefix(5), Prefix(3)), (Window(9), Causal() & Window(4)), (Dilated(2), Dilated(6)),
        (Everything(), Causal()), (strided(4), Window(3)), (BlockSparse(4, 2, 1), BlockSparse(4, 1)),
    ]  # fmt: skip
    for wide, narrow in wider:
        assert wide.includes(narrow) and not narrow.includes(wide)


def test_the_cheapest_form():
    x = torch.zeros(2, 9, 4)
    assert AttentionContext.of(x).form == "everything"
    assert AttentionContext.of(x, Causal()).form == "causal"
    assert AttentionContext.of(x, Causal() & Window(9)).form == "causal"
    assert AttentionContext.of(x, Causal() & Window(8)).form == "dense"
    assert AttentionContext.of(x, Causal() & Padding(torch.tensor([4, 9]))).form == "causal"
    assert AttentionContext.of(x, Causal() & Padding(torch.tensor([4, 9]), "left")).form == "dense"
    assert AttentionContext.of(x, Padding(torch.tensor([4, 9]))).visible.shape == (2, 1, 1, 9)
    one = AttentionContext(TokenPositions.run(8, 1, CPU), TokenPositions.run(0, 9, CPU), Causal())
    assert one.form == "everything"
    assert "positions" not in one.keys.__dict__


def test_a_window_and_documents_bound_the_blocks():
    x = torch.zeros(1, 1000, 4)
    for _, _, k0, k1 in AttentionContext.of(x, Causal() & Window(50)).extents(100):
        assert k1 - k0 <= 150
    ids = torch.arange(10).repeat_interleave(100)[None]
    for q0, q1, k0, k1 in AttentionContext.of(x, Causal() & Documents(ids)).extents(50):
        assert k0 == q0 // 100 * 100 and k1 == q1


def test_equal_masks_are_one_and_repeats_vanish():
    assert (Causal() & Causal()) == Causal()
    assert (Causal() & Everything()) == Causal()
    assert hash(Causal() & Window(3)) == hash(Causal() & Window(3))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Window(0), "at least 1"),
        (lambda: Dilated(0), "at least 1"),
        (lambda: Graph(torch.zeros(3, 4)), "adjacency"),
        (lambda: Padding(torch.zeros(2, 2)), "lengths"),
        (lambda: Real(torch.zeros(2)), r"\[B, T\]"),
        (lambda: Documents(torch.zeros(2)), r"\[B, T\]"),
        (lambda: Documents(torch.tensor([[0, 1, 0]])).grid(3), "stand together"),
        (lambda: Documents(torch.tensor([[0, 1, 1]])).grid(4), "one mark per token"),
        (lambda: (Padding(torch.tensor([2])) & Real(torch.ones(1, 3))).grid(3), "twice"),
        (
            lambda: Documents(torch.tensor([[0]])).allows(TokenPositions.run(0, 1, CPU), TokenPositions.run(0, 1, CPU)),
            "carry none",
        ),
        (lambda: TokenPositions.of(torch.zeros(1, 2, 3)), "positions"),
    ],
)
def test_errors_say_what_to_do(make, word):
    with pytest.raises(weft.WeftError, match=word):
        make()


def test_a_graph_sees_along_its_edges_only():
    A = torch.rand(2, 5, 5) > 0.5
    token_positions = TokenPositions.run(0, 5, CPU)
    assert torch.equal(Graph(A).allows(token_positions, token_positions), A)
    assert not Graph(A).allows(token_positions, TokenPositions.run(5, 3, CPU)).any()
    assert Graph(A[0]).text(5)
    assert "5 nodes" in repr(Graph(A))
