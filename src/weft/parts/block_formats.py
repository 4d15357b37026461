"""Block formats: matrices of few bits, in the blocks that GGUF files store (llama.cpp's types of the same names).

A row is cut into blocks of columns; each block holds whole numbers q and what they are multiplied with:

    Q8_0   32 columns,  34 bytes:  w = d q,               q in -128 .. 127
    Q4_0   32 columns,  18 bytes:  w = d (q - 8),         q in 0 .. 15
    Q4_1   32 columns,  20 bytes:  w = d q + m,           q in 0 .. 15
    Q4_K  256 columns, 144 bytes:  w = (d s) q - (e n),   q in 0 .. 15; s and n in 0 .. 63, one of each per 32 columns
    Q6_K  256 columns, 210 bytes:  w = (d s) (q - 32),    q in 0 .. 63; s in -128 .. 127, one per 16 columns

d, m and e are float16, low byte first. A row whose length is no multiple of a block is filled up with zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.foundation.errors import WeftError


class BlockFormat(NamedTuple):
    """How many columns a block has, and how many bytes it takes."""

    columns: int
    bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of so many columns."""
        return -(-columns // self.columns) * self.bytes


BLOCK_FORMATS = {
    "Q8_0": BlockFormat(32, 34),
    "Q4_0": BlockFormat(32, 18),
    "Q4_1": BlockFormat(32, 20),
    "Q4_K": BlockFormat(256, 144),
    "Q6_K": BlockFormat(256, 210),
}
AT_ONCE = 1 << 16  # weights that are rounded at once: as many as a cache holds
STEPS_TRIED = (13.4, 13.9, 14.4, 14.9, 15.5, 16.2)  # over the width of a block


def block_format(kind: str) -> BlockFormat:
    """The format of this name."""
    if kind not in BLOCK_FORMATS:
        raise WeftError(f"there are no blocks of kind {kind!r:.20}: choose {', '.join(BLOCK_FORMATS)}")
    return BLOCK_FORMATS[kind]


def dequantize_blocks(kind: str, blocks: Tensor, columns: int) -> Tensor:
    """Blocks, uint8 [..., row bytes] -> float32 [..., columns], by the formulas above."""
    form = block_format(kind)
    each = blocks.reshape(-1, form.bytes)
    numbers = _READERS[kind](each)
    return numbers.reshape(*blocks.shape[:-1], -1)[..., :columns]


def quantize_blocks(kind: str, weight: Tensor) -> Tensor:
    """float [rows, columns] -> uint8 [rows, row bytes], for Q8_0 and Q4_1; each block with the smallest squared error
    that was found."""
    form, rows = block_format(kind), weight.shape[0]
    if kind not in _WRITERS:
        raise WeftError(f"weights are not rounded to {kind} here: choose {', '.join(_WRITERS)}")
    padded = -(-weight.shape[1] // form.columns) * form.columns
    found = torch.empty(rows, form.row_bytes(weight.shape[1]), dtype=torch.uint8)
    some = max(1, AT_ONCE // max(1, padded))
    for first in range(0, rows, some):
        part = weight.detach()[first : first + some].float().cpu()
        part = torch.nn.functional.pad(part, (0, padded - part.shape[1]))
        found[first : first + some] = _WRITERS[kind](part.reshape(-1, form.columns)).reshape(part.shape[0], -1)
    return found


def _halves(each: Tensor, first: int) -> Tensor:
    """The float16 at this byte of each block, [N, 1]."""
    return each[:, first : first + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Bytes [N, n] -> [N, 2 n]: all low halves, then all high halves."""
    return torch.cat((packed & 15, packed >> 4), 1)


def _read_q8_0(each: Tensor) -> Tensor:
    return _halves(each, 0) * each[:, 2:].contiguous().view(torch.int8)


def _read_q4_0(each: Tensor) -> Tensor:
    return _halves(each, 0) * (_nibbles(each[:, 2:]).to(torch.int8) - 8)


def _read_q4_1(each: Tensor) -> Tensor:
    return _halves(each, 0) * _nibbles(each[:, 4:]) + _halves(each, 2)


def _read_q4_k(each: Tensor) -> Tensor:
    packed = each[:, 4:16]  # s and n of the first four in six bits of a byte each; those of the others in what is left
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6) << 4), 1)
    mins = torch.cat((middle & 63, (high >> 4) | (middle >> 6) << 4), 1)
    quants = each[:, 16:].reshape(-1, 4, 32)
    both = torch.stack((quants & 15, quants >> 4), 2).reshape(-1, 8, 32)
    d, least = _halves(each, 0) * scales, _halves(each, 2) * mins
    return d[:, :, None] * both - least[:, :, None]


def _read_q6_k(each: Tensor) -> Tensor:
    low, high = each[:, :128].reshape(-1, 2, 1, 64), each[:, 128:192].reshape(-1, 2, 1, 32)
    low = torch.cat((low & 15, low >> 4), 2).reshape(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=each.device)[:, None]
    quants = (low | (high >> shifts & 3) << 4).to(torch.int8) - 32
    scales = _halves(each, 208) * each[:, 192:208].contiguous().view(torch.int8)
    return scales[:, :, None] * quants.reshape(-1, 16, 16)


def _write_q8_0(x: Tensor) -> Tensor:
    """d = max |x| / 127."""
    d = (x.abs().amax(1, keepdim=True) / 127).half()
    one = torch.where(d > 0, 1 / d.float(), 0.0)
    q = (x * one).round().clamp(-127, 127).to(torch.int8)
    return torch.cat((d.view(torch.uint8), q.view(torch.uint8)), 1)


def _write_q4_1(x: Tensor) -> Tensor:
    d, m = scales_q4_1(x)
    return pack_q4_1(d, m, nearest_q4_1(x, d.float(), m.float()))


def scales_q4_1(x: Tensor, importance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """d and m of blocks [N, 32], float16 [N, 1]; for several step widths: q by rounding, then d and m by least squares.

    With q given, sum_i s_i (x_i - d q_i - m)^2 is smallest for d = cov(q, x) / var(q) and m = mean(x) - d mean(q),
    where columns weigh as their `importance` s [32] says, equally without one.
    """
    share = x.new_full((x.shape[1],), 1 / x.shape[1]) if importance is None else importance / importance.sum()
    least, most, mean_x = x.amin(1, keepdim=True), x.amax(1, keepdim=True), (x @ share)[:, None]
    width, middle, centered = (most - least).clamp(min=1e-30), (most + least) / 2, (x - mean_x) * share
    best_d, best_m, best = width / 15, least, torch.full_like(least, -torch.inf)
    for steps in STEPS_TRIED:
        q = torch.addcmul(x.new_full((), 7.5), x - middle, steps / width).round_().clamp_(0, 15)
        q_x, mean_q = (q * centered).sum(1, keepdim=True), (q @ share)[:, None]
        spread = ((q * q) @ share)[:, None].sub_(mean_q * mean_q).clamp_(min=1e-30)
        gain = q_x * q_x / spread  # how much smaller the squared error is than that of the mean alone
        d = q_x / spread
        better = gain > best
        best_d, best_m = torch.where(better, d, best_d), torch.where(better, mean_x - d * mean_q, best_m)
        best = torch.where(better, gain, best)
    return best_d.half(), best_m.half()


def nearest_q4_1(x: Tensor, d: Tensor, m: Tensor) -> Tensor:
    """q for which d q + m is nearest to x, as floats."""
    one = torch.where(d == 0, 0.0, 1 / d)
    return ((x - m) * one).round().clamp(0, 15)


def pack_q4_1(d: Tensor, m: Tensor, q: Tensor) -> Tensor:
    """d and m, float16 [N, 1], and q [N, 32] -> the bytes of N blocks."""
    q = q.to(torch.uint8)
    return torch.cat((d.view(torch.uint8), m.view(torch.uint8), q[:, :16] | q[:, 16:] << 4), 1)


_READERS = {"Q8_0": _read_q8_0, "Q4_0": _read_q4_0, "Q4_1": _read_q4_1, "Q4_K": _read_q4_k, "Q6_K": _read_q6_k}
_WRITERS = {"Q8_0": _write_q8_0, "Q4_1": _write_q4_1}
