"""How masks combine: a mask is a rule who may look at whom, and rules combine with `&`, `|` and `~`.

What a mask knows in advance (`band`, `covers`) lets `weft.parts.attention_context` choose the cheapest form for
the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from weft.figures.charts.grids import draw_grid, text_grid
from weft.foundation.errors import WeftError
from weft.parts.token_positions import TokenPositions, same_document

Band = tuple[int | None, int | None]
Span = tuple[int, int]
COUNTED_PAIRS = 1 << 22


class Mask:
    """A rule who may look at whom; True = may look.

    `marks_padding`: it marks padding or documents, which token positions carry, so it combines with `&` only.
    """

    marks_padding: ClassVar[bool] = False

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        """Boolean, broadcastable to [B, T, S]."""
        raise NotImplementedError

    def band(self) -> Band:
        """(back, ahead): keys lie at most so far behind and ahead of the query; None = no bound known."""
        return None, None

    def covers(self, queries: Span, keys: Span) -> bool:
        """Whether every query at positions first..last surely may look at every key at positions first..last."""
        return False

    def includes(self, other: Mask) -> bool:
        """Whether it surely allows every pair that `other` allows, whatever the positions; False if not known."""
        if isinstance(other, Either):
            return self.includes(other.first) and self.includes(other.second)
        return self == other or any(self == term or self.is_wider(term) for term in other.terms())

    def is_wider(self, other: Mask) -> bool:
        """`includes` for one other mask that is neither equal nor a combination."""
        return False

    def terms(self) -> Iterator[Mask]:
        """The masks that must all hold."""
        yield self

    def leaves(self) -> Iterator[Mask]:
        """The simple masks that it is made of, however they are combined."""
        yield self

    def __and__(self, other: Mask) -> Mask:
        return both([*self.terms(), *_expect_mask(other).terms()])

    def __or__(self, other: Mask) -> Mask:
        return Either(self, _expect_mask(other))

    def __invert__(self) -> Mask:
        return Opposite(self)

    def own_length(self) -> int:
        """How many tokens it is drawn with: those that its padding or documents mark, else 8."""
        widths = (leaf.width_marked() for leaf in self.leaves())
        return next((width for width in widths if width is not None), 8)

    def implied(self, length: int) -> TokenPositions | None:
        """The token positions that it implies for rows of `length`, if it speaks of padding or documents."""
        return None

    def width_marked(self) -> int | None:
        """How many tokens its own data speak of, if any."""
        return None

    def token_positions(self, length: int) -> TokenPositions:
        """The positions on which this mask is drawn: 0 .. length - 1, or those of its padding and documents."""
        return arrange(self, length) or TokenPositions.run(0, length, torch.device("cpu"))

    def grid(self, length: int, row: int = 0) -> Tensor:
        """The T x T picture of this mask as a boolean tensor, for one row of the batch."""
        token_positions = self.token_positions(length)
        visible = visible_pairs(self, token_positions, token_positions)
        return visible.expand(-1, length, length)[min(row, visible.shape[0] - 1)]

    def share(self, length: int) -> float:
        """The share of the N x N pairs of `length` tokens that it shows; of long texts, measured on some queries."""
        count = max(1, min(length, COUNTED_PAIRS // length))
        queries = TokenPositions.of(torch.linspace(0, length - 1, count).round().long())
        visible = visible_pairs(self, queries, TokenPositions.run(0, length, torch.device("cpu")))
        return float(visible.expand(1, count, length).double().mean())

    def text(self, length: int | None = None, row: int = 0) -> str:
        """The picture as text: one line per query, a full square where it may look."""
        return text_grid(self.grid(length or self.own_length(), row).tolist())

    def picture(self, path: str | Path, length: int | None = None, row: int = 0) -> Path:
        """The picture as a file (.png, .svg or .pdf)."""
        return draw_grid(self.grid(length or self.own_length(), row).tolist(), path, title=repr(self))

    def __str__(self) -> str:
        return f"{self!r}\n{self.text()}"


@dataclass(frozen=True, repr=False)
class Everything(Mask):
    """No mask: each token sees all."""

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
        return torch.ones(1, 1, 1, dtype=torch.bool, device=queries.device)

    def covers(self, queries: Span, keys: Span) -> bool:
        return True

    def includes(self, other: Mask) -> bool:
        return True

    def terms(self) -> Iterator[Mask]:
        return iter(())

    def __repr__(self) -> str:
        return "everything"


@dataclass(frozen=True, repr=False)
class Both(Mask):
    """`a & b & ...`: all must allow."""

    parts: tuple[Mask, ...]

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
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
        return all(part.covers(queries, keys) for part in self.parts)

    def includes(self, other: Mask) -> bool:
        return all(part.includes(other) for part in self.parts)

    def terms(self) -> Iterator[Mask]:
        return iter(self.parts)

    def leaves(self) -> Iterator[Mask]:
        return (leaf for part in self.parts for leaf in part.leaves())

    def __repr__(self) -> str:
        return " & ".join(f"({p!r})" if isinstance(p, Either) else repr(p) for p in self.parts)


@dataclass(frozen=True, repr=False)
class Either(Mask):
    """`a | b`: one must allow."""

    first: Mask
    second: Mask

    def __post_init__(self) -> None:
        _refuse_placing(self)

    def leaves(self) -> Iterator[Mask]:
        yield from self.first.leaves()
        yield from self.second.leaves()

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
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
        return self.first.covers(queries, keys) or self.second.covers(queries, keys)

    def includes(self, other: Mask) -> bool:
        return self.first.includes(other) or self.second.includes(other) or super().includes(other)

    def __repr__(self) -> str:
        return f"{self.first!r} | {self.second!r}"


@dataclass(frozen=True, repr=False)
class Opposite(Mask):
    """`~a`: what a forbids. Padding and other documents stay hidden all the same."""

    mask: Mask

    def __post_init__(self) -> None:
        _refuse_placing(self)

    def leaves(self) -> Iterator[Mask]:
        return self.mask.leaves()

    def allows(self, queries: TokenPositions, keys: TokenPositions) -> Tensor:
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


def arrange(mask: Mask | None, length: int) -> TokenPositions | None:
    """The token positions that a mask's padding or documents imply for rows of `length`; None if it has neither."""
    found = [term for term in (mask.terms() if mask else ()) if term.marks_padding]
    if len(found) > 1:
        raise WeftError(f"{mask!r} speaks of padding or documents twice: mark padding with a negative document id")
    return found[0].implied(length) if found else None


def rules_of(mask: Mask | None) -> list[Mask]:
    """The terms that are rules of their own, without those of which the token positions speak."""
    return [] if mask is None else [term for term in mask.terms() if not term.marks_padding]


def visible_pairs(mask: Mask, queries: TokenPositions, keys: TokenPositions) -> Tensor:
    """The mask as a tensor, broadcastable to [B, T, S]; padding and other documents are hidden always."""
    visible = both(rules_of(mask)).allows(queries, keys)
    if keys.real is not None:
        visible = visible & keys.real[:, None, :]
    if queries.documents is not None and keys.documents is not None:
        visible = visible & same_document(queries.documents, keys.documents)
    return visible


def _expect_mask(other: object) -> Mask:
    if not isinstance(other, Mask):
        raise WeftError(
            f"a mask combines with a mask, not with a {type(other).__name__}: wrap real tokens as Real(tensor)"
        )
    return other


def _refuse_placing(mask: Mask) -> None:
    inner = next((leaf for leaf in mask.leaves() if leaf.marks_padding), None)
    if inner is not None:
        raise WeftError(f"{inner!r} stands under | or ~: padding and documents can only be combined with &")


def _least(bounds: Iterable[int | None]) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
