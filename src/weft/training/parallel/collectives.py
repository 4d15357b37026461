"""Collectives with gradients: how activations and weights enter and leave what several processes compute together.

With tensor parallelism (Shoeybi et al. 2019) each of n processes holds some heads or hidden units of a layer, and with
sequence parallelism (Korthikanti et al. 2022) a stretch of ceil(T / n) tokens of the residual stream:

    tokens x [B, c, D]  -> gather_tokens ->  [B, T, D]  -> own heads -> a part of y -> scatter_tokens -> [B, c, D]

`partial` says what each process has at the wide end: a part of the sum (then sums are reduced), or all of it. The last
stretch is filled up with zeros where n does not divide T.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup


def gather_tokens(x: Tensor, length: int, group: ProcessGroup, partial: bool) -> Tensor:
    """[B, c, D] -> [B, T, D]; the gradients that come back are summed over processes where they are `partial`."""
    gathered: Tensor = _GatherTokens.apply(x, length, group, partial)  # type: ignore[no-untyped-call]
    return gathered


def scatter_tokens(y: Tensor, group: ProcessGroup, partial: bool) -> Tensor:
    """[B, T, D] -> [B, c, D], the own stretch, summed over processes where y is `partial`."""
    scattered: Tensor = _ScatterTokens.apply(y, group, partial)  # type: ignore[no-untyped-call]
    return scattered


def sum_gradients(x: Tensor, group: ProcessGroup) -> Tensor:
    """`x` itself, whose gradient is the sum over processes: what follows is computed by each of them in part."""
    same: Tensor = _SumGradients.apply(x, group)  # type: ignore[no-untyped-call]
    return same


def sum_over(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of x over processes; each process's result counts, so gradients are summed too."""
    total: Tensor = _SumOver.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def sum_shares(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of x over processes, of which each goes on to compute the same: every one has the whole gradient."""
    total: Tensor = _SumShares.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def gather_rows(rows: Tensor, group: ProcessGroup) -> Tensor:
    """[C / n, ...] -> [C, ...]; gradients are whole on every process, so each takes its own rows of them."""
    table: Tensor = _GatherRows.apply(rows, group)  # type: ignore[no-untyped-call]
    return table


def _stretch(length: int, count: int) -> int:
    """c = ceil(T / n)."""
    return -(-length // count)


def _fill(y: Tensor, count: int) -> Tensor:
    """[B, T, D] with zeros at the end, so that it divides into `count` stretches."""
    missing = _stretch(y.shape[1], count) * count - y.shape[1]
    return F.pad(y, (0, 0, 0, missing)) if missing else y


def _all_gather_tokens(x: Tensor, length: int, group: ProcessGroup) -> Tensor:
    n = group.size()
    B, c, D = x.shape
    found = x.new_empty(n * B, c, D)
    dist.all_gather_single(found, x.contiguous(), group=group)
    return found.view(n, B, c, D).transpose(0, 1).reshape(B, n * c, D)[:, :length].contiguous()


def _own_tokens(y: Tensor, group: ProcessGroup, partial: bool) -> Tensor:
    n = group.size()
    B, T, D = y.shape
    c = _stretch(T, n)
    filled = _fill(y, n)
    if not partial:
        return filled[:, group.rank() * c : (group.rank() + 1) * c].contiguous()
    stretches = filled.view(B, n, c, D).transpose(0, 1).reshape(n * B, c, D)
    own = y.new_empty(B, c, D)
    dist.reduce_scatter_single(own, stretches, group=group)
    return own


class _GatherTokens(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int, group: ProcessGroup, partial: bool) -> Tensor:
        ctx.group, ctx.partial = group, partial
        return _all_gather_tokens(x, length, group)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        return _own_tokens(slopes[0], ctx.group, ctx.partial), None, None, None


class _ScatterTokens(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup, partial: bool) -> Tensor:
        ctx.group, ctx.length = group, y.shape[1]
        return _own_tokens(y, group, partial)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return _all_gather_tokens(slopes[0], ctx.length, ctx.group), None, None


class _SumGradients(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return _reduced(slopes[0], ctx.group), None


class _SumOver(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduced(x, group)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return _reduced(slopes[0], ctx.group), None


class _SumShares(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return _reduced(x, group)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0], None


class _GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group, ctx.count = group, len(rows)
        table = rows.new_empty(group.size() * len(rows), *rows.shape[1:])
        dist.all_gather_single(table, rows.contiguous(), group=group)
        return table

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        first = ctx.group.rank() * ctx.count
        return slopes[0][first : first + ctx.count].contiguous(), None


def _reduced(x: Tensor, group: ProcessGroup) -> Tensor:
    total = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
