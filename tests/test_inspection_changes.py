"""Interventions and explanations: what is switched off is off, what is explained adds up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import subjects
import weft
from weft.foundation.errors import WeftError
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inspection.analysis.explain import explain, explain_vectors
from weft.inspection.interventions.effects import head_effects, logit_difference, patch_effects
from weft.inspection.interventions.interventions import (
    Attention,
    FeedForward,
    Head,
    Positions,
    Tokens,
    activations,
    effect,
    mean_of,
    mean_over_tokens,
    patched,
    replaced,
    switched_off,
    zero,
)
from weft.inspection.recording import function_overrides as overrides
from weft.inspection.recording.watch import watch
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal
from weft.parts.relative import Alibi
from weft.parts.scores import Additive, Bilinear, Concatenated, Dot, ScaledDot

TOKENS = torch.tensor([[3, 7, 11, 2, 5, 9, 8], [4, 1, 6, 10, 12, 2, 3]])


def model(name: str = "nano-gpt", **changes) -> nn.Module:
    return subjects.build(subjects.shrink(weft.preset(name)).replace(**changes))


def test_a_head_switched_off_is_a_zeroed_slice_of_the_output_projection():
    module = model()
    plain = module(TOKENS).logits
    with switched_off(module, Head(1, 2)):
        off = module(TOKENS).logits
    assert torch.equal(module(TOKENS).logits, plain) and not overrides._overrides
    twin = model()
    with torch.no_grad():
        twin.stack.blocks[1].mixer.output.weight[:, 20:30] = 0
    assert torch.allclose(off, twin(TOKENS).logits)
    assert not torch.allclose(off, plain)


def test_everything_off_leaves_the_embedding():
    module = model()
    points = [Attention(0), Attention(1), FeedForward(0), FeedForward(1)]
    with switched_off(module, *points):
        found = module(TOKENS).hidden
    assert torch.allclose(found, module.stack.norm(module.embedding(TOKENS)))
    with pytest.raises(RuntimeError, match="planted"), switched_off(module, *points):
        raise RuntimeError("planted")
    assert not overrides._overrides and not module._forward_hooks


@pytest.mark.parametrize("name", ["gpt2", "nano-gpt", "nano-vit", "t5-small"])
def test_positions_switched_off(name):
    module = model(name, **({"mixer.window": None} if name == "nano-gpt" else {}))
    order = torch.tensor([2, 0, 1, 3, 4, 5, 6])
    if name == "nano-vit":
        images = torch.randn(1, 1, 12, 12).double()
        turned = images.unflatten(2, (3, 4)).flip(2).flatten(2, 3)
        with switched_off(module, Positions()):
            assert torch.allclose(module(images).logits, module(turned).logits)
        assert not torch.allclose(module(images).logits, module(turned).logits)
        return

    def run(text: torch.Tensor) -> torch.Tensor:
        return module(text, TOKENS[:1, :4]).logits if name == "t5-small" else module(text).logits[:, -1]

    text = TOKENS[:1]
    swapped = text[:, order]
    with switched_off(module, Positions()):
        once = run(text)
        if name == "t5-small" or module.spec.layers == 1:
            assert torch.allclose(once, run(swapped))
    assert not torch.allclose(run(text), once)
    assert not torch.allclose(run(text), run(swapped))


def test_tokens_can_be_hidden_and_sides_told_apart():
    module = model("nano-seq2seq")
    source, target = TOKENS[:1], TOKENS[1:, :5]
    plain = module(source, target).logits
    with switched_off(module, Tokens((4,), "target")):
        off = module(source, target).logits
    assert torch.allclose(off[:, :4], plain[:, :4]) and not torch.allclose(off[:, 4], plain[:, 4])
    with switched_off(module, Tokens((0,), "source")):
        assert not torch.allclose(module(source, target).logits[:, 0], plain[:, 0])
    lone = model()
    seven = lone.embedding(torch.tensor([[7]]))
    with replaced(lone, {Tokens((3,)): seven.expand_as}):
        swapped = lone(TOKENS).logits
    other = TOKENS.clone()
    other[:, 3] = 7
    assert torch.allclose(swapped, lone(other).logits)
    with pytest.raises(WeftError, match="no token 9 in a text of 7"), switched_off(lone, Tokens((9,))):
        lone(TOKENS)


def test_patching_all_heads_and_feedforwards_gives_the_other_answer():
    module = model()
    clean, other = TOKENS[:1], TOKENS[1:]
    points = [FeedForward(0), FeedForward(1), Attention(0), Attention(1), Tokens(tuple(range(7)))]
    kept = activations(module, points, lambda: module(other))
    assert kept[FeedForward(1)].shape == (1, 7, 30)
    with patched(module, kept):
        assert torch.allclose(module(clean).logits, module(other).logits)
    only = activations(module, [Head(0, 1)], lambda: module(other))
    with patched(module, only, places=[6]):
        partly = module(clean).logits
    assert torch.allclose(partly[:, :6], module(clean).logits[:, :6])
    assert not torch.allclose(partly[:, 6], module(clean).logits[:, 6])
    with pytest.raises(WeftError, match="use inputs of the same length"), patched(module, only):
        module(clean[:, :5])


def test_means_and_effects():
    module = model()
    kept = activations(module, [Head(0, 1)], lambda: module(TOKENS))[Head(0, 1)]
    assert torch.allclose(mean_over_tokens(kept)[1, 3], kept.mean((0, 1)))
    assert torch.allclose(mean_of(kept)(kept[:1]), mean_over_tokens(kept)[:1])
    found = effect(module, lambda: module(TOKENS), [Head(1, 0)])
    assert found.largest > 0 and found.divergence.shape == (2, 7) and found.turned.shape == (2, 7)
    assert bool((found.divergence >= -1e-12).all())
    nothing = effect(module, lambda: module(TOKENS), {Head(1, 0): lambda x: x})
    assert nothing.largest == 0.0


def test_the_head_that_does_it_is_ranked_first():
    module = model("nano-gpt")
    with torch.no_grad():
        for layer, block in enumerate(module.stack.blocks):
            block.mixer.output.weight.mul_(1.0 if layer == 1 else 0.01)
            if layer == 1:
                block.mixer.output.weight[:, :10].mul_(0.01)
                block.mixer.output.weight[:, 20:].mul_(0.01)
    measure = logit_difference(5, 9, place=6)
    found = head_effects(module, lambda: module(TOKENS[:1]), measure)
    assert found.ranked()[0][0] == Head(1, 1)
    assert found.table.shape == (2, 3)
    with switched_off(module, Head(1, 1)):
        off = measure(module(TOKENS[:1]).logits.detach())
    assert found.before + float(found.table[1, 1]) == pytest.approx(float(off))
    moved = patch_effects(module, lambda: module(TOKENS[:1]), lambda: module(TOKENS[1:]), measure)
    assert moved.ranked()[0][0] == Head(1, 1)


def test_interventions_reach_generation():
    module = model().float()
    plain = generate(module, GenerationRequest([[1, 2, 3]], max_tokens=8))[0]
    with switched_off(module, FeedForward(0), Attention(1)):
        off = generate(module, GenerationRequest([[1, 2, 3]], max_tokens=8))[0]
        state = module.make_state(1)
        logs = module(torch.tensor([[1, 2, 3, *off.tokens[:-1]]]), state=state).logits[0, 2:].log_softmax(-1)
    assert abs(off.score - plain.score) > 1e-3
    assert float(logs.detach().gather(1, torch.tensor(off.tokens)[:, None]).sum()) == pytest.approx(off.score, abs=1e-3)
    assert generate(module, GenerationRequest([[1, 2, 3]], max_tokens=8))[0] == plain


def test_wrong_sites_are_named():
    module = model()
    for point, said in [
        (Head(9, 0), "no layer 9 of self attention"),
        (Head(0, 9), "no head 9 in a layer of 3"),
        (FeedForward(7), "no layer 7: choose 0 to 1"),
        (Attention(0, "cross"), "has no cross"),
    ]:
        with pytest.raises(WeftError, match=said), switched_off(module, point):
            pass
    with pytest.raises(WeftError, match="no positions"), switched_off(model("nano-rnn"), Positions()):
        pass
    with pytest.raises(WeftError, match="did not run"):
        activations(module, [Head(0, 0)], lambda: None)


def test_the_lectures_worked_numbers():
    """D_K = 3, scores 102 and 99 -> 58.9 and 57.2 -> 0.85 and 0.15 -> weighted values -> sum."""
    query = torch.tensor([1.0, 10.0, 1.0]).double()
    keys = torch.tensor([[1.0, 10.0, 1.0], [4.0, 9.0, 5.0]]).double()
    values = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 1.0]]).double()
    found = explain_vectors(query, keys, values, names=["not", "terrible"])
    assert found.step("products").values["q.k"].tolist() == [102.0, 99.0]
    assert [round(n, 1) for n in found.step("scores").values["e"].tolist()] == [58.9, 57.2]
    assert [round(n, 2) for n in found.weights.tolist()] == [0.85, 0.15]
    a = torch.tensor([102.0, 99.0]).double().div(3**0.5).softmax(0)
    assert torch.allclose(found.step("weighted values").values["a v"], a[:, None] * values)
    assert torch.allclose(found.output, a @ values)
    text = str(found)
    for said in ("102", "58.89", "57.16", "0.8497", "0.1503", "sqrt(D_K), D_K = 3", "(terrible)", "softmax"):
        assert said in text


SCORES = {
    "scaled": ScaledDot,
    "dot": Dot,
    "bilinear": lambda: Bilinear(6, 6, 4),
    "additive": lambda: Additive(6, 6, 4),
    "concatenated": lambda: Concatenated(6, 6, 4),
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("position", [None, Alibi(4)])
def test_every_score_kind_adds_up(score, position):
    part = SelfAttention(10, 4, 2, 6, 5, score=SCORES[score]())
    x = torch.randn(2, 7, 10)
    context = AttentionContext.of(x, Causal(), position)
    with watch(part) as seen:
        part(x, context)
    found = explain(seen, head=2, row=4, batch=1)
    query, key, value = part.project(x)
    expected = part.weights(*part.position(query, key, context), context)[1, 2, 4]
    assert torch.allclose(found.weights, expected)
    assert torch.allclose(found.output, expected @ value[1, 1])
    raw = found.step("scores").values["e"]
    bias = found.step("position").values["b"] if position is not None else 0
    assert torch.allclose((raw + bias)[:5], seen.scores(0, 2, 4, batch=1)[:5])
    assert "mask" in [step.name for step in found.steps]
    assert "M_ij" in str(found) and "row 4" in str(found)


def test_recurrent_attention_and_native_generations_are_explained():
    module = model("nano-gru-additive")
    with watch(module) as seen:
        written = generate(module, GenerationRequest([[1]], max_tokens=4, source=[[5, 6, 7, 8]]))
    found = explain(seen, row=2, names=["five", "six", "seven", "eight"])
    assert torch.allclose(found.weights, written[0].alignment[2])
    assert "tanh" in str(found) and "(seven)" in str(found) and "decoder" in str(found)
    fast = model().float()
    with watch(fast) as seen:
        generate(fast, GenerationRequest([[1, 2, 3]], max_tokens=4))
    found = explain(seen, layer=1, head=1, row=5)
    assert torch.allclose(found.weights, seen.attention(1, 1, 5), atol=1e-6)


def test_foreign_attention_is_explained():
    part = nn.MultiheadAttention(12, 4, batch_first=True).eval()
    x = torch.randn(1, 5, 12)
    with torch.no_grad(), watch(part) as seen:
        part(x, x, x)
    found = explain(seen, head=1, row=2)
    assert torch.allclose(found.weights, seen.attention(head=1, rows=2), atol=1e-6)
    assert "0.5774 q_i.k_j" in str(found)
    with pytest.raises(WeftError, match="no step 'nothing'"):
        found.step("nothing")
    with pytest.raises(WeftError, match="nothing to explain"):
        explain(part)


def test_zero_is_zero():
    assert float(zero(torch.ones(3)).sum()) == 0.0
