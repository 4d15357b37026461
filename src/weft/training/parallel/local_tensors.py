"""DTensors and plain tensors alike: the part that is here, the whole, and the own part of a whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_distributed(x: Tensor) -> bool:
    """Whether this process holds a part of x."""
    return hasattr(x, "full_tensor")


def local(x: Tensor) -> Tensor:
    """The part of x that is here, not a copy; for a plain tensor itself."""
    distributed: Any = x
    return distributed.to_local() if is_distributed(x) else x


def whole(x: Tensor) -> Tensor:
    """All of x, gathered; every process has to ask for it."""
    distributed: Any = x
    return distributed.full_tensor() if is_distributed(x) else x


def own_ranges(x: Tensor) -> list[tuple[int, int]]:
    """From where to where this process holds x along each axis.

    The mesh's last axis divides first, because FSDP shards what tensor parallelism has left to a process.
    """
    ranges = [(0, size) for size in x.shape]
    if not is_distributed(x):
        return ranges
    distributed: Any = x
    mesh = distributed.device_mesh
    for axis in reversed(range(mesh.ndim)):
        dim = getattr(distributed.placements[axis], "dim", None)
        if dim is not None:
            first, last = ranges[dim]
            size = -(-(last - first) // mesh.size(axis))
            begin = min(first + size * mesh.get_local_rank(axis), last)
            ranges[dim] = (begin, min(begin + size, last))
    return ranges


def own_part(full: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where `like` is: a view, without communication."""
    return full[tuple(slice(*ends) for ends in own_ranges(like))]
