"""State: what a model remembers between calls, made by the model, passed in and out, never hidden on a module.

Each mixer has its own kind (keys and values; hidden vector; last inputs; running matrix). Keys carry the positions
they belong to, so cached, ring-shaped and ragged decoding need no special case in any mask.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from weft.foundation.errors import LengthError, ShapeError, WeftError
from weft.parts.masks import Mask, arrange
from weft.parts.token_positions import Pads, Places, document_begins, real_counts

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
class Admission:
    """Where new keys go: a run of slots (`first`), or slots [B, T] of their own for each row; and what is seen."""

    keys: Places
    capacity: int
    seen: int
    first: int | None = None
    slots: Tensor | None = None
    joined: bool = False


class Track:
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

    def expect_room(self, places: Places) -> None:
        """Refuse tokens that do not fit, before anything is changed."""
        if self.limit is not None and self.used + places.length > self.capacity:
            used = self._needed(places)
            if used > self.capacity:
                raise LengthError(
                    f"{used} tokens, but this state holds {self.limit}: "
                    "make a state of larger capacity, or one that grows (capacity=None)"
                )

    def _needed(self, places: Places) -> int:
        """How many slots the fullest row needs afterwards, exactly."""
        if self.filled is None and places.plain:
            return self.used + places.length
        filled = self.used if self.filled is None else self.filled
        return int((filled + real_counts(places, self.batch)).max())

    def admit(self, places: Places) -> Admission:
        """Give new tokens their slots; says which keys are seen afterwards."""
        self.expect_room(places)
        if self.window is not None:
            return self._admit_ring(places)
        first, self.used = self.used, self._make_room(places)
        if self.positions is None and places.plain and places.start == first:
            return Admission(Places.run(0, self.used, self.device), self.capacity, self.used, first=first)
        slots = self._write(places, torch.full((), self.capacity, device=self.device), first)
        return Admission(self._kept(self.used), self.capacity, self.used, slots=slots)

    def _admit_ring(self, places: Places) -> Admission:
        assert self.window is not None
        self._materialise(0)
        joined = places.length > self.capacity - self.window + 1
        before = self._kept(self.capacity) if joined else None
        slots = self._write(places, torch.full((), self.capacity, device=self.device), None)
        self.used += places.length
        keys = self._kept(self.capacity) if before is None else _join(before, places, self.batch)
        return Admission(keys, self.capacity, self.capacity, slots=slots, joined=joined)

    def _make_room(self, places: Places) -> int:
        """How many slots are in use afterwards: an upper bound while there is room, exact where it gets narrow."""
        used = self.used + places.length
        if used <= self.capacity:
            return used
        used = self._needed(places)
        if used <= self.capacity:
            return used
        self.capacity = max(2 * self.capacity, used)
        if self.positions is not None:
            self.positions = _extend(self.positions, 1, self.capacity + 1, -1)
        if self.documents is not None:
            self.documents = _extend(self.documents, 1, self.capacity + 1, -1)
        return used

    def _materialise(self, used: int) -> None:
        if self.positions is not None:
            return
        self.positions = torch.full((self.batch, self.capacity + 1), -1, device=self.device)
        self.positions[:, :used] = torch.arange(used, device=self.device)
        self.filled = torch.full((self.batch,), used, device=self.device)

    def _write(self, places: Places, trash: Tensor, used: int | None) -> Tensor:
        """Slots [B, T]: real tokens follow each row's last, padding goes to a slot that nobody sees."""
        self._materialise(used or 0)
        assert self.positions is not None and self.filled is not None
        positions = places.positions.expand(self.batch, -1)
        real = positions >= 0
        order = self.filled[:, None] + real.long().cumsum(1) - 1
        self.filled = self.filled + real.sum(1)
        kept = real
        if self.window is not None:
            kept = real & (order >= self.filled[:, None] - self.capacity)
            order = order % self.capacity
        slots = torch.where(kept, order, trash)
        self.positions = self.positions.scatter(1, slots, torch.where(kept, positions, -1))
        if places.documents is not None:
            if self.documents is None:
                self.documents = torch.full_like(self.positions, -1)
            documents = places.documents.expand(self.batch, -1)
            self.documents = self.documents.scatter(1, slots, torch.where(kept, documents, -1))
        return slots

    def _kept(self, seen: int) -> Places:
        assert self.positions is not None
        documents = None if self.documents is None else self.documents[:, :seen]
        return Places.of(self.positions[:, :seen], documents)

    def forget(self, count: int, until: int | Tensor) -> None:
        """Take back each row's last `count` tokens: those at positions from `until` on."""
        self.used -= count
        if self.positions is not None and self.filled is not None:
            nexts = torch.as_tensor(until, device=self.device).expand(self.batch)[:, None]
            self.positions = self.positions.masked_fill(self.positions >= nexts, -1)
            self.filled = self.filled - count

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        self.batch = len(rows)
        for name in ("positions", "documents", "filled"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, rows))


@dataclass
class KeyValueState:
    """Keys [B, G, C + 1, K] and values [B, G, C + 1, V] of one attention, in preallocated slots; the last is waste."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def append(self, key: Tensor, value: Tensor, admission: Admission) -> tuple[Tensor, Tensor]:
        """Write new keys and values [B, G, T, .] into their slots; gives all that may be seen.

        What is remembered carries no gradient: within a call gradients flow, into earlier calls they do not.
        """
        stores = self.room(key, value, admission.capacity)
        before = [s[:, :, : admission.seen].clone() for s in stores] if admission.joined else []
        learning = torch.is_grad_enabled() and (key.requires_grad or value.requires_grad)
        seen = []
        for store, new in zip(stores, (key, value), strict=True):
            written = self._write(store.clone() if learning else store, new, admission)
            if learning:
                with torch.no_grad():
                    self._write(store, new, admission)
            seen.append(written[:, :, : admission.seen].to(new.dtype))
        if admission.joined:
            pairs = zip(before, (key, value), strict=True)
            seen = [torch.cat((old.to(new.dtype), new), 2) for old, new in pairs]
        return seen[0], seen[1]

    @staticmethod
    def _write(store: Tensor, new: Tensor, admission: Admission) -> Tensor:
        new = new.to(store.dtype)
        if admission.first is not None:
            store[:, :, admission.first : admission.first + new.shape[2]] = new
            return store
        assert admission.slots is not None
        index = admission.slots[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3])
        return store.scatter_(2, index, new.expand(index.shape[0], -1, -1, -1))

    def room(self, key: Tensor, value: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
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


class Clock:
    """Which position comes next in each row: a number while all rows agree, a tensor [B] once they do not.

    `origin` is the first position of every text (a model whose image stands before the text starts later). Documents
    are numbered anew over all calls, so that an id that comes again later is another document.
    """

    def __init__(self, batch: int, device: torch.device, origin: int = 0) -> None:
        self.batch, self.device, self.origin = batch, device, origin
        self.next: int | Tensor = origin
        self.last_id: Tensor | None = None
        self.number: Tensor | None = None

    @property
    def begun(self) -> bool:
        """Whether anything was counted yet."""
        return not isinstance(self.next, int) or self.next != self.origin

    def arrange(self, length: int, positions: Tensor | None, mask: Mask | None) -> Places:
        """Where the next `length` tokens stand, continuing each row."""
        implied = arrange(mask, length)
        if positions is not None:
            given = Places.of(positions, None if implied is None else implied.documents)
            if given.length != length:
                raise ShapeError(f"{given.length} positions for {length} tokens: give one position a token")
            if implied is not None and implied.real is not None:
                given = Places.of(torch.where(implied.real, given.positions, -1), given.documents)
            return self._numbered(given)[0]
        if implied is None:
            if isinstance(self.next, int) and self.number is None:
                return Places.run(self.next, length, self.device)
            implied = Places.run(0, length, self.device)
        numbered, going_on = self._numbered(implied)
        return self._shifted(numbered, going_on)

    def _shifted(self, places: Places, going_on: Tensor | None) -> Places:
        """Count on from where each row is; documents that begin here count from the origin."""
        if isinstance(self.next, int) and self.next == 0:
            return places
        nexts = torch.as_tensor(self.next, device=self.device).expand(self.batch)[:, None]
        if going_on is not None:
            nexts = torch.where(going_on, nexts, self.origin)
        positions = torch.where(places.positions >= 0, places.positions + nexts, -1)
        pads: Pads = "none" if places.pads == "none" else "anywhere"
        return replace(places, given=positions, start=None, pads=pads, packed=False)

    def _numbered(self, places: Places) -> tuple[Places, Tensor | None]:
        """Documents by running numbers, and where a token goes on with its row's last document."""
        if places.documents is None:
            if self.number is None:
                return places, None
            return replace(places, documents=self.number[:, None].expand(self.batch, places.length)), None
        ids = places.documents.expand(self.batch, -1)
        real = (places.positions >= 0).expand(self.batch, -1)
        begins = document_begins(ids) & real
        order = begins.long().cumsum(1) - 1
        if self.number is None or self.last_id is None:
            number, going_on = order, torch.zeros_like(real)
        else:
            first = ids.gather(1, real.long().argmax(1, keepdim=True))
            same = first == self.last_id[:, None]
            number = self.number[:, None] + order + (~same).long()
            going_on = same & (order == 0)
        numbered = replace(places, documents=torch.where(real, number, -1), ids=ids)
        return numbered, going_on if self.begun else None

    def advance(self, places: Places) -> None:
        """Count the tokens of a call that is done."""
        if places.plain and places.start is not None and places.start == self.next:
            self.next = places.start + places.length
            return
        positions = places.positions.expand(self.batch, -1)
        index = torch.where(positions >= 0, torch.arange(places.length, device=self.device), -1)
        last = index.amax(1)
        self.next = _at_last(positions + 1, last, torch.as_tensor(self.next, device=self.device).expand(self.batch))
        if places.documents is not None:
            numbers = places.documents.expand(self.batch, -1)
            self.number = _at_last(numbers, last, self.number)
            if places.ids is not None:
                self.last_id = _at_last(places.ids, last, self.last_id)

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        self.batch = len(rows)
        if isinstance(self.next, Tensor):
            self.next = self.next.index_select(0, rows)
        if self.number is not None:
            self.number = self.number.index_select(0, rows)
        if self.last_id is not None:
            self.last_id = self.last_id.index_select(0, rows)


def _at_last(values: Tensor, last: Tensor, before: Tensor | None) -> Tensor:
    """Each row's value at its last real token; what was before where there is none."""
    found = values.gather(1, last.clamp(min=0)[:, None])[:, 0]
    return torch.where(last >= 0, found, torch.full_like(found, -1) if before is None else before)


@dataclass
class State:
    """All that a stack of blocks remembers: the clock, the tracks of keys (one a kind of window), each layer's own."""

    clock: Clock
    tracks: dict[int | None, Track]
    layers: list[LayerState]
    crosses: list[TensorState] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """How many rows it serves."""
        return self.clock.batch

    def expect_batch(self, batch: int) -> None:
        """Refuse a call with another number of rows."""
        if batch != self.batch:
            raise ShapeError(f"{batch} rows, but this state was made for {self.batch}: make a state for {batch} rows")

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order: for beam search (repeat, drop) and batching.

        An encoder-decoder's memory is reordered with it: `memory.reorder(rows)`.
        """
        rows = torch.as_tensor(rows, device=self.clock.device)
        parts: list[LayerState] = [self.clock, *self.tracks.values(), *self.layers, *self.crosses]
        for part in parts:
            part.reorder(rows)

    @property
    def forgets(self) -> bool:
        """Whether tokens can be taken back: keys and values can, what a recurrence or a convolution kept cannot."""
        plain = all(isinstance(own, KeyValueState) or own == TensorState() for own in self.layers)
        return plain and self.clock.number is None

    def forget(self, count: int) -> None:
        """Take back each row's last `count` tokens, as if they had never been given."""
        if not self.forgets or count > RING_SLACK:
            raise WeftError(f"this state cannot take {count} tokens back: go on with a copy() made before them")
        self.clock.next = self.clock.next - count
        for track in self.tracks.values():
            track.forget(count, self.clock.next)

    def copy(self) -> Self:
        """An independent copy: going on with one leaves the other as it was."""
        return copy.deepcopy(self)


def _extend(x: Tensor, axis: int, size: int, fill: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = size - shape[axis]
    return torch.cat((x, x.new_full(shape, fill)), axis)


def _join(before: Places, after: Places, batch: int) -> Places:
    positions = torch.cat((before.positions, after.positions.expand(batch, -1)), 1)
    if after.documents is None:
        return Places.of(positions)
    known = torch.full_like(before.positions, -1) if before.documents is None else before.documents
    return Places.of(positions, torch.cat((known, after.documents.expand(batch, -1)), 1))
