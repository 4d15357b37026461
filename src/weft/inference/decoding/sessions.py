"""Decoding sessions: token by token, the same three calls for every family.

`begin(prompts)` reads the prompts, `advance(tokens)` adds one token per row, both give the logits [B, C] of what comes
next; `reorder(rows)` takes, repeats or drops rows. With a cache each token is computed once; without, all again. A
session that rewinds goes from one text to the next and computes only what is new.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from weft.data.batching import PaddingSide
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import ConditionedModel, declared, device_of, pad
from weft.parts.state import State


@dataclass(frozen=True)
class PrefillOptions:
    """How texts are computed; no choice changes them.

    `cached`: keys, values and other states are kept. `chunk`: tokens of the prompts per call, None for all at once;
    models with a prefix that is seen in both directions read all at once. `side`: where shorter prompts are padded.
    `native=False`: the model's own parts run one by one, instead of faster copies that compute a whole step by native
    code.
    """

    cached: bool = True
    chunk: int | None = None
    side: PaddingSide = "right"
    native: bool = True

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise WeftError(f"chunks of {self.chunk} tokens read nothing: use at least 1, or None for all at once")
        if self.side not in ("left", "right"):
            raise WeftError(f"there is no padding side {self.side!r}: choose left or right")


class DecodingSession(Protocol):
    """What generation and beam search are written against.

    `alignment` [B, S]: where the last call looked in the source, for models that say so.
    """

    alignment: Tensor | None

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read prompts of any lengths -> logits [B, C] of what follows each."""
        ...

    def advance(self, tokens: Tensor) -> Tensor:
        """One more token per row, [B] -> logits [B, C] of what follows it."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        ...


def start_session(conditioned: ConditionedModel, prefill: PrefillOptions) -> DecodingSession:
    """A session with or without a cache."""
    return CachedSession(conditioned, prefill) if prefill.cached else UncachedSession(conditioned, prefill)


class CachedSession:
    """Keeps the model's state, so that each token is computed once."""

    def __init__(self, conditioned: ConditionedModel, prefill: PrefillOptions) -> None:
        self.conditioned, self.prefill = conditioned, prefill
        self.device = device_of(conditioned.model)
        self.state: State | None = None
        self.alignment: Tensor | None = None

    @torch.inference_mode()
    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """A new state, filled chunk by chunk."""
        tokens, real = pad(prompts, self.device, self.prefill.side)
        B, T = tokens.shape
        self.state = self.conditioned.model.make_state(B)
        last = _last(real, B, T, self.device)
        prefix = declared(self.conditioned.model).text_prefix
        chunk = T if prefix else self.prefill.chunk or T
        hidden: Tensor | None = None
        for first in range(0, T, chunk):
            part = slice(first, first + chunk)
            out = self.conditioned.call(
                tokens[:, part], None if real is None else real[:, part], self.state, first == 0
            )
            if real is None and first + chunk < T:
                continue
            inside = (last >= first) & (last < first + chunk)
            at = (last - first).clamp(0, out.hidden.shape[1] - 1)
            hidden = _keep(out.hidden, at, inside, hidden)
            if "alignment" in out.auxiliary:
                self.alignment = _keep(out.auxiliary["alignment"], at, inside, self.alignment if first else None)
        assert hidden is not None
        return out.head(hidden)

    @torch.inference_mode()
    def advance(self, tokens: Tensor) -> Tensor:
        out = self.conditioned.call(tokens[:, None], None, self.state, False)
        if "alignment" in out.auxiliary:
            self.alignment = out.auxiliary["alignment"][:, -1]
        return out.head(out.hidden[:, -1])

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        assert self.state is not None
        self.state.reorder(rows)
        self.conditioned.reorder(rows)
        if self.alignment is not None:
            self.alignment = self.alignment.index_select(0, rows)


class VerifyingSession(Protocol):
    """What speculative decoding is written against; `calls` of the model so far."""

    calls: int

    def verify(self, texts: Sequence[list[int]], proposals: Sequence[list[int]]) -> Tensor:
        """Logits [R, C] of what follows each text and each of its n proposed tokens: n + 1 rows per text.

        What was read before and is no beginning of these texts is taken back.
        """
        ...

    def reorder(self, rows: Tensor) -> None:
        """Keep rows[0], rows[1], ... in this order."""
        ...


class RewindableBatch(CachedSession):
    """A batch whose texts take back what they read, each as many tokens as it must; for states that can roll back."""

    def __init__(self, conditioned: ConditionedModel, prefill: PrefillOptions) -> None:
        super().__init__(conditioned, prefill)
        self.read: list[int] = []  # number of tokens of each text
        self.calls = 0

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.read, self.calls = [len(prompt) for prompt in prompts], self.calls + 1
        return super().begin(prompts)

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.read = [self.read[row] for row in rows.tolist()]

    @torch.inference_mode()
    def verify(self, texts: Sequence[list[int]], proposals: Sequence[list[int]]) -> Tensor:
        """See `VerifyingSession`; each text ends in one token that was not read yet."""
        assert self.state is not None
        back = [read + 1 - len(text) for read, text in zip(self.read, texts, strict=True)]
        if any(back):
            self.state.rollback(back)
        pairs = list(zip(texts, proposals, strict=True))
        tokens, real = pad([[text[-1], *proposal] for text, proposal in pairs], self.device, "right")
        out = self.conditioned.call(tokens, real, self.state, False)
        self.read = [len(text) + len(proposal) for text, proposal in pairs]
        self.calls += 1
        return out.head(out.hidden.flatten(0, 1) if real is None else out.hidden[real])


class UncachedSession:
    """Keeps the texts only and computes all of them again at each step: slow, the reference for the cache."""

    def __init__(self, conditioned: ConditionedModel, prefill: PrefillOptions) -> None:
        self.conditioned, self.prefill = conditioned, prefill
        self.device = device_of(conditioned.model)
        self.texts: list[list[int]] = []
        self.alignment: Tensor | None = None

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.texts = [list(prompt) for prompt in prompts]
        return self._compute()

    def advance(self, tokens: Tensor) -> Tensor:
        for text, token in zip(self.texts, tokens.tolist(), strict=True):
            text.append(token)
        return self._compute()

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> None:
        self.texts = [list(self.texts[row]) for row in rows.tolist()]
        self.conditioned.reorder(rows)
        if self.alignment is not None:
            self.alignment = self.alignment.index_select(0, rows)

    @torch.inference_mode()
    def _compute(self) -> Tensor:
        tokens, real = pad(self.texts, self.device, self.prefill.side)
        out = self.conditioned.call(tokens, real, None, True)
        last = _last(real, tokens.shape[0], tokens.shape[1], self.device)
        if "alignment" in out.auxiliary:
            self.alignment = _keep(out.auxiliary["alignment"], last)
        return out.head(_keep(out.hidden, last))


class RewindableSession:
    """Reads one text and can take back what it read: speculative decoding, and the turns of a chat.

    Keys and values are simply forgotten; recurrences, convolutions and rings of keys go on from a copy and read again.
    `calls` of the model and `tokens` read so far; `reused`: number of tokens of the last prompt that were not read.
    """

    def __init__(self, conditioned: ConditionedModel) -> None:
        self.conditioned, self.device = conditioned, device_of(conditioned.model)
        self.prefix = declared(conditioned.model).text_prefix or 0
        self.alignment: Tensor | None = None
        self.calls = self.tokens = self.reused = 0
        self.forget()

    def forget(self) -> None:
        """An empty text: what a call that was broken off left in the state is not to be used."""
        self.state: State = self.conditioned.model.make_state(1)
        self.text: list[int] = []
        self.copies: list[tuple[State, int]] = []  # and the number of tokens each has read: the prompt's, a later one

    @property
    def length(self) -> int:
        """Number of tokens read."""
        return len(self.text)

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Logits [1, C] of what follows the only prompt; what it shares with the text so far is not read again."""
        (prompt,) = prompts
        before = self.tokens
        self.rewind_to(prompt)
        logits = self.read(prompt[self.length :])
        self.reused = len(prompt) - (self.tokens - before)
        self.copies.clear()
        if not self.state.can_take_back(self.length):
            self._keep()
        return logits

    def advance(self, tokens: Tensor) -> Tensor:
        """One more token, [1] -> logits [1, C]."""
        return self.read(tokens.tolist())

    def reorder(self, rows: Tensor) -> None:
        """There is one row only."""
        if rows.tolist() != [0]:
            raise WeftError(f"a session that rewinds reads one text, not {len(rows)}: use samples=1")

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], rows: int = 1) -> Tensor:
        """Logits [rows, C] of what follows each of the last `rows` tokens."""
        out = self.conditioned.call(torch.tensor([list(tokens)], device=self.device), None, self.state, not self.text)
        self.text += tokens
        self.calls, self.tokens = self.calls + 1, self.tokens + len(tokens)
        if "alignment" in out.auxiliary:
            self.alignment = out.auxiliary["alignment"][:, -1]
        return out.head(out.hidden[0, -rows:])

    def verify(self, texts: Sequence[list[int]], proposals: Sequence[list[int]]) -> Tensor:
        """See `VerifyingSession`: for the only text."""
        (text,), (proposal,) = texts, proposals
        self.rewind_to(text)
        self.commit()
        return self.read([*text[self.length :], *proposal], len(proposal) + 1)

    def commit(self) -> None:
        """Nothing read so far will be taken back, as far as it is the same text that goes on."""
        if not self.state.can_rollback:
            self._keep()

    def _keep(self) -> None:
        self.copies[1:] = [(self.state.copy(), self.length)]

    def rewind_to(self, text: Sequence[int]) -> None:
        """Take back whatever is not a beginning of `text`; its last token stays to be read."""
        length = min(_same(self.text, list(text)), len(text) - 1)
        if length < self.prefix:
            length = 0  # each token of a prefix that is seen in both directions depends on all of it
        if length == self.length:
            return
        copies = [kept for kept in self.copies if kept[1] <= length]
        if self.state.can_take_back(self.length - length):
            self.state.rollback(self.length - length)
            self.text, self.copies = self.text[:length], copies
            return
        again = self.text[:length]
        self.forget()
        if copies:
            state, read = copies[-1]
            self.state, self.text, self.copies = state.copy(), again[:read], copies
        if again[self.length :]:
            self.read(again[self.length :])

    def fork(self) -> RewindableSession:
        """Another session that goes on from the same tokens."""
        twin = copy.copy(self)
        twin.state, twin.text, twin.copies = self.state.copy(), list(self.text), list(self.copies)
        return twin


def _same(one: list[int], other: list[int]) -> int:
    """How many tokens two texts have in common from their beginning."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # all before `low` are equal, and not all before `high` + 1
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _last(real: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor:
    """The index of each row's last real token, [B]."""
    index = torch.arange(length, device=device)
    return index[-1].expand(batch) if real is None else torch.where(real, index, -1).amax(1)


def _keep(values: Tensor, at: Tensor, inside: Tensor | None = None, before: Tensor | None = None) -> Tensor:
    """values[b, at[b]] of [B, T, .]; what was before for rows that are not inside."""
    found = values[torch.arange(values.shape[0], device=values.device), at]
    return found if before is None or inside is None else torch.where(inside[:, None], found, before)
