"""Attention records: what one attention was given in one call, kept by reference; maps are computed when asked for.

A = softmax(E + M) with E = e(Q, K) + bias, for one text, the heads and the rows asked for: O(heads x rows x S) memory.
Shapes: queries [B, H, T, K], keys [B, G, S, K], values [B, G, S, V]; maps [heads, rows, S].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from weft.foundation.numerics import widen
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import visible_pairs
from weft.parts.scores import Score
from weft.parts.token_positions import TokenPositions

Kind = Literal["self", "encoder", "cross", "alignment"]
KINDS: tuple[Kind, ...] = ("self", "alignment", "cross", "encoder")
Rows = int | slice | Sequence[int] | Tensor | None
PAIRS = 1 << 22  # numbers that a score with a hidden layer may hold at once


class AttentionRecord:
    """One attention in one call; `sizes` is (B, H, T, S)."""

    sizes: tuple[int, int, int, int]

    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        """E with the position's bias, -inf where a key is hidden: [heads, rows, S], float32 or wider."""
        raise NotImplementedError

    def weights(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        """A: [heads, rows, S]; a row that sees no key is zero."""
        return softmax(self.scores(b, heads, rows))

    def value_bias(self, b: int, heads: Tensor, rows: Tensor) -> Tensor | None:
        """What the position adds to Y, [heads, rows, V]; None where it acts on scores alone."""
        return None

    def vectors(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [H, T, K], keys [H, S, K], values [H, S, V] of one text."""
        raise NotImplementedError

    @property
    def normalized(self) -> bool:
        """Whether each row is a distribution."""
        return True

    def real_rows(self, b: int) -> Tensor:
        """The rows of real tokens, where the call knows them."""
        return torch.arange(self.sizes[2], device=self.device)

    def columns(self, b: int) -> Tensor | None:
        """The position of each key where keys are out of order (a ring buffer); None where they are in order."""
        return None

    @property
    def rows(self) -> int:
        """B, known without computing anything."""
        return self.sizes[0]

    def continues(self, before: AttentionRecord) -> bool:
        """Whether it is the step of a generation after `before`."""
        return False

    @property
    def device(self) -> torch.device:
        raise NotImplementedError


def grows(before: AttentionRecord, after: AttentionRecord) -> bool:
    """Whether the second has the first's keys and one more for each of its own queries."""
    (B, H, _, S), (b, h, t, s) = before.sizes, after.sizes
    return (b, h) == (B, H) and s == S + t


def softmax(scores: Tensor) -> Tensor:
    """softmax over the keys; a row of -inf alone gives zeros, never NaN."""
    if not scores.numel():
        return scores
    blind = scores.amax(-1, keepdim=True).isneginf()
    if not bool(blind.any()):
        return scores.softmax(-1)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def shares(weights: Tensor) -> Tensor:
    """|a_ij| / sum_j |a_ij|: the rows of a map without a softmax as distributions."""
    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)


@dataclass(eq=False)
class PartAttentionRecord(AttentionRecord):
    """Record of one of Weft's attentions: its score and its context say how queries are compared with keys."""

    query: Tensor
    key: Tensor
    value: Tensor
    context: AttentionContext
    score: Score

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, score: Score) -> PartAttentionRecord:
        """References; only the keys of a ring buffer, which later calls overwrite, are copied: O(window)."""
        query, key, value = query.detach(), key.detach(), value.detach()
        if context.cache_write is not None and not context.cache_write.joined and context.mask.band()[0] is not None:
            key, value = key.clone(), value.clone()
        return PartAttentionRecord(query, key, value, context, score)

    @property
    def sizes(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        B, H, T, _ = self.query.shape
        return B, H, T, self.key.shape[2]

    @property
    def device(self) -> torch.device:
        return self.query.device

    @torch.no_grad()
    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        query, key = one_row(self.query, b)[:, :, rows], one_row(self.key, b)
        scores = widen(self._compare(query, key, heads))
        queries = some(self.context.queries, rows)
        if self.context.position is not None and self.context.has_bias:
            own = torch.tensor([b], device=rows.device)
            position = self.context.position
            read = self.score.scaled_query(query) if position.scaled_by_score else query
            bias = position.bias(read, queries.reorder(own), self.context.keys.reorder(own))
            if bias is not None:
                bias = bias[0]
                scores = scores + (bias if bias.shape[0] == 1 else bias[heads])
        if self.context.form != "everything":
            visible = visible_pairs(self.context.rule, queries, self.context.keys)
            scores = scores.masked_fill(~one_row(visible, b), float("-inf"))
        return scores

    @torch.no_grad()
    def value_bias(self, b: int, heads: Tensor, rows: Tensor) -> Tensor | None:
        position = self.context.position
        if position is None or not self.context.has_value_bias:
            return None
        own = torch.tensor([b], device=rows.device)
        queries, keys = some(self.context.queries, rows).reorder(own), self.context.keys.reorder(own)
        added = position.value_bias(self.weights(b, heads, rows)[None], queries, keys)
        return None if added is None else added[0]

    def _compare(self, query: Tensor, key: Tensor, heads: Tensor) -> Tensor:
        """e(Q, K) of some heads, [heads, rows, S]; heads that share keys are compared with them at once."""
        H, G = query.shape[1], key.shape[1]
        if self.score.fusable != "plain":
            return _in_blocks(self.score, query, key.repeat_interleave(H // G, 1))[0, heads]
        if len(heads) < H:
            return self.score(query[:, heads], key[:, heads // (H // G)])[0]
        shared = query.reshape(1, G, -1, query.shape[-1])
        return self.score(shared, key)[0].reshape(H, -1, key.shape[2])

    def weights(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        scores = self.scores(b, heads, rows)
        hidden = scores.isneginf()
        return self.score.weigh(scores, ~hidden if bool(hidden.any()) else None)

    @property
    def normalized(self) -> bool:
        return self.score.normalized

    def vectors(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        """As attention used them, after norms and rotation."""
        query, key, value = (one_row(x, b)[0] for x in (self.query, self.key, self.value))
        share = query.shape[0] // key.shape[0]
        return query, key.repeat_interleave(share, 0), value.repeat_interleave(share, 0)

    def real_rows(self, b: int) -> Tensor:
        token_positions = self.context.queries
        if self.context.cache_write is None or token_positions.real is None:
            return super().real_rows(b)
        return one_row(token_positions.real, b)[0].nonzero().flatten()

    def columns(self, b: int) -> Tensor | None:
        if self.context.cache_write is None or self.context.mask.band()[0] is None:
            return None
        return one_row(self.context.keys.positions, b)[0]

    def positions(self, b: int) -> Tensor:
        """Positions of the queries [T]."""
        return one_row(self.context.queries.positions, b)[0]


@dataclass(eq=False)
class GivenAttentionRecord(AttentionRecord):
    """Of an attention whose weights [B, H, T, S] are given, and its scores where they are known."""

    given: Tensor
    before: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        B, H, T, S = self.given.shape
        return B, H, T, S

    @property
    def device(self) -> torch.device:
        return self.given.device

    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        """The softmax's input; where unknown log A, which differs from it by a constant per row."""
        if self.before is None:
            return self.weights(b, heads, rows).log()
        return widen(one_row(self.before, b)[0][heads][:, rows])

    def continues(self, before: AttentionRecord) -> bool:
        return isinstance(before, GivenAttentionRecord) and grows(before, self)

    def weights(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        return widen(one_row(self.given, b)[0][heads][:, rows])


@dataclass(eq=False)
class AlignmentRecord(GivenAttentionRecord):
    """Of recurrent attention: weights [B, 1, T, S], queries s_t [B, 1, T, D] and the encoder's states h_i."""

    queries: Tensor | None = None
    hidden: Tensor | None = None
    score: Score | None = None
    real: Tensor | None = None

    @property
    def normalized(self) -> bool:
        return self.score is None or self.score.normalized

    @torch.no_grad()
    def scores(self, b: int, heads: Tensor, rows: Tensor) -> Tensor:
        """e_(t,i) = f_att(s_t, h_i)."""
        if self.queries is None or self.hidden is None or self.score is None:
            return super().scores(b, heads, rows)
        scores = widen(
            _in_blocks(self.score, one_row(self.queries, b)[:, :, rows], one_row(self.hidden, b)[:, None])[0]
        )
        return scores if self.real is None else scores.masked_fill(~one_row(self.real, b)[:, None], float("-inf"))

    def vectors(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        """s_t, h_i, h_i."""
        if self.queries is None or self.hidden is None:
            return super().vectors(b)
        hidden = one_row(self.hidden, b)
        return one_row(self.queries, b)[0], hidden, hidden


class PendingAttentionRecord(AttentionRecord):
    """Of a step that native code computed as a whole: its map is computed by running the stack again."""

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def rows(self) -> int:
        return self._count


def some(token_positions: TokenPositions, rows: Tensor) -> TokenPositions:
    """The token positions of some rows only."""
    n = len(rows)
    if (
        n == token_positions.length
        and token_positions.start is not None
        and bool((rows == torch.arange(n, device=rows.device)).all())
    ):
        return token_positions
    if n and int(rows[-1]) - int(rows[0]) == n - 1 and bool((rows[1:] > rows[:-1]).all()):
        return token_positions.slice(int(rows[0]), int(rows[0]) + n)
    documents = None if token_positions.documents is None else token_positions.documents[:, rows]
    given = token_positions.positions[:, rows]
    return replace(
        token_positions, length=n, start=None, packed=False, given=given, documents=documents, ids=None, grid=None
    )


def one_row(x: Tensor, b: int) -> Tensor:
    """One text [1, ...] of [B or 1, ...]."""
    b = b if x.shape[0] > 1 else 0
    return x[b : b + 1]


def _in_blocks(score: Any, query: Tensor, key: Tensor) -> Tensor:
    """e(Q, K) for a few queries at a time: a score with a hidden layer holds a vector per pair."""
    block = max(1, PAIRS // max(1, key.numel() // max(1, key.shape[0])))
    return torch.cat([score(part, key) for part in query.split(block, 2)], 2)
