"""The recorder: observes the parts of one model and records what attention was given.

Weft's own parts tell it through `weft.parts.observer`, in any thread. Foreign modules do not: their methods and torch's
functions are overridden while it records, in the thread that records only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from weft.inspection.recording.attention_names import AttentionNames, Declared, is_own
from weft.inspection.recording.attention_records import (
    AlignmentRecord,
    AttentionRecord,
    Kind,
    PartAttentionRecord,
    PendingAttentionRecord,
)
from weft.inspection.recording.call_log import CallLog, StackPass
from weft.inspection.recording.calls import RecordedCall, StackInput
from weft.inspection.recording.foreign_attention import observe_foreign_attention
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.inspection.recording.linear_records import LinearAttentionRecord
from weft.parts.attention import CrossAttention, PlainCrossAttention, SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.linear_attention import LinearAttention
from weft.parts.observer import Observer, is_aside, observing
from weft.parts.scores import Score
from weft.parts.stack import Stack
from weft.parts.state import State, TensorState
from weft.parts.token_positions import TokenPositions

_exclusive = threading.local()  # .recorder: the only one that records in this thread, while a text is run again


class Recorder(Observer):
    """Records the attentions of `module`: of some `layers` only, and the last `keep` calls (None: all).

    `attention` names parts that are attentions though their classes do not say so.
    """

    def __init__(
        self, module: nn.Module, layers: Sequence[int] | None, keep: int | None, attention: Declared = ()
    ) -> None:
        self.module, self.names = module, AttentionNames(module, attention)
        self.layers = None if layers is None else frozenset(layers)
        self.log = CallLog(keep)
        self.runs = 0
        self.unclaimed: dict[str, str] = {}  # class -> path of parts that took a softmax and are not called attentions

    @property
    def calls(self) -> deque[RecordedCall]:
        """The calls recorded, oldest first."""
        return self.log.calls

    @property
    def without_attention(self) -> bool:
        """Whether it is known, before anything runs, that there is nothing to record."""
        attends = any(isinstance(part, (Score, LinearAttention)) for part in self.module.modules())
        return is_own(self.module) and not attends and not self.names.foreign

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the context lasts."""
        with observing(self), FunctionOverrides() as overrides:
            for path, part in self.module.named_modules():
                if isinstance(part, nn.Embedding):
                    overrides.on(part, "forward", self._foreign_embedding(path))
            observe_foreign_attention(self, overrides)
            if not is_own(self.module):
                overrides.on(self.module, "forward", self._foreign_root)
            yield

    @contextmanager
    def recording_alone(self) -> Iterator[None]:
        """Record while no other recorder does in this thread."""
        before = getattr(_exclusive, "recorder", None)
        _exclusive.recorder = self
        try:
            with self.recording():
                yield
        finally:
            _exclusive.recorder = before

    def wanted(self, layer: int) -> bool:
        """Whether this layer is to be kept."""
        return self.layers is None or layer in self.layers

    def add(self, kind: Kind, layer: int, path: str, record: AttentionRecord | None, rows: int = 0) -> None:
        """Add a record to its call; see `CallLog.add`."""
        if (getattr(_exclusive, "recorder", None) or self) is self and not is_aside():
            self.log.add(kind, layer, path, record, rows)

    @contextmanager
    def during_stack(
        self,
        part: Stack,
        x: Tensor,
        token_positions: TokenPositions,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
    ) -> Iterator[None]:
        """A stack, or an optimized one of the same blocks, which may compute a step without showing its attentions."""
        names = self.names.stacks.get(id(part.blocks))
        if names is None or is_aside():
            yield
            return
        self.runs += 1
        stack_input = None
        if state is not None:
            stack_input = StackInput(part, x.detach(), token_positions, memory, state.counter.begun)
        before = self.log.here.count
        with self.log.within(StackPass(state, token_positions, stack_input)):
            yield
            if self.log.here.count == before and state is not None:
                B = x.shape[0]
                for kind, layer, path in names:
                    self.add(kind, layer, path, PendingAttentionRecord(B) if self.wanted(layer) else None, B)

    @contextmanager
    def during_attention(self, part: nn.Module) -> Iterator[None]:
        """Torch functions that Weft's own attention calls are not recorded a second time."""
        self.log.here.own_depth += 1
        try:
            yield
        finally:
            self.log.here.own_depth -= 1

    def on_attention(
        self, part: nn.Module, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, output: Tensor
    ) -> Tensor:
        """Record references to queries, keys and values."""
        name = self.names.own.get(id(part))
        if name is not None and isinstance(part, (SelfAttention, CrossAttention, PlainCrossAttention)):
            record = None
            if self.wanted(name[1]):
                record = PartAttentionRecord.of(query, key, value, context, part.score)
            self.add(*name, record, query.shape[0])
        return output

    def on_linear_attention(
        self, part: nn.Module, x: Tensor, context: AttentionContext, state: TensorState | None, output: Tensor
    ) -> Tensor:
        """With a state it keeps sums, not keys, so that its map needs the text to be run again."""
        name = self.names.own.get(id(part))
        if name is not None and isinstance(part, LinearAttention):
            record: AttentionRecord | None = None
            if self.wanted(name[1]):
                record = LinearAttentionRecord(part, x.detach(), context)
                record = record if state is None else PendingAttentionRecord(x.shape[0])
            self.add(*name, record, x.shape[0])
        return output

    def on_recurrent_encoding(self, part: nn.Module, hidden: Tensor, token_positions: TokenPositions) -> None:
        """A source was read: the decoder's alignments that follow belong to the same call."""
        if id(part) in self.names.paths:
            self.runs += 1
            with self.log.within(StackPass(None, token_positions)):
                self.add("encoder", 0, "encode", None, hidden.shape[0])

    def on_alignment(
        self,
        part: nn.Module,
        query: Tensor,
        hidden: Tensor,
        token_positions: TokenPositions,
        state: State | None,
        weights: Tensor,
    ) -> None:
        """Record the weights, and the states that they were computed from."""
        path = self.names.paths.get(id(part))
        if path is not None and isinstance(part, Score) and self.wanted(0):
            record = AlignmentRecord(
                weights.detach()[:, None], None, query.detach()[:, None], hidden.detach(), part, token_positions.real
            )
            with self.log.within(StackPass(state)):
                self.add("alignment", 0, path, record)

    def on_embedding(self, part: nn.Module, given: Tensor, output: Tensor) -> Tensor:
        """Keep what was given until the step that it belongs to begins."""
        path = self.names.paths.get(id(part))
        if path is not None and not is_aside():
            self.runs += 1
            inputs = self.log.here.inputs
            inner = {name: inputs.pop(name) for name in list(inputs) if name.startswith(f"{path}.")}
            inputs.update({path: given.detach(), **inner})
        return output

    def on_state_reorder(self, state: State, rows: Tensor) -> None:
        """Follow each text to its new row."""
        self.log.reorder(state, rows)

    def on_state_rollback(self, state: State, count: int | Sequence[int]) -> None:
        """Tokens taken back leave no rows."""
        self.log.forget(state, count)

    def on_state_copy(self, state: State, copy: State) -> None:
        """The copy's next step begins a call of its own."""
        self.log.copy(state, copy)

    def _foreign_root(self, run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """One forward of a foreign module is one call."""
        self.runs += 1
        if not self.log.here.passes:
            self.log.here.inputs = {}
        with self.log.within(StackPass()):
            return run(part, *args, **kwargs)

    def _foreign_embedding(self, path: str) -> Any:
        def wrapper(run: Any, part: nn.Module, given: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.log.here.inputs[path] = given.detach()
            return run(part, given, *args, **kwargs)

        return wrapper
