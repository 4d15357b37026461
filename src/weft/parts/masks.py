"""Masks: who may look at whom. Boolean, True = may look; pure functions of positions and documents.

M_ij says whether query i may look at key j before the softmax (the lectures write -inf where it may not). Masks
compose with `&`, `|`, `~` (see `weft.parts.mask_algebra`) and print as a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from weft.foundation.errors import ShapeError, WeftError
from weft.parts.mask_algebra import Band, Everything, Mask, Span, arrange, both, rules_of, visible_pairs
from weft.parts.token_positions import TokenPositions, distances, same_document

__all__ = [
    "BlockSparse",
    "Causal",
    "Dilated",
    "Documents",
    "Everything",
    "Graph",
    "Mask",
    "Padding",
    "Prefix",
    "Real",
    "Window",
    "arrange",
    "both",
    "rules_of",
    "strided",
    "visible_pairs",
]


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """No look ahead: M_ij = (j <= i)."""

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """j <= i."""
        return distances(queries, keys) >= 0

    def band(self) -> Band:
        """Any number of keys back, none ahead."""
        return None, 0

    def covers(self, queries: Span, keys: Span) -> bool:
        """When the last key is no later than the first query."""
        return keys[1] <= queries[0]

    def __repr__(self) -> str:
        return "causal"


@dataclass(frozen=True, repr=False)
class Window(Mask):
    """Only near keys: M_ij = (|i - j| < w). With `causal` a query sees the w keys up to and with its own."""

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise WeftError(f"a window of {self.width} keys shows nothing: use a width of at least 1")

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """|i - j| < w."""
        return distances(queries, keys).abs() < self.width

    def band(self) -> Band:
        """w - 1 to either side."""
        return self.width - 1, self.width - 1

    def covers(self, queries: Span, keys: Span) -> bool:
        """When the farthest pair is near enough."""
        return max(queries[1] - keys[0], keys[1] - queries[0]) < self.width

    def is_wider(self, other: Mask) -> bool:
        """Than a narrower window."""
        return isinstance(other, Window) and other.width <= self.width

    def __repr__(self) -> str:
        return f"window({self.width})"


@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """Causal but for a prefix that all see (and that sees itself): M_ij = (j <= i) or (j < length)."""

    length: int

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """(j <= i) or (j < length)."""
        return (distances(queries, keys) >= 0) | (keys.positions < self.length)[:, None, :]

    def covers(self, queries: Span, keys: Span) -> bool:
        """When all keys are past or in the prefix."""
        return keys[1] <= queries[0] or keys[1] < self.length

    def expect_whole(self, tokens: TokenPositions) -> None:
        """Refuse a call with a cache that begins within the prefix and ends within it: its end is not there to see."""
        if tokens.start is not None and tokens.pads == "none":
            counts = [max(0, min(tokens.start + tokens.length, self.length) - tokens.start)]
        elif tokens.device.type == "cpu":
            inside = (tokens.positions >= 0) & (tokens.positions < self.length)
            counts = inside.sum(1).tolist()
        else:  # waiting for the device would cost more than the check gives
            return
        partial = next((count for count in counts if 0 < count < self.length), None)
        if partial is not None:
            raise WeftError(
                f"{partial} of the {self.length} tokens of a prefix that is seen in both directions: with a cache, "
                f"give all {self.length} at the first call (a prompt of at least {self.length} tokens)"
            )

    def is_wider(self, other: Mask) -> bool:
        """Than causality, and than a shorter prefix."""
        return isinstance(other, Causal) or (isinstance(other, Prefix) and other.length <= self.length)

    def __repr__(self) -> str:
        return f"prefix({self.length})"


@dataclass(frozen=True, repr=False)
class Dilated(Mask):
    """Every step-th key, counted from the query: M_ij = ((i - j) mod step = 0)."""

    step: int

    def __post_init__(self) -> None:
        if self.step < 1:
            raise WeftError(f"a dilation of {self.step} is no step: use at least 1")

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """(i - j) mod step = 0."""
        return distances(queries, keys) % self.step == 0

    def is_wider(self, other: Mask) -> bool:
        """Than a multiple of its step."""
        return isinstance(other, Dilated) and other.step % self.step == 0

    def __repr__(self) -> str:
        return f"dilated({self.step})"


@dataclass(frozen=True, repr=False)
class BlockSparse(Mask):
    """Whole blocks of `size` tokens: near ones, and the first `shared` ones, which see all and are seen by all.

    M_ij = |b_i - b_j| <= near or b_i < shared or b_j < shared, with the block b_i = floor(i / size): the block-sparse
    pattern of Zaheer et al. 2020 (Big Bird) without its random blocks.
    """

    size: int
    near: int = 1
    shared: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.near < 0 or self.shared < 0:
            raise WeftError(
                f"blocks of {self.size} tokens, {self.near} near and {self.shared} shared: use a size of at least 1 "
                "and numbers of blocks from 0"
            )

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """|b_i - b_j| <= near, or one of the two is shared."""
        b_i, b_j = (side.positions.div(self.size, rounding_mode="floor") for side in (queries, keys))
        seen = (b_i[:, :, None] - b_j[:, None, :]).abs() <= self.near
        return seen | (b_i < self.shared)[:, :, None] | (b_j < self.shared)[:, None, :] if self.shared else seen

    def band(self) -> Band:
        """From the near end of a block to the far end of its last neighbor; none with shared blocks."""
        far = (self.near + 1) * self.size - 1
        return (None, None) if self.shared else (far, far)

    def covers(self, queries: Span, keys: Span) -> bool:
        """When the blocks farthest apart are near, or all of one side is shared."""
        q, k = (tuple(end // self.size for end in span) for span in (queries, keys))
        return max(q[1] - k[0], k[1] - q[0]) <= self.near or min(q[1], k[1]) < self.shared

    def is_wider(self, other: Mask) -> bool:
        """Than fewer near and shared blocks of the same size."""
        if not isinstance(other, BlockSparse) or other.size != self.size:
            return False
        return other.near <= self.near and other.shared <= self.shared

    def __repr__(self) -> str:
        more = f", {self.shared} shared" if self.shared else ""
        return f"block-sparse({self.size}, {self.near} near{more})"


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Mask):
    """Along the edges of a graph: M_ij = A_ij with the adjacency A, [N, N] or [B, N, N], indexed by position."""

    adjacency: Tensor

    def __post_init__(self) -> None:
        if self.adjacency.dim() not in (2, 3) or self.adjacency.shape[-1] != self.adjacency.shape[-2]:
            raise ShapeError(f"an adjacency is [N, N] or [B, N, N], but this one is {tuple(self.adjacency.shape)}")

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """A_ij, looked up at the positions; a position outside the graph sees nothing."""
        A = self.adjacency.bool().to(queries.device)
        A = A if A.dim() == 3 else A[None]
        q, k = queries.positions, keys.positions
        known = (q < A.shape[-1])[:, :, None] & (k < A.shape[-1])[:, None, :]
        batch = torch.arange(A.shape[0], device=A.device)[:, None, None]
        edges = A[batch, q.clamp(0, A.shape[-1] - 1)[:, :, None], k.clamp(0, A.shape[-1] - 1)[:, None, :]]
        return edges & known

    def expect_fit(self, rows: int, tokens: TokenPositions) -> None:
        """Refuse graphs of another number of rows, and more tokens than nodes."""
        nodes = self.adjacency.shape[-1]
        if self.adjacency.dim() == 3 and self.adjacency.shape[0] not in (1, rows):
            raise ShapeError(f"graphs of {self.adjacency.shape[0]} rows for {rows} rows of tokens: give one per row")
        last = tokens.length - 1 if tokens.start is None else tokens.start + tokens.length - 1
        if tokens.given is not None:
            last = int(tokens.given.max()) if tokens.device.type == "cpu" else 0
        if last >= nodes:
            raise ShapeError(f"token {last} has no node in a graph of {nodes} nodes: give sequences of up to {nodes}")

    def __repr__(self) -> str:
        return f"graph({self.adjacency.shape[-1]} nodes)"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """Hides padding: row b has lengths[b] real tokens on the left, or with side="left" padding before them."""

    marks_padding: ClassVar[bool] = True

    lengths: Tensor
    side: Literal["left", "right"] = "right"

    def __post_init__(self) -> None:
        if self.lengths.dim() != 1 or self.side not in ("left", "right"):
            raise ShapeError(f"padding takes lengths [B] and side left or right, not {tuple(self.lengths.shape)}")

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """0 <= j < lengths[b]: positions count real tokens only, so both sides share one rule."""
        lengths = self.lengths.to(keys.device)[:, None]
        return ((keys.positions >= 0) & (keys.positions < lengths))[:, None, :]

    def implied(self, length: int) -> TokenPositions:
        """Real tokens count from 0, padding has none."""
        if self.lengths.device.type == "cpu" and not bool(((self.lengths >= 0) & (self.lengths <= length)).all()):
            raise ShapeError(f"lengths {self.lengths.tolist()[:8]} for rows of {length} tokens: give 0 to {length}")
        return TokenPositions.of_lengths(self.lengths, length, self.side)

    def width_marked(self) -> int:
        """The longest row."""
        return max(1, int(self.lengths.max())) if self.lengths.numel() else 1

    def __repr__(self) -> str:
        return f"padding({self.side})"


@dataclass(frozen=True, eq=False, repr=False)
class Real(Mask):
    """Hides padding, given as a boolean [B, T], True where a token is real."""

    marks_padding: ClassVar[bool] = True

    real: Tensor

    def __post_init__(self) -> None:
        if self.real.dim() != 2:
            raise ShapeError(f"real tokens are marked by a boolean [B, T], but this one is {tuple(self.real.shape)}")

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """j is a real token: its position is not negative."""
        return (keys.positions >= 0)[:, None, :]

    def implied(self, length: int) -> TokenPositions:
        """Real tokens count from 0, padding has none."""
        _expect_marks(self, self.real, length)
        return TokenPositions.of_real(self.real.bool())

    def width_marked(self) -> int:
        return self.real.shape[1]

    def __repr__(self) -> str:
        return "real"


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Packing: tokens see only their own document; ids [B, T], negative for padding."""

    marks_padding: ClassVar[bool] = True

    ids: Tensor

    def __post_init__(self) -> None:
        if self.ids.dim() != 2:
            raise ShapeError(f"document ids are [B, T], but these are {tuple(self.ids.shape)}")

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """document(i) = document(j)."""
        if queries.documents is None or keys.documents is None:
            raise WeftError(
                "this mask isolates documents, but the token positions carry none: use TokenPositions.of_documents(ids)"
            )
        return same_document(queries.documents, keys.documents)

    def implied(self, length: int) -> TokenPositions:
        """Each document counts from 0."""
        _expect_marks(self, self.ids, length)
        return TokenPositions.of_documents(self.ids)

    def width_marked(self) -> int:
        return self.ids.shape[1]

    def __repr__(self) -> str:
        return "documents"


def strided(step: int) -> Mask:
    """Sparse Transformer's strided pattern: the last `step` keys and every step-th before (Child et al. 2019)."""
    return Window(step) | Dilated(step)


def _expect_marks(mask: Mask, marks: Tensor, length: int) -> None:
    if marks.shape[1] != length:
        raise ShapeError(f"{mask!r} marks {marks.shape[1]} tokens, but the rows have {length}: give one mark per token")
