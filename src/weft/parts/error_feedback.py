"""Error feedback: a matrix rounded to blocks column by column; later columns make up for the errors of earlier ones.

For inputs x with second moments M = E[x x^T] a rounded W' costs E |(W - W') x|^2 = tr((W - W') M (W - W')^T). With
U^T U = M^{-1}, U upper triangular, column i is rounded and the others are moved to where that error costs least:

    e_i = (w_i - w'_i) / U_ii,    w_j <- w_j - U_ij e_i  for j > i

(GPTQ: Frantar et al. 2023). Blocks of columns are taken from the largest moments to the smallest, and the columns of a
block too, so that what matters most is rounded while there is most left to make up with. d and m of a block are chosen
when its turn comes, column i weighing 1 / U_ii^2: what its error costs when later columns have made up for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.parts.block_formats import block_format, nearest_q4_1, pack_q4_1, scales_q4_1

DAMPING = 0.01  # of the mean moment, added to all: moments of few inputs are not believed fully


def quantize_with_feedback(weight: Tensor, moments: Tensor) -> Tensor:
    """float [rows, D] and M [D, D] -> blocks of Q4_1, uint8 [rows, row bytes]."""
    (rows, columns), block = weight.shape, block_format("Q4_1").columns
    padded = -(-columns // block) * block
    wide = torch.nn.functional.pad(weight.detach().float().cpu(), (0, padded - columns))
    moments = torch.nn.functional.pad(moments.detach().double().cpu(), 2 * (0, padded - columns))
    order = _descending(moments.diagonal(), block)
    U = _inverse_factor(moments[order][:, order])
    left = wide.t()[order].contiguous()  # [D, rows]: a column of W is a row here
    found = torch.empty(padded // block, rows, block_format("Q4_1").bytes, dtype=torch.uint8)
    for first in range(0, padded, block):
        here, after = slice(first, first + block), slice(first + block, padded)
        own = U[here, here]
        d, m = scales_q4_1(left[here].t().contiguous(), own.diagonal().square().reciprocal())
        quants, errors = _round_columns(left[here], own, d[:, 0].float(), m[:, 0].float())
        left[after].addmm_(U[here, after].t(), errors, alpha=-1)
        inside = order[here] % block
        found[order[first] // block] = pack_q4_1(d, m, torch.empty_like(quants).index_copy_(0, inside, quants).t())
    return found.transpose(0, 1).reshape(rows, -1)


def _round_columns(left: Tensor, U: Tensor, d: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of one block, [32, rows]: whole numbers q and errors e; `left` is changed."""
    quants, errors = torch.empty_like(left), torch.empty_like(left)
    for i, w in enumerate(left):
        quants[i] = nearest_q4_1(w, d, m)
        errors[i] = (w - torch.addcmul(m, quants[i], d)) / U[i, i]
        left[i + 1 :].addr_(U[i, i + 1 :], errors[i], alpha=-1)
    return quants, errors


def _descending(sizes: Tensor, block: int) -> Tensor:
    """Columns ordered by size, those of a block together: blocks by their sums, then columns inside."""
    inside = sizes.view(-1, block).sort(dim=1, descending=True, stable=True).indices
    blocks = sizes.view(-1, block).sum(1).sort(dim=0, descending=True, stable=True).indices
    return (blocks[:, None] * block + inside[blocks]).flatten()


def _inverse_factor(moments: Tensor) -> Tensor:
    """U, upper triangular, with U^T U = (M + damping)^{-1}; float32.

    M = R R^T with R upper triangular is a Cholesky factor of M read backwards, and U = R^{-1}.
    """
    mean, eye = moments.diagonal().mean(), torch.eye(len(moments), dtype=moments.dtype)
    damped = moments + eye * (DAMPING * mean if mean > 0 else 1.0)
    R = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    return torch.linalg.solve_triangular(R, eye, upper=True).float()
