"""State: the KV cache and all else that a model keeps between calls; passed in and out, never hidden on a module.

Each mixer has its own kind (keys and values; hidden vector; last inputs; running matrix). Keys carry the positions
they belong to, so cached, ring-shaped and ragged decoding need no special case in any mask.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

from weft.foundation.errors import LengthError, ShapeError, WeftError
from weft.parts import observer
from weft.parts.position_counter import PositionCounter
from weft.parts.token_positions import TokenPositions, real_counts

FIRST_CAPACITY = 64
RING_SLACK = 64


class LayerState(Protocol):
    """What one mixer remembers; rows can be taken, repeated or dropped (beam search, batching)."""

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        ...


@dataclass
class TensorState:
    """A mixer's memory that is a few tensors with the batch first: hidden vectors, last inputs, running sums."""

    tensors: tuple[Tensor, ...] | None = None

    def keep(self, *tensors: Tensor) -> None:
        """Remember these; gradients do not flow from one call into the next."""
        self.tensors = tuple(t.detach() for t in tensors)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        if self.tensors is not None:
            self.tensors = tuple(t.index_select(0, rows) for t in self.tensors)


@dataclass(frozen=True)
class CacheWrite:
    """Where new keys go: a run of slots (`first`), or slots [B, T] of their own for each row; and what is seen."""

    keys: TokenPositions
    capacity: int
    seen: int
    first: int | None = None
    slots: Tensor | None = None
    joined: bool = False


class CacheSlots:
    """Which positions the slots hold, shared by all layers that keep the same keys.

    `capacity` None grows by doubling; a number refuses what does not fit. With `window` it is a ring: the oldest keys
    make room, and memory stays O(window) however long the text.
    """

    def __init__(self, batch: int, device: torch.device, capacity: int | None = None, window: int | None = None):
        if capacity is not None and capacity < 1:
            raise LengthError(f"a state of capacity {capacity} holds nothing: make it at least 1, or None to grow")
        self.batch, self.device = batch, device
        # A state that can hold no more than a window sees all of it anyway: no ring is needed.
        self.window = None if window is not None and capacity is not None and capacity <= window else window
        self.limit = capacity if self.window is None else None
        self.capacity = (capacity or FIRST_CAPACITY) if self.window is None else self.window + RING_SLACK
        self.used = 0
        self.positions: Tensor | None = None
        self.documents: Tensor | None = None
        self.filled: Tensor | None = None

    def expect_room(self, token_positions: TokenPositions) -> None:
        """Refuse tokens that do not fit, before anything is changed."""
        if self.limit is not None and self.used + token_positions.length > self.capacity:
            used = self._needed(token_positions)
            if used > self.capacity:
                raise LengthError(
                    f"{used} tokens, but this state holds {self.limit}: "
                    "make a state of larger capacity, or one that grows (capacity=None)"
                )

    def _needed(self, token_positions: TokenPositions) -> int:
        """How many slots the fullest row needs afterwards, exactly."""
        if not self.batch or (self.filled is None and token_positions.plain):
            return self.used + token_positions.length
        filled = self.used if self.filled is None else self.filled
        return int((filled + real_counts(token_positions, self.batch)).max())

    def plan_write(self, token_positions: TokenPositions) -> CacheWrite:
        """Give new tokens their slots; says which keys are seen afterwards."""
        self.expect_room(token_positions)
        if self.window is not None:
            return self._plan_ring_write(token_positions)
        first, self.used = self.used, self._make_room(token_positions)
        if self.positions is None and token_positions.plain and token_positions.start == first:
            return CacheWrite(TokenPositions.run(0, self.used, self.device), self.capacity, self.used, first=first)
        slots = self._write(token_positions, torch.full((), self.capacity, device=self.device), first)
        return CacheWrite(self._kept(self.used), self.capacity, self.used, slots=slots)

    def _plan_ring_write(self, token_positions: TokenPositions) -> CacheWrite:
        assert self.window is not None
        self._materialize(0)
        joined = token_positions.length > self.capacity - self.window + 1
        before = self._kept(self.capacity) if joined else None
        slots = self._write(token_positions, torch.full((), self.capacity, device=self.device), None)
        self.used += token_positions.length
        keys = self._kept(self.capacity) if before is None else _join(before, token_positions, self.batch)
        return CacheWrite(keys, self.capacity, self.capacity, slots=slots, joined=joined)

    def _make_room(self, token_positions: TokenPositions) -> int:
        """How many slots are in use afterwards: an upper bound while there is room, exact where it gets narrow."""
        used = self.used + token_positions.length
        if used <= self.capacity:
            return used
        used = self._needed(token_positions)
        if used <= self.capacity:
            return used
        self.capacity = max(2 * self.capacity, used)
        if self.positions is not None:
            self.positions = _extend(self.positions, 1, self.capacity + 1, -1)
        if self.documents is not None:
            self.documents = _extend(self.documents, 1, self.capacity + 1, -1)
        return used

    def _materialize(self, used: int) -> None:
        if self.positions is not None:
            return
        self.positions = torch.full((self.batch, self.capacity + 1), -1, device=self.device)
        self.positions[:, :used] = torch.arange(used, device=self.device)
        self.filled = torch.full((self.batch,), used, device=self.device)

    def _write(self, token_positions: TokenPositions, trash: Tensor, used: int | None) -> Tensor:
        """Slots [B, T]: real tokens follow each row's last, padding goes to a slot that nobody sees."""
        self._materialize(used or 0)
        assert self.positions is not None and self.filled is not None
        positions = token_positions.positions.expand(self.batch, -1)
        real = positions >= 0
        order = self.filled[:, None] + real.long().cumsum(1) - 1
        self.filled = self.filled + real.sum(1)
        kept = real
        if self.window is not None:
            kept = real & (order >= self.filled[:, None] - self.capacity)
            order = order % self.capacity
        slots = torch.where(kept, order, trash)
        self.positions = self.positions.scatter(1, slots, torch.where(kept, positions, -1))
        if token_positions.documents is not None:
            if self.documents is None:
                self.documents = torch.full_like(self.positions, -1)
            documents = token_positions.documents.expand(self.batch, -1)
            self.documents = self.documents.scatter(1, slots, torch.where(kept, documents, -1))
        return slots

    def _kept(self, seen: int) -> TokenPositions:
        assert self.positions is not None
        documents = None if self.documents is None else self.documents[:, :seen]
        return TokenPositions.of(self.positions[:, :seen], documents)

    def rollback(self, count: int | Tensor, until: int | Tensor) -> None:
        """Take back each row's last `count` tokens, a number or [B]: those at positions from `until` on."""
        if isinstance(count, Tensor):
            self._materialize(self.used)
        if self.positions is not None and self.filled is not None:
            nexts = torch.as_tensor(until, device=self.device).expand(self.batch)[:, None]
            self.positions = self.positions.masked_fill(self.positions >= nexts, -1)
            self.filled = self.filled - count
        if isinstance(count, Tensor):
            assert self.filled is not None
            self.used = int(self.filled.max()) if self.batch else 0
        else:
            self.used -= count

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        self.batch = len(rows)
        for name in ("positions", "documents", "filled"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))


@dataclass
class KeyValueState:
    """Keys [B, G, C + 1, K] and values [B, G, C + 1, V] of one attention, in slots; the last takes padding."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def append(self, key: Tensor, value: Tensor, cache_write: CacheWrite) -> tuple[Tensor, Tensor]:
        """Write new keys and values [B, G, T, .] into their slots; gives all that may be seen.

        What is remembered carries no gradient: within a call gradients flow, into earlier calls they do not.
        """
        stores = self.ensure_capacity(key, value, cache_write.capacity)
        before = [s[:, :, : cache_write.seen].clone() for s in stores] if cache_write.joined else []
        learning = torch.is_grad_enabled() and (key.requires_grad or value.requires_grad)
        seen = []
        for store, new in zip(stores, (key, value), strict=True):
            written = self._write(store.clone() if learning else store, new, cache_write)
            if learning:
                with torch.no_grad():
                    self._write(store, new, cache_write)
            seen.append(written[:, :, : cache_write.seen].to(new.dtype))
        if cache_write.joined:
            pairs = zip(before, (key, value), strict=True)
            seen = [torch.cat((old.to(new.dtype), new), 2) for old, new in pairs]
        return seen[0], seen[1]

    @staticmethod
    def _write(store: Tensor, new: Tensor, cache_write: CacheWrite) -> Tensor:
        new = new.to(store.dtype)
        if cache_write.first is not None:
            store[:, :, cache_write.first : cache_write.first + new.shape[2]] = new
            return store
        assert cache_write.slots is not None
        index = cache_write.slots[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3])
        return store.scatter_(2, index, new.expand(index.shape[0], -1, -1, -1))

    def ensure_capacity(self, key: Tensor, value: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """The stores, made or made larger for `capacity` keys and values like these, [B, G, any, .]."""
        if self.keys is not None and self.values is not None and self.keys.shape[2] > capacity:
            return self.keys, self.values
        # Made outside of inference mode, so that a state may pass from inference to ordinary calls.
        with torch.inference_mode(False), torch.no_grad():
            if self.keys is None or self.values is None:
                self.keys, self.values = (
                    torch.zeros(n.shape[0], n.shape[1], capacity + 1, n.shape[3], dtype=n.dtype, device=n.device)
                    for n in (key, value)
                )
            else:
                # The old last slot held padding; it becomes an ordinary slot that is written before it is seen.
                self.keys, self.values = (_extend(s, 2, capacity + 1, 0) for s in (self.keys, self.values))
        return self.keys, self.values

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)


@dataclass
class State:
    """All that a stack remembers: the position counter, the slots of keys (one set per window), each layer's own."""

    counter: PositionCounter
    cache_slots: dict[int | None, CacheSlots]
    layers: list[LayerState]
    crosses: list[TensorState] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """How many rows it serves."""
        return self.counter.batch

    def expect_batch(self, batch: int) -> None:
        """Refuse a call with another number of rows."""
        if batch != self.batch:
            raise ShapeError(f"{batch} rows, but this state was made for {self.batch}: make a state for {batch} rows")

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order: for beam search (repeat, drop) and batching.

        An encoder-decoder's memory is reordered with it: `memory.reorder(rows)`.
        """
        rows = torch.as_tensor(rows, device=self.counter.device)
        for one in observer.active:
            one.on_state_reorder(self, rows)
        parts: list[LayerState] = [self.counter, *self.cache_slots.values(), *self.layers, *self.crosses]
        for part in parts:
            part.reorder(rows)

    @property
    def can_rollback(self) -> bool:
        """Whether tokens can be taken back: keys and values can, what a recurrence or a convolution kept cannot."""
        plain = all(isinstance(own, KeyValueState) or own == TensorState() for own in self.layers)
        return plain and self.counter.number is None

    def can_take_back(self, count: int) -> bool:
        """Whether `rollback(count)` is possible: not beyond the first token, nor what a ring has overwritten."""
        rings = any(slots.window is not None for slots in self.cache_slots.values())
        read = self.counter.next - self.counter.origin if isinstance(self.counter.next, int) else RING_SLACK
        return self.can_rollback and count <= (min(read, RING_SLACK) if rings else read)

    def rollback(self, count: int | Sequence[int]) -> None:
        """Take back each row's last `count` tokens, or as many as `count` says for each, as if never given."""
        counts = [count] * self.batch if isinstance(count, int) else list(count)
        if not self.can_take_back(max(counts)):
            raise WeftError(f"this state cannot take {max(counts)} tokens back: go on with a copy() made before them")
        alike = min(counts) == max(counts)
        taken: int | Tensor = counts[0] if alike else torch.tensor(counts, device=self.counter.device)
        self.counter.next = self.counter.next - taken
        for slots in self.cache_slots.values():
            slots.rollback(taken, self.counter.next)
        for one in observer.active:
            one.on_state_rollback(self, counts[0] if alike else counts)

    def copy(self) -> Self:
        """An independent copy: going on with one leaves the other as it was."""
        other = copy.deepcopy(self)
        for one in observer.active:
            one.on_state_copy(self, other)
        return other


def _extend(x: Tensor, axis: int, size: int, fill: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = size - shape[axis]
    return torch.cat((x, x.new_full(shape, fill)), axis)


def _join(before: TokenPositions, after: TokenPositions, batch: int) -> TokenPositions:
    positions = torch.cat((before.positions, after.positions.expand(batch, -1)), 1)
    if after.documents is None:
        return TokenPositions.of(positions)
    known = torch.full_like(before.positions, -1) if before.documents is None else before.documents
    return TokenPositions.of(positions, torch.cat((known, after.documents.expand(batch, -1)), 1))
