"""The lectures' claims as tests."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.parts.attention import SelfAttention, parameter_free_attention
from weft.parts.attention_context import AttentionContext
from weft.parts.block import PostNorm, PreNorm
from weft.parts.embeddings import PatchEmbedding, TokenEmbedding, patchify
from weft.parts.feedforward import FeedForward
from weft.parts.kernels import explicit
from weft.parts.masks import Causal
from weft.parts.norms import LayerNorm
from weft.parts.relative import AttentionPosition
from weft.parts.scores import Additive, Bilinear, Concatenated, Dot, ScaledDot, scaled_dot, weigh
from weft.parts.token_positions import TokenPositions

pytestmark = pytest.mark.usefixtures("double")


def test_parameter_free_attention_is_row_stochastic_and_stays_in_the_convex_hull():
    x = torch.randn(2, 7, 5)
    y, W = parameter_free_attention(x)
    assert torch.allclose(W.sum(-1), torch.ones(2, 7))
    assert (W >= 0).all()
    assert (y <= x.amax(1, keepdim=True)).all() and (y >= x.amin(1, keepdim=True)).all()
    # By hand, one output at a time: w'_ij = x_i^T x_j, softmax, y_i = sum_j w_ij x_j.
    for i in range(7):
        w = torch.softmax(torch.stack([x[0, i] @ x[0, j] for j in range(7)]), 0)
        assert torch.allclose(sum(w[j] * x[0, j] for j in range(7)), y[0, i])


def test_weights_are_diagonally_dominant_for_normalized_inputs():
    x = F.normalize(torch.randn(3, 11, 64), dim=-1) * 3
    _, W = parameter_free_attention(x)
    assert (W.argmax(-1) == torch.arange(11)).all()


def test_stacked_attention_without_an_mlp_only_re_averages():
    x = torch.randn(1, 7, 5)
    y = x
    for _ in range(4):
        y, _ = parameter_free_attention(y)
    basis = torch.linalg.lstsq(x[0].T, y[0].T).solution
    assert torch.allclose(x[0].T @ basis, y[0].T)
    spread = lambda z: (z.amax(1) - z.amin(1)).sum()  # noqa: E731
    assert spread(y) < spread(x)


def test_parameter_free_attention_may_be_causal():
    x = torch.randn(1, 7, 5)
    y, W = parameter_free_attention(x, Causal())
    assert torch.equal(W, W.tril())
    assert torch.allclose(y[:, 0], x[:, 0])


def test_the_variance_of_a_dot_product_is_its_width():
    for D_K in (3, 16, 101):
        q, k = torch.randn(40_000, D_K), torch.randn(40_000, D_K)
        assert float((q * k).sum(-1).var()) == pytest.approx(D_K, rel=0.05)
        scaled = scaled_dot(q[:, None, None], k[:, None, None]).flatten()
        assert float(scaled.var()) == pytest.approx(1.0, rel=0.05)


def test_unscaled_scores_start_sharp_and_scaled_ones_start_soft():
    q, k = torch.randn(1, 1, 50, 256), torch.randn(1, 1, 50, 256)
    sharp, soft = weigh(Dot()(q, k)), weigh(ScaledDot()(q, k))
    entropy = lambda A: float(-(A * A.clamp(min=1e-300).log()).sum(-1).mean())  # noqa: E731
    assert entropy(sharp) < 0.6
    assert entropy(soft) > 0.8 * math.log(50)


def test_worked_numbers():
    """Scores 102 and 99; D_K = 3: 58.9 and 57.2; softmax 0.85 and 0.15; weighted values; sum."""
    q = torch.tensor([[10.0, 1.0, 1.0]])[None, None]
    k = torch.tensor([[10.0, 1.0, 1.0], [9.0, 5.0, 4.0]])[None, None]
    assert Dot()(q, k).flatten().tolist() == [102.0, 99.0]
    e = ScaledDot()(q, k).flatten()
    assert [round(float(x), 1) for x in e] == [58.9, 57.2]
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[None, None]
    y, A = explicit(
        q,
        k,
        v,
        AttentionContext(TokenPositions.run(1, 1, q.device), TokenPositions.run(0, 2, q.device), Causal()),
        ScaledDot(),
    )
    assert [round(float(a), 2) for a in A.flatten()] == [0.85, 0.15]
    assert torch.allclose(y.flatten(), A.flatten())


def test_scores_equal_their_formulas_pair_by_pair():
    B, H, T, S, Q, K = 2, 3, 5, 7, 11, 13
    q, k = torch.randn(B, H, T, Q), torch.randn(B, H, S, K)
    bilinear, additive, concatenated = Bilinear(Q, K, H), Additive(Q, K, H, hidden=17), Concatenated(Q, K, H)
    for b, h, i, j in ((0, 0, 0, 0), (1, 2, 4, 6), (1, 1, 3, 2)):
        qi, kj = q[b, h, i], k[b, h, j]
        assert torch.allclose(bilinear(q, k)[b, h, i, j], qi @ bilinear.W[h] @ kj)
        by_hand = additive.v[h] @ torch.tanh(additive.W[h] @ qi + additive.U[h] @ kj)
        assert torch.allclose(additive(q, k)[b, h, i, j], by_hand)
        assert torch.allclose(concatenated(q, k)[b, h, i, j], concatenated.w[h] @ torch.cat((qi, kj)))
    for score in (bilinear, additive, concatenated):
        assert torch.allclose(score.compare(q, score.prepare(k)), score(q, k))
    with pytest.raises(weft.WeftError, match="bilinear"):
        ScaledDot()(q, k)


def test_softmax_of_a_concatenated_linear_score_ignores_the_query():
    score = Concatenated(5, 7)
    k = torch.randn(1, 1, 11, 7)
    A, other = weigh(score(torch.randn(1, 1, 3, 5), k)), weigh(score(torch.randn(1, 1, 3, 5), k))
    assert torch.allclose(A, other)


def test_pre_norm_can_be_the_identity_and_post_norm_cannot():
    x = torch.randn(2, 7, 12)
    blocks = [kind(SelfAttention(12, 3), FeedForward(12), lambda: LayerNorm(12)) for kind in (PreNorm, PostNorm)]
    for block in blocks:
        for part in (block.mixer.output, block.feedforward.down):
            torch.nn.init.zeros_(part.weight)
            torch.nn.init.zeros_(part.bias)
    assert torch.equal(blocks[0](x), x)
    assert not torch.allclose(blocks[1](x), x)


def test_blocks_are_the_lectures_equations():
    x = torch.randn(2, 7, 12)
    pre, post = (kind(SelfAttention(12, 3), FeedForward(12), lambda: LayerNorm(12)) for kind in (PreNorm, PostNorm))
    z = pre.mixer(pre.mixer_norm(x)) + x
    assert torch.equal(pre(x), z + pre.feedforward(pre.feedforward_norm(z)))
    Z = post.mixer_norm(post.mixer(x) + x)
    assert torch.equal(post(x), post.feedforward_norm(post.feedforward(Z) + Z))


def test_a_look_up_is_a_one_hot_vector_times_the_matrix():
    embedding = TokenEmbedding(11, 7)
    tokens = torch.randint(0, 11, (2, 5))
    assert torch.equal(embedding(tokens), F.one_hot(tokens, 11).double() @ embedding.weight)


def test_patches_times_a_matrix_are_a_strided_convolution():
    part = PatchEmbedding(4, 3, 13)
    images = torch.randn(2, 3, 12, 20)
    out, grid = part(images)
    conv = F.conv2d(images, part.linear.weight.view(13, 3, 4, 4), part.linear.bias, stride=4)
    assert grid == (3, 5)
    assert torch.allclose(out, conv.flatten(2).transpose(1, 2))
    pixels = patchify(images, 1)
    assert torch.equal(pixels, images.flatten(2).transpose(1, 2))


class _Neighbors(AttentionPosition):
    """Each head looks at one of the nine neighbors on an h x w grid."""

    def __init__(self, h: int, w: int) -> None:
        super().__init__()
        self.h, self.w = h, w

    def bias(self, query, queries, keys):
        rows, columns = queries.positions[0] // self.w, queries.positions[0] % self.w
        steps = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        looks = torch.stack([
            (rows[None] - rows[:, None] == dy) & (columns[None] - columns[:, None] == dx) for dy, dx in steps
        ])  # fmt: skip
        return torch.where(looks, 0.0, -1e4)[None]


def test_multi_head_attention_with_relative_positions_can_be_any_3x3_convolution():
    h, w, D = 5, 7, 9
    kernel = torch.randn(D, D, 3, 3)
    attention = SelfAttention(D, 9, head_width=1, value_width=D)
    with torch.no_grad():
        for p in attention.parameters():
            p.zero_()
        attention.qkv.weight[18:] = torch.eye(D).repeat(9, 1)
        attention.output.weight.copy_(kernel.permute(0, 2, 3, 1).flatten(1))
    x = torch.randn(2, h * w, D)
    y = attention(x, AttentionContext.of(x, position=_Neighbors(h, w)))
    conv = F.conv2d(x.transpose(1, 2).unflatten(-1, (h, w)), kernel)
    inner = y.transpose(1, 2).unflatten(-1, (h, w))[:, :, 1:-1, 1:-1]
    assert torch.allclose(inner, conv, atol=1e-10)


def test_a_vision_transformer_reaches_the_whole_image_after_one_layer():
    spec = weft.preset("nano-vit").replace(layers=1, width=32, **{"mixer.heads": 2})
    model = weft.build(spec, dtype=torch.float64).eval()
    images = torch.randn(1, 1, 28, 28, requires_grad=True)
    for token in (0, 1, 49):
        (gradient,) = torch.autograd.grad(model(images).hidden[0, token].square().sum(), images)
        assert (patchify(gradient, 4).abs().sum(-1) > 0).all()


def test_a_layer_of_convolution_does_not_reach_far():
    spec = weft.preset("nano-conv").replace(layers=1, width=16)
    model = weft.build(spec.replace(initialization={"scheme": "fan-in"}), dtype=torch.float64).eval()
    x = torch.randn(1, 20, 16, requires_grad=True)
    token_positions = TokenPositions.run(0, 20, x.device)
    (gradient,) = torch.autograd.grad(model.stack(x, token_positions)[0, 19].square().sum(), x)
    reached = (gradient[0].abs().sum(-1) > 0).nonzero().flatten()
    assert reached.tolist() == list(range(20 - 7, 20))


def test_permuting_inputs_of_self_attention_permutes_its_outputs():
    attention, x, order = SelfAttention(12, 3), torch.randn(2, 7, 12), torch.randperm(7)
    assert torch.allclose(attention(x)[:, order], attention(x[:, order]))
