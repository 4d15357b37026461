"""The observer seam: parts tell what they do, cost nothing unobserved, and foreign patches stay in their thread."""

from __future__ import annotations

import copy
import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subjects
import weft
from weft.foundation.errors import WeftError
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sessions import PrefillOptions
from weft.inference.fast.native.stack import NativeStack, ProductStack
from weft.inference.fast.optimized import optimized, parts_only
from weft.inference.fast.single_token import SingleTokenStack
from weft.inspection.analysis.lens import streams
from weft.inspection.analysis.routing import routed
from weft.inspection.interventions.interventions import (
    Attention,
    FeedForward,
    Head,
    Positions,
    Tokens,
    activations,
    replaced,
    switched_off,
)
from weft.inspection.recording import function_overrides as overrides
from weft.inspection.recording.watch import watch
from weft.parts import observer
from weft.parts.attention import SelfAttention, set_backend
from weft.parts.observer import Observer, observing
from weft.parts.stack import Stack

TOKENS = torch.tensor([[3, 7, 11, 2, 5, 9, 8], [4, 1, 6, 10, 12, 2, 3]])
LINEAR = {"mixer": {"kind": "linear-attention", "heads": 3}, "positions": {"kind": "learned"}}
METHODS = [name for name in vars(Observer) if name.startswith(("on_", "during_"))]


def model(name: str = "nano-gpt", **changes) -> nn.Module:
    return subjects.build(subjects.shrink(weft.preset(name)).replace(**changes))


class Everything(Observer):
    """Keeps the arguments of every event, and changes nothing."""

    def __init__(self) -> None:
        self.events: dict[str, list[tuple]] = defaultdict(list)


def _keep(name: str):
    def method(self, *args):
        self.events[name].append(args)
        return getattr(Observer, name)(self, *args)

    return method


for name in METHODS:
    setattr(Everything, name, _keep(name))


def in_thread(run) -> None:
    """In a second thread; its error is raised here."""
    problems: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


def test_every_event_is_told_with_its_shapes():
    gpt, moe, linear = model(), model("nano-moe"), model(**LINEAR)
    vision, gru, seq2seq = model("nano-vit"), model("nano-gru-additive"), model("nano-seq2seq")
    plain = gpt(TOKENS).logits
    with observing(told := Everything()):
        assert torch.equal(gpt(TOKENS).logits, plain)
        moe(TOKENS)
        linear(TOKENS)
        vision(torch.randn(2, 1, 12, 12).double())
        gru(TOKENS[:, :4], TOKENS)
        beam_search(seq2seq, GenerationRequest([[1]], max_tokens=3, source=[[5, 6, 7]]), Beam(3))
        state = gpt.make_state(2)
        gpt(TOKENS, state=state)
        state.copy()
        state.rollback(2)
    assert observer.active == ()
    assert {name for name in METHODS if not told.events[name]} == set()
    part, query, key, value, context, y = told.events["on_attention"][0]
    assert part is gpt.stack.blocks[0].mixer and query.shape == key.shape == value.shape == y.shape == (2, 3, 7, 10)
    assert context.queries.length == 7
    part, given, x = told.events["on_embedding"][0]
    assert part is gpt.embedding and given is TOKENS and x.shape == (2, 7, 30)
    assert [args[0] for args in told.events["on_block"][:2]] == list(gpt.stack.blocks)
    assert told.events["on_branch"][1][0] is gpt.stack.blocks[0].feedforward
    part, x, gates, chosen = told.events["on_experts"][0]
    assert part is moe.stack.blocks[0].feedforward and x.shape == (2, 7, 30) and gates.shape == chosen.shape == (14, 2)
    part, x, _, kept, y = told.events["on_linear_attention"][0]
    assert part is linear.stack.blocks[0].mixer and kept is None and x.shape == y.shape == (2, 7, 30)
    part, query, hidden, _, _, weights = told.events["on_alignment"][0]
    assert part is gru.score and (query.shape, weights.shape) == ((2, 7, 11), (2, 7, 4)) and hidden.shape[1] == 4
    assert told.events["on_recurrent_encoding"][0][0] is gru.encoder
    assert told.events["on_state_copy"][-1][0] is state and told.events["on_state_rollback"][-1] == (state, 2)


def test_outputs_that_observers_return_are_what_the_model_goes_on_with():
    module = model()

    class Zero(Observer):
        def on_branch(self, part, output):
            return torch.zeros_like(output)

    class Double(Observer):
        def on_embedding(self, part, given, output):
            return 2 * output

    with observing(Zero(), Double()):
        found = module(TOKENS).hidden
    assert torch.allclose(found, module.stack.norm(2 * module.embedding(TOKENS)))


def test_observers_leave_in_any_order_and_after_errors():
    first, second = Everything(), Everything()
    one, two = observing(first), observing(second)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert observer.active == (second,)
    two.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="planted"), observing(first):
        raise RuntimeError("planted")
    assert observer.active == ()


def test_watching_own_models_patches_nothing_and_leaves_copies_ordinary():
    module = model()
    originals = (SelfAttention.gather, Stack.forward, type(module).forward, torch.Tensor.softmax)
    points = [Head(0, 1), Attention(1), FeedForward(0), Tokens((2,)), Positions()]
    with watch(module), switched_off(module, *points), streams(module):
        assert not overrides._overrides
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        assert originals == (SelfAttention.gather, Stack.forward, type(module).forward, torch.Tensor.softmax)
        twin, changed = copy.deepcopy(module), module(TOKENS).logits
        assert torch.equal(twin(TOKENS).logits, copy.deepcopy(module)(TOKENS).logits)
    plain = module(TOKENS).logits
    assert torch.equal(twin(TOKENS).logits, plain) and not torch.allclose(changed, plain)


def test_interventions_apply_in_the_order_in_which_they_were_entered():
    module = model()
    for point in (Head(1, 0), Attention(1), FeedForward(0), Tokens((2, 4))):
        plain = activations(module, [point], lambda: module(TOKENS))[point]
        with replaced(module, {point: lambda x: x + 1}):
            kept = activations(module, [point], lambda: module(TOKENS))[point]
            with replaced(module, {point: lambda x: 2 * x}):
                twice = activations(module, [point], lambda: module(TOKENS))[point]
        assert torch.allclose(kept, plain + 1) and torch.allclose(twice, 2 * (plain + 1))


def test_points_that_cannot_be_reached_are_refused():
    linear = model(**LINEAR)
    with pytest.raises(WeftError, match="LinearAttention without heads"), switched_off(linear, Head(0, 0)):
        pass
    module = model()
    module.stack.blocks[1].__class__ = type("Own", (nn.Module,), {})
    with pytest.raises(WeftError, match="layer 1 is a Own"), switched_off(module, FeedForward(1)):
        pass


class Foreign(nn.Module):
    """Attention that torch computes, once by the fused kernel and once by a softmax."""

    class PlainAttention(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x) + (x @ x.transpose(-2, -1)).softmax(-1) @ x

    def __init__(self) -> None:
        super().__init__()
        self.attention = self.PlainAttention()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.attention(x * self.scale)


def test_foreign_patches_act_only_in_the_thread_that_watches():
    module, x = Foreign(), torch.randn(2, 3, 7, 5)
    plain = module(x)
    with watch(module) as seen:
        in_thread(lambda: module(x))
        assert not seen.calls and not seen.recorder.runs
        module(x)
        assert len(seen.calls) == 1
        with watch(module) as nested:
            in_thread(lambda: module(x))
            module(x)
        assert (len(seen.calls), len(nested.calls)) == (2, 1)
    with switched_off(module, Head(0, 1)):
        found: list[torch.Tensor] = []
        in_thread(lambda: found.append(module(x)))
        assert torch.equal(found[0], plain)
        assert not torch.equal(module(x), plain)
    assert not overrides._overrides
    assert weft.watch.__doc__ is not None and "only in the thread that watches" in weft.watch.__doc__


def test_watches_of_two_threads_do_not_see_each_other():
    module, x = Foreign(), torch.randn(1, 2, 5, 3)
    counts = []

    def watched() -> None:
        with watch(module) as own:
            module(x)
        counts.append(len(own.calls))

    with watch(module) as seen:
        in_thread(watched)
        assert not seen.calls
        module(x)
    assert (counts, len(seen.calls)) == ([1], 1)
    assert not overrides._overrides


def test_own_parts_are_watched_in_every_thread():
    module = model()
    with watch(module) as seen, streams(module) as found:
        in_thread(lambda: module(TOKENS))
    assert len(seen.calls) == 1 and len(found.states) == 3


def test_native_is_an_option_and_hooks_of_users_are_honored(monkeypatch):
    module = model().float()
    assert optimized(module) is not module and optimized(module, native=False) is module
    prompts = [[3, 1, 4], [1, 5, 9]]
    written = generate(module, GenerationRequest(prompts, max_tokens=5))
    source, beams = [[5, 6, 7]], model("nano-seq2seq").float()
    best = beam_search(beams, GenerationRequest([[1]], max_tokens=5, source=source), Beam(2))

    def refuse(*_) -> None:
        raise AssertionError("an optimized stack ran")

    for kind in (SingleTokenStack, ProductStack, NativeStack):
        monkeypatch.setattr(kind, "run_blocks", refuse)
    with pytest.raises(AssertionError, match="an optimized stack ran"):
        generate(module, GenerationRequest(prompts, max_tokens=5))
    parts = PrefillOptions(native=False)
    assert [one.tokens for one in generate(module, GenerationRequest(prompts, max_tokens=5, prefill=parts))] == [
        one.tokens for one in written
    ]
    again = beam_search(beams, GenerationRequest([[1]], max_tokens=5, source=source, prefill=parts), Beam(2))
    assert [one.tokens for one in again[0]] == [one.tokens for one in best[0]]
    for context in (streams(module), switched_off(module, Head(0, 0)), parts_only(module)):
        with context:
            generate(module, GenerationRequest(prompts, max_tokens=2))
    hook = module.stack.blocks[1].feedforward.register_forward_hook(lambda *_: None)
    assert optimized(module) is module
    hook.remove()
    assert optimized(module) is not module


def test_parts_only_holds_for_all_that_shares_a_part_and_may_be_nested():
    module, other = model().float(), model().float()
    wrapper = nn.Sequential(module)
    for part in (module, module.stack, wrapper):
        with parts_only(part):
            with parts_only(module):
                assert optimized(module) is module
            assert optimized(module) is module and optimized(other) is not other
        assert optimized(module) is not module
    with pytest.raises(RuntimeError, match="planted"), parts_only(module):
        raise RuntimeError("planted")
    assert optimized(module) is not module


def test_routing_and_streams_see_a_generation_part_by_part():
    module = model("nano-moe").float()
    with routed(module) as routes, streams(module) as found:
        generate(module, GenerationRequest([[3, 1, 4]], max_tokens=3))
    assert routes.chosen(1).shape == (1, 1, 2) and found.states[-1].shape == (1, 1, 30)
    assert found.read is not None


def test_another_models_answer_is_not_taken_for_the_watched_ones():
    module, other = model(), model(width=60)
    with streams(module) as found:
        other(TOKENS)
        assert found.read is None and not found.stacks
        logits = module(TOKENS).logits
        other(TOKENS)
    assert torch.allclose(found.read(found.states[-1]), logits)


def test_a_module_of_the_users_groups_what_it_runs_twice():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = SelfAttention(12, 3)

        def forward(self, x):
            return self.part(self.part(x))

    pair, x = Pair(), torch.randn(2, 5, 12)
    with watch(pair) as seen:
        pair(x)
        pair(x)
    assert len(seen.calls) == 2
    with watch(SimpleNamespace(module=pair.part)) as seen:
        pair(x)
    assert len(seen.calls) == 2, "the bare part runs twice"


@pytest.mark.parametrize("backend", ["explicit", "fused"])
def test_own_attention_inside_a_foreign_one_is_recorded_once(backend):
    class OuterAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.plain = SelfAttention(12, 3), Foreign.PlainAttention()

        def forward(self, x):
            return self.own(x) + self.plain(x[:, None])[:, 0]

    outer, x = OuterAttention(), torch.randn(2, 5, 12)
    set_backend(outer, backend)
    with watch(outer) as seen:
        outer(x)
    assert [seen.part(layer) for layer in seen.layers] == ["own", "plain", "plain"]


def test_a_model_without_attention_says_so():
    for part, given in ((nn.Sequential(nn.Linear(3, 3)), torch.ones(1, 3)), (model("nano-vit").head, None)):
        with watch(part) as seen:
            if given is not None:
                part(given)
            with pytest.raises(WeftError, match="none of its parts is an attention"):
                seen.attention()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt2", "mistral-7b", "t5-small"])
def test_unobserved_parts_compile_to_one_graph_and_observed_ones_run_uncompiled(name):
    one = subjects.Subject(model(name))
    content = one.content(2, 11)
    eager = one.run(content)
    with switched_off(one.module, FeedForward(1), Head(0, 1)):
        off = one.run(content)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    stacks = [part for part in one.module.modules() if isinstance(part, Stack)]
    for stack in stacks:
        stack.compile(fullgraph=True, dynamic=False, backend="eager")
    assert torch.allclose(one.run(content), eager, atol=1e-12)
    count = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert count == len(stacks)
    with watch(one.module) as seen:
        assert torch.allclose(one.run(content), eager, atol=1e-12)
    assert len(seen.calls) == 1 and len(seen.layers) == 2
    with switched_off(one.module, FeedForward(1), Head(0, 1)):
        assert torch.allclose(one.run(content), off, atol=1e-12)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.allclose(one.run(content), eager, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == count
    torch._dynamo.reset()
