"""AttentionContext: what the queries of one call see of the keys, prepared once and shared by all layers.

It joins a mask (a rule) with token positions and chooses the cheapest form for the kernel: everything, a
causal flag, blocks, or a dense tensor as the last resort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.foundation.lazy import lazy
from weft.parts import observer
from weft.parts.masks import Causal, Everything, Mask, arrange, both, rules_of, visible_pairs
from weft.parts.relative import AttentionPosition, RotaryAngles, rotate_pairs
from weft.parts.score import Score
from weft.parts.token_positions import TokenPositions, document_begins

if TYPE_CHECKING:
    from weft.parts.state import CacheWrite

Form = Literal["everything", "causal", "dense"]
Extent = tuple[int, int, int, int]


class AttentionContext:
    """What `queries` may see of `keys` under `mask`, and the position that acts inside attention, if any."""

    def __init__(
        self,
        queries: TokenPositions,
        keys: TokenPositions | None = None,
        mask: Mask | None = None,
        position: AttentionPosition | None = None,
        cache_write: CacheWrite | None = None,
    ) -> None:
        self.queries = queries
        self.keys = queries if keys is None else keys
        self.mask = Everything() if mask is None else mask
        if self.queries.given is None and any(term.marks_padding for term in self.mask.terms()):
            raise WeftError(
                f"{self.mask!r} marks padding or documents, but the token positions do not: "
                "use AttentionContext.of(x, mask)"
            )
        for one in observer.active:
            position = None if position is None else one.on_attention_position(position)
        self.position = position
        self.cache_write = cache_write
        self._angles: dict[tuple[AttentionPosition, torch.dtype], RotaryAngles | None] = {}

    @staticmethod
    def of(x: Tensor, mask: Mask | None = None, position: AttentionPosition | None = None) -> AttentionContext:
        """For x [B, T, D] seen by itself: positions 0 .. T - 1, or those that the mask's padding or documents imply."""
        token_positions = arrange(mask, x.shape[1]) or TokenPositions.run(0, x.shape[1], x.device)
        return AttentionContext(token_positions, mask=mask, position=position)

    @lazy
    def rule(self) -> Mask:
        """The mask without what the token positions know already and without what surely holds for all pairs."""
        terms = rules_of(self.mask)
        if self.queries.start is None or self.keys.start is None:
            return both(terms)
        q = (self.queries.start, self.queries.start + self.queries.length - 1)
        k = (self.keys.start, self.keys.start + self.keys.length - 1)
        return both(term for term in terms if not term.covers(q, k))

    @lazy
    def form(self) -> Form:
        """The cheapest form that says the same, known without reading a tensor."""
        if self.queries.documents is not None and self.keys.documents is not None:
            return "dense"
        if self.rule == Everything() and self.keys.pads == "none":
            return "everything"
        aligned = self.queries.start is not None and self.queries.start == self.keys.start
        # Padding on the right is later than every real token, so causality alone hides it.
        hidden = self.keys.pads == "none" or (self.keys.pads == "right" and self.queries.pads != "anywhere")
        if self.rule == Causal() and aligned and self.queries.length == self.keys.length and hidden:
            return "causal"
        return "dense"

    @lazy
    def visible(self) -> Tensor:
        """Boolean, broadcastable to [B, H, T, S]: the last resort, O(T S) memory."""
        return self.visible_block(0, self.queries.length, 0, self.keys.length)

    def visible_block(self, q0: int, q1: int, k0: int, k1: int) -> Tensor:
        """`visible` for queries q0 .. q1 - 1 and keys k0 .. k1 - 1 only."""
        return visible_pairs(self.rule, self.queries.slice(q0, q1), self.keys.slice(k0, k1))[:, None]

    def extents(self, block: int) -> list[Extent]:
        """For each block of queries (q0, q1), the keys (k0, k1) outside of which nothing is visible."""
        T, S = self.queries.length, self.keys.length
        edges = [(q, min(q + block, T)) for q in range(0, T, block)]
        bounds = [(0, S)] * len(edges)
        offset = self._offset()
        if offset is not None:
            back, ahead = self.rule.band()
            bounds = [
                (
                    0 if back is None else max(0, min(S, q0 + offset - back)),
                    S if ahead is None else max(0, min(S, q1 + offset + ahead)),
                )
                for q0, q1 in edges
            ]
        if self.queries.packed and self.keys is self.queries and self.queries.documents is not None:
            inside = _document_bounds(self.queries.documents, edges)
            bounds = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, inside, strict=True)]
        return [(q0, q1, k0, max(k0, k1)) for (q0, q1), (k0, k1) in zip(edges, bounds, strict=True)]

    def _offset(self) -> int | None:
        """index of a key = index of the query + offset, where both stand at the same position; None if not fixed."""
        if self.queries.start is not None and self.keys.start is not None:
            return self.queries.start - self.keys.start
        return 0 if self.queries.packed and self.keys is self.queries else None

    def rotate(self, x: Tensor, position: AttentionPosition | None = None) -> Tensor:
        """Rotate new queries or keys [B, H, T, K] by their positions' angles, where the position is a rotary one.

        `position` stands in place of the context's own: a layer may turn at another speed than the others.
        """
        position = self.position if position is None else position
        if position is None:
            return x
        key = (position, x.dtype)
        if key not in self._angles:
            self._angles[key] = position.angles_of(self.queries, x.dtype)
        angles = self._angles[key]
        return x if angles is None else rotate_pairs(x, *angles)

    @property
    def has_bias(self) -> bool:
        """Whether the position adds to the scores."""
        return self.position is not None and self.position.acts_on_scores

    def bias(self, query: Tensor, score: Score, extent: Extent | None = None) -> Tensor | None:
        """What the position adds to the scores, [B or 1, H, T, S], or only for one block of queries and keys."""
        if self.position is None or not self.has_bias:
            return None
        query = score.scaled_query(query) if self.position.scaled_by_score else query
        return self.position.bias(query, *self._pieces(extent))

    @property
    def has_value_bias(self) -> bool:
        """Whether the position adds to what is gathered, which takes the weights."""
        return self.position is not None and self.position.acts_on_values

    def value_bias(self, weights: Tensor, extent: Extent | None = None) -> Tensor | None:
        """What the position adds to Y for the weights A [B, H, T, S], or only for one block of queries and keys."""
        if self.position is None or not self.has_value_bias:
            return None
        return self.position.value_bias(weights, *self._pieces(extent))

    def _pieces(self, extent: Extent | None) -> tuple[TokenPositions, TokenPositions]:
        q0, q1, k0, k1 = extent or (0, self.queries.length, 0, self.keys.length)
        return self.queries.slice(q0, q1), self.keys.slice(k0, k1)


def _document_bounds(documents: Tensor, edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """For each block of queries, the first and last key index of the documents that it touches."""
    N = documents.shape[1]
    index = torch.arange(N, device=documents.device).expand_as(documents)
    begins = document_begins(documents)
    first = index.masked_fill(~begins, 0).cummax(1).values
    ends = torch.ones_like(documents, dtype=torch.bool)
    ends[:, :-1] = begins[:, 1:]
    last = index.masked_fill(~ends, N - 1).flip(1).cummin(1).values.flip(1)
    low = torch.stack([first[:, q0:q1].amin() for q0, q1 in edges]).tolist()
    high = torch.stack([last[:, q0:q1].amax() for q0, q1 in edges]).tolist()
    return [(a, b + 1) for a, b in zip(low, high, strict=True)]
