"""The running batch: which prompts are read and which texts get a token at each step, in which slots.

One thread at a time works here. Prompts are read apart from the texts that are decoded, piece by piece, those of many
prompts together (`reading`); their keys and values are stored where they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    eval_mode,
    pad,
)
from weft.inference.decoding.look_ahead import BY_TORCH
from weft.inference.decoding.sampling import choose_each
from weft.inference.decoding.speculative import UNASKED, is_worth_looking_up
from weft.inference.decoding.verifier import StepRoom, plan_ahead, step_room
from weft.inference.engine.handles import GenerationHandle
from weft.inference.engine.prefix_cache import CachedPrefix, PrefixCache
from weft.inference.engine.reading import (
    PIECE,
    PieceRead,
    PieceReader,
    PromptPiece,
    ReadingGrid,
    ReadingPrompt,
    read_alone,
)
from weft.inference.engine.requests import EngineRequest
from weft.inference.engine.sequences import RunningSequence, score_prompt
from weft.inference.engine.slots import SlotRow, Slots
from weft.inference.engine.statistics import EngineStatistics
from weft.inference.fast.native import rows_alike
from weft.inference.fast.optimized import native_rows, optimized
from weft.models.output import Memory
from weft.parts import observer
from weft.parts.state import State

ROOM = 128  # tokens that a step by torch computes with proposals

Take = Callable[[Callable[[EngineRequest], bool]], GenerationHandle | None]


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
        with eval_mode(model):
            self.optimized: Any = optimized(model)  # looked up again at each request
            self.reader = PieceReader(self.optimized)
        self.declaration = declared(model)
        self.grid = ReadingGrid(min(PIECE, prefill_tokens), self.declaration.text_prefix or 1)
        self.prefix_cache = PrefixCache(prefixes, self.grid)
        self.prompts: list[ReadingPrompt] = []  # at most the first of them was begun before this step
        self.sequences: list[RunningSequence] = []
        self.statistics = EngineStatistics(slots.count)

    @property
    def handles(self) -> list[GenerationHandle]:
        """Those that hold a slot."""
        return [sequence.handle for sequence in self.sequences] + [prompt.handle for prompt in self.prompts]

    def forget(self) -> None:
        """Drop all texts and free their memory."""
        self.prompts, self.sequences = [], []
        self.slots.forget()
        self.prefix_cache.entries.clear()

    def step(self, take: Take) -> None:
        """Cancelled texts leave, prompts are read, then every text gets one token."""
        gone = [n for n, sequence in enumerate(self.sequences) if not sequence.handle.open]
        self._leave(gone)
        for prompt in [prompt for prompt in self.prompts if not prompt.handle.open]:
            self._leave_unread(prompt)
        self.read_prompts(take)
        if self.sequences:
            self.decode()

    def read_prompts(self, take: Take) -> None:
        """Pieces of prompts in the order in which they came, until `prefill_tokens` are read or no slot is free."""
        left = self.prefill_tokens
        while left > 0:
            pieces, cost = self._plan(take, left)
            if not pieces:
                return
            left -= cost
            self._read(pieces)

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
            with rows_alike():
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
        going = self._give(self.sequences, logits, None if alignment is None else _packed(alignment, real))
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
        self.sequences = [self.sequences[n] for n in self.slots.drop(rows)]

    def _plan(self, take: Take, left: int) -> tuple[list[PromptPiece], int]:
        """The pieces that are read next, in one call where that is possible, and the number of tokens computed.

        A piece that does not fit into what is left of a step is the first of the next one.
        """
        pieces: list[PromptPiece] = []
        before = left
        self._close_gap()
        prompt = self.prompts[0] if self.prompts else None
        while left > 0:
            admitted = prompt is None
            if prompt is None:
                prompt = self._admit(take, left)
            if prompt is None:
                break
            left -= self._before(prompt.request) if admitted else 0
            first = pieces[-1].last if pieces and pieces[-1].prompt is prompt else prompt.at
            piece = PromptPiece(prompt, first, self.grid.next_end(first, len(prompt.request.prompt)))
            late = not admitted and left < self.prefill_tokens and piece.last - first > left
            if late or (pieces and not self.reader.takes(piece)):
                break
            pieces.append(piece)
            left -= piece.last - first
            if not self.reader.takes(piece):
                break
            if piece.last == len(prompt.request.prompt):
                if not self.slots.settled:
                    break  # the first call of all shows how large a row is
                prompt = None
            elif self.prefix_cache.capacity and prompt.wraps:
                break  # what is kept must be copied before newer keys overwrite it
        return pieces, before - left

    def _admit(self, take: Take, left: int) -> ReadingPrompt | None:
        """The next of the queue, in a slot of its own, if it begins in this step. Errors concern that prompt only."""

        def fits(request: EngineRequest) -> bool:
            free = self.slots.count - len(self.sequences) - len(self.prompts)
            at = self.prefix_cache.match_length(request)
            cost = self._before(request) + self.grid.next_end(at, len(request.prompt)) - at
            return free > 0 and (left == self.prefill_tokens or cost <= left)

        while (handle := take(fits)) is not None:
            try:
                self.prompts.append(self._begin(handle, len(self.sequences) + len(self.prompts)))
            except Exception as error:
                self._fail([handle], error)
            else:
                return self.prompts[-1]
        return None

    def _before(self, request: EngineRequest) -> int:
        """Number of tokens that stand before a prompt: those of its image or source."""
        image = 0 if request.image is None else self.declaration.prefix or 0
        return image + request.source_length

    def _begin(self, handle: GenerationHandle, slot: int) -> ReadingPrompt:
        """A state for a prompt: empty, or with the beginning of the prompt that the prefix cache holds."""
        request = handle.request
        source = request.source
        sources = [source] if source is not None and not isinstance(source, Memory) else None
        conditioned = condition(
            self.model,
            1,
            source if isinstance(source, Memory) else sources,
            None if request.image is None else request.image[None],
        )
        if self.reader.model is not conditioned.model:
            self.optimized, self.reader = conditioned.model, PieceReader(conditioned.model)
        self.room = step_room(self.model, native_rows(self.optimized), ROOM if self.speculative else 0)
        found = self.prefix_cache.find(request)
        if found is None:
            return ReadingPrompt(handle, slot, conditioned, self.slots.open(slot))
        kept, at = found
        self.statistics.reused_tokens += at
        return ReadingPrompt(
            handle, slot, conditioned, self.slots.restore(kept.copied, self._row(request, at).filled, slot), at
        )

    def _close_gap(self) -> None:
        """Prompts that are being read stand right behind the texts that are decoded, some of which may have left."""
        for slot, prompt in enumerate(self.prompts, len(self.sequences)):
            if prompt.slot != slot:
                self.slots.move_reading(prompt.state, prompt.slot, slot, self._row(prompt.request, prompt.at).filled)
                prompt.slot = slot

    def _read(self, pieces: Sequence[PromptPiece]) -> None:
        """One call on pieces of prompts; those that are read whole get their first token. An error ends all of them."""
        prompts = list(dict.fromkeys(piece.prompt for piece in pieces))
        try:
            packed = self.reader.takes(pieces[0])
            found = self.reader.read(pieces) if packed else [read_alone(piece) for piece in pieces]
        except Exception as error:
            for prompt in prompts:
                self._leave_unread(prompt)
            self._fail([prompt.handle for prompt in prompts], error)
            return
        whole = []
        for piece, read in zip(pieces, found, strict=True):
            self._note_read(piece, read)
            if piece.last == len(piece.prompt.request.prompt):
                whole.append((piece.prompt, read))
        if whole:
            self._join(whole)

    def _note_read(self, piece: PromptPiece, read: PieceRead) -> None:
        """Count what was read, score it if that is asked for, and keep it for prompts that share it."""
        prompt, request = piece.prompt, piece.prompt.request
        self.slots.settle(prompt.state, prompt.slot)
        prompt.at = piece.last
        self.statistics.prompt_tokens += piece.last - piece.first
        if request.score_prompt:
            with rows_alike():
                score_prompt(prompt.handle, piece.first, read.head(read.hidden))
        tokens = request.prompt[: prompt.at]
        if prompt.at in self.prefix_cache.ends(request) and self.prefix_cache.lacks(tokens, request):
            copied = self.slots.copy(prompt.state, 0, prompt.slot, self._row(request, prompt.at))
            named = prompt.at == self.prefix_cache.grid.last_end(request.shared)
            self.prefix_cache.add(CachedPrefix(tokens, request.image, copied, named, request.cache_key))

    def _join(self, whole: Sequence[tuple[ReadingPrompt, PieceRead]]) -> None:
        """The first token of each text whose prompt was read whole; those that go on are decoded from now."""
        for prompt, _ in whole:
            self.prompts.remove(prompt)
            if prompt.request.max_tokens == 0:
                self.statistics.finished += prompt.handle.finish()
        writing = [(prompt, read) for prompt, read in whole if prompt.handle.open]
        if not writing:
            return
        vocabulary = self.declaration.vocabulary or 0
        sequences = [
            RunningSequence(prompt.handle, vocabulary, self.slots.device, self._speculates(prompt.request))
            for prompt, _ in writing
        ]
        read = writing[0][1]  # whatever was read together has one head
        with rows_alike():
            logits = read.head(torch.cat([one.hidden[-1:] for _, one in writing]))
        alignment = None if read.alignment is None else read.alignment[-1:]
        going = self._give(sequences, logits, alignment, [prompt.slot for prompt, _ in writing])
        for (prompt, _), sequence, goes_on in zip(writing, sequences, going, strict=True):
            if goes_on:
                row = self._row(prompt.request, len(prompt.request.prompt))
                self.slots.join(prompt.state, prompt.slot, [row], prompt.memory)
                self.sequences.append(sequence)

    def _leave_unread(self, prompt: ReadingPrompt) -> None:
        """A prompt is given up; what it left in its slot was never checked for NaN."""
        self.slots.wipe(prompt.slot, self.slots.capacity)
        self.prompts.remove(prompt)

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
        self,
        sequences: Sequence[RunningSequence],
        logits: Tensor,
        alignment: Tensor | None,
        slots: Sequence[int] | None = None,
    ) -> list[bool]:
        """Choose the next tokens of each text, from logits [R, C]; whether each goes on. `slots`: where each lies.

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
        seen = logits.split(sound)
        going = []
        for n, sequence in enumerate(sequences):
            before = len(sequence.tokens)
            if not sequence.handle.open:
                going.append(False)
                continue
            try:
                if n not in chosen and sequence.proposal:
                    sequence.speculates = False
                    going.append(True)
                    continue
                if n not in chosen:
                    self.slots.wipe(n if slots is None else slots[n], self.slots.capacity)
                    raise WeftError("the model gave no finite logits for this text: look for NaN in weights or input")
                going.append(sequence.take(chosen[n], seen[n], looked[n]))
                self.statistics.finished += sequence.handle.status == "done"
            except Exception as error:
                self._fail([sequence.handle], error)
                going.append(False)
            self.statistics.generated_tokens += len(sequence.tokens) - before
        return going

    def _fail(self, handles: Sequence[GenerationHandle], error: Exception) -> None:
        self.statistics.failed += sum(handle.close("failed", error) for handle in handles)


def _packed(values: Tensor, real: Tensor | None) -> Tensor:
    """The real ones of values [B, T, .], [R, .]."""
    return values.flatten(0, 1) if real is None else values[real]


def _leading(flags: list[bool]) -> int:
    """How many are true before the first that is not."""
    return next((n for n, flag in enumerate(flags) if not flag), len(flags))
