"""torch's recurrent nets, with slopes of our own for training on a CPU.

torch keeps a graph of every step there: the gradient of U adds up step by step, and the gradient of one step's part of
W x is as large as that of all steps. Here gates and states of all tokens lie in one tensor each: what a step back
multiplies with is computed for all steps at once, and the gradients of W, U and the biases are one product each.

Tokens [N, ...] are in packed order: step by step, of every step the rows that are so long, longest rows first. H hidden
width; mapped = W x + b for all tokens [N, gates x H]; U [gates x H, H].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from weft.parts.linear import linear
from weft.parts.products import multiply, slope_of_input, slope_of_weights


class Way(NamedTuple):
    """A direction over packed tokens: how many rows each step has, and each row's first and last token on this way."""

    sizes: list[int]
    begin: Tensor
    end: Tensor
    backward: bool

    def steps(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The parts of each step, in the order of this way."""
        found = list(zip(*(tensor.split(self.sizes) for tensor in tensors), strict=True))
        return found[::-1] if self.backward else found

    def kept(self) -> list[int]:
        """How many rows of each step are in the one before too, on this way."""
        sizes = self.sizes[::-1] if self.backward else self.sizes
        return [0, *map(min, sizes[1:], sizes[:-1])]


def ways_of(x: Tensor | PackedSequence, count: int) -> list[Way]:
    """The one or two directions over x [B, T, D] or over packed tokens."""
    if isinstance(x, PackedSequence):
        counts = x.batch_sizes
        rank = torch.arange(int(counts[0])) if x.unsorted_indices is None else x.unsorted_indices
        lengths = (counts[:, None] > rank).sum(0)
        last = (counts.cumsum(0) - counts)[lengths - 1] + rank
        sizes = counts.tolist()
    else:
        rows, length = x.shape[:2]
        rank = torch.arange(rows)
        last, sizes = rank + rows * (length - 1), [rows] * length
    return [Way(sizes, rank, last, False), Way(sizes, last, rank, True)][:count]


def _d_U(d: Tensor, before: Tensor, U: Tensor) -> Tensor:
    """The sum of d_t h_(t-1)^T over all tokens."""
    return slope_of_weights(d, before, torch.empty_like(U))


class _RNN(torch.autograd.Function):
    """h_t = tanh(mapped_t + U h_(t-1)); backward d_t = (1 - h_t^2) dh_t, dh_(t-1) += U^T d_t."""

    @staticmethod
    def forward(ctx: Any, mapped: Tensor, start: Tensor, U: Tensor, way: Way) -> Tensor:
        states, before = (mapped.new_empty(len(mapped), U.shape[1]) for _ in range(2))
        before[way.begin] = start
        last = states
        for (given, h, h_before), kept in zip(way.steps(mapped, states, before), way.kept(), strict=True):
            h_before[:kept] = last[:kept]
            multiply(h_before, U, h.copy_(given), add=True).tanh_()
            last = h
        ctx.save_for_backward(states, before, U)
        ctx.way = way
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        states, before, U = ctx.saved_tensors
        dh, bent, d = slope.clone(), 1 - states.square(), torch.empty_like(states)
        steps, kept = ctx.way.steps(dh, bent, d), ctx.way.kept()
        for t in reversed(range(len(steps))):
            torch.mul(*steps[t][:2], out=steps[t][2])
            if t:
                slope_of_input(steps[t][2][: kept[t]], U, steps[t - 1][0][: kept[t]], add=True)
        return d, d[ctx.way.begin] @ U, _d_U(d, before, U) if ctx.needs_input_grad[2] else None, None


class _GRU(torch.autograd.Function):
    """r, z = sigmoid(mapped + U h), n = tanh(mapped_n + r * (U_n h + c_n)), h' = n + z * (h - n).

    Backward, with a_n = U_n h + c_n: dn = (1 - z)(1 - n^2) dh', dz = (h - n) z (1 - z) dh', dr = a_n r (1 - r) dn,
    and through U and c: (dr, dz, r dn).
    """

    @staticmethod
    def forward(ctx: Any, mapped: Tensor, start: Tensor, U: Tensor, c: Tensor, way: Way) -> Tensor:
        N, H = len(mapped), U.shape[1]
        inner, (n, states, before) = torch.empty_like(mapped), (mapped.new_empty(N, H) for _ in range(3))
        before[way.begin] = start
        last = states
        parts = (*mapped.tensor_split((2 * H,), -1), inner, n, states, before)
        for (given, given_n, a, n_t, h, h_before), kept in zip(way.steps(*parts), way.kept(), strict=True):
            h_before[:kept] = last[:kept]
            multiply(h_before, U, a.copy_(c), add=True)
            a[:, : 2 * H].add_(given).sigmoid_()
            r, z, a_n = a.chunk(3, -1)
            torch.addcmul(given_n, r, a_n, out=n_t).tanh_()
            last = torch.lerp(n_t, h_before, z, out=h)
        ctx.save_for_backward(inner, n, before, U)
        ctx.way = way
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        inner, n, before, U = ctx.saved_tensors
        N, H = n.shape
        r, z, a_n = inner.chunk(3, -1)
        factors = torch.stack((a_n * r * (1 - r), (before - n) * z * (1 - z), r, (1 - z) * (1 - n.square())), 1)
        d, dh = torch.empty_like(factors), slope.clone()  # d: dr, dz, r dn, dn
        steps, kept = ctx.way.steps(dh, z, factors, d, d.view(N, 4 * H)[:, : 3 * H]), ctx.way.kept()
        for t in reversed(range(len(steps))):
            dh_t, z_t, factor, d_t, through = steps[t]
            torch.mul(dh_t[:, None], factor[:, 1::2], out=d_t[:, 1::2])
            torch.mul(d_t[:, 3:], factor[:, 0::2], out=d_t[:, 0::2])
            if t:
                k = kept[t]
                steps[t - 1][0][:k].addmm_(through[:k], U).addcmul_(dh_t[:k], z_t[:k])
        through, begin = d.view(N, 4 * H)[:, : 3 * H], ctx.way.begin
        d_start = torch.addmm(dh[begin] * z[begin], through[begin], U)
        d_U = _d_U(through, before, U) if ctx.needs_input_grad[2] else None
        d_c = through.sum(0) if ctx.needs_input_grad[3] else None
        return torch.cat((d[:, :2], d[:, 3:]), 1).view(N, 3 * H), d_start, d_U, d_c, None


class _LSTM(torch.autograd.Function):
    """i, f, o = sigmoid(mapped + U h), g = tanh(.), m' = f * m + i * g, h' = o * tanh(m').

    Backward: do = tanh(m') o (1 - o) dh', dm' += o (1 - tanh^2 m') dh', di = g i (1 - i) dm', df = m f (1 - f) dm',
    dg = i (1 - g^2) dm', dm = f dm'.
    """

    @staticmethod
    def forward(
        ctx: Any, mapped: Tensor, start: Tensor, start_memory: Tensor, U: Tensor, way: Way
    ) -> tuple[Tensor, Tensor]:
        N, H = len(mapped), U.shape[1]
        gates, (states, before, m_after, m_before) = (
            torch.empty_like(mapped),
            (mapped.new_empty(N, H) for _ in range(4)),
        )
        tanh = mapped.new_empty(N, H)
        before[way.begin], m_before[way.begin] = start, start_memory
        last, last_m = states, m_after
        parts = (mapped, gates, states, before, m_after, m_before, tanh)
        for (given, a, h, h_before, m, m_old, tanh_m), kept in zip(way.steps(*parts), way.kept(), strict=True):
            h_before[:kept], m_old[:kept] = last[:kept], last_m[:kept]
            multiply(h_before, U, a.copy_(given), add=True)
            i, f, g, o = a.chunk(4, -1)
            a[:, : 2 * H].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            last_m = torch.mul(f, m_old, out=m).addcmul_(i, g)
            last = torch.mul(o, torch.tanh(m, out=tanh_m), out=h)
        ctx.save_for_backward(gates, before, m_before, tanh, U)
        ctx.way = way
        return states, m_after[way.end]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, slope_memory: Tensor) -> tuple[Tensor | None, ...]:
        gates, before, m_before, tanh, U = ctx.saved_tensors
        N, H = before.shape
        i, f, g, o = gates.chunk(4, -1)
        factors = torch.stack((g * i * (1 - i), m_before * f * (1 - f), i * (1 - g.square())), 1)
        to_o, to_m = tanh * o * (1 - o), o * (1 - tanh.square())
        d, dh = torch.empty_like(gates), slope.clone()
        dm = torch.zeros_like(dh).index_copy_(0, ctx.way.end, slope_memory)
        steps = ctx.way.steps(dh, dm, f, to_o, to_m, factors, d, d.view(N, 4, H))
        kept = ctx.way.kept()
        for t in reversed(range(len(steps))):
            dh_t, dm_t, f_t, to_o_t, to_m_t, factor, d_t, d_gates = steps[t]
            torch.mul(dh_t, to_o_t, out=d_gates[:, 3])
            dm_t.addcmul_(dh_t, to_m_t)
            torch.mul(dm_t[:, None], factor, out=d_gates[:, :3])
            if t:
                k, (dh_before, dm_before, *_) = kept[t], steps[t - 1]
                slope_of_input(d_t[:k], U, dh_before[:k], add=True)
                dm_before[:k].addcmul_(dm_t[:k], f_t[:k])
        begin = ctx.way.begin
        d_U = _d_U(d, before, U) if ctx.needs_input_grad[3] else None
        return d, d[begin] @ U, dm[begin] * f[begin], d_U, None


class _OwnSlopes(nn.RNNBase):
    """One layer of torch's net, called as it is; where it learns on a CPU, by the functions above."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """[B, T, D] or packed tokens, [ways, B, H] -> outputs in the input's form, final hidden [ways, B, H]."""
        data = input.data if isinstance(input, PackedSequence) else input
        if hx is None or not data.numel() or not self._learns_here(data):
            return super().forward(input, hx)
        if not isinstance(input, PackedSequence):
            data = data.transpose(0, 1).flatten(0, 1)
        starts = hx if isinstance(hx, tuple) else (hx,)
        states, ends = [], []
        for number, way in enumerate(ways_of(input, 2 if self.bidirectional else 1)):
            out, *end = self._run(data, [start[number] for start in starts], way)
            states.append(out)
            ends.append((out[way.end], *end))
        y = torch.cat(states, -1) if len(states) > 1 else states[0]
        final = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        after = final if isinstance(hx, tuple) else final[0]
        if isinstance(input, PackedSequence):
            return PackedSequence(y, *input[1:]), after
        return y.view(input.shape[1], input.shape[0], -1).transpose(0, 1), after

    def _learns_here(self, x: Tensor) -> bool:
        weights = list(self.parameters())
        return (
            torch.is_grad_enabled()
            and (x.requires_grad or any(weight.requires_grad for weight in weights))
            and x.device.type == "cpu"
            and x.dtype in (torch.float32, torch.float64)
            and all(weight.dtype == x.dtype for weight in weights)
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    def _run(self, x: Tensor, start: list[Tensor], way: Way) -> tuple[Tensor, ...]:
        """One way: tokens [N, D], start [B, H] each -> states [N, H], and what else the final hidden has."""
        side = "_reverse" if way.backward else ""
        W, U, b, c = (getattr(self, f"{name}_l0{side}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        if self.mode == "GRU":
            return (_GRU.apply(linear(x, W, b), *start, U, c, way),)  # type: ignore[no-untyped-call]
        mapped = linear(x, W, b + c)
        if self.mode == "LSTM":
            states, memory = _LSTM.apply(mapped, *start, U, way)  # type: ignore[no-untyped-call]
            return states, memory
        return (_RNN.apply(mapped, *start, U, way),)  # type: ignore[no-untyped-call]


class RNN(_OwnSlopes, nn.RNN):
    """nn.RNN with tanh (Elman 1990)."""


class GRU(_OwnSlopes, nn.GRU):
    """nn.GRU (Cho et al. 2014)."""


class LSTM(_OwnSlopes, nn.LSTM):
    """nn.LSTM (Hochreiter 1997)."""
