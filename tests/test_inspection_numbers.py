"""Statistics, alignment, rollout, flow, lens, routing, filters, reach: each against a plain computation of its own."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import subjects
import weft
from weft.foundation.errors import WeftError
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inspection.analysis import statistics as statistics_module
from weft.inspection.analysis.alignment import align, aligning, alignment_error_rate, best_head, gold_of_tokens
from weft.inspection.analysis.filters import patch_filters, position_similarity
from weft.inspection.analysis.flow import flow, layered_flow
from weft.inspection.analysis.lens import logit_lens, loss_by_position, next_tokens, residual_norms, streams
from weft.inspection.analysis.reach import gradient_reach
from weft.inspection.analysis.rollout import roll_out, rollout
from weft.inspection.analysis.routing import routed
from weft.inspection.analysis.statistics import initial_sharpness, sharpness, unit_sharpness
from weft.inspection.recording.watch import watch
from weft.parts.embeddings import PatchEmbedding
from weft.parts.masks import Padding
from weft.parts.token_positions import TokenPositions

TOKENS = torch.tensor([[3, 7, 11, 2, 5, 9, 8], [4, 1, 6, 10, 12, 2, 3]])


def model(name: str = "nano-gpt", **changes) -> nn.Module:
    return subjects.build(subjects.shrink(weft.preset(name)).replace(**changes))


@pytest.mark.parametrize("numbers", [7, 1 << 18])
def test_statistics_block_by_block(numbers, monkeypatch):
    monkeypatch.setattr(statistics_module, "NUMBERS", numbers)
    module = model()
    with watch(module) as seen:
        module(TOKENS)
    found = seen.statistics(batch=1)
    for layer in found.layers:
        A = seen.attention(layer, batch=1)
        i, j = torch.arange(7)[:, None], torch.arange(7)
        assert torch.allclose(found.entropy[layer], -torch.xlogy(A, A).sum(-1).mean(-1))
        assert torch.allclose(found.distance[layer], (A * (i - j).abs()).sum(-1).mean(-1))
        assert torch.allclose(found.column_mass[layer], A.sum(1))
        assert torch.allclose(found.largest[layer], A.amax(-1).mean(-1))
    assert found.entropy.shape == (2, 3)


def test_statistics_leave_padding_out():
    module = model()
    with watch(module) as seen:
        module(TOKENS, mask=Padding(torch.tensor([4, 7])))
        module(TOKENS[:1, :4])
    padded, alone = seen.statistics(call=0), seen.statistics(call=1)
    assert torch.allclose(padded.entropy, alone.entropy)
    assert torch.allclose(padded.distance, alone.distance)
    A = seen.attention(1)
    assert torch.allclose(alone.entropy[1], -torch.xlogy(A, A).sum((-2, -1)) / 4)


def test_without_the_scale_attention_starts_out_sharp():
    for K in (4, 64, 256):
        found = unit_sharpness(K, keys=32, rows=2000)
        assert float(found.variance) == pytest.approx(K, rel=0.15)
        assert float(found.scaled) < 0.35
    assert float(found.unscaled) > 0.9 > float(found.scaled)
    module = model("gpt2")
    with watch(module) as seen:
        module(TOKENS)
    found = sharpness(seen)
    query, key, _ = seen.vectors(1)
    E = (query @ key.transpose(-2, -1)).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf)
    assert torch.allclose(found.unscaled[1], E.softmax(-1).amax(-1).mean(-1))
    assert torch.allclose(found.scaled[1], (E / math.sqrt(10)).softmax(-1).amax(-1).mean(-1))
    assert found.uniform == pytest.approx(sum(1 / n for n in range(1, 8)) / 7)
    at_start = initial_sharpness("nano-gpt", length=16)
    assert at_start.scaled.shape == (4, 4)
    assert bool((at_start.unscaled > at_start.scaled).all())


def test_alignment_error_rate_and_the_choice_of_a_head():
    map = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.5, 0.3, 0.2]])
    assert alignment_error_rate(map, [{0}, {1, 2}, {2}]) == pytest.approx(1 / 3)
    assert alignment_error_rate(map, [{0}, set(), {0, 1}]) == 0.0
    # |A| = 3, S = {(0,0), (2,2)}, P = S and (1,1): AER = 1 - (1 + 2) / (3 + 2)
    assert alignment_error_rate(map, [{0}, {1}, {2}], [{0}, set(), {2}]) == pytest.approx(1 - 3 / 5)
    diagonal, stuck = torch.eye(4), torch.eye(4)[[3, 3, 3, 3]]
    assert aligning(diagonal) == 1.0 > 0.3 > aligning(stuck)
    assert gold_of_tokens([{0}, {0}, {4}], [(0, 2), (2, 3)], [(0, 3), (3, 6)]) == [{0}, {1}]


def test_the_best_aligning_head_is_found():
    module = model("nano-seq2seq")
    sources = torch.randint(0, 53, (3, 5), generator=torch.Generator().manual_seed(1))
    with watch(module) as seen:
        module(sources, TOKENS[:, :5].repeat(2, 1)[:3])
    gold = [[{int(n)} for n in seen.attention(1, 2, batch=b, kind="cross").argmax(-1)] for b in range(3)]
    found = best_head(seen, gold)
    assert (found.layer, found.head) == (1, 2)
    assert found.table.shape == (2, 3) and float(found.table[1, 2]) == 0.0
    one = align(seen, batch=1, gold=gold[1], layer=1, head=2)
    assert one.error == 0.0 and one.kind == "cross"
    unguided = best_head(seen)
    assert float(unguided.table[unguided.layer, unguided.head]) == float(unguided.table.max())
    lone = model()
    with watch(lone) as other:
        lone(TOKENS)
    with pytest.raises(WeftError, match="nothing to align"):
        align(other)


def test_recurrent_attention_aligns_by_itself():
    module = model("nano-gru-additive")
    with watch(module) as seen:
        written = generate(module, GenerationRequest([[1]], max_tokens=4, source=[[5, 6, 7, 8]]))
    found = align(seen)
    assert (found.kind, found.layer, found.head) == ("alignment", 0, 0)
    assert torch.allclose(found.map, written[0].alignment)


def test_rollout_averages_heads_and_multiplies_layers():
    module = model()
    with watch(module) as seen:
        module(TOKENS)
    A = [seen.attention(layer, batch=1).mean(0) for layer in range(2)]
    half = [0.5 * a + 0.5 * torch.eye(7).double() for a in A]
    assert torch.allclose(rollout(seen, batch=1, residual=0.0), A[1] @ A[0])
    assert torch.allclose(rollout(seen, batch=1), half[1] @ half[0])
    assert torch.allclose(rollout(seen).sum(-1), torch.ones(7).double())
    assert float(rollout(seen).triu(1).abs().max()) == 0.0
    with pytest.raises(WeftError, match="leaves no attention"):
        roll_out(A, 1.0)
    pair = model("nano-seq2seq")
    with watch(pair) as crossed:
        pair(TOKENS, TOKENS[:, :5])
    with pytest.raises(WeftError, match="do not multiply"):
        rollout(crossed, kind="cross")
    assert rollout(crossed, kind="encoder").shape == (7, 7)


def least_cut(layers: list[torch.Tensor], i: int, j: int) -> float:
    """The minimum cut of a tiny layered graph, by trying all of them."""
    T, L = layers[0].shape[0], len(layers)
    best = math.inf
    for side in itertools.product((False, True), repeat=T * (L + 1)):
        if side[L * T + i] and not side[j]:
            cut = sum(
                float(layers[d][a, b])
                for d in range(L) for a in range(T) for b in range(T)
                if side[(d + 1) * T + a] and not side[d * T + b]
            )  # fmt: skip
            best = min(best, cut)
    return best


def test_flow_is_the_least_cut():
    random = torch.Generator().manual_seed(3)
    layers = [torch.rand(3, 3, generator=random).softmax(-1) for _ in range(2)]
    layers[0][0, 2] = 0.0
    # The first way found, through 0 and 0, must give way for the second: flow runs back through a pipe.
    crossing = [
        torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 0, 0]]),
        torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0]]),
        torch.tensor([[1.0, 1, 0], [0, 0, 0], [0, 0, 0]]),
    ]
    for maps in (layers, crossing):
        whole = layered_flow(maps)
        for i, j in itertools.product(range(3), range(3)):
            assert float(whole[i, j]) == pytest.approx(least_cut(maps, i, j), abs=1e-6)
    found = layered_flow(layers)
    assert torch.allclose(layered_flow(layers, [2, 0]), found[[2, 0]])
    module = model()
    with watch(module) as seen:
        module(TOKENS[:1, :5])
    through = flow(seen, rows=4)
    assert through.shape == (1, 5) and bool((through > 0).all())


def test_the_logit_lens_ends_at_the_models_own_answer():
    module = model("gpt2")
    with streams(module) as found:
        out = module(TOKENS)
    assert len(found.states) == 3 and found.names == ["input", "block 0", "block 1"]
    assert torch.allclose(residual_norms(found, 1)[2], found.states[2][1].norm(dim=-1))
    lens = logit_lens(found, batch=1, top=4)
    p = out.logits[1].softmax(-1)
    assert torch.equal(lens.tokens[-1], p.topk(4).indices)
    assert torch.allclose(lens.probabilities[-1], p.topk(4).values)
    assert torch.allclose(lens.entropy[-1], -(p * p.log()).sum(-1))
    first = module.head(module.stack.norm(module.input(module.embedding(TOKENS), _places())), module.embedding)
    assert torch.allclose(lens.probabilities[0], first[1].softmax(-1).topk(4).values)


def _places() -> TokenPositions:
    return TokenPositions.run(0, 7, torch.device("cpu"))


@pytest.mark.parametrize("name", ["nano-seq2seq", "nano-vit", "nano-encoder"])
def test_streams_of_other_families(name):
    module = model(name)
    with streams(module) as found:
        if name == "nano-seq2seq":
            out = module(TOKENS, TOKENS[:, :5])
        else:
            out = module(torch.randn(2, 1, 12, 12).double() if name == "nano-vit" else TOKENS)
    lens = logit_lens(found, top=2)
    logits = out.logits[0] if out.logits.dim() == 3 else out.logits[:1]
    assert torch.allclose(lens.probabilities[-1], logits.softmax(-1).topk(2).values)


def test_next_tokens_step_by_step_and_loss_by_position():
    module = model()
    logs = module(TOKENS).logits.log_softmax(-1)
    found = next_tokens(module, TOKENS[0], top=3)
    assert torch.equal(found.tokens, logs[0].topk(3).indices)
    came = logs[0, torch.arange(6), TOKENS[0, 1:]]
    assert torch.allclose(found.chance, came.exp())
    assert int(found.rank[2]) == int((logs[0, 2] > came[2]).sum())
    losses = loss_by_position(module, TOKENS)
    expected = torch.stack([-logs[b, torch.arange(6), TOKENS[b, 1:]] for b in range(2)])
    assert torch.allclose(losses, expected.mean(0))
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, 4:] = False
    assert torch.allclose(loss_by_position(module, TOKENS, real=real)[3:], expected[1, 3:])
    pair = model("nano-seq2seq")
    assert next_tokens(pair, [1, 2, 3], source=[4, 5, 6, 7]).tokens.shape == (3, 10)
    with pytest.raises(WeftError, match="not empty"):
        next_tokens(module, [])


def test_expert_routing():
    module = model("nano-moe")
    part = module.stack.blocks[1].feedforward
    fed: list[torch.Tensor] = []
    hook = part.register_forward_pre_hook(lambda _, given: fed.append(given[0]))
    with routed(module) as found:
        module(TOKENS)
    hook.remove()
    assert found.layers == [0, 1]
    best = (fed[0] @ part.router.T).softmax(-1).topk(2)
    assert torch.equal(found.chosen(1), best.indices)
    assert torch.allclose(found.gates(1), best.values / best.values.sum(-1, keepdim=True))
    assert found.chosen(0).shape == (2, 7, 2)
    assert torch.allclose(found.gates(1).sum(-1), torch.ones(2, 7).double())
    counts = torch.stack([(found.chosen(1) == e).sum() for e in range(5)])
    assert torch.allclose(found.shares(1), counts / counts.sum())
    assert torch.allclose(found.shares(1).double(), module(TOKENS).auxiliary["routing"][1])
    with pytest.raises(WeftError, match="no layer 5 of experts"):
        found.chosen(5)
    with pytest.raises(WeftError, match="no experts"), routed(model()):
        pass


def test_patch_filters_are_principal_components():
    module = model("nano-vit")
    part = next(p for p in module.modules() if isinstance(p, PatchEmbedding))
    planted = torch.zeros(1, 4, 4).double()
    planted[0, :, 1] = 0.5
    with torch.no_grad():
        noise = 0.01 * torch.randn(30, 16).double()
        part.linear.weight.copy_(torch.randn(30, 1).double() * planted.flatten() + noise)
    found = patch_filters(module, count=5)
    assert found.images.shape == (5, 1, 4, 4)
    assert float((found.images[0] * planted).sum().abs()) > 0.99
    assert float(found.shares[0]) > 0.95 and float(found.shares.sum()) <= 1 + 1e-9
    flat = found.images.flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(5).double(), atol=1e-9)
    with pytest.raises(WeftError, match="no patch filters"):
        patch_filters(model())


def test_similarity_of_positions():
    module = model("nano-vit")
    found = position_similarity(module)
    assert found.grid == (3, 3) and found.extra == 1
    table = module.grid.table.detach()
    assert float(found.cosine[2, 5]) == pytest.approx(float(torch.cosine_similarity(table[2], table[5], dim=0)))
    assert float(found.of_cell(1, 2)[1, 2]) == pytest.approx(1.0)
    learned = position_similarity(model("gpt2"))
    assert learned.cosine.shape == (41, 41)
    waves = position_similarity(model("nano-seq2seq"), 16).cosine
    assert float(waves[3, 4]) == pytest.approx(float(waves[10, 11])) and float(waves[3, 4]) > float(waves[3, 9])
    turned = position_similarity(model(), 16).cosine
    assert float(turned[3, 5]) == pytest.approx(float(turned[8, 10]), abs=1e-6)
    with pytest.raises(WeftError, match="no position vectors"):
        position_similarity(model("nano-rnn"))


def test_attention_shortens_the_gradients_way():
    """The same decoder, target and source: with attention the first source token is heard, without it hardly."""
    source = list(range(2, 42))
    plain, helped = (
        gradient_reach(weft.build(f"nano-gru-{kind}", seed=1), [1, 2, 3], source) for kind in ("plain", "additive")
    )
    assert plain.matrix.shape == helped.matrix.shape == (3, 40)
    far = [float(found.by_place()[12:24].mean() / found.by_place().max()) for found in (plain, helped)]
    assert far[1] > 10 * far[0]


def test_reach_is_the_gradient():
    module = model()
    found = gradient_reach(module, TOKENS[0])
    x = module.embedding(TOKENS[:1]).detach().requires_grad_()
    hidden = module.stack(module.input(x, _places()), _places())
    logs = module.head(hidden, module.embedding)[0].log_softmax(-1)
    (slope,) = torch.autograd.grad(logs[3, TOKENS[0, 4]], x)
    assert torch.allclose(found.matrix[3], slope[0].norm(dim=-1))
    assert float(found.matrix.triu(1).abs().max()) == 0.0
    assert float(found.by_distance()[2]) == pytest.approx(float(found.matrix.diagonal(-2).mean()))
