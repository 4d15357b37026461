"""Scores as one registry: each says its products, its explanation and how it weighs, in every model that attends."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from weft.foundation.matrix_products import ProductView
from weft.inspection.analysis.explain import explain, explain_vectors
from weft.inspection.analysis.rollout import rollout
from weft.inspection.recording.watch import watch
from weft.laws import check
from weft.models.decoder import DecoderSpec
from weft.models.estimates import estimate
from weft.models.part_specs import AttentionSpec
from weft.models.products import products
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.parts.attention import SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal, Real
from weft.parts.scores import SCORES, CappedDot, LinearDot, ScaledDot, Score, build_score

B, H, T, S, K = 2, 3, 5, 7, 11


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def decoder(score, **more):
    mixer = AttentionSpec(heads=3, score=score, **more)
    return weft.build(DecoderSpec(vocabulary=31, width=24, layers=2, length=23, mixer=mixer), seed=1).double().eval()


class Distance(Score):
    """e_ij = -w_h |q_i - k_j|, one weight per head; it says nothing else."""

    def __init__(self, query_width, key_width, heads=1):
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(1.0, heads + 1))

    def forward(self, query, key):
        return -self.w[:, None, None] * torch.cdist(query, key)


@pytest.mark.parametrize("kind", SCORES.builtin)
def test_every_score_explains_the_weights_it_gives(kind):
    torch.manual_seed(5)
    module = decoder(kind, key_heads=None)
    with torch.no_grad(), watch(module) as seen:
        module(torch.randint(0, 31, (B, T)))
    found = explain(seen, layer=1, head=2, row=3, batch=1)
    weights = seen.attention(1, 2, batch=1)[3]
    torch.testing.assert_close(found.weights, weights, rtol=0, atol=1e-12)
    assert (weights[4] == 0 and (float(weights.sum()) - 1) ** 2 < 1e-20) or not SCORES[kind].normalized
    e = found.step("scores").values["e"]
    torch.testing.assert_close(e[:4], seen.scores(1, 2, batch=1)[3, :4], rtol=0, atol=1e-12)
    score = module.stack.blocks[1].mixer.score
    assert found.step("scores").formula.startswith(score.formula)


@pytest.mark.parametrize("kind", SCORES.builtin)
def test_the_products_of_a_score_are_those_that_it_computes(kind):
    """FLOPs counted by torch while the score runs."""
    from torch.utils.flop_counter import FlopCounterMode

    score = build_score(kind, K, K, H).double()
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        score(drawn(1, H, T, K), drawn(1, H, S, K))
    said = score.matrix_products((K, K), ProductView.full(T, S), H)
    assert sum(one.flops for one in said) == counted.get_total_flops()


def test_linear_attention_leaves_out_the_softmax():
    torch.manual_seed(3)
    part = SelfAttention(24, H, score=LinearDot()).double()
    x, real = drawn(B, T, 24), torch.tensor([[True] * T, [False] + [True] * (T - 1)])
    context = AttentionContext.of(x, Causal() & Real(real))
    query, key, value = part.project(x)
    a = torch.einsum("bhtk,bhsk->bhts", query, key) / math.sqrt(8)
    a = a * torch.ones(T, T).tril() * real[:, None, None]
    torch.testing.assert_close(part.weights(query, key, context), a, rtol=0, atol=1e-12)
    torch.testing.assert_close(part(x, context), part.merge(a @ value), rtol=0, atol=1e-12)
    assert part.note(context).startswith("explicit: ") and bool((a < 0).any())
    set_backend(part, "fused")
    with pytest.raises(weft.WeftError, match="not a dot product with a softmax, so the fused kernel cannot run it"):
        part(x, context)
    with pytest.raises(weft.WeftError, match="leaves out the softmax"):
        LinearDot().as_dot_product(query)


def test_laws_of_linear_attention():
    report = check(decoder("linear"))
    assert not report.broken
    assert report["attention rows are distributions"].verdict == "not declared"
    assert "softmax" in report["attention rows are distributions"].evidence
    assert report["cache = full forward"].verdict == report["causality"].verdict == "holds"
    mixed = DecoderSpec(
        vocabulary=31, width=24, layers=2, mixer=(AttentionSpec(heads=3), AttentionSpec(heads=3, score="linear"))
    )
    assert check(weft.build(mixed))["attention rows are distributions"].evidence.startswith("1 layers")


def test_maps_of_linear_attention_are_read_by_their_shares():
    module = decoder("linear")
    with torch.no_grad(), watch(module) as seen:
        module(torch.randint(0, 31, (1, T), generator=torch.Generator().manual_seed(2)))
    A = seen.attention(0)
    assert bool((A < 0).any()) and A.shape == (3, T, T)
    shares = A.abs() / A.abs().sum(-1, keepdim=True)
    entropy = -(shares * shares.clamp(min=1e-300).log()).sum(-1).mean(-1)
    torch.testing.assert_close(seen.statistics().entropy[0], entropy, rtol=0, atol=1e-9)
    torch.testing.assert_close(rollout(seen).sum(-1), torch.ones(T, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wiring", ["before", "after"])
@pytest.mark.parametrize("kind", SCORES.builtin)
def test_the_recurrent_model_takes_every_score(kind, wiring):
    spec = RecurrentSeq2SeqSpec(
        vocabulary=31, width=13, hidden=12, attention=kind, wiring=wiring, bidirectional=not SCORES[kind].equal_widths
    )
    module = weft.build(spec, seed=2).double().eval()
    source, target = torch.randint(4, 31, (B, S)), torch.randint(4, 31, (B, T))
    real = torch.ones(B, S, dtype=torch.bool)
    real[1, 4:] = False
    with torch.no_grad(), watch(module) as seen:
        out = module(source, target, source_mask=real)
    a = out.auxiliary["alignment"]
    assert not a[1, :, 4:].any() and out.logits.isfinite().all()
    if SCORES[kind].normalized:
        torch.testing.assert_close(a.sum(-1), torch.ones(B, T, dtype=torch.float64))
    else:
        assert bool((a < 0).any())
    found = explain(seen, row=2, batch=1)
    torch.testing.assert_close(found.weights, a[1, 2], rtol=0, atol=1e-12)
    verdicts = check(module)
    assert not verdicts.broken and verdicts["source padding"].verdict == "holds"
    names = [one.name for group in estimate(spec, 9).groups if group.where == "decoder" for one in group.products]
    wanted = [one.name for one in module.score.matrix_products((12, spec.memory_width), ProductView.full(9))]
    assert names[1 : 1 + len(wanted)] == wanted


def test_a_capped_score_is_the_formula_of_gemma_2_and_bounded():
    """e = c tanh(s q.k / c): transformers' eager attention with softcap, and its parts, forward and backward."""
    torch.manual_seed(7)
    spec = AttentionSpec(heads=3, score="capped-dot", score_cap=1.7, score_scale=0.31)
    part = spec.build(24, causal=True).double()
    x = drawn(B, T, 24).requires_grad_()
    context = AttentionContext.of(x, Causal())
    query, key, value = part.project(x)
    e = 1.7 * torch.tanh(0.31 * torch.einsum("bhtk,bhsk->bhts", query, key) / 1.7)
    a = e.masked_fill(~torch.ones(T, T).tril().bool(), -math.inf).softmax(-1)
    torch.testing.assert_close(part.score(query, key), e, rtol=0, atol=1e-12)
    wanted = part.merge(a @ value)
    found = {}
    for backend in ("auto", "explicit", "blocked"):
        set_backend(part, backend)
        y = part(x, context)
        torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
        found[backend] = torch.autograd.grad(y.square().sum(), [x, *part.parameters()])
    for one, other in zip(found["explicit"], found["blocked"], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert bool((CappedDot(cap=1.7)(1e3 * query, key).abs() <= 1.7).all())
    near = CappedDot(cap=1e6)(query, key)
    torch.testing.assert_close(near, ScaledDot()(query, key), rtol=0, atol=1e-8)
    set_backend(part, "fused")
    with pytest.raises(weft.WeftError, match="not a dot product with a softmax, so the fused kernel cannot run it"):
        part(x, context)
    with pytest.raises(weft.WeftError, match="puts a tanh on the dot product"):
        part.score.as_dot_product(query)
    assert not check(decoder("capped-dot", score_cap=0.5)).broken


def test_a_scale_of_its_own_stands_in_place_of_the_root():
    """Gemma's query_pre_attn_scalar n is the scale n^-0.5; every kernel and the explanation follow it."""
    torch.manual_seed(8)
    part = AttentionSpec(heads=3, score_scale=144**-0.5).build(24, causal=True).double()
    x = drawn(B, T, 24)
    context = AttentionContext.of(x, Causal())
    query, key, value = part.project(x)
    e = torch.einsum("bhtk,bhsk->bhts", query, key) / 12
    wanted = e.masked_fill(~torch.ones(T, T).tril().bool(), -math.inf).softmax(-1) @ value
    for backend in ("explicit", "fused", "blocked"):
        set_backend(part, backend)
        torch.testing.assert_close(part(x, context), part.merge(wanted), rtol=0, atol=1e-12)
    assert part.score.formula == "e_ij = 0.08333 q_i.k_j"
    steps = part.score.explain(query[0, 1, 2], key[0, 1])
    torch.testing.assert_close(steps[-1].values["e"], e[0, 1, 2], rtol=0, atol=1e-12)
    assert AttentionSpec(score_scale=0.1).build(24, True).score.as_dot_product(query)[1] == 0.1


def test_settings_that_a_score_does_not_have_are_refused():
    for given, word in (({"score_cap": 5.0}, "score_cap"), ({"score": "dot", "score_scale": 2.0}, "score_scale")):
        with pytest.raises(weft.WeftError, match=f"mixer.{word} is given, but the score .* has none: use .*capped-dot"):
            DecoderSpec(mixer=AttentionSpec(heads=4, **given))
    with pytest.raises(weft.WeftError, match="the score 'additive' has no cap: use capped-dot, or leave it out"):
        build_score("additive", 3, 3, cap=2.0)
    with pytest.raises(weft.WeftError, match="greater than 0"):
        AttentionSpec(score="capped-dot", score_cap=0.0)


def test_widths_that_do_not_fit_and_unknown_scores_are_refused():
    for kind in ("dot", "scaled-dot", "linear"):
        with pytest.raises(
            weft.WeftError, match=f"attention {kind} compares vectors of one width.*are 24 and.* 12: set"
        ):
            RecurrentSeq2SeqSpec(hidden=12, attention=kind)
        with pytest.raises(weft.WeftError, match="D_Q = 5 and D_K = 7: use a bilinear"):
            build_score(kind, 5, 7)
    listed = "there is no score 'dots': choose one of scaled-dot, dot, bilinear, additive, concatenated, linear"
    for make in (lambda: AttentionSpec(score="dots"), lambda: RecurrentSeq2SeqSpec(attention="dots"),
                 lambda: build_score("dots", 3, 3)):  # fmt: skip
        with pytest.raises(weft.WeftError, match=listed):
            make()


def test_a_score_that_says_nothing_is_refused_not_guessed():
    part = SelfAttention(24, H, score=Distance(8, 8, H)).double()
    with pytest.raises(weft.WeftError, match="matrix products of the score Distance are not known: define"):
        products(part, ProductView.full(T))
    with pytest.raises(weft.WeftError, match="the score Distance cannot be explained: state its formula"):
        explain_vectors(drawn(8), drawn(S, 8), drawn(S, 4), Distance(8, 8))


def test_a_score_explained_by_its_formula_alone_uses_the_weights_of_its_head(monkeypatch):
    monkeypatch.setattr(Distance, "formula", "e_ij = -w |q_i - k_j|")
    part = SelfAttention(24, H, score=Distance(8, 8, H)).double()
    with torch.no_grad(), watch(part) as seen:
        part(drawn(B, T, 24))
    found = explain(seen, head=2, row=1)
    torch.testing.assert_close(found.weights, seen.attention(0, 2)[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.step("scores").values["e"], seen.scores(0, 2)[1], rtol=0, atol=1e-9)
    assert found.step("scores").formula == "e_ij = -w |q_i - k_j|"
