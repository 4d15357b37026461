from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.parts import kernels
from weft.parts.attention import CrossAttention, SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.kernels import blocked, choose_kernel, explicit, fused, kept_weights
from weft.parts.masks import Causal, Documents, Graph, Padding, Prefix, Real, Window
from weft.parts.norms import LayerNorm, RMSNorm
from weft.parts.relative import Alibi, BucketedBias, RelativeVectors, Rotary
from weft.parts.scores import Additive, Bilinear, ScaledDot, weigh
from weft.parts.token_positions import TokenPositions

pytestmark = pytest.mark.usefixtures("double")
CPU = torch.device("cpu")


def positions(heads: int, size: int) -> list:
    return [None, Rotary(size), Alibi(heads), BucketedBias(heads, 8, 11), RelativeVectors(size, 3)]


@settings(max_examples=40, deadline=None)
@given(
    B=st.integers(1, 3),
    T=st.integers(1, 17),
    H=st.integers(1, 3),
    G=st.integers(1, 2),
    K=st.sampled_from([2, 4, 6]),
    V=st.integers(1, 5),
    block=st.integers(1, 7),
    pick=st.integers(0, 10_000),
)
def test_three_backends_agree_forward_and_backward(B, T, H, G, K, V, block, pick):
    torch.manual_seed(pick)
    heads = H * G
    position = positions(heads, K)[pick % 5]
    lengths = torch.randint(1, T + 1, (B,))
    mask = [
        None, Causal(), Causal() & Window(3), Prefix(2), Padding(lengths), Causal() & Padding(lengths, "left"),
        Causal() & Documents(torch.randint(0, 2, (B, T)).sort(1).values), Graph(torch.rand(T, T) > 0.6),
    ][pick % 8]  # fmt: skip
    attention = SelfAttention(5, heads, G, K, V)
    x = torch.randn(B, T, 5, requires_grad=True)
    context = AttentionContext.of(x, mask, position)
    weights = [x, *attention.parameters(), *(position.parameters() if position is not None else ())]
    real = torch.ones(1, T, 1) if context.queries.real is None else context.queries.real[..., None]
    found = []
    for backend in ("explicit", "fused", "blocked"):
        set_backend(attention, backend)
        original = kernels.blocked.__defaults__
        kernels.blocked.__defaults__ = (0.0, block)
        y = attention(x, context) * real
        found.append((y, *torch.autograd.grad(y.square().sum(), weights, allow_unused=True)))
        kernels.blocked.__defaults__ = original
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a is None or torch.allclose(a, b if b is not None else torch.zeros_like(a), atol=1e-10)


@pytest.mark.parametrize("backend", ["explicit", "fused", "blocked"])
def test_a_row_that_may_look_nowhere_gives_zeros_and_finite_gradients(backend):
    attention = SelfAttention(12, 3)
    set_backend(attention, backend)
    x = torch.randn(2, 5, 12, requires_grad=True)
    adjacency = torch.ones(5, 5)
    adjacency[2] = 0
    y = attention(x, AttentionContext.of(x, Graph(adjacency)))
    assert torch.equal(y[:, 2], attention.output.bias.expand(2, -1))
    y.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in attention.parameters())


def test_a_batch_row_of_padding_alone_stays_finite():
    attention = SelfAttention(12, 3)
    x = torch.randn(2, 5, 12, requires_grad=True)
    y = attention(x, AttentionContext.of(x, Real(torch.tensor([[True] * 5, [False] * 5]))))
    assert torch.equal(y[1], attention.output.bias.expand(5, -1))
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_weights_are_distributions_in_float32_or_wider():
    scores = torch.randn(2, 3, 5, 7).half()
    visible = torch.rand(2, 1, 5, 7) > 0.3
    A = weigh(scores, visible)
    assert A.dtype == torch.float32
    assert torch.allclose(A.sum(-1), visible.any(-1).expand(2, 3, 5).float())
    assert weigh(scores.double()).dtype == torch.float64


def test_grouped_heads_are_repeated_keys_and_values():
    grouped, full = SelfAttention(24, 6, 2), SelfAttention(24, 6)
    q, k, v = grouped.qkv.weight.split([24, 8, 8])
    qb, kb, vb = grouped.qkv.bias.split([24, 8, 8])
    repeat = lambda w: w.unflatten(0, (2, 4)).repeat_interleave(3, 0).flatten(0, 1)  # noqa: E731
    full.qkv.weight.data = torch.cat((q, repeat(k), repeat(v)))
    full.qkv.bias.data = torch.cat((qb, repeat(kb), repeat(vb)))
    full.output.load_state_dict(grouped.output.state_dict())
    x = torch.randn(2, 7, 24)
    assert torch.allclose(grouped(x), full(x))
    shapes = [tuple(t.shape) for t in SelfAttention(24, 6, 1).project(x)]
    assert shapes == [(2, 6, 7, 4), (2, 1, 7, 4), (2, 1, 7, 4)]


def test_cross_attention_of_different_widths_and_sizes():
    cross = CrossAttention(
        10, 2, memory_width=13, key_heads=1, head_width=3, value_width=7, query_norm=RMSNorm(3), key_norm=RMSNorm(3)
    )
    x, memory = torch.randn(2, 5, 10), torch.randn(2, 11, 13)
    y = cross(x, memory)
    q = cross.query_norm(cross.query(x).unflatten(-1, (2, 3)).transpose(1, 2))
    k, v = cross.key_value(memory).split([3, 7], -1)
    A = (q @ cross.key_norm(k)[:, None].transpose(-2, -1) / 3**0.5).softmax(-1)
    assert torch.allclose(y, cross.output((A @ v[:, None]).transpose(1, 2).flatten(-2)))
    with pytest.raises(weft.WeftError, match="memory expects vectors of width 13"):
        cross(x, x)


def test_every_score_works_in_self_attention_and_norms_change_it():
    x = torch.randn(2, 7, 12)
    for score in (Bilinear(4, 4, 3), Additive(4, 4, 3)):
        attention = SelfAttention(12, 3, score=score, query_norm=LayerNorm(4), key_norm=LayerNorm(4))
        context = AttentionContext.of(x, Causal(), RelativeVectors(4, 2))
        query, key, value = attention.project(x)
        query, key = attention.position(query, key, context)
        y, A = explicit(query, key, value, context, score)
        assert torch.allclose(attention(x, context), attention.merge(y))
        assert torch.allclose(attention.weights(query, key, context), A)
        assert torch.equal(A, A.tril())


def test_dropout_drops_in_training_only_and_blocks_repeat_it_in_backward():
    q, k, v = (torch.randn(1, 2, 300, 4, requires_grad=True) for _ in range(3))
    context = AttentionContext(TokenPositions.run(0, 300, CPU), mask=Causal() & Window(40))
    torch.manual_seed(3)
    score = ScaledDot(scale=0.5)
    y = blocked(q, k, v, context, score, dropout=0.5)
    assert not torch.allclose(y, blocked(q, k, v, context, score))
    (gradient,) = torch.autograd.grad(y.sum(), v)
    direction = torch.randn_like(v)
    torch.manual_seed(3)
    moved = blocked(q, k, (v + 1e-3 * direction).detach(), context, score, dropout=0.5)
    assert torch.allclose((gradient * direction).sum(), (moved - y.detach()).sum() / 1e-3)
    attention = SelfAttention(12, 3, dropout=0.5)
    x = torch.randn(1, 5, 12)
    assert not torch.allclose(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_by_blocks_keeps_the_expectation_and_the_share(share):
    """Means over many draws: of Y those without dropout, of kept weights 1 - p, each within five deviations."""
    torch.manual_seed(11)
    T = 80
    context = AttentionContext(TokenPositions.run(0, T, CPU), mask=Causal())
    q, k = torch.randn(1, 2, T, 4), torch.randn(1, 2, T, 4)
    v = torch.eye(T).expand(1, 2, T, T)  # Y = A
    A = blocked(q, k, v, context, ScaledDot(), block=32)
    draws = torch.stack([blocked(q, k, v, context, ScaledDot(), share, 32) for _ in range(120)])
    kept = draws != 0
    seen = (A > 0).sum() * len(draws)
    assert abs(kept.sum() / seen - (1 - share)) < 5 * (share * (1 - share) / seen) ** 0.5
    assert torch.allclose(draws[kept], (A / (1 - share)).expand_as(draws)[kept], rtol=1e-4)
    deviation = A * (share / (1 - share) / len(draws)) ** 0.5
    assert ((draws.mean(0) - A).abs() <= 5.5 * deviation + 1e-5 * A).all()
    elsewhere = kept_weights(torch.empty(2, 3, 5, 7, device="meta"), share)
    assert elsewhere.shape == (2, 3, 5, 7) and elsewhere.dtype == torch.bool and elsewhere.is_meta
    rows = kept.double().mean((0, 1, 2))
    assert not torch.equal(draws[0], draws[1]) and rows[75, :60].std() < 0.08


def test_dropout_by_blocks_is_repeated_in_backward_and_leaves_the_generator_alone():
    """The gradient is the derivative under the same draw; backward does not move the random numbers that follow."""
    q, k, v = (torch.randn(1, 2, 150, 4, requires_grad=True) for _ in range(3))
    context = AttentionContext(TokenPositions.run(0, 150, CPU))

    def drawn(*given):
        torch.manual_seed(5)
        return blocked(*given, context, ScaledDot(), 0.3, 64)

    drawn(q, k, v)
    torch.rand(7)
    expected = torch.rand(3)
    y = drawn(q, k, v)
    torch.rand(7)
    gradients = torch.autograd.grad(y.square().sum(), (q, k, v))
    assert torch.equal(torch.rand(3), expected)
    for place, gradient in enumerate(gradients):
        step = 1e-5 * torch.randn_like(gradient)
        moved = [[t.detach() + (sign * step if n == place else 0) for n, t in enumerate((q, k, v))] for sign in (1, -1)]
        ahead, back = (drawn(*given).square().sum() for given in moved)
        assert torch.allclose((gradient * step).sum(), (ahead - back) / 2, rtol=1e-6)


def test_which_kernel_runs_and_why():
    x = torch.zeros(1, 2048, 12)
    attention = SelfAttention(12, 3)
    assert attention.note(AttentionContext.of(x, Causal())).startswith("fused: the mask is a flag")
    assert attention.note(AttentionContext.of(x, Causal() & Window(64))).startswith("blocked: 2048 x 2048")
    assert attention.note(AttentionContext.of(x, Causal(), Alibi(3))).startswith("blocked")
    assert attention.note(AttentionContext.of(x, Padding(torch.tensor([7])))).startswith("fused: padding is one row")
    added = SelfAttention(12, 3, score=Additive(4, 4, 3))
    assert added.note(AttentionContext.of(x)).startswith("blocked: this score is not a dot product")
    assert added.note(AttentionContext.of(x[:, :9])).startswith("explicit: this score is not a dot product")
    mapped = SelfAttention(12, 3, score=Bilinear(4, 4, 3))
    assert mapped.note(AttentionContext.of(x, Causal(), Alibi(3))).startswith("blocked: 2048 x 2048")
    assert mapped.note(AttentionContext.of(x)).startswith("fused")
    with pytest.raises(weft.WeftError, match="not a dot product"):
        Additive(4, 4).as_dot_product(x)
    with pytest.raises(weft.WeftError, match="not a dot product"):
        choose_kernel(AttentionContext.of(x), Additive(4, 4), "fused")


def test_a_causal_flag_builds_no_pairs(monkeypatch):
    monkeypatch.setattr(AttentionContext, "visible_block", lambda *a: pytest.fail("a T x S tensor was built"))
    x = torch.randn(2, 9, 12)
    attention = SelfAttention(12, 3)
    attention(x, AttentionContext.of(x, Causal()))
    attention(x, AttentionContext.of(x, Causal() & Padding(torch.tensor([4, 9]))))
    state = attention.make_state()
    assert state.keys is None


def test_is_causal_with_one_query_sees_all_keys():
    q, k, v = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 4)
    context = AttentionContext(TokenPositions.run(6, 1, CPU), TokenPositions.run(0, 7, CPU), Causal())
    assert torch.allclose(
        fused(q, k, v, context, ScaledDot(scale=0.5)), F.scaled_dot_product_attention(q, k, v, scale=0.5)
    )


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SelfAttention(10, 3), "does not divide into 3 heads"),
        (lambda: SelfAttention(12, 4, 3), "key heads"),
        (lambda: SelfAttention(12, 3)(torch.zeros(1, 2, 13)), "width 12, but the input has width 13"),
        (lambda: Rotary(5), "rotate pairs"),
        (lambda: ScaledDot()(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 3)), "D_K = 3"),
    ],
)
def test_errors_say_what_to_do(make, word):
    with pytest.raises(weft.WeftError, match=word):
        make()
