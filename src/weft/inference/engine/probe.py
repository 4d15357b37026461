"""Probe: whether this machine's products of matrices give a row the same bits at any place, beside any others.

BLAS libraries choose their way by the shape of a product and by the number of threads; most give each row the same sum
from some number of rows on, and none promises it. So it is tried, with matrices of the model's own shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
import torch.nn.functional as F

from weft.foundation.threads import number_of_threads
from weft.inference.fast.native.packed import LEAST_ROWS

ROWS = (LEAST_ROWS, 17, 31, 64, 129)  # of the products that are compared
PLACES = (0, 7)  # where their first row stands among all


def rows_are_alike(shapes: Iterable[tuple[int, int]], threads: Iterable[int] | None = None) -> bool:
    """Whether x W^T of matrices W of these shapes has the same rows in any company, with these numbers of threads.

    The threads that torch uses now and one are tried if none are given.
    """
    counts = tuple(sorted({1, torch.get_num_threads()} if threads is None else set(threads)))
    return all(_shape_is_alike(rows, columns, counts) for rows, columns in shapes)


@functools.cache
def _shape_is_alike(rows: int, columns: int, threads: tuple[int, ...]) -> bool:
    made = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=made)
    x = torch.randn(max(ROWS) + max(PLACES), columns, generator=made)
    whole: torch.Tensor | None = None
    for count in threads:
        with number_of_threads(count), torch.inference_mode():
            for place in PLACES:
                for number in ROWS:
                    found = F.linear(x[place : place + number], weight)
                    whole = F.linear(x, weight) if whole is None else whole
                    if not torch.equal(found, whole[place : place + number]):
                        return False
    return True
