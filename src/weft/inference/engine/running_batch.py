"""The running batch: which prompts are read and which texts get a token at each step, in which slots.

One thread at a time works here. Prompts are read apart from the texts that are decoded: short ones together, a long
one alone and in chunks; their keys and values are stored where they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
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
from weft.inference.decoding.look_ahead import BY_TORCH
from weft.inference.decoding.sampling import choose_each
from weft.inference.decoding.speculative import UNASKED, is_worth_looking_up
from weft.inference.decoding.verifier import StepRoom, plan_ahead, step_room
from weft.inference.engine.handles import GenerationHandle
from weft.inference.engine.prefix_cache import CachedPrefix, PrefixCache
from weft.inference.engine.requests import EngineRequest
from weft.inference.engine.sequences import PrefillBatch, RunningSequence
from weft.inference.engine.slots import SlotRow, Slots
from weft.inference.fast.optimized import native_rows
from weft.models.output import Memory, Output
from weft.parts import observer
from weft.parts.state import State

ROOM = 128  # tokens that a step by torch computes with proposals

Take = Callable[[Callable[[EngineRequest], bool]], GenerationHandle | None]


@dataclass
class EngineStatistics:
    """What an engine has done, and what it holds now.

    Decoding `steps`, and `rows` in all of them; prompt tokens read (`prompt_tokens`) and taken from the prefix cache
    (`reused_tokens`), tokens generated, those `proposed` by speculation and `accepted`; requests `finished`,
    `cancelled`, `failed` and `refused`; those that are `waiting`, `prefilling` and `decoding` now.
    """

    slots: int
    steps: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    waiting: int = 0
    prefilling: int = 0
    decoding: int = 0

    @property
    def occupancy(self) -> float:
        """Share of the slots that an average decoding step used."""
        return self.rows / (self.steps * self.slots) if self.steps else 0.0


class RunningBatch:
    """Prompts and texts in their slots; `prefill_tokens` of prompts are read per step.

    `speculative`: texts speculate; None: a greedy one that is alone, where it changes no bit and looking up takes no
    time to speak of.
    """

    def __init__(
        self, model: nn.Module, slots: Slots, prefill_tokens: int, prefixes: int, speculative: bool | None = None
    ) -> None:
        self.model, self.slots, self.prefill_tokens = model, slots, prefill_tokens
        self.speculative = speculative
        self.unasked = speculative is None and is_worth_looking_up(model)
        self.room = StepRoom(0, BY_TORCH)  # of a step with proposals
        self.optimized: Any = model  # the same, optimized for decoding; looked up again at each request
        self.declaration = declared(model)
        self.prefix_cache = PrefixCache(prefixes)
        self.prefill: PrefillBatch | None = None
        self.sequences: list[RunningSequence] = []
        self.statistics = EngineStatistics(slots.count)

    @property
    def handles(self) -> list[GenerationHandle]:
        """Those that hold a slot."""
        return [sequence.handle for sequence in self.sequences] + (self.prefill.handles if self.prefill else [])

    def forget(self) -> None:
        """Drop all texts and free their memory."""
        self.prefill, self.sequences = None, []
        self.slots.forget()
        self.prefix_cache.entries.clear()

    def step(self, take: Take) -> None:
        """Cancelled texts leave, prompts are read, then every text gets one token."""
        gone = [n for n, sequence in enumerate(self.sequences) if not sequence.handle.open]
        self._leave(gone)
        if self.prefill is not None and not any(handle.open for handle in self.prefill.handles):
            self.slots.wipe(self.prefill.first, self.slots.capacity)  # its values were never checked for NaN
            self.prefill = None
        self.read_prompts(take)
        if self.sequences:
            self.decode()

    def read_prompts(self, take: Take) -> None:
        """Prompts in the order in which they came, until `prefill_tokens` are read or no slot is free."""
        left = self.prefill_tokens
        while left > 0:
            handles = self.prefill.handles if self.prefill is not None else self._admit(take, left)
            if not handles:
                return
            left -= self._read_on(handles, left)

    def decode(self) -> None:
        """At least one more token for every text; an error ends all of them, as none can be known to be sound."""
        try:
            state, memory = self.slots.batch()
            conditioned: ConditionedModel = (
                Unconditioned(self.optimized) if memory is None else MemoryConditioned(self.optimized, memory)
            )
            self._propose(state)
            rows = [[sequence.tokens[-1], *sequence.proposal] for sequence in self.sequences]
            tokens, real = pad(rows, self.slots.device, "right")
            out = conditioned.call(tokens, real, state, False)
            logits = out.head(_packed(out.hidden, real))
        except Exception as error:
            self._fail([sequence.handle for sequence in self.sequences], error)
            self.slots.clear()
            self.sequences = []
            return
        self.statistics.steps += 1
        self.statistics.rows += len(self.sequences)
        alignment = out.auxiliary.get("alignment")
        before = [len(sequence.tokens) for sequence in self.sequences]
        going = self._give(self.sequences, logits, None if alignment is None else _packed(alignment, real), 0)
        came = [len(one.tokens) - count for one, count in zip(self.sequences, before, strict=True)]
        kept = [count or int(not goes_on) for count, goes_on in zip(came, going, strict=True)]
        self._keep_read_tokens([len(row) for row in rows], kept, logits)
        self._leave([n for n, goes_on in enumerate(going) if not goes_on])

    def _propose(self, state: State) -> None:
        """What each text has judged beside its next token, where the step can take it back."""
        few = bool(self.speculative) or len(self.sequences) <= UNASKED
        free = few and self.room.rows > len(self.sequences) and not observer.active and state.can_rollback
        most = [sequence.most_ahead if free else 0 for sequence in self.sequences]
        plan_ahead([sequence.verifier for sequence in self.sequences], most, self.room)

    def _keep_read_tokens(self, read: list[int], kept: list[int], logits: Tensor) -> None:
        """Of the tokens that each text read in a step, keep the first ones."""
        self.slots.advanced(read, kept)
        judged = sum(read) - len(read)
        if not judged:
            return
        self.statistics.proposed += judged
        self.statistics.accepted += sum(max(count - 1, 0) for count in kept)
        if not bool(logits.amax(-1).isfinite().all()):
            for n, (all_read, count) in enumerate(zip(read, kept, strict=True)):
                self.slots.wipe_after(n, all_read - count)

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
                spared = self.prefix_cache.match_length(request.prompt, request.image)
                return free > 0 and (left == self.prefill_tokens or self._cost(both) - spared <= left)
            # The first call of all shows how large a row is, so it should not make a large state only for that.
            alone = (
                not self.slots.settled
                or self.prefix_cache.capacity
                or any(isinstance(one.source, Memory) for one in both)
            )
            alike = (request.image is None) == (both[0].image is None)
            return alike and not alone and self._cost(both) <= left

        while (handle := take(fits)) is not None:
            handles.append(handle)
        return handles

    def _cost(self, requests: Sequence[EngineRequest]) -> int:
        """Number of tokens that one call on all of them computes, padding, sources and images included."""
        return len(requests) * (max(len(one.prompt) for one in requests) + self._before(requests))

    def _before(self, requests: Sequence[EngineRequest]) -> int:
        image = 0 if requests[0].image is None else self.declaration.prefix or 0
        return image + max(one.source_length for one in requests)

    def _read_on(self, handles: list[GenerationHandle], left: int) -> int:
        """One call on prompts; the number of tokens computed. An error ends them, one by one if they were several."""
        first = self.prefill.first if self.prefill else len(self.sequences)
        try:
            cost = 0
            if self.prefill is None:
                self.prefill = self._begin(handles, first)
                cost = len(handles) * self._before(self.prefill.requests)
            prefill = self.prefill
            T = self._chunk(prefill, left - cost)
            out, logits = self._call(prefill, T)
        except Exception as error:
            self.prefill = None
            for n, handle in enumerate(handles):
                self.slots.wipe(first + n, self.slots.capacity)
                if len(handles) > 1:
                    self._read_on([handle], left)
            if len(handles) == 1:
                self._fail(handles, error)
            return left
        if logits is not None:
            self._join(prefill, out, logits)
        return cost + T * len(handles)

    def _begin(self, handles: list[GenerationHandle], first: int) -> PrefillBatch:
        """A state for prompts: empty, or with the beginning of the prompt that the prefix cache holds."""
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
        self.optimized = conditioned.model
        self.room = step_room(self.model, native_rows(conditioned.model), ROOM if self.speculative else 0)
        found = self.prefix_cache.find(head.prompt, head.image)
        if found is None or found[1] < (self.declaration.text_prefix or 0):
            return PrefillBatch(handles, first, conditioned, self.slots.open(first, len(handles)))
        kept, at = found
        self.statistics.reused_tokens += at
        state = self.slots.restore(kept.copied, self._row(head, at).filled, first)
        return PrefillBatch(handles, first, conditioned, state, at)

    def _chunk(self, prefill: PrefillBatch, left: int) -> int:
        """Number of tokens of each prompt that are read now: all, or what may be read, or up to where it is shared."""
        longest = max(len(one.prompt) for one in prefill.requests)
        if len(prefill.handles) > 1:
            return longest
        end = prefill.requests[0].shared if self.prefix_cache.capacity else 0
        end = end if end > prefill.at else longest
        # A prefix that is seen in both directions is read at once.
        least = min(longest, self.declaration.text_prefix or 1) if prefill.at == 0 else 1
        return max(least, min(left, end - prefill.at))

    def _call(self, prefill: PrefillBatch, length: int) -> tuple[Output, Tensor | None]:
        """Read the next tokens; the logits [B, C] of what follows the prompts once they are read."""
        parts = [one.prompt[prefill.at : prefill.at + length] for one in prefill.requests]
        tokens, real = pad(parts, self.slots.device, "right")
        out = prefill.conditioned.call(tokens, real, prefill.state, prefill.at == 0)
        self.slots.settle(prefill.state, prefill.first)
        prefill.at += length
        self.statistics.prompt_tokens += sum(len(part) for part in parts)
        head = prefill.requests[0]
        if len(parts) == 1 and prefill.at in (head.shared, len(head.prompt)):
            self._keep_read(prefill, head)
        if prefill.at < len(head.prompt) and len(parts) == 1:
            return out, None
        last = torch.tensor([len(part) - 1 for part in parts], device=self.slots.device)
        rows = torch.arange(len(parts), device=self.slots.device)
        if "alignment" in out.auxiliary:
            out.auxiliary["alignment"] = out.auxiliary["alignment"][rows, last][:, None]
        return out, out.head(out.hidden[rows, last])

    def _join(self, prefill: PrefillBatch, out: Output, logits: Tensor) -> None:
        """The first token of each text; those that go on are decoded from now."""
        self.prefill = None
        vocabulary = self.declaration.vocabulary or 0
        sequences = [
            RunningSequence(handle, vocabulary, self.slots.device, self._speculates(handle.request))
            for handle in prefill.handles
        ]
        alignment = out.auxiliary.get("alignment")
        going = self._give(sequences, logits, None if alignment is None else alignment[:, -1], prefill.first)
        rows = [
            self._row(one, len(one.prompt)) if on else None for one, on in zip(prefill.requests, going, strict=True)
        ]
        self.slots.join(prefill.state, prefill.first, rows, prefill.memory)
        self.sequences += [sequence for sequence, goes_on in zip(sequences, going, strict=True) if goes_on]

    def _row(self, request: EngineRequest, length: int) -> SlotRow:
        """Where the first `length` tokens of a request lie: after its image, or where they would stand after one."""
        prefix = self.declaration.prefix or 0
        padded = isinstance(request.source, Memory) and request.source.token_positions.real is not None
        if request.image is None:
            return SlotRow(length, prefix, request.source_length, padded)
        return SlotRow(length + prefix, 0)

    def _speculates(self, request: EngineRequest) -> bool:
        return self.speculative or (self.unasked and request.sampling.greedy)

    def _give(
        self, sequences: Sequence[RunningSequence], logits: Tensor, alignment: Tensor | None, first: int
    ) -> list[bool]:
        """Choose the next tokens of each text, from logits [R, C]; whether each goes on. `first`: the first one's slot.

        A proposal is judged as far as all numbers are finite. Where none are, it may be its fault (a NaN that is masked
        is multiplied by 0), so the text gets no token and goes on without.
        """
        finite = iter(logits.amax(-1).isfinite().tolist())
        sound = [_leading(list(islice(finite, len(one.proposal) + 1))) for one in sequences]
        starts = accumulate((len(one.proposal) + 1 for one in sequences), initial=0)
        rows = [row for start, count in zip(starts, sound, strict=False) for row in range(start, start + count)]
        if len(rows) < len(logits):
            index = torch.tensor(rows, dtype=torch.long, device=logits.device)
            logits, alignment = logits[index], None if alignment is None else alignment[index]
        fine = [n for n, count in enumerate(sound) if count]
        asked = [sequences[n].proposal[: sound[n] - 1] for n in fine]
        chosen = dict(zip(fine, choose_each(logits, [sequences[n].sampler for n in fine], asked), strict=True))
        looked = [None] * len(sequences) if alignment is None else alignment.split(sound)
        going = []
        for n, sequence in enumerate(sequences):
            before = len(sequence.tokens)
            try:
                if n not in chosen and sequence.proposal:
                    sequence.speculates = False
                    going.append(True)
                    continue
                if n not in chosen:
                    self.slots.wipe(first + n, self.slots.capacity)
                    raise WeftError("the model gave no finite logits for this text: look for NaN in weights or input")
                going.append(sequence.take(chosen[n], looked[n]))
                self.statistics.finished += sequence.handle.status == "done"
            except Exception as error:
                self._fail([sequence.handle], error)
                going.append(False)
            self.statistics.generated_tokens += len(sequence.tokens) - before
        return going

    def _fail(self, handles: Sequence[GenerationHandle], error: Exception) -> None:
        self.statistics.failed += sum(handle.close("failed", error) for handle in handles)

    def _keep_read(self, prefill: PrefillBatch, request: EngineRequest) -> None:
        """Keep the beginning that was just read, for prompts that share it."""
        tokens = list(request.prompt[: prefill.at])
        if self.prefix_cache.lacks(tokens, request.image):
            row = self._row(request, prefill.at)
            copied = self.slots.copy(prefill.state, 0, prefill.first, row)
            self.prefix_cache.add(CachedPrefix(tokens, request.image, copied, prefill.at == request.shared))

    def _keep(self, sequence: RunningSequence, row: int) -> None:
        """Keep a finished text: the next turn of a chat begins with it. Its last token was never read."""
        request = sequence.handle.request
        tokens = [*request.prompt, *sequence.tokens[:-1]]
        if self.prefix_cache.lacks(tokens, request.image):
            state, _ = self.slots.batch()
            self.prefix_cache.add(
                CachedPrefix(tokens, request.image, self.slots.copy(state, row, row, self.slots.rows[row]))
            )


def _packed(values: Tensor, real: Tensor | None) -> Tensor:
    """The real ones of values [B, T, .], [R, .]."""
    return values.flatten(0, 1) if real is None else values[real]


def _leading(flags: list[bool]) -> int:
    """How many are true before the first that is not."""
    return next((n for n, flag in enumerate(flags) if not flag), len(flags))
