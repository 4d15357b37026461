"""The engine's batch: which prompts are read and which texts are written at each step, in which slots.

One thread at a time works here. Prompts are read apart from the texts that are written: short ones together, a long
one alone and in chunks; their keys and values are written where they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import (
    ConditionedModel,
    MemoryConditioned,
    Unconditioned,
    condition,
    declared,
    pad,
)
from weft.inference.decoding.sampling import choose_each
from weft.inference.engine.prefix_cache import CachedPrefix, PrefixCache
from weft.inference.engine.requests import EngineRequest, GenerationHandle, RunningSequence
from weft.inference.engine.slots import SlotRow, Slots
from weft.models.output import Memory, Output
from weft.parts.state import State

Take = Callable[[Callable[[EngineRequest], bool]], GenerationHandle | None]


@dataclass
class EngineStatistics:
    """What an engine has done, and what it holds now.

    `steps` that wrote, and `rows` in all of them; `read` prompt tokens, `shared` ones that need not be read, `written`
    tokens; `finished`, `cancelled`, `failed` and `refused` requests; now `waiting`, `reading` and `writing` ones.
    """

    slots: int
    steps: int = 0
    rows: int = 0
    read: int = 0
    shared: int = 0
    written: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    waiting: int = 0
    reading: int = 0
    writing: int = 0

    @property
    def occupancy(self) -> float:
        """Which share of the slots an average step wrote in."""
        return self.rows / (self.steps * self.slots) if self.steps else 0.0


@dataclass(eq=False)
class PrefillBatch:
    """Prompts that are read together, in slots first, first + 1, ...; only one that is alone is read in parts."""

    handles: list[GenerationHandle]
    first: int
    conditioned: ConditionedModel
    state: State
    at: int = 0

    @property
    def requests(self) -> list[EngineRequest]:
        """What was asked."""
        return [handle.request for handle in self.handles]

    @property
    def memory(self) -> Memory | None:
        """Of the sources, if there are any."""
        return self.conditioned.memory if isinstance(self.conditioned, MemoryConditioned) else None


class RunningBatch:
    """Readers and sequences in their slots; `tokens` of prompts are read a step."""

    def __init__(self, model: nn.Module, slots: Slots, tokens: int, prefixes: int) -> None:
        self.model, self.slots, self.tokens = model, slots, tokens
        self.ready: Any = model  # the same, made ready to write; looked up again at each request
        self.declaration = declared(model)
        self.prefixes = PrefixCache(prefixes)
        self.reading: PrefillBatch | None = None
        self.sequences: list[RunningSequence] = []
        self.counts = EngineStatistics(slots.count)

    @property
    def handles(self) -> list[GenerationHandle]:
        """All that hold a slot."""
        return [sequence.handle for sequence in self.sequences] + (self.reading.handles if self.reading else [])

    def forget(self) -> None:
        """Let go of all texts and of their memory."""
        self.reading, self.sequences = None, []
        self.slots.forget()
        self.prefixes.kept.clear()

    def step(self, take: Take) -> None:
        """Who was cancelled leaves, prompts are read, then every text gets one token."""
        gone = [n for n, sequence in enumerate(self.sequences) if not sequence.handle.open]
        self._leave(gone)
        if self.reading is not None and not any(handle.open for handle in self.reading.handles):
            self.slots.wipe(self.reading.first, self.slots.capacity)  # nobody has seen whether it gave numbers
            self.reading = None
        self.read(take)
        if self.sequences:
            self.write()

    def read(self, take: Take) -> None:
        """Prompts in the order in which they came, until `tokens` are read or no slot is free."""
        left = self.tokens
        while left > 0:
            handles = self.reading.handles if self.reading is not None else self._admit(take, left)
            if not handles:
                return
            left -= self._read_on(handles, left)

    def write(self) -> None:
        """One token more of every text; an error ends all of them, as none can be told to be sound."""
        try:
            state, memory = self.slots.batch()
            conditioned: ConditionedModel = (
                Unconditioned(self.ready) if memory is None else MemoryConditioned(self.ready, memory)
            )
            tokens = torch.tensor([[sequence.tokens[-1]] for sequence in self.sequences], device=self.slots.device)
            out = conditioned.call(tokens, None, state, False)
            logits = out.head(out.hidden[:, -1])
        except Exception as error:
            self._fail([sequence.handle for sequence in self.sequences], error)
            self.slots.clear()
            self.sequences = []
            return
        self.slots.advanced()
        self.counts.steps += 1
        self.counts.rows += len(self.sequences)
        looks = out.auxiliary.get("alignment")
        going = self._give(self.sequences, logits, None if looks is None else looks[:, -1], 0)
        self._leave([n for n, goes_on in enumerate(going) if not goes_on])

    def _leave(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        for n in rows:
            if self.sequences[n].handle.status == "done":
                self._keep(self.sequences[n], n)
        self.sequences = [self.sequences[n] for n in self.slots.drop(rows)]

    def _admit(self, take: Take, left: int) -> list[GenerationHandle]:
        """The next in the queue, and as many after it as can be read with it in one call.

        A prompt that would be cut only because others were read in this step begins with the next one.
        """
        handles: list[GenerationHandle] = []

        def fits(request: EngineRequest) -> bool:
            free = self.slots.count - len(self.sequences) - len(handles)
            both = [*(handle.request for handle in handles), request]
            if not handles or not free:
                spared = self.prefixes.spares(request.prompt, request.image)
                return free > 0 and (left == self.tokens or self._cost(both) - spared <= left)
            # The first call of all shows how large a row is, so it should not make a large state only for that.
            alone = not self.slots.settled or self.prefixes.most or any(isinstance(one.source, Memory) for one in both)
            alike = (request.image is None) == (both[0].image is None)
            return alike and not alone and self._cost(both) <= left

        while (handle := take(fits)) is not None:
            handles.append(handle)
        return handles

    def _cost(self, requests: Sequence[EngineRequest]) -> int:
        """How many tokens one call on all of them computes, padding, sources and images included."""
        return len(requests) * (max(len(one.prompt) for one in requests) + self._before(requests))

    def _before(self, requests: Sequence[EngineRequest]) -> int:
        image = 0 if requests[0].image is None else self.declaration.prefix or 0
        return image + max(one.source_length for one in requests)

    def _read_on(self, handles: list[GenerationHandle], left: int) -> int:
        """One call on prompts; how many tokens it computed. An error ends them, one by one where they were several."""
        first = self.reading.first if self.reading else len(self.sequences)
        try:
            cost = 0
            if self.reading is None:
                self.reading = self._begin(handles, first)
                cost = len(handles) * self._before(self.reading.requests)
            reading = self.reading
            T = self._chunk(reading, left - cost)
            out, logits = self._call(reading, T)
        except Exception as error:
            self.reading = None
            for n, handle in enumerate(handles):
                self.slots.wipe(first + n, self.slots.capacity)
                if len(handles) > 1:
                    self._read_on([handle], left)
            if len(handles) == 1:
                self._fail(handles, error)
            return left
        if logits is not None:
            self._join(reading, out, logits)
        return cost + T * len(handles)

    def _begin(self, handles: list[GenerationHandle], first: int) -> PrefillBatch:
        """A state for prompts: empty, or with what is known of the prompt already."""
        requests = [handle.request for handle in handles]
        head = requests[0]
        sources: list[Sequence[int]] = [
            one.source for one in requests if one.source is not None and not isinstance(one.source, Memory)
        ]
        images = [one.image for one in requests if one.image is not None]
        memory = head.source if isinstance(head.source, Memory) else None
        conditioned = condition(
            self.model, len(requests), memory or sources or None, torch.stack(images) if images else None
        )
        self.ready = conditioned.model
        found = self.prefixes.find(head.prompt, head.image)
        if found is None:
            return PrefillBatch(handles, first, conditioned, self.slots.open(first, len(handles)))
        kept, at = found
        self.counts.shared += at
        state = self.slots.restore(kept.copied, self._row(head, at).filled, first)
        return PrefillBatch(handles, first, conditioned, state, at)

    def _chunk(self, reading: PrefillBatch, left: int) -> int:
        """How many tokens of each prompt are read now: all, or what may be read, or up to where it is shared."""
        longest = max(len(one.prompt) for one in reading.requests)
        if len(reading.handles) > 1:
            return longest
        end = reading.requests[0].shared if self.prefixes.most else 0
        end = end if end > reading.at else longest
        return max(1, min(left, end - reading.at))

    def _call(self, reading: PrefillBatch, length: int) -> tuple[Output, Tensor | None]:
        """Read on; the logits [B, C] of what follows the prompts once they are read."""
        parts = [one.prompt[reading.at : reading.at + length] for one in reading.requests]
        tokens, real = pad(parts, self.slots.device, "right")
        out = reading.conditioned.call(tokens, real, reading.state, reading.at == 0)
        self.slots.settle(reading.state, reading.first)
        reading.at += length
        self.counts.read += sum(len(part) for part in parts)
        head = reading.requests[0]
        if len(parts) == 1 and reading.at in (head.shared, len(head.prompt)):
            self._keep_read(reading, head)
        if reading.at < len(head.prompt) and len(parts) == 1:
            return out, None
        last = torch.tensor([len(part) - 1 for part in parts], device=self.slots.device)
        rows = torch.arange(len(parts), device=self.slots.device)
        if "alignment" in out.auxiliary:
            out.auxiliary["alignment"] = out.auxiliary["alignment"][rows, last][:, None]
        return out, out.head(out.hidden[rows, last])

    def _join(self, reading: PrefillBatch, out: Output, logits: Tensor) -> None:
        """The first token of each text; those that go on are written from now."""
        self.reading = None
        vocabulary = self.declaration.vocabulary or 0
        sequences = [RunningSequence(handle, vocabulary, self.slots.device) for handle in reading.handles]
        looks = out.auxiliary.get("alignment")
        going = self._give(sequences, logits, None if looks is None else looks[:, -1], reading.first)
        rows = [
            self._row(one, len(one.prompt)) if on else None for one, on in zip(reading.requests, going, strict=True)
        ]
        self.slots.join(reading.state, reading.first, rows, reading.memory)
        self.sequences += [sequence for sequence, goes_on in zip(sequences, going, strict=True) if goes_on]

    def _row(self, request: EngineRequest, length: int) -> SlotRow:
        """Where the first `length` tokens of a request lie: after its image, or where they would stand after one."""
        prefix = self.declaration.prefix or 0
        padded = isinstance(request.source, Memory) and request.source.token_positions.real is not None
        if request.image is None:
            return SlotRow(length, prefix, request.source_length, padded)
        return SlotRow(length + prefix, 0)

    def _give(
        self, sequences: Sequence[RunningSequence], logits: Tensor, looks: Tensor | None, first: int
    ) -> list[bool]:
        """Choose each text's next token and give it out; whether each goes on. `first`: the slot of the first one."""
        sound = logits.amax(-1).isfinite().tolist()
        rows = [n for n, fine in enumerate(sound) if fine]
        chosen = choose_each(logits if all(sound) else logits[rows], [sequences[n].sampler for n in rows])
        found = dict(zip(rows, zip(*chosen, strict=True), strict=True))
        going = []
        for n, sequence in enumerate(sequences):
            try:
                if n not in found:
                    self.slots.wipe(first + n, self.slots.capacity)
                    raise WeftError("the model gave no finite logits for this text: look for NaN in weights or input")
                going.append(sequence.take(*found[n], None if looks is None else looks[n]))
                self.counts.written += 1
                self.counts.finished += sequence.handle.status == "done"
            except Exception as error:
                self._fail([sequence.handle], error)
                going.append(False)
        return going

    def _fail(self, handles: Sequence[GenerationHandle], error: Exception) -> None:
        self.counts.failed += sum(handle.close("failed", error) for handle in handles)

    def _keep_read(self, reading: PrefillBatch, request: EngineRequest) -> None:
        """Keep the beginning that was just read, for those who share it."""
        tokens = list(request.prompt[: reading.at])
        if self.prefixes.lacks(tokens, request.image):
            row = self._row(request, reading.at)
            copied = self.slots.copy(reading.state, 0, reading.first, row)
            self.prefixes.keep(CachedPrefix(tokens, request.image, copied, reading.at == request.shared))

    def _keep(self, sequence: RunningSequence, row: int) -> None:
        """Keep a finished text: the next turn of a chat begins with it. Its last token was never read."""
        request = sequence.handle.request
        tokens = [*request.prompt, *sequence.tokens[:-1]]
        if self.prefixes.lacks(tokens, request.image):
            state, _ = self.slots.batch()
            self.prefixes.keep(
                CachedPrefix(tokens, request.image, self.slots.copy(state, row, row, self.slots.rows[row]))
            )
