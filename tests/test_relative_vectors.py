"""Relative vectors (Shaw et al. 2018) on keys and values: the formula, in every kernel, with a cache, and explained."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.fast.optimized import optimized
from weft.inspection.analysis.explain import explain
from weft.inspection.recording.watch import watch
from weft.laws import check
from weft.models.build import read_spec
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec
from weft.models.part_specs import AttentionSpec
from weft.models.position_specs import RelativeVectorsSpec, old_relative_scale
from weft.parts import kernels
from weft.parts.attention import SelfAttention, set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal, Documents, Padding
from weft.parts.relative import RelativeKeysAndValues, RelativeVectors
from weft.parts.scores import Bilinear, CappedDot, Dot, LinearDot, ScaledDot

pytestmark = pytest.mark.usefixtures("double")
B, H, T, K, V, REACH = 2, 3, 11, 5, 7, 2
SCALES = {"dot": (Dot(), 1.0), "scaled-dot": (ScaledDot(), K**-0.5), "own scale": (ScaledDot(scale=0.3), 0.3)}


def vectors(table):
    """a_(j-i) of all pairs, [T, T, K], with j - i clipped to +-REACH."""
    i = torch.arange(T)
    return table[(i[None] - i[:, None]).clamp(-REACH, REACH) + REACH]


def attention_of(score, position, mask=None):
    attention = SelfAttention(13, H, head_width=K, value_width=V, score=score)
    x = torch.randn(B, T, 13, requires_grad=True)
    context = AttentionContext.of(x, mask, position)
    return attention, x, context, attention.project(x)


@pytest.mark.parametrize("name", SCALES)
def test_keys_with_their_vectors_have_the_scale_of_the_score(name):
    """e_ij = s q_i.(k_j + a_(j-i)), one s for both; the score dot has s = 1."""
    torch.manual_seed(1)
    score, scale = SCALES[name]
    position = RelativeVectors(K, REACH)
    attention, x, context, (q, k, v) = attention_of(score, position)
    e = scale * torch.einsum("bhtk,bhtsk->bhts", q, k[:, :, None] + vectors(position.table))
    for backend in ("explicit", "fused", "blocked"):
        set_backend(attention, backend)
        torch.testing.assert_close(attention(x, context), attention.merge(e.softmax(-1) @ v), rtol=0, atol=1e-10)
    torch.testing.assert_close(attention.weights(q, k, context), e.softmax(-1), rtol=0, atol=1e-10)


def test_a_mapped_query_meets_vectors_as_it_meets_keys():
    """e_ij = q_i^T W (k_j + a_(j-i))."""
    score, position = Bilinear(K, K, H), RelativeVectors(K, REACH)
    attention, x, context, (q, k, v) = attention_of(score, position)
    mapped = torch.einsum("bhtk,hkl->bhtl", q, score.W)
    e = torch.einsum("bhtk,bhtsk->bhts", mapped, k[:, :, None] + vectors(position.table))
    for backend in ("explicit", "fused", "blocked"):
        set_backend(attention, backend)
        torch.testing.assert_close(attention(x, context), attention.merge(e.softmax(-1) @ v), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [Dot, ScaledDot, Bilinear, CappedDot, LinearDot])
def test_values_get_vectors_by_distance_in_every_kernel(kind, monkeypatch):
    """y_i = sum_j A_ij (v_j + b_(j-i)), forward and backward, whatever the score; the fused kernel refuses."""
    torch.manual_seed(2)
    monkeypatch.setattr(kernels.blocked, "__defaults__", (0.0, 4))
    position = RelativeKeysAndValues(K, V, REACH)
    attention, x, context, (q, k, v) = attention_of(kind(K, K, H), position, Causal() & Padding(torch.tensor([T, 7])))
    A = attention.weights(q, k, context)
    y = A @ v + torch.einsum("bhts,tsv->bhtv", A, vectors(position.value_table))
    parameters = [x, *attention.parameters(), *position.parameters()]
    wanted = torch.autograd.grad(attention.merge(y).square().sum(), parameters, retain_graph=True)
    for backend in ("auto", "explicit", "blocked"):
        set_backend(attention, backend)
        found = attention(x, context)
        torch.testing.assert_close(found, attention.merge(y), rtol=0, atol=1e-10)
        for one, other in zip(torch.autograd.grad(found.square().sum(), parameters), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    set_backend(attention, "fused")
    with pytest.raises(weft.WeftError, match="the fused kernel cannot run it: use auto, explicit or blocked"):
        attention(x, context)


def test_the_rule_of_older_runs_is_kept():
    """Version 2 scaled q.a by 1/sqrt(D_K) under every score; the migration writes that down where it differs."""
    position = RelativeVectors(K, REACH, scale="width")
    attention, _, context, (q, k, _) = attention_of(Dot(), position)
    e = q @ k.transpose(-2, -1) + torch.einsum("bhtk,tsk->bhts", q, vectors(position.table)) / K**0.5
    torch.testing.assert_close(attention.weights(q, k, context), e.softmax(-1), rtol=0, atol=1e-10)

    relative = {"kind": "relative", "reach": 3}
    dots = {"version": 2, "mixer": [{"kind": "attention", "score": "dot"}], "positions": relative}
    assert old_relative_scale(dots)["positions"] == {**relative, "scale": "width"}
    assert dots["positions"] == relative
    for same in (
        {"mixer": {"kind": "attention"}, "positions": relative},
        {"mixer": [{"kind": "attention", "score": "scaled-dot"}, {"kind": "convolution"}], "positions": relative},
        {"mixer": {"kind": "attention", "score": "dot"}, "positions": {"kind": "alibi"}},
        {"width": 7},
    ):
        assert old_relative_scale(same) == same
    assert old_relative_scale({"model": dots})["model"]["positions"]["scale"] == "width"
    # A preset of today, read as one of version 2: what a resumed run is compared with.
    today = DecoderSpec(mixer=AttentionSpec(score="dot"), positions=RelativeVectorsSpec()).to_tree()
    assert read_spec(today | {"version": 2}).positions.scale == "width"
    for version, scale in ((1, "width"), (2, "width"), (3, "score"), (None, "score")):  # None: written by hand
        tree = {"family": "decoder", **dots, "version": version}
        read = read_spec({name: value for name, value in tree.items() if value is not None})
        assert read.positions.scale == scale
    spec = DecoderSpec(mixer=AttentionSpec(heads=4, score="dot"), positions=RelativeVectorsSpec(scale="width"))
    assert not weft.build(spec).stack.position.scaled_by_score


def decoder(**more):
    mixer = AttentionSpec(heads=3, head_width=4, value_width=5, **more)
    spec = DecoderSpec(
        vocabulary=31, width=12, layers=2, length=64, mixer=mixer, positions=RelativeVectorsSpec(reach=3, values=True)
    )
    model = weft.build(spec, seed=3)
    torch.nn.init.normal_(model.stack.position.value_table)
    return model.double().eval()


def test_laws_hold_and_decoding_writes_the_same_text():
    """With a cache, by single-token blocks, and inside a window; the value table is used."""
    for model in (decoder(), decoder(window=4), decoder(score="dot", key_heads=1)):
        report = check(model)
        assert not report.broken, report
        assert report["cache = full forward"].verdict == report["shift invariance"].verdict == "holds"
        assert report["backend equality"].verdict == "holds"
        prompts = [[3, 5, 7], [1, 2, 3, 4, 5, 6]]
        found = generate(model, GenerationRequest(prompts, max_tokens=9))
        assert type(optimized(model).stack) is not type(model.stack)
        for prompt, text in zip(prompts, found, strict=True):
            ids = torch.tensor([[*prompt, *text.tokens]])
            with torch.no_grad():
                expected = model(ids).logits.argmax(-1)[0, len(prompt) - 1 : -1]
            assert text.tokens == expected.tolist()
        before = model(torch.tensor([[3, 5, 7]])).logits
        torch.nn.init.zeros_(model.stack.position.value_table)
        assert not torch.allclose(model(torch.tensor([[3, 5, 7]])).logits, before)


def test_an_explanation_shows_the_values_of_positions():
    model = decoder()
    tokens = torch.randint(0, 31, (B, T))
    outputs = []
    hook = model.stack.blocks[1].mixer.output.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    with torch.no_grad(), watch(model) as seen:
        model(tokens, mask=Documents(torch.tensor([[0] * 4 + [1] * 7] * B)))
    hook.remove()
    found = explain(seen, layer=1, head=2, row=6, batch=1)
    torch.testing.assert_close(found.output, outputs[0][1, 6].view(3, 5)[2], rtol=0, atol=1e-10)
    assert found.step("output").formula == "y_i = sum_j a_ij (v_j + b_(j-i))"
    with torch.no_grad(), watch(model) as seen:
        state = model.make_state(1)
        model(tokens[:1, :5], state=state)
        model(tokens[:1, 5:6], state=state)
    with torch.no_grad(), watch(model) as whole:
        model(tokens[:1, :6])
    one, other = (explain(s, layer=0, head=1, row=5) for s in (seen, whole))
    torch.testing.assert_close(one.output, other.output, rtol=0, atol=1e-10)


def test_an_encoder_with_relative_values_learns_both_tables():
    spec = EncoderSpec(width=12, layers=1, positions=RelativeVectorsSpec(reach=3, values=True))
    model = weft.build(spec.replace(**{"mixer.heads": 3}), seed=3).double()
    model(torch.randint(0, 31, (2, 9))).hidden.square().sum().backward()
    assert model.stack.position.table.grad.any() and model.stack.position.value_table.grad.any()
    with pytest.raises(weft.WeftError, match="positions 'relative' are shared by all layers"):
        EncoderSpec(
            width=12,
            mixer=(AttentionSpec(heads=3), AttentionSpec(heads=3, value_width=7)),
            positions=RelativeVectorsSpec(values=True),
        )
