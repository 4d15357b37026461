"""The call log: which call each attention record belongs to.

That of the state which the attention was given; else that of the forward it runs in; else the last call, if this
attention has not been part of it yet (an encoder that runs before its decoder), or continues it.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_records import AttentionRecord, Kind
from weft.inspection.recording.calls import RecordedCall, RecordedStep, StackInput, TextSide
from weft.parts.state import State
from weft.parts.token_positions import TokenPositions


@dataclass(eq=False)
class StackPass:
    """One run through a stack, or through the whole module: what it was given, and the call and step it belongs to."""

    state: State | None = None
    token_positions: TokenPositions | None = None
    stack_input: StackInput | None = None
    outer: StackPass | None = None
    call: RecordedCall | None = None
    step: int | None = None
    times: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class TrackedState:
    """The call that a state belongs to.

    `order`: how rows were reordered since the last step. `forked_at`: of a copy, the number of steps before it; the
    copy gets a call of its own with its next step.
    """

    state: weakref.ref[State]
    call: RecordedCall
    order: list[int] | None = None
    forked_at: int | None = None


class ForeignPart(NamedTuple):
    """An attention of another library that is running: its path, its kind and the shape of its first input."""

    path: str
    kind: Kind
    shape: tuple[int, ...] = ()


class ThreadProgress(threading.local):
    """Where one thread is: the passes and foreign parts it is inside of, inputs of embeddings, the last call."""

    def __init__(self) -> None:
        self.passes: list[StackPass] = []
        self.foreign_parts: list[ForeignPart] = []
        self.inputs: dict[str, Tensor] = {}
        self.last_call: RecordedCall | None = None
        self.outside = StackPass()
        self.own_depth = 0
        self.count = 0


class CallLog:
    """All calls recorded, the last `keep` of them; several threads may record at once."""

    def __init__(self, keep: int | None) -> None:
        self.calls: deque[RecordedCall] = deque(maxlen=keep)
        self.here = ThreadProgress()
        self._states: dict[int, TrackedState] = {}
        self._lock = threading.Lock()

    @contextmanager
    def within(self, own: StackPass) -> Iterator[None]:
        """What is added inside belongs to this pass."""
        own.outer = self.here.passes[-1] if self.here.passes else None
        self.here.passes.append(own)
        try:
            yield
        finally:
            self.here.passes.pop()

    def add(self, kind: Kind, layer: int, path: str, record: AttentionRecord | None, rows: int = 0) -> None:
        """Add a record to its call; without one, note only that this attention ran on `rows` texts."""
        here = self.here
        here.count += 1
        key = (kind, layer, path)
        own = here.passes[-1] if here.passes else here.outside
        if not here.passes and own.call is not None and key in own.call.met:
            own = here.outside = StackPass()
        if own.step is None or own.call is None:
            own.call = self._call_of(own, key, kind, layer, record)
            own.step = self._begin_step(own, kind, record.rows if record is not None else rows)
        own.call.met.add(key)
        if record is not None:
            layer_record = own.call.layer_records.get((kind, layer))
            if layer_record is not None and layer_record.records:
                record.continues(layer_record.records[-1][1])
            own.call.add(kind, layer, path, own.step, record)

    def _call_of(
        self, own: StackPass, key: object, kind: Kind, layer: int, record: AttentionRecord | None
    ) -> RecordedCall:
        tracked = self._tracked(own.state)
        if tracked is not None:
            if tracked.forked_at is not None:
                tracked.call, tracked.forked_at = self._new_call(tracked.call.fork(tracked.forked_at)), None
            return tracked.call
        outer = own.outer
        if outer is not None and outer.call is not None:
            call = outer.call
        else:
            call = self.here.last_call or self._new_call(RecordedCall())
            if key in call.met and not _continues(call, kind, layer, record):
                call = self._new_call(RecordedCall())
        if outer is not None:
            outer.call = call
        if own.state is not None:
            self._states = {key: one for key, one in self._states.items() if one.state() is not None}
            self._states[id(own.state)] = TrackedState(weakref.ref(own.state), call)
        return call

    def _begin_step(self, own: StackPass, kind: Kind, rows: int) -> int:
        assert own.call is not None
        side: TextSide = "source" if kind == "encoder" else "target"
        tracked = self._tracked(own.state)
        step = RecordedStep(rows, side)
        if tracked is not None:
            step.parents, tracked.order = tracked.order, None
        step.inputs, self.here.inputs = self.here.inputs, {}
        step.stack_input = own.stack_input
        if own.token_positions is not None:
            step.length = own.token_positions.length
            step.real = own.token_positions.real if own.state is not None or side == "source" else None
        return own.call.begin(step)

    def _new_call(self, call: RecordedCall) -> RecordedCall:
        with self._lock:
            self.calls.append(call)
        self.here.last_call = call
        return call

    def _tracked(self, state: State | None) -> TrackedState | None:
        tracked = None if state is None else self._states.get(id(state))
        return tracked if tracked is not None and tracked.state() is state else None

    def reorder(self, state: State, rows: Tensor) -> None:
        """The state's rows were reordered."""
        tracked = self._tracked(state)
        if tracked is not None:
            order = rows.tolist()
            tracked.order = order if tracked.order is None else [tracked.order[row] for row in order]

    def forget(self, state: State, count: int | Sequence[int]) -> None:
        """The state took tokens back."""
        tracked = self._tracked(state)
        if tracked is not None:
            if not isinstance(count, int):
                raise WeftError("rows that take back different numbers of tokens leave no one record: watch one text")
            tracked.call.forget(count)

    def copy(self, state: State, other: State) -> None:
        """The state was copied."""
        tracked = self._tracked(state)
        if tracked is not None:
            steps = len(tracked.call.steps) if tracked.forked_at is None else tracked.forked_at
            self._states[id(other)] = TrackedState(weakref.ref(other), tracked.call, tracked.order, steps)


def _continues(call: RecordedCall, kind: Kind, layer: int, record: AttentionRecord | None) -> bool:
    """Whether a record goes on where the call's last one of this layer ended."""
    layer_record = call.layer_records.get((kind, layer))
    if record is None or layer_record is None or not layer_record.records:
        return False
    return record.continues(layer_record.records[-1][1])
