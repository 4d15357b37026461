"""Slots: the states of many texts in one block of memory, so that texts join and leave without copying the others.

Keys and values are big: each layer has one tensor [slots, G, C + 1, .], allocated once, and every state here is a view
of some of its rows. Texts that are decoded lie in the first rows without a gap: when one leaves, the last one takes its
slot. What else a state holds (positions, hidden vectors, running sums) is small and made anew when rows change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.inference.decoding.conditioning import device_of
from weft.models.output import Memory
from weft.parts.state import KeyValueState, State, TensorState
from weft.parts.token_positions import TokenPositions

LayerTensors = list[tuple[Tensor, ...] | None]


@dataclass
class SlotRow:
    """What a slot holds: `filled` tokens (an image's too), the first at position `offset`; `source` source tokens.

    `padded`: some of the source is padding.
    """

    filled: int
    offset: int = 0
    source: int = 0
    padded: bool = False


class SlotCopy(NamedTuple):
    """A copy of the state of one row. `cuttable`: a shorter beginning can be taken from it."""

    row: SlotRow
    keys: dict[int, tuple[Tensor, Tensor]]
    small: LayerTensors
    cuttable: bool


class Slots:
    """At most `count` texts of up to `capacity` tokens, with sources of up to `source` tokens."""

    def __init__(self, model: Any, count: int, capacity: int, source: int = 0) -> None:
        self.model, self.count, self.capacity, self.source = model, count, capacity, source
        self.device = device_of(model)
        self.forget()

    def forget(self) -> None:
        """Free all memory."""
        self.rows: list[SlotRow] = []
        self.keys: dict[int, tuple[Tensor, Tensor]] = {}
        self.crosses: list[tuple[Tensor, Tensor]] = []
        self.memory: Memory | None = None
        self.small: LayerTensors = []
        self.state: State | None = None
        self.memory_view: Memory | None = None
        self.settled = False

    def open(self, first: int, count: int = 1) -> State:
        """An empty state whose keys and values lie in slots first, first + 1, ..."""
        state: State = self.model.make_state(count, self.capacity)
        self._lend(state, first, count)
        return state

    def move_reading(self, state: State, here: int, there: int, filled: int) -> None:
        """A text that is still being read goes on in another slot, with its first `filled` keys and values."""
        self._copy_keys(here, there, filled)
        self._lend(state, there, state.batch)

    def _lend(self, state: State, first: int, count: int) -> None:
        for layer, (keys, values) in self.keys.items():
            own = state.layers[layer]
            assert isinstance(own, KeyValueState)
            own.keys, own.values = keys[first : first + count], values[first : first + count]

    def settle(self, state: State, first: int) -> None:
        """After a call on a state that was opened: the first call shows how large keys and values are."""
        for layer, own in enumerate(state.layers):
            if isinstance(own, KeyValueState) and layer not in self.keys and own.keys is not None:
                assert own.values is not None
                self.keys[layer] = (self._block(own.keys), self._block(own.values))
                for block, written in zip(self.keys[layer], (own.keys, own.values), strict=True):
                    block[first : first + len(written)] = written
        self._lend(state, first, state.batch)
        self.settled = True

    def _block(self, like: Tensor, length: int | None = None, axis: int = 2) -> Tensor:
        shape = [self.count, *like.shape[1:]]
        if length is not None:
            shape[axis] = length
        return zeros(shape, like.dtype, self.device)

    def join(self, state: State, first: int, rows: Sequence[SlotRow | None], memory: Memory | None = None) -> None:
        """The rows of a state in slots first, first + 1, ... are decoded from now, except those that are None."""
        kept = [n for n, row in enumerate(rows) if row is not None]
        if not kept:
            return
        self._collect()
        for n in kept:
            row = rows[n]
            assert row is not None
            if memory is not None:
                self._remember(len(self.rows), n, row, memory, state)
            if first + n != len(self.rows):
                self._copy_keys(first + n, len(self.rows), row.filled)
            self.rows.append(row)
        joined = _each(_small(state), lambda t: t[kept])
        self.small = joined if len(self.rows) == len(kept) else _pairwise(self.small, joined)

    def drop(self, leaving: Sequence[int]) -> list[int]:
        """These rows leave; returns the rows that stay, in their new order."""
        self._collect()
        order = list(range(len(self.rows)))
        for hole in sorted(leaving, reverse=True):
            last = len(order) - 1
            if hole != last:
                self._move(last, hole, self.rows[last])
            order[hole], self.rows[hole] = order[last], self.rows[last]
            del order[last], self.rows[last]
        index = torch.tensor(order, device=self.device, dtype=torch.long)
        self.small = _each(self.small, lambda t: t.index_select(0, index))
        return order

    def batch(self) -> tuple[State, Memory | None]:
        """The state of all rows that are decoded, and the memory of their sources; the same until rows change."""
        if self.state is None:
            n = len(self.rows)
            self.state = self.open(0, n)
            mark_filled(self.state, self.rows)
            _set_small(self.state, self.small)
            if self.memory is not None:
                self.memory_view = self._view_memory(self.memory, n)
        return self.state, self.memory_view

    def advanced(self, read: Sequence[int], kept: Sequence[int]) -> None:
        """Every row read so many tokens, of which it keeps the first ones; the others are taken back."""
        for row, count in zip(self.rows, kept, strict=True):
            row.filled += count
        back = [one - other for one, other in zip(read, kept, strict=True)]
        if any(back):
            assert self.state is not None
            self.state.rollback(back)

    def clear(self) -> None:
        """All rows leave, and nothing of what they held stays."""
        for n, row in enumerate(self.rows):
            self.wipe(n, row.filled)
        self.rows, self.small, self.state, self.memory_view = [], [], None, None

    def wipe_after(self, slot: int, count: int) -> None:
        """Zero the keys and values of `count` tokens that were taken back and may hold NaN."""
        filled = self.rows[slot].filled
        for block in self._blocks():
            block[slot, :, torch.arange(filled, filled + count, device=self.device) % (block.shape[2] - 1)] = 0

    def wipe(self, slot: int, filled: int) -> None:
        """Zero a slot that may hold NaN: a masked value is still multiplied by 0."""
        for block in self._blocks():
            block[slot, :, : filled + 1] = 0
        for pair in self.crosses:
            for each in pair:
                each[slot] = 0
        if self.memory is not None:
            self.memory.hidden[slot] = 0

    def copy(self, state: State, index: int, slot: int, row: SlotRow) -> SlotCopy:
        """A copy of row `index` of a state whose keys lie in `slot`."""
        keys = {
            layer: (k[slot, :, : row.filled].clone(), v[slot, :, : row.filled].clone())
            for layer, (k, v) in self.keys.items()
        }
        small = _each(_small(state), lambda t: t[index : index + 1].clone())
        whole = all(row.filled < block.shape[2] for block in self._blocks())  # a ring that has wrapped is not
        cuttable = whole and all(each is None for each in small)
        return SlotCopy(SlotRow(row.filled, row.offset), keys, small, cuttable)

    def restore(self, copied: SlotCopy, filled: int, slot: int) -> State:
        """A state in `slot` that begins with the first `filled` tokens of a copy."""
        state = self.open(slot)
        for layer, pair in copied.keys.items():
            for block, kept in zip(self.keys[layer], pair, strict=True):
                block[slot, :, : min(filled, kept.shape[1])] = kept[:, :filled]
        _set_small(state, _each(copied.small, lambda t: t.clone()))
        mark_filled(state, [SlotRow(filled, copied.row.offset)])
        return state

    def _collect(self) -> None:
        """Before rows change: what the last calls left in the state."""
        if self.state is not None:
            self.small, self.state, self.memory_view = _small(self.state), None, None

    def _blocks(self) -> list[Tensor]:
        return [block for pair in self.keys.values() for block in pair]

    def _copy_keys(self, here: int, there: int, filled: int) -> None:
        for block in self._blocks():
            block[there, :, :filled] = block[here, :, :filled]

    def _move(self, here: int, there: int, row: SlotRow) -> None:
        self._copy_keys(here, there, row.filled)
        if self.memory is None:
            return
        for pair in self.crosses:
            for block in pair:
                block[there, :, : row.source] = block[here, :, : row.source]
        self.memory.hidden[there, : row.source] = self.memory.hidden[here, : row.source]
        self.memory.token_positions.positions[there] = self.memory.token_positions.positions[here]
        if self.memory.summary is not None:
            self.memory.summary[there] = self.memory.summary[here]

    def _remember(self, slot: int, index: int, row: SlotRow, memory: Memory, state: State) -> None:
        """Keep a row's source: what cross-attention made of it, and its hidden states."""
        if self.memory is None:
            positions = torch.full((self.count, self.source), -1, device=self.device)
            summary = None if memory.summary is None else self._block(memory.summary)
            self.memory = Memory(self._block(memory.hidden, self.source, 1), TokenPositions.of(positions), summary)
            pairs = [own.tensors for own in state.crosses if own.tensors is not None]
            self.crosses = [(self._block(k, self.source), self._block(v, self.source)) for k, v in pairs]
        S = row.source
        for pair, own in zip(self.crosses, state.crosses, strict=False):
            assert own.tensors is not None
            for block, new in zip(pair, own.tensors, strict=True):
                block[slot, :, :S] = new[index, :, :S]
        self.memory.hidden[slot, :S] = memory.hidden[index, :S]
        positions = self.memory.token_positions.positions
        positions[slot] = -1
        positions[slot, :S] = memory.token_positions.positions.expand(len(memory.hidden), -1)[index, :S]
        if self.memory.summary is not None and memory.summary is not None:
            self.memory.summary[slot] = memory.summary[index]

    def _view_memory(self, memory: Memory, n: int) -> Memory:
        """Of the first n rows, as long as the longest source among them."""
        assert self.state is not None
        S = max(row.source for row in self.rows)
        equal = all(row.source == S and not row.padded for row in self.rows)
        token_positions = (
            TokenPositions.run(0, S, self.device)
            if equal
            else TokenPositions.of(memory.token_positions.positions[:n, :S])
        )
        for own, pair in zip(self.state.crosses, self.crosses, strict=False):
            own.tensors = tuple(block[:n, :, :S] for block in pair)
        return Memory(memory.hidden[:n, :S], token_positions, None if memory.summary is None else memory.summary[:n])


def mark_filled(state: State, rows: Sequence[SlotRow]) -> None:
    """Tell an empty state which tokens its rows hold, as if it had read them."""
    longest = max(row.filled for row in rows)
    if all(row.filled == longest and row.offset == 0 for row in rows):
        token_positions = TokenPositions.run(0, longest, state.counter.device)
    else:
        index = torch.arange(longest, device=state.counter.device)
        numbers = torch.tensor([(row.filled, row.offset) for row in rows], device=state.counter.device)
        filled, offset = numbers[:, :1], numbers[:, 1:]
        token_positions = TokenPositions.of(torch.where(index < filled, index + offset, -1))
    for slots in state.cache_slots.values():
        slots.plan_write(token_positions)
    state.counter.advance(token_positions)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU each page is allocated when it is first written, so slots that nobody uses cost nothing."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(*shape)


def _small(state: State) -> LayerTensors:
    """The layers' tensors that are not keys and values."""
    return [own.tensors if isinstance(own, TensorState) else None for own in state.layers]


def _set_small(state: State, small: LayerTensors) -> None:
    for own, tensors in zip(state.layers, small, strict=True):
        if isinstance(own, TensorState):
            own.tensors = tensors


def _each(small: LayerTensors, change: Callable[[Tensor], Tensor]) -> LayerTensors:
    return [None if tensors is None else tuple(change(t) for t in tensors) for tensors in small]


def _pairwise(before: LayerTensors, after: LayerTensors) -> LayerTensors:
    """Rows of both, one after the other."""
    return [
        None if a is None or b is None else tuple(torch.cat(pair) for pair in zip(a, b, strict=True))
        for a, b in zip(before, after, strict=True)
    ]
