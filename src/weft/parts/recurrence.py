"""Recurrence: h_t = f(x_t, h_(t-1)); looks indefinitely far back, but step by step.

Steps first (the lectures' equations), then the mixer for blocks, which runs torch's kernels over whole sequences.
Shapes: x [B, D_in], h [B, D_h]; W [gates x D_h, D_in], U [gates x D_h, D_h].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.shapes import expect_width
from weft.parts.attention_context import AttentionContext
from weft.parts.linear import ResidualLinear
from weft.parts.recurrent_nets import GRU, LSTM, RNN
from weft.parts.segments import Segments, continues, last_document
from weft.parts.state import TensorState
from weft.parts.token_positions import TokenPositions

Cell = Literal["rnn", "gru", "lstm"]
Hidden = tuple[Tensor, ...]


def rnn_step(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """h' = tanh(W x + b + U h + c) (Elman 1990)."""
    return rnn_update(F.linear(x, W, b), h, U, c)


def gru_step(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """r, z = sigmoid(W x + U h); n = tanh(W_n x + r * (U_n h)); h' = (1 - z) * n + z * h (Cho et al. 2014)."""
    return gru_update(F.linear(x, W, b), h, U, c)


def lstm_step(x: Tensor, h: Tensor, m: Tensor, W: Tensor, U: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """i, f, o = sigmoid(.), g = tanh(.); memory m' = f * m + i * g; h' = o * tanh(m') (Hochreiter 1997)."""
    return lstm_update(F.linear(x, W, b), h, m, U, c)


def rnn_update(mapped: Tensor, h: Tensor, U: Tensor, c: Tensor) -> Tensor:
    """`rnn_step` from W x + b, which needs no hidden state and may be computed for all steps at once."""
    return torch.tanh(mapped + F.linear(h, U, c))


def gru_update(mapped: Tensor, h: Tensor, U: Tensor, c: Tensor) -> Tensor:
    """`gru_step` from W x + b; (1 - z) * n + z * h = n + z * (h - n)."""
    both, W_n = mapped.tensor_split((2 * h.shape[-1],), dim=-1)
    other, U_n = F.linear(h, U, c).tensor_split((2 * h.shape[-1],), dim=-1)
    r, z = torch.sigmoid(both + other).chunk(2, dim=-1)
    return torch.lerp(torch.tanh(torch.addcmul(W_n, r, U_n)), h, z)


def lstm_update(mapped: Tensor, h: Tensor, m: Tensor, U: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """`lstm_step` from W x + b."""
    i, f, g, o = (mapped + F.linear(h, U, c)).chunk(4, dim=-1)
    m = torch.addcmul(torch.sigmoid(f) * m, torch.sigmoid(i), torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(m), m


class Recurrent(nn.Module):
    """A recurrent net over sequences that starts from, and gives back, its hidden state; one or two directions.

    Padding is never stepped over and documents start afresh: hidden states see real tokens of their own text only.
    """

    def __init__(self, cell: Cell, input_width: int, hidden: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.cell, self.hidden, self.bidirectional = cell, hidden, bidirectional
        kinds: dict[str, Callable[..., nn.RNNBase]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
        self.net = kinds[cell](input_width, hidden, batch_first=True, bidirectional=bidirectional)

    @property
    def width(self) -> int:
        """Of the outputs: the hidden width, twice with two directions."""
        return self.hidden * (2 if self.bidirectional else 1)

    def forward(
        self, x: Tensor, token_positions: TokenPositions, start: Hidden | None = None, document: Tensor | None = None
    ) -> tuple[Tensor, Hidden]:
        """[B, T, D] -> ([B, T, H], final hidden, each [B, directions x H]); `start` has the final's shapes."""
        B = x.shape[0]
        if start is None:
            zero = x.new_zeros(B, self.width)
            start = (zero, zero) if self.cell == "lstm" else (zero,)
        if token_positions.plain or (token_positions.pads == "none" and token_positions.documents is None):
            out, end = self.net(x, self._pack(start))
            return out, self._unpack(end)
        segments = Segments.of(token_positions, B)
        if len(segments.lengths) == 0:
            return x.new_zeros(B, x.shape[1], self.width), start
        going_on = continues(token_positions, segments, document)[:, None]
        begin = tuple(torch.where(going_on, s[segments.rows], 0) for s in start)
        packed, place = segments.pack(x)
        out, end = self.net(packed, self._pack(begin))
        final = tuple(
            old.index_put((segments.rows[segments.last],), new[segments.last])
            for old, new in zip(start, self._unpack(end), strict=True)
        )
        y = x.new_zeros(B * x.shape[1], self.width).index_copy(0, place, out.data)
        return y.view(B, x.shape[1], self.width), final

    def step(self, x: Tensor, hidden: Hidden) -> Hidden:
        """One step of a one-directional net: [B, D], hidden -> hidden, by the lectures' equations."""
        return self.update(F.linear(x, self.input_weight, self.input_bias), hidden)

    def update(self, mapped: Tensor, hidden: Hidden) -> Hidden:
        """`step` from W x + b [B, gates x H], which may be computed for all steps at once."""
        U, c = cast(Tensor, self.net.weight_hh_l0), cast(Tensor, self.net.bias_hh_l0)
        if self.cell == "lstm":
            return lstm_update(mapped, hidden[0], hidden[1], U, c)
        return ((rnn_update if self.cell == "rnn" else gru_update)(mapped, hidden[0], U, c),)

    @property
    def input_weight(self) -> Tensor:
        """W [gates x H, D] of a one-directional net."""
        return cast(Tensor, self.net.weight_ih_l0)

    @property
    def input_bias(self) -> Tensor:
        """b [gates x H] of a one-directional net."""
        return cast(Tensor, self.net.bias_ih_l0)

    def _pack(self, hidden: Hidden) -> Tensor | Hidden:
        """[B, ways x H] -> torch's [ways, B, H]."""
        ways = 2 if self.bidirectional else 1
        packed = tuple(h.view(h.shape[0], ways, self.hidden).transpose(0, 1).contiguous() for h in hidden)
        return packed if self.cell == "lstm" else packed[0]

    def _unpack(self, hidden: Tensor | Hidden) -> Hidden:
        parts = (hidden,) if isinstance(hidden, Tensor) else hidden
        return tuple(h.transpose(0, 1).flatten(1) for h in parts)


class Recurrence(nn.Module):
    """A mixer: h_t = f(x_t, h_(t-1)), y_t = W_O h_t; causal with one direction, not with two."""

    def __init__(self, width: int, cell: Cell = "gru", hidden: int | None = None, bidirectional: bool = False) -> None:
        super().__init__()
        self.width, self.cell = width, cell
        self.recurrent = Recurrent(cell, width, hidden or width, bidirectional)
        self.output = ResidualLinear(self.recurrent.width, width)

    def forward(self, x: Tensor, context: AttentionContext | None = None, state: TensorState | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        expect_width(x, self.width, "recurrence")
        token_positions = (context or AttentionContext.of(x)).queries
        ways = 2 if self.cell == "lstm" else 1
        kept = state.tensors if state is not None else None
        start, document = (None, None) if kept is None else (kept[:ways], kept[ways] if len(kept) > ways else None)
        out, end = self.recurrent(x, token_positions, start, document)
        if state is not None:
            state.keep(*end, *last_document(token_positions, x.shape[0], document))
        return self.output(out)

    def make_state(self) -> TensorState:
        """The hidden vector, zero at first."""
        return TensorState()
