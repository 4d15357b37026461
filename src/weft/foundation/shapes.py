"""The legend of shape letters: where a tensor's axes are not obvious, its name ends in them (`scores_BHTS`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.foundation.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

LEGEND: dict[str, str] = {
    "B": "batch",
    "T": "length of the queries (time)",
    "S": "length of the keys (source)",
    "N": "a growing length, in prose and plots",
    "D": "width of the model",
    "H": "heads",
    "G": "key heads (groups of heads that share keys and values)",
    "K": "head size of queries and keys",
    "V": "head size of values",
    "F": "hidden width of the feed-forward",
    "E": "experts",
    "A": "active experts per token",
    "C": "classes or vocabulary",
    "L": "layers",
}


def expect_width(x: Tensor, width: int, part: str) -> None:
    """Refuse a tensor whose last axis is not `width`, in one sentence."""
    if x.shape[-1] != width:
        raise ShapeError(
            f"{part} expects vectors of width {width}, but the input has width {x.shape[-1]} "
            f"(shape {tuple(x.shape)}): build the part with width={x.shape[-1]} or project the input first"
        )
