"""Masks: who may look at whom. Boolean, True = may look; pure functions of positions and documents.

M_ij says whether query i may look at key j before the softmax (the lectures write -inf where it may not). Masks
compose with `&`, `|`, `~`, print as a picture, and tell what they know in advance (`band`, `covers`), from which
`weft.parts.sight` chooses the cheapest form for the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from weft.figures.grids import draw_grid, text_grid
from weft.foundation.errors import ShapeError, WeftError
from weft.parts.places import Places

Band = tuple[int | None, int | None]
Span = tuple[int, int]


class Mask:
    """A rule who may look at whom; True = may look."""

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """Boolean, broadcastable to [B, T, S]."""
        raise NotImplementedError

    def band(self) -> Band:
        """(back, ahead): keys lie at most so far behind and ahead of the query; None = no bound known."""
        return None, None

    def covers(self, queries: Span, keys: Span) -> bool:
        """Whether every query at positions first..last surely may look at every key at positions first..last."""
        return False

    def terms(self) -> Iterator[Mask]:
        """The masks that must all hold."""
        yield self

    def __and__(self, other: Mask) -> Mask:
        return both([*self.terms(), *other.terms()])

    def __or__(self, other: Mask) -> Mask:
        return Either(self, other)

    def __invert__(self) -> Mask:
        return Opposite(self)

    def places(self, length: int) -> Places:
        """The places on which this mask is drawn: 0 .. length - 1, or those of its padding and documents."""
        return arrange(self, length) or Places.run(0, length, torch.device("cpu"))

    def grid(self, length: int, row: int = 0) -> Tensor:
        """The T x T picture of this mask as a boolean tensor, for one row of the batch."""
        places = self.places(length)
        visible = visible_pairs(self, places, places)
        return visible.expand(-1, length, length)[min(row, visible.shape[0] - 1)]

    def text(self, length: int = 8, row: int = 0) -> str:
        """The picture as text: one line a query, a full square where it may look."""
        return text_grid(self.grid(length, row).tolist())

    def picture(self, path: str | Path, length: int = 16, row: int = 0) -> Path:
        """The picture as a file (.png, .svg or .pdf)."""
        return draw_grid(self.grid(length, row).tolist(), path, title=repr(self))

    def __str__(self) -> str:
        return f"{self!r}\n{self.text()}"


@dataclass(frozen=True, repr=False)
class Everything(Mask):
    """No mask: each token sees all."""

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """M_ij = True."""
        return torch.ones(1, 1, 1, dtype=torch.bool, device=queries.device)

    def covers(self, queries: Span, keys: Span) -> bool:
        """Always."""
        return True

    def terms(self) -> Iterator[Mask]:
        """None: nothing has to hold."""
        return iter(())

    def __repr__(self) -> str:
        return "everything"


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """No look ahead: M_ij = (j <= i)."""

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """j <= i."""
        return _difference(queries, keys) >= 0

    def band(self) -> Band:
        """Nothing ahead."""
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

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """|i - j| < w."""
        return _difference(queries, keys).abs() < self.width

    def band(self) -> Band:
        """w - 1 to either side."""
        return self.width - 1, self.width - 1

    def covers(self, queries: Span, keys: Span) -> bool:
        """When the farthest pair is near enough."""
        return max(queries[1] - keys[0], keys[1] - queries[0]) < self.width

    def __repr__(self) -> str:
        return f"window({self.width})"


@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """Causal but for a prefix that all see (and that sees itself): M_ij = (j <= i) or (j < length)."""

    length: int

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """(j <= i) or (j < length)."""
        return (_difference(queries, keys) >= 0) | (keys.positions < self.length)[:, None, :]

    def covers(self, queries: Span, keys: Span) -> bool:
        """When all keys are past or in the prefix."""
        return keys[1] <= queries[0] or keys[1] < self.length

    def __repr__(self) -> str:
        return f"prefix({self.length})"


@dataclass(frozen=True, repr=False)
class Dilated(Mask):
    """Every step-th key, counted from the query: M_ij = ((i - j) mod step = 0)."""

    step: int

    def __post_init__(self) -> None:
        if self.step < 1:
            raise WeftError(f"a dilation of {self.step} is no step: use at least 1")

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """(i - j) mod step = 0."""
        return _difference(queries, keys) % self.step == 0

    def __repr__(self) -> str:
        return f"dilated({self.step})"


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Mask):
    """Along the edges of a graph: M_ij = A_ij with the adjacency A, [N, N] or [B, N, N], indexed by position."""

    adjacency: Tensor

    def __post_init__(self) -> None:
        if self.adjacency.dim() not in (2, 3) or self.adjacency.shape[-1] != self.adjacency.shape[-2]:
            raise ShapeError(f"an adjacency is [N, N] or [B, N, N], but this one is {tuple(self.adjacency.shape)}")

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """A_ij, looked up at the positions; a position outside the graph sees nothing."""
        A = self.adjacency.bool().to(queries.device)
        A = A if A.dim() == 3 else A[None]
        q, k = queries.positions, keys.positions
        known = (q < A.shape[-1])[:, :, None] & (k < A.shape[-1])[:, None, :]
        batch = torch.arange(A.shape[0], device=A.device)[:, None, None]
        edges = A[batch, q.clamp(0, A.shape[-1] - 1)[:, :, None], k.clamp(0, A.shape[-1] - 1)[:, None, :]]
        return edges & known

    def __repr__(self) -> str:
        return f"graph({self.adjacency.shape[-1]} nodes)"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """Hides padding: row b has lengths[b] real tokens on the left, or with side="left" padding before them."""

    lengths: Tensor
    side: Literal["left", "right"] = "right"

    def __post_init__(self) -> None:
        if self.lengths.dim() != 1 or self.side not in ("left", "right"):
            raise ShapeError(f"padding takes lengths [B] and side left or right, not {tuple(self.lengths.shape)}")

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """0 <= j < lengths[b]: positions count real tokens only, so both sides share one rule."""
        lengths = self.lengths.to(keys.device)[:, None]
        return ((keys.positions >= 0) & (keys.positions < lengths))[:, None, :]

    def __repr__(self) -> str:
        return f"padding({self.side})"


@dataclass(frozen=True, eq=False, repr=False)
class Real(Mask):
    """Hides padding, given as a boolean [B, T], True where a token is real."""

    real: Tensor

    def __post_init__(self) -> None:
        if self.real.dim() != 2:
            raise ShapeError(f"real tokens are marked by a boolean [B, T], but this one is {tuple(self.real.shape)}")

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """j is a real token: its position is not negative."""
        return (keys.positions >= 0)[:, None, :]

    def __repr__(self) -> str:
        return "real"


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Packing: tokens see only their own document; ids [B, T], negative for padding."""

    ids: Tensor

    def __post_init__(self) -> None:
        if self.ids.dim() != 2:
            raise ShapeError(f"document ids are [B, T], but these are {tuple(self.ids.shape)}")

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """document(i) = document(j)."""
        if queries.documents is None or keys.documents is None:
            raise WeftError("this mask isolates documents, but the places carry none: use Places.of_documents(ids)")
        return queries.documents[:, :, None] == keys.documents[:, None, :]

    def __repr__(self) -> str:
        return "documents"


@dataclass(frozen=True, repr=False)
class Both(Mask):
    """`a & b & ...`: all must allow."""

    parts: tuple[Mask, ...]

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """M = M1 and M2 and ..."""
        visible = self.parts[0].allows(queries, keys)
        for part in self.parts[1:]:
            visible = visible & part.allows(queries, keys)
        return visible

    def band(self) -> Band:
        """The tighter bound on either side."""
        bands = [part.band() for part in self.parts]
        return _least(b for b, _ in bands), _least(a for _, a in bands)

    def covers(self, queries: Span, keys: Span) -> bool:
        """When each does."""
        return all(part.covers(queries, keys) for part in self.parts)

    def terms(self) -> Iterator[Mask]:
        """Its parts."""
        return iter(self.parts)

    def __repr__(self) -> str:
        return " & ".join(f"({p!r})" if isinstance(p, Either) else repr(p) for p in self.parts)


@dataclass(frozen=True, repr=False)
class Either(Mask):
    """`a | b`: one must allow."""

    first: Mask
    second: Mask

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """M = M1 or M2."""
        return self.first.allows(queries, keys) | self.second.allows(queries, keys)

    def band(self) -> Band:
        """The looser bound on either side."""
        (b1, a1), (b2, a2) = self.first.band(), self.second.band()
        return (
            None if b1 is None or b2 is None else max(b1, b2),
            None if a1 is None or a2 is None else max(a1, a2),
        )

    def covers(self, queries: Span, keys: Span) -> bool:
        """When one does."""
        return self.first.covers(queries, keys) or self.second.covers(queries, keys)

    def __repr__(self) -> str:
        return f"{self.first!r} | {self.second!r}"


@dataclass(frozen=True, repr=False)
class Opposite(Mask):
    """`~a`: what a forbids. Padding and other documents stay hidden all the same."""

    mask: Mask

    def allows(self, queries: Places, keys: Places) -> Tensor:
        """M = not M1."""
        return ~self.mask.allows(queries, keys)

    def __repr__(self) -> str:
        return f"~({self.mask!r})"


def both(terms: Iterable[Mask]) -> Mask:
    """All of the terms, none twice, in the simplest form."""
    unique = tuple(dict.fromkeys(terms))
    if not unique:
        return Everything()
    return unique[0] if len(unique) == 1 else Both(unique)


def strided(step: int) -> Mask:
    """Sparse Transformer's strided pattern: the last `step` keys and every step-th before (Child et al. 2019)."""
    return Window(step) | Dilated(step)


def arrange(mask: Mask | None, length: int) -> Places | None:
    """The places that a mask's padding or documents imply for rows of `length`; None if it speaks of neither."""
    found = [term for term in (mask.terms() if mask else ()) if isinstance(term, (Padding, Real, Documents))]
    if len(found) > 1:
        raise WeftError(f"{mask!r} speaks of padding or documents twice: mark padding with a negative document id")
    if not found:
        return None
    term = found[0]
    if isinstance(term, Padding):
        return Places.of_lengths(term.lengths, length, term.side)
    given = term.real if isinstance(term, Real) else term.ids
    if given.shape[1] != length:
        raise ShapeError(f"{term!r} marks {given.shape[1]} tokens, but the rows have {length}: give one mark a token")
    return Places.of_real(given.bool()) if isinstance(term, Real) else Places.of_documents(given)


def visible_pairs(mask: Mask, queries: Places, keys: Places) -> Tensor:
    """The mask as a tensor, broadcastable to [B, T, S]; padding and other documents are hidden always."""
    rules = [term for term in mask.terms() if not isinstance(term, (Padding, Real, Documents))]
    visible = both(rules).allows(queries, keys)
    if keys.real is not None:
        visible = visible & keys.real[:, None, :]
    if queries.documents is not None and keys.documents is not None:
        visible = visible & (queries.documents[:, :, None] == keys.documents[:, None, :])
    return visible


def _difference(queries: Places, keys: Places) -> Tensor:
    """i - j, [B or 1, T, S]."""
    return queries.positions[:, :, None] - keys.positions[:, None, :]


def _least(bounds: Iterable[int | None]) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
