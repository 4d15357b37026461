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

from weft.inference.fast import optimized as prepared
from weft.inspection.recording.attention_names import Names
from weft.inspection.recording.attention_records import AlignmentLook, Kind, Look, PartLook, Unseen
from weft.inspection.recording.calls import Call, Fed, Side, Step
from weft.inspection.recording.foreign_attention import listen_to_foreign
from weft.inspection.recording.function_overrides import Taps
from weft.inspection.recording.linear_records import LinearLook
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.attention_context import Sight
from weft.parts.embeddings import PatchEmbedding, TokenEmbedding, VectorEmbedding
from weft.parts.linear_attention import LinearAttention
from weft.parts.stack import Stack
from weft.parts.state import State
from weft.parts.token_positions import Places
from weft.parts.word_embedding import WordEmbedding

_alone = threading.local()  # while a text is run again, only its own recorder listens
EMBEDDINGS = (TokenEmbedding, VectorEmbedding, PatchEmbedding, WordEmbedding, nn.Embedding)
Run = Any


@dataclass(eq=False)
class Pass:
    """One run through a stack, or through the whole module: what it was given, and where it is filed."""

    state: State | None = None
    places: Places | None = None
    fed: Fed | None = None
    outer: Pass | None = None
    call: Call | None = None
    step: int | None = None
    times: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class Known:
    """The call that a state belongs to; `pending` is the order of rows since its last step, `forked` a copy's past."""

    state: weakref.ref[State]
    call: Call
    pending: list[int] | None = None
    forked: int | None = None


class Here(threading.local):
    """Where this thread is: the passes and parts that it is inside of, what embeddings were given, the last call."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self.parts: list[tuple[str, Kind]] = []
        self.inputs: dict[str, Tensor] = {}
        self.current: Call | None = None
        self.loose = Pass()
        self.inside_own = 0
        self.count = 0


class Recorder:
    """Files looks under calls while it listens; see the head of this file."""

    def __init__(self, module: nn.Module, layers: Sequence[int] | None, keep: int | None) -> None:
        self.module, self.names = module, Names(module)
        self.layers = None if layers is None else frozenset(layers)
        self.calls: deque[Call] = deque(maxlen=keep)
        self.ran = 0
        self.here = Here()
        self._states: dict[int, Known] = {}
        self._lock = threading.Lock()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the context lasts."""
        with Taps() as taps:
            for path, part in self.module.named_modules():
                self._listen(taps, path, part)
            for kind in _kinds_of(Stack):
                taps.everywhere(kind, "forward", self._stack)
            taps.everywhere(prepared.Lookup, "forward", self._looked_up)
            taps.everywhere(RecurrentSeq2Seq, "encode", self._encoded)
            taps.everywhere(RecurrentSeq2Seq, "decode", self._aligned)
            listen_to_foreign(self, taps)
            taps.on(self.module, "forward", self._root)
            taps.everywhere(State, "reorder", self._reordered)
            taps.everywhere(State, "forget", self._forgotten)
            taps.everywhere(State, "copy", self._copied)
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

    def _listen(self, taps: Taps, path: str, part: nn.Module) -> None:
        if isinstance(part, (SelfAttention, CrossAttention)):
            taps.on(part, "gather", self._gathered)
        elif isinstance(part, LinearAttention):
            taps.on(part, "forward", self._mixed)
        elif isinstance(part, EMBEDDINGS):
            taps.on(part, "forward", self._embedded(path))

    def _root(self, run: Run, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.ran += 1
        if not self.here.passes:
            self.here.inputs = {}
        with self._within(Pass()):
            return run(part, *args, **kwargs)

    def _stack(self, run: Run, part: Stack, x: Tensor, places: Places, *args: Any, **kwargs: Any) -> Any:
        """A stack, or a prepared one of the same blocks, which may compute a step without its attentions' `gather`."""
        here = self.here
        inside = here.passes and here.passes[-1].fed is not None and here.passes[-1].fed.stack is part
        if inside or id(part.blocks) not in self.names.stacks:
            return run(part, x, places, *args, **kwargs)
        given = dict(zip(("mask", "state", "memory", "notes"), args, strict=False), **kwargs)
        state: State | None = given.get("state")
        begun = state is not None and state.clock.begun
        fed = None if state is None else Fed(part, x.detach(), places, given.get("memory"), begun)
        before = here.count
        with self._within(Pass(state, places, fed or Fed(part))):
            out = run(part, x, places, *args, **kwargs)
            if here.count == before and fed is not None:
                for kind, layer, path in self.names.stacks[id(part.blocks)]:
                    self.file(kind, layer, path, Unseen(x.shape[0]) if self.wanted(layer) else None, x.shape[0])
        return out

    @contextmanager
    def _within(self, own: Pass) -> Iterator[Pass]:
        here = self.here
        own.outer = here.passes[-1] if here.passes else None
        here.passes.append(own)
        try:
            yield own
        finally:
            here.passes.pop()

    def _gathered(
        self, run: Run, part: SelfAttention | CrossAttention, query: Tensor, key: Tensor, value: Tensor, sight: Sight
    ) -> Any:
        self.here.inside_own += 1
        try:
            out = run(part, query, key, value, sight)
        finally:
            self.here.inside_own -= 1
        kind, layer, path = self.names.own[id(part)]
        if self.wanted(layer):
            self.file(kind, layer, path, PartLook.of(query, key, value, sight, part.score))
        else:
            self.file(kind, layer, path, None, query.shape[0])
        return out

    def _mixed(self, run: Run, part: LinearAttention, x: Tensor, sight: Sight | None = None, state: Any = None) -> Any:
        """Linear attention; with a state it keeps sums, not keys, so that its map needs the text to be run again."""
        out = run(part, x, sight, state)
        kind, layer, path = self.names.own[id(part)]
        look = Unseen(x.shape[0]) if state is not None else LinearLook(part, x.detach(), sight or Sight.of(x))
        self.file(kind, layer, path, look if self.wanted(layer) else None, x.shape[0])
        return out

    def _embedded(self, path: str) -> Any:
        def advice(run: Run, part: nn.Module, given: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.here.inputs[path] = given.detach()
            return run(part, given, *args, **kwargs)

        return advice

    def _looked_up(self, run: Run, part: Any, tokens: Tensor) -> Any:
        path = self.names.paths.get(id(part.own))
        if path is not None:
            self.here.inputs[path] = tokens.detach()
        return run(part, tokens)

    def _encoded(self, run: Run, part: RecurrentSeq2Seq, *args: Any, **kwargs: Any) -> Any:
        memory = run(part, *args, **kwargs)
        if id(part.encoder) not in self.names.paths:
            return memory
        with self._within(Pass(None, memory.places)):
            self.file("encoder", 0, "encode", None, memory.hidden.shape[0])
        return memory

    def _aligned(self, run: Run, part: RecurrentSeq2Seq, target: Tensor, memory: Any, *args: Any, **kwargs: Any) -> Any:
        if id(part.decoder) not in self.names.paths:
            return run(part, target, memory, *args, **kwargs)
        state = kwargs.get("state", args[2] if len(args) > 2 else None)
        queries: list[Tensor] = []
        with Taps() as taps:
            if part.score is not None:
                _collect_queries(taps, part.score, queries)
            out = run(part, target, memory, *args, **kwargs)
        weights = out.auxiliary.get("alignment")
        if weights is not None and self.wanted(0):
            asked = torch.cat(queries, 2) if queries else None
            asked = asked if asked is not None and asked.shape[2] == weights.shape[1] else None
            look = AlignmentLook(
                weights.detach()[:, None], None, asked, memory.hidden.detach(), part.score, memory.places.real
            )
            with self._within(Pass(state)):
                self.file("alignment", 0, self.names.paths[id(part.score)], look)
        return out

    def wanted(self, layer: int) -> bool:
        """Whether this layer is to be kept."""
        return self.layers is None or layer in self.layers

    def file(self, kind: Kind, layer: int, path: str, look: Look | None, rows: int = 0) -> None:
        """Put a look where it belongs; without one, note only that this attention ran."""
        if getattr(_alone, "who", self) is not self:
            return
        here = self.here
        here.count += 1
        key = (kind, layer, path)
        own = here.passes[-1] if here.passes else here.loose
        if not here.passes and own.call is not None and key in own.call.met:
            own = here.loose = Pass()
        if own.step is None or own.call is None:
            own.call = self._call_for(own, key, kind, layer, look)
            own.step = self._begin(own, kind, look.rows if look is not None else rows)
        own.call.met.add(key)
        if look is not None:
            record = own.call.records.get((kind, layer))
            if record is not None and record.looks:
                look.continues(record.looks[-1][1])
            own.call.add(kind, layer, path, own.step, look)

    def _call_for(self, own: Pass, key: object, kind: Kind, layer: int, look: Look | None) -> Call:
        known = self._known(own.state)
        if known is not None:
            if known.forked is not None:
                known.call, known.forked = self._new(known.call.fork(known.forked)), None
            return known.call
        outer = own.outer
        if outer is not None and outer.call is not None:
            call = outer.call
        else:
            call = self.here.current or self._new(Call())
            if key in call.met:
                record = call.records.get((kind, layer))
                before = record.looks[-1][1] if record is not None and record.looks else None
                if before is None or look is None or not look.continues(before):
                    call = self._new(Call())
        if outer is not None:
            outer.call = call
        if own.state is not None:
            self._states = {key: one for key, one in self._states.items() if one.state() is not None}
            self._states[id(own.state)] = Known(weakref.ref(own.state), call)
        return call

    def _begin(self, own: Pass, kind: Kind, rows: int) -> int:
        assert own.call is not None
        side: Side = "source" if kind == "encoder" else "target"
        known = self._known(own.state)
        step = Step(rows, side)
        if known is not None:
            step.parents, known.pending = known.pending, None
        step.inputs, self.here.inputs = self.here.inputs, {}
        if own.fed is not None and own.fed.x is not None:
            step.fed = own.fed
        if own.places is not None:
            step.length = own.places.length
            step.real = own.places.real if own.state is not None or side == "source" else None
        return own.call.begin(step)

    def _new(self, call: Call) -> Call:
        with self._lock:
            self.calls.append(call)
        self.here.current = call
        return call

    def _known(self, state: State | None) -> Known | None:
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
            self._states[id(other)] = Known(weakref.ref(other), known.call, known.pending, steps)
        return other


def _collect_queries(taps: Taps, score: nn.Module, queries: list[Tensor]) -> None:
    """The queries that a score compares, whether it is called or asked to compare with prepared keys."""
    depth = [0]

    def advice(run: Run, part: nn.Module, query: Tensor, key: Tensor) -> Any:
        if not depth[0]:
            queries.append(query.detach())
        depth[0] += 1
        try:
            return run(part, query, key)
        finally:
            depth[0] -= 1

    taps.on(score, "compare", advice)
    taps.on(score, "forward", advice)


def _kinds_of(kind: type) -> list[type]:
    """A class and those made from it that have a forward of their own."""
    below: list[type] = type.__subclasses__(kind)
    return [kind, *(own for one in below for own in _kinds_of(one) if "forward" in vars(own))]
