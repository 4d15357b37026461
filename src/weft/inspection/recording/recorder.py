"""The recorder: listens to the parts of one model and files what attention was given under calls.

Which call an attention belongs to: that of the state it was given; else that of the forward it runs in; else the last
call, if this attention has not been part of it yet (an encoder that runs before its decoder), or goes on with it.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.inference.fast import optimized as optimized
from weft.inspection.recording.attention_names import AttentionNames
from weft.inspection.recording.attention_records import (
    AlignmentRecord,
    AttentionRecord,
    Kind,
    PartAttentionRecord,
    PendingAttentionRecord,
)
from weft.inspection.recording.calls import RecordedCall, RecordedStep, StackInput, TextSide
from weft.inspection.recording.foreign_attention import listen_to_foreign
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.inspection.recording.linear_records import LinearAttentionRecord
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.embeddings import PatchEmbedding, TokenEmbedding, VectorEmbedding
from weft.parts.linear_attention import LinearAttention
from weft.parts.stack import Stack
from weft.parts.state import State
from weft.parts.token_positions import TokenPositions
from weft.parts.word_embedding import WordEmbedding

_alone = threading.local()  # while a text is run again, only its own recorder listens
EMBEDDINGS = (TokenEmbedding, VectorEmbedding, PatchEmbedding, WordEmbedding, nn.Embedding)
Run = Any


@dataclass(eq=False)
class StackPass:
    """One run through a stack, or through the whole module: what it was given, and where it is filed."""

    state: State | None = None
    token_positions: TokenPositions | None = None
    fed: StackInput | None = None
    outer: StackPass | None = None
    call: RecordedCall | None = None
    step: int | None = None
    times: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class KnownState:
    """The call that a state belongs to; `pending` is the order of rows since its last step, `forked` a copy's past."""

    state: weakref.ref[State]
    call: RecordedCall
    pending: list[int] | None = None
    forked: int | None = None


class ThreadState(threading.local):
    """Where this thread is: the passes and parts that it is inside of, what embeddings were given, the last call."""

    def __init__(self) -> None:
        self.passes: list[StackPass] = []
        self.parts: list[tuple[str, Kind]] = []
        self.inputs: dict[str, Tensor] = {}
        self.current: RecordedCall | None = None
        self.loose = StackPass()
        self.inside_own = 0
        self.count = 0


class Recorder:
    """Files records under calls while it listens; see the head of this file."""

    def __init__(self, module: nn.Module, layers: Sequence[int] | None, keep: int | None) -> None:
        self.module, self.names = module, AttentionNames(module)
        self.layers = None if layers is None else frozenset(layers)
        self.calls: deque[RecordedCall] = deque(maxlen=keep)
        self.ran = 0
        self.here = ThreadState()
        self._states: dict[int, KnownState] = {}
        self._lock = threading.Lock()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the context lasts."""
        with FunctionOverrides() as overrides:
            for path, part in self.module.named_modules():
                self._listen(overrides, path, part)
            for kind in _kinds_of(Stack):
                overrides.everywhere(kind, "forward", self._stack)
            overrides.everywhere(optimized.UncheckedEmbedding, "forward", self._looked_up)
            overrides.everywhere(RecurrentSeq2Seq, "encode", self._encoded)
            overrides.everywhere(RecurrentSeq2Seq, "decode", self._aligned)
            listen_to_foreign(self, overrides)
            overrides.on(self.module, "forward", self._root)
            overrides.everywhere(State, "reorder", self._reordered)
            overrides.everywhere(State, "forget", self._forgotten)
            overrides.everywhere(State, "copy", self._copied)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Listen while nobody else does: what runs inside is nobody else's to see."""
        before = getattr(_alone, "who", None)
        _alone.who = self
        try:
            with self.listening():
                yield
        finally:
            if before is None:
                del _alone.who
            else:
                _alone.who = before

    def _listen(self, overrides: FunctionOverrides, path: str, part: nn.Module) -> None:
        if isinstance(part, (SelfAttention, CrossAttention)):
            overrides.on(part, "gather", self._gathered)
        elif isinstance(part, LinearAttention):
            overrides.on(part, "forward", self._mixed)
        elif isinstance(part, EMBEDDINGS):
            overrides.on(part, "forward", self._embedded(path))

    def _root(self, run: Run, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.ran += 1
        if not self.here.passes:
            self.here.inputs = {}
        with self._within(StackPass()):
            return run(part, *args, **kwargs)

    def _stack(
        self, run: Run, part: Stack, x: Tensor, token_positions: TokenPositions, *args: Any, **kwargs: Any
    ) -> Any:
        """A stack, or a optimized one of the same blocks, which may compute a step without its attentions' `gather`."""
        here = self.here
        inside = here.passes and here.passes[-1].fed is not None and here.passes[-1].fed.stack is part
        if inside or id(part.blocks) not in self.names.stacks:
            return run(part, x, token_positions, *args, **kwargs)
        given = dict(zip(("mask", "state", "memory", "auxiliary"), args, strict=False), **kwargs)
        state: State | None = given.get("state")
        begun = state is not None and state.counter.begun
        fed = None if state is None else StackInput(part, x.detach(), token_positions, given.get("memory"), begun)
        before = here.count
        with self._within(StackPass(state, token_positions, fed or StackInput(part))):
            out = run(part, x, token_positions, *args, **kwargs)
            if here.count == before and fed is not None:
                for kind, layer, path in self.names.stacks[id(part.blocks)]:
                    self.file(
                        kind,
                        layer,
                        path,
                        PendingAttentionRecord(x.shape[0]) if self.wanted(layer) else None,
                        x.shape[0],
                    )
        return out

    @contextmanager
    def _within(self, own: StackPass) -> Iterator[StackPass]:
        here = self.here
        own.outer = here.passes[-1] if here.passes else None
        here.passes.append(own)
        try:
            yield own
        finally:
            here.passes.pop()

    def _gathered(
        self,
        run: Run,
        part: SelfAttention | CrossAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: AttentionContext,
    ) -> Any:
        self.here.inside_own += 1
        try:
            out = run(part, query, key, value, context)
        finally:
            self.here.inside_own -= 1
        kind, layer, path = self.names.own[id(part)]
        if self.wanted(layer):
            self.file(kind, layer, path, PartAttentionRecord.of(query, key, value, context, part.score))
        else:
            self.file(kind, layer, path, None, query.shape[0])
        return out

    def _mixed(
        self, run: Run, part: LinearAttention, x: Tensor, context: AttentionContext | None = None, state: Any = None
    ) -> Any:
        """Linear attention; with a state it keeps sums, not keys, so that its map needs the text to be run again."""
        out = run(part, x, context, state)
        kind, layer, path = self.names.own[id(part)]
        record = (
            PendingAttentionRecord(x.shape[0])
            if state is not None
            else LinearAttentionRecord(part, x.detach(), context or AttentionContext.of(x))
        )
        self.file(kind, layer, path, record if self.wanted(layer) else None, x.shape[0])
        return out

    def _embedded(self, path: str) -> Any:
        def wrapper(run: Run, part: nn.Module, given: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.here.inputs[path] = given.detach()
            return run(part, given, *args, **kwargs)

        return wrapper

    def _looked_up(self, run: Run, part: Any, tokens: Tensor) -> Any:
        path = self.names.paths.get(id(part.own))
        if path is not None:
            self.here.inputs[path] = tokens.detach()
        return run(part, tokens)

    def _encoded(self, run: Run, part: RecurrentSeq2Seq, *args: Any, **kwargs: Any) -> Any:
        memory = run(part, *args, **kwargs)
        if id(part.encoder) not in self.names.paths:
            return memory
        with self._within(StackPass(None, memory.token_positions)):
            self.file("encoder", 0, "encode", None, memory.hidden.shape[0])
        return memory

    def _aligned(self, run: Run, part: RecurrentSeq2Seq, target: Tensor, memory: Any, *args: Any, **kwargs: Any) -> Any:
        if id(part.decoder) not in self.names.paths:
            return run(part, target, memory, *args, **kwargs)
        state = kwargs.get("state", args[2] if len(args) > 2 else None)
        queries: list[Tensor] = []
        with FunctionOverrides() as overrides:
            if part.score is not None:
                _collect_queries(overrides, part.score, queries)
            out = run(part, target, memory, *args, **kwargs)
        weights = out.auxiliary.get("alignment")
        if weights is not None and self.wanted(0):
            asked = torch.cat(queries, 2) if queries else None
            asked = asked if asked is not None and asked.shape[2] == weights.shape[1] else None
            record = AlignmentRecord(
                weights.detach()[:, None], None, asked, memory.hidden.detach(), part.score, memory.token_positions.real
            )
            with self._within(StackPass(state)):
                self.file("alignment", 0, self.names.paths[id(part.score)], record)
        return out

    def wanted(self, layer: int) -> bool:
        """Whether this layer is to be kept."""
        return self.layers is None or layer in self.layers

    def file(self, kind: Kind, layer: int, path: str, record: AttentionRecord | None, rows: int = 0) -> None:
        """Put a record where it belongs; without one, note only that this attention ran."""
        if getattr(_alone, "who", self) is not self:
            return
        here = self.here
        here.count += 1
        key = (kind, layer, path)
        own = here.passes[-1] if here.passes else here.loose
        if not here.passes and own.call is not None and key in own.call.met:
            own = here.loose = StackPass()
        if own.step is None or own.call is None:
            own.call = self._call_for(own, key, kind, layer, record)
            own.step = self._begin(own, kind, record.rows if record is not None else rows)
        own.call.met.add(key)
        if record is not None:
            layers = own.call.layer_records.get((kind, layer))
            if layers is not None and layers.records:
                record.continues(layers.records[-1][1])
            own.call.add(kind, layer, path, own.step, record)

    def _call_for(
        self, own: StackPass, key: object, kind: Kind, layer: int, record: AttentionRecord | None
    ) -> RecordedCall:
        known = self._known(own.state)
        if known is not None:
            if known.forked is not None:
                known.call, known.forked = self._new(known.call.fork(known.forked)), None
            return known.call
        outer = own.outer
        if outer is not None and outer.call is not None:
            call = outer.call
        else:
            call = self.here.current or self._new(RecordedCall())
            if key in call.met:
                known_layer = call.layer_records.get((kind, layer))
                before = known_layer.records[-1][1] if known_layer is not None and known_layer.records else None
                if before is None or record is None or not record.continues(before):
                    call = self._new(RecordedCall())
        if outer is not None:
            outer.call = call
        if own.state is not None:
            self._states = {key: one for key, one in self._states.items() if one.state() is not None}
            self._states[id(own.state)] = KnownState(weakref.ref(own.state), call)
        return call

    def _begin(self, own: StackPass, kind: Kind, rows: int) -> int:
        assert own.call is not None
        side: TextSide = "source" if kind == "encoder" else "target"
        known = self._known(own.state)
        step = RecordedStep(rows, side)
        if known is not None:
            step.parents, known.pending = known.pending, None
        step.inputs, self.here.inputs = self.here.inputs, {}
        if own.fed is not None and own.fed.x is not None:
            step.fed = own.fed
        if own.token_positions is not None:
            step.length = own.token_positions.length
            step.real = own.token_positions.real if own.state is not None or side == "source" else None
        return own.call.begin(step)

    def _new(self, call: RecordedCall) -> RecordedCall:
        with self._lock:
            self.calls.append(call)
        self.here.current = call
        return call

    def _known(self, state: State | None) -> KnownState | None:
        known = None if state is None else self._states.get(id(state))
        return known if known is not None and known.state() is state else None

    def _reordered(self, run: Run, state: State, rows: Tensor) -> Any:
        known = self._known(state)
        if known is not None:
            order = torch.as_tensor(rows).tolist()
            known.pending = order if known.pending is None else [known.pending[row] for row in order]
        return run(state, rows)

    def _forgotten(self, run: Run, state: State, count: int) -> Any:
        out = run(state, count)
        known = self._known(state)
        if known is not None:
            known.call.forget(count)
        return out

    def _copied(self, run: Run, state: State) -> Any:
        other = run(state)
        known = self._known(state)
        if known is not None:
            steps = len(known.call.steps) if known.forked is None else known.forked
            self._states[id(other)] = KnownState(weakref.ref(other), known.call, known.pending, steps)
        return other


def _collect_queries(overrides: FunctionOverrides, score: nn.Module, queries: list[Tensor]) -> None:
    """The queries that a score compares, whether it is called or asked to compare with optimized keys."""
    depth = [0]

    def wrapper(run: Run, part: nn.Module, query: Tensor, key: Tensor) -> Any:
        if not depth[0]:
            queries.append(query.detach())
        depth[0] += 1
        try:
            return run(part, query, key)
        finally:
            depth[0] -= 1

    overrides.on(score, "compare", wrapper)
    overrides.on(score, "forward", wrapper)


def _kinds_of(kind: type) -> list[type]:
    """A class and those made from it that have a forward of their own."""
    below: list[type] = type.__subclasses__(kind)
    return [kind, *(own for one in below for own in _kinds_of(one) if "forward" in vars(own))]
