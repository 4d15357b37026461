"""Feed-forwards, experts, recurrence, convolution, linear attention, outputs, quantized, initialization, blocks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.foundation.seeds import generator
from weft.parts import linear_attention as linear
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.auxiliary import Auxiliary
from weft.parts.block import PreNorm, stochastic_depth
from weft.parts.convolution import Convolution, GridConvolution
from weft.parts.embeddings import (
    ClassToken,
    ConvolutionStem,
    PatchEmbedding,
    SegmentEmbedding,
    SequenceInput,
    TokenEmbedding,
    VectorEmbedding,
)
from weft.parts.experts import Experts, balance_loss, grouped_linear, route, z_loss
from weft.parts.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward, activation, gated_width
from weft.parts.initialization import FanIn, Normal, Scheme, Xavier, initialize
from weft.parts.linear import ResidualLinear
from weft.parts.masks import Everything
from weft.parts.norms import LayerNorm, RMSNorm
from weft.parts.outputs import ForecastHead, LanguageHead, PooledHead, TiedHead, TokenHead, pool_tokens
from weft.parts.quantized import BlockQuantizedLinear, quantize
from weft.parts.recurrence import Recurrent
from weft.parts.stack import Stack
from weft.parts.state import TensorState
from weft.parts.token_positions import TokenPositions

pytestmark = pytest.mark.usefixtures("double")
CPU = torch.device("cpu")


def test_norms_use_float32_statistics_for_half_inputs():
    x = (100 + torch.randn(3, 64)).half()
    for norm in (LayerNorm(64), RMSNorm(64), LayerNorm(64, bias=False)):
        exact = norm(x.double())
        assert norm(x).dtype == torch.float16
        assert (norm.half()(x).double() - exact).abs().max() < 2e-3
    x = torch.randn(3, 7)
    assert torch.allclose(RMSNorm(7, 0.5)(x), x / (0.5 + x.square().mean(-1, keepdim=True)).sqrt())


def test_activations_and_widths():
    x = torch.randn(50)
    assert torch.equal(activation("squared-relu")(x), x.clamp(min=0) ** 2)
    by_hand = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert torch.allclose(activation("gelu-tanh")(x), by_hand)
    assert not torch.allclose(activation("gelu")(x), by_hand, atol=1e-6)
    assert {"relu", "gelu", "silu"} < set(ACTIVATIONS)
    with pytest.raises(weft.WeftError, match="choose one of relu"):
        activation("nonsense")
    assert FeedForward(6).up.out_features == 24
    assert gated_width(768) == 2048 and gated_width(30) == 80


def test_gated_feedforward_is_the_formula():
    part, x = GatedFeedForward(5, 7, "gelu"), torch.randn(3, 5)
    W1, W2 = part.gate_up.weight.chunk(2)
    assert torch.allclose(part(x), (F.gelu(x @ W1.T) * (x @ W2.T)) @ part.down.weight.T)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_experts_equal_the_sum_over_all_experts(gated, shared):
    D, H, E, A = 5, 7, 6, 2
    always = FeedForward(D, 3) if shared else None
    part, x = Experts(D, H, E, A, "silu", gated, always), torch.randn(2, 11, D)
    p = (x @ part.router.T).softmax(-1)
    kept = p * (p >= p.topk(A).values[..., -1:])
    g = kept / kept.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for e in range(E):
        hidden = x @ part.up[e].T
        hidden = F.silu(hidden[..., :H]) * hidden[..., H:] if gated else F.silu(hidden)
        y = y + g[..., e : e + 1] * (hidden @ part.down[e].T)
    assert torch.allclose(part(x), y + (always(x) if shared else 0))


def test_no_token_is_dropped_even_if_all_choose_one_expert():
    part, x = Experts(5, 7, 6, 1), torch.randn(101, 5)
    part.router.data.zero_()
    part.router.data[3] = 1.0
    out = part(x.abs())
    assert (out.abs().sum(-1) > 0).all()


def test_router_losses():
    logits = torch.zeros(12, 4)
    chosen = torch.arange(12)[:, None] % 4
    ones = torch.ones(12)
    assert float(balance_loss(logits.softmax(-1), chosen, ones)) == pytest.approx(1.0)
    assert float(z_loss(logits, ones)) == pytest.approx(math.log(4) ** 2)
    skewed = torch.zeros(12, 4)
    skewed[:, 0] = 5
    gates, chosen, p = route(skewed, 1, "renormalized")
    assert torch.equal(gates, torch.ones(12, 1))
    assert float(balance_loss(p, chosen, ones)) > 3
    assert route(torch.zeros(2, 4, dtype=torch.half), 2, "renormalized")[2].dtype == torch.float32


def test_padding_counts_in_no_expert_statistic():
    part, x = Experts(5, 7, 4, 2), torch.randn(2, 6, 5)
    real = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    padded, alone = Auxiliary(real), Auxiliary()
    part(x, padded)
    part(torch.cat((x[0], x[1, :2])), alone)
    for name, value in alone.summary().items():
        assert torch.allclose(padded.summary()[name], value)
    assert float(padded.summary()["routing"].sum()) == pytest.approx(1.0)


def test_grouped_products_on_both_paths():
    x, weights = torch.randn(8, 16).float(), torch.randn(3, 16, 16).float()
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    by_hand = torch.cat([x[:3] @ weights[0].T, x[3:] @ weights[2].T])
    assert torch.allclose(grouped_linear(x, weights, ends), by_hand, atol=1e-5)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrence_by_the_lectures_steps(cell):
    net, x = Recurrent(cell, 5, 7), torch.randn(2, 6, 5)
    out, end = net(x, TokenPositions.run(0, 6, CPU))
    hidden = tuple(torch.zeros(2, 7) for _ in end)
    for t in range(6):
        hidden = net.step(x[:, t], hidden)
        assert torch.allclose(hidden[0], out[:, t])
    assert all(torch.allclose(a, b) for a, b in zip(hidden, end, strict=True))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrence_starts_from_its_state_and_skips_padding(bidirectional):
    net, x = Recurrent("lstm", 5, 7, bidirectional), torch.randn(3, 6, 5)
    start = tuple(torch.randn(3, net.width) for _ in "hc")
    real = torch.tensor([[False, True, True, False, True, False], [False] * 6, [True] * 6])
    out, end = net(x, TokenPositions.of_real(real), start)
    alone, last = net(x[:1, [1, 2, 4]], TokenPositions.run(0, 3, CPU), tuple(s[:1] for s in start))
    assert torch.allclose(out[0, [1, 2, 4]], alone[0]) and torch.equal(out[0, [0, 3, 5]], torch.zeros(3, net.width))
    assert all(torch.allclose(a[0], b[0]) for a, b in zip(end, last, strict=True))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(end, start, strict=True))
    empty, kept = net(x, TokenPositions.of_real(torch.zeros(3, 6, dtype=torch.bool)), start)
    assert not empty.any() and kept is start


def test_convolution_by_hand_causal_and_centered():
    x = torch.randn(2, 9, 4)
    for causal in (True, False):
        part = Convolution(4, 3, causal, groups=2)
        ahead = 0 if causal else 1
        padded = F.pad(x.transpose(1, 2), (2 - ahead, ahead))
        by_hand = F.conv1d(padded, part.taps.weight, part.taps.bias, groups=2).transpose(1, 2)
        assert torch.allclose(part(x), part.output(by_hand))
    assert Convolution(4, 1)(x, None, TensorState()).shape == x.shape
    with pytest.raises(weft.WeftError, match="odd kernel"):
        Convolution(4, 2, causal=False)
    with pytest.raises(weft.WeftError, match="groups"):
        Convolution(4, 3, groups=3)
    with pytest.raises(weft.WeftError, match="keeps no state"):
        Convolution(4, 3, causal=False)(x, None, TensorState())


def test_grid_convolution():
    part, x = GridConvolution(4, 3), torch.randn(2, 15, 4)
    y = part(x, AttentionContext(TokenPositions.run(0, 15, CPU, grid=(3, 5))))
    image = part.taps(x.transpose(1, 2).unflatten(-1, (3, 5))).flatten(2).transpose(1, 2)
    assert torch.allclose(y, part.output(image))
    assert part.make_state() == TensorState()
    with pytest.raises(weft.WeftError, match="no grid"):
        part(x)
    with pytest.raises(weft.WeftError, match="odd kernel"):
        GridConvolution(4, 2)


@settings(max_examples=30, deadline=None)
@given(T=st.integers(1, 23), chunk=st.integers(1, 9), normalize=st.booleans(), seed=st.integers(0, 99))
def test_linear_attention_parallel_chunked_and_recurrent_agree(T, chunk, normalize, seed):
    torch.manual_seed(seed)
    phi = linear.FEATURES["elu" if normalize else "identity"]
    q, k, v = phi(torch.randn(2, 3, T, 5)), phi(torch.randn(2, 3, T, 5)), torch.randn(2, 3, T, 7)
    by_hand = (q @ k.transpose(-2, -1)).tril()
    by_hand = (by_hand / by_hand.sum(-1, keepdim=True) if normalize else by_hand) @ v
    assert torch.allclose(linear.parallel(q, k, v, normalize), by_hand)
    for y, (S, z) in (linear.chunked(q, k, v, normalize, chunk=chunk), linear.recurrent(q, k, v, normalize)):
        assert torch.allclose(y, by_hand)
        assert torch.allclose(S, k.transpose(-2, -1) @ v) and torch.allclose(z, k.sum(2))
    assert torch.allclose(linear.full(q, k, v, normalize)[:, :, -1], by_hand[:, :, -1])


def test_linear_attention_over_everything_ignores_padding_and_keeps_no_state():
    part, x = linear.LinearAttention(12, 3, causal=False), torch.randn(2, 7, 12)
    real = torch.tensor([[True] * 7, [False, True, True, False, True, False, False]])
    y = part(x, AttentionContext(TokenPositions.of_real(real)))
    assert torch.allclose(y[1, [1, 2, 4]], part(x[1:, [1, 2, 4]])[0])
    with pytest.raises(weft.WeftError, match="keeps no state"):
        part(x, None, TensorState())
    with pytest.raises(weft.WeftError, match="does not divide"):
        linear.LinearAttention(10, 3)
    assert torch.equal(linear.divide(torch.zeros(2, 3), torch.zeros(2)), torch.zeros(2, 3))


def test_outputs():
    hidden = torch.randn(2, 5, 6)
    token_positions = TokenPositions.of_lengths(torch.tensor([3, 5]), 5, "left")
    assert torch.allclose(pool_tokens(hidden, token_positions, "mean")[0], hidden[0, 2:].mean(0))
    assert torch.equal(pool_tokens(hidden, token_positions, "first")[0], hidden[0, 2])
    right = TokenPositions.of_lengths(torch.tensor([3, 5]), 5)
    assert torch.equal(pool_tokens(hidden, right, "last")[0], hidden[0, 2])
    plain = TokenPositions.run(0, 5, CPU)
    assert torch.allclose(pool_tokens(hidden, plain, "mean"), hidden.mean(1))
    assert torch.equal(pool_tokens(hidden, plain, "last"), hidden[:, -1])
    head = PooledHead(6, 4, "first", hidden=9, activation_name="relu")
    assert torch.allclose(head(hidden, plain), head.linear(F.relu(head.hidden(hidden[:, 0]))))
    assert torch.equal(PooledHead(6, None)(hidden, plain), hidden[:, 0])
    assert TokenHead(6, 3)(hidden, plain).shape == (2, 5, 3)


def test_tied_head_shares_the_embedding():
    embedding = TokenEmbedding(11, 6)
    head, other = TiedHead(6, 11, 0.5), LanguageHead(6, 11)
    hidden = torch.randn(2, 6)
    assert torch.allclose(head(hidden, embedding), 0.5 * hidden @ embedding.weight.T)
    assert torch.allclose(head.weight(embedding), 0.5 * embedding.weight)
    assert TiedHead(6, 11).weight(embedding) is embedding.weight
    assert not list(head.parameters()) and other.weight().shape == (11, 6)
    exact = other.weight().detach().clone()
    quantize(other)
    assert 0 < (other.weight() - exact).abs().max() < 0.01
    assert isinstance(quantize(torch.nn.Linear(3, 3)), BlockQuantizedLinear)


@pytest.mark.parametrize("name", ["point", "gaussian", "student"])
def test_forecast_heads(name):
    head = ForecastHead(6, 4, name)
    raw = head(torch.randn(2, 5, 6))
    distribution = head.distribution(raw)
    assert distribution.log_prob(torch.randn(2, 5, 4)).shape == (2, 5, 4)
    assert torch.allclose(distribution.mean, head.point(raw))
    assert head.distribution(raw.half()).mean.dtype == torch.float32


def test_inputs_refuse_what_they_cannot_take():
    images = PatchEmbedding(4, 3, 6)
    for make, word in (
        (lambda: TokenEmbedding(11, 6)(torch.tensor([[11]])), "token 11, but the vocabulary has 0 to 10"),
        (lambda: TokenEmbedding(11, 6)(torch.tensor([[-1]])), "token -1"),
        (lambda: TokenEmbedding(11, 6)(torch.zeros(1, 2)), "whole numbers"),
        (lambda: VectorEmbedding(3, 6)(torch.zeros(1, 2, 4)), "vectors of 4 numbers"),
        (lambda: images(torch.zeros(1, 3, 9, 8)), "9 x 8 does not divide"),
        (lambda: images(torch.zeros(1, 1, 8, 8)), "1 channels"),
        (lambda: images(torch.zeros(3, 8, 8)), "channels, height, width"),
        (
            lambda: SequenceInput()(torch.zeros(1, 2, 6), TokenPositions.run(0, 2, CPU), torch.zeros(1, 2)),
            "no segments",
        ),
        (lambda: Experts(4, 4, 2, 3), "3 active of 2"),
    ):
        with pytest.raises(weft.WeftError, match=word):
            make()


def test_sequence_input_in_order():
    part = SequenceInput(None, ClassToken(6), SegmentEmbedding(2, 6), LayerNorm(6))
    x, segments = torch.randn(2, 4, 6), torch.tensor([[0, 0, 1, 1]] * 2)
    y = part(x, TokenPositions.run(0, 5, CPU), segments)
    by_hand = torch.cat((part.class_token.vector.expand(2, 1, 6), x + part.segments.table[segments]), 1)
    assert torch.allclose(y, part.norm(by_hand))
    stem = ConvolutionStem(3, (8, 16))
    assert stem(torch.randn(1, 3, 28, 28)).shape == (1, 16, 7, 7)


def test_quantized_rows_are_near_and_independent():
    layer = torch.nn.Linear(64, 32)
    small = BlockQuantizedLinear.of(layer, "Q8_0")
    assert (small.in_features, small.out_features) == (64, 32)
    largest = layer.weight.detach().unflatten(1, (2, 32)).abs().amax(2, keepdim=True)
    error = (small.weight - layer.weight.detach()).unflatten(1, (2, 32)).abs()
    assert (error <= largest / 127 * 0.51).all() and error.max() > 0
    x = torch.randn(5, 64)
    y = small(x)
    assert torch.allclose(y, x @ small.weight.T + layer.bias.detach())
    assert torch.allclose(small(x[:1]), y[:1], atol=1e-12)
    x.requires_grad_()
    (small(x) @ torch.randn(32)).sum().backward()
    assert torch.isfinite(x.grad).all()
    no_bias = BlockQuantizedLinear.of(torch.nn.Linear(4, 3, bias=False), "Q8_0")
    assert no_bias(torch.randn(2, 4)).shape == (2, 3) and "bias" not in no_bias.state_dict()


def test_a_quantized_model_stays_close_and_lawful():
    model = weft.build("nano-moe", dtype=torch.float64).eval()
    torch.nn.init.normal_(model.stack.blocks[0].mixer.output.weight, std=0.1)
    tokens = torch.randint(0, 256, (2, 9))
    before = model(tokens).logits
    quantize(model)
    after = model(tokens).logits
    assert 0 < (before - after).abs().max() < 0.05 * before.abs().max()
    state = model.make_state(2)
    pieces = [model(tokens[:, t : t + 1], state=state).logits for t in range(9)]
    assert torch.allclose(torch.cat(pieces, 1), after)


def test_initialization_schemes():
    blocks = [PreNorm(SelfAttention(64, 4), FeedForward(64), lambda: LayerNorm(64)) for _ in range(8)]
    model = Stack(blocks, [Everything()] * 8)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    initialize(model, Normal(std=0.02), generator(1))
    assert float(model.blocks[0].mixer.qkv.weight.std()) == pytest.approx(0.02, rel=0.05)
    assert float(model.blocks[0].mixer.output.weight.std()) == pytest.approx(0.02 / 4, rel=0.05)
    assert not model.blocks[0].feedforward.up.bias.any()
    initialize(model, Xavier(zero_residual=True), generator(1))
    weight = model.blocks[0].feedforward.up.weight
    assert float(weight.abs().max()) == pytest.approx(math.sqrt(6 / (64 + 256)), rel=0.01)
    residual = [m for m in model.modules() if isinstance(m, ResidualLinear)]
    assert len(residual) == 16 and not any(m.weight.any() for m in residual)
    initialize(model, FanIn(), generator(1))
    assert float(weight.std()) == pytest.approx(1 / 8, rel=0.05)
    with pytest.raises(NotImplementedError):
        Scheme().fill(weight, 1, 1, generator(1))


def test_stochastic_depth_leaves_whole_branches_out():
    branch = torch.ones(1000, 3, 2)
    out = stochastic_depth(branch, 0.25, training=True)
    kept = out[:, 0, 0] > 0
    assert torch.equal(out, (kept[:, None, None] / 0.75).expand_as(out))
    assert 0.7 < float(kept.double().mean()) < 0.8
    assert stochastic_depth(branch, 0.25, training=False) is branch


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_own_slopes_are_right_once_and_twice(shape):
    from weft.parts.feedforward import squared_relu
    from weft.parts.norms import rms_norm

    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    gamma = torch.rand(5, dtype=torch.float64, requires_grad=True)
    for call, inputs in ((rms_norm, (x, gamma)), (squared_relu, (x,))):
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)
    with torch.no_grad():
        known = torch.nn.functional.rms_norm(x, (5,), gamma, 1e-6)
        assert torch.allclose(rms_norm(x, gamma), known, atol=1e-12)
    assert torch.allclose(rms_norm(x, gamma), known, atol=1e-12)
