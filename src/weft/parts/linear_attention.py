"""Linear attention: leave out the softmax, and the product associates: (Q K^T) V = Q (K^T V), O(N) instead of O(N^2).

    y_i = sum_j phi(q_i)^T phi(k_j) v_j [ / sum_j phi(q_i)^T phi(k_j) ]        (Katharopoulos et al. 2020)

phi is the identity (then nothing is normalized) or a positive feature map. The causal form has three faces, all
equal: parallel (masked Q K^T), chunked, and recurrent with the running matrix S_t = S_(t-1) + phi(k_t) v_t^T.
Shapes: q, k [B, H, T, K], v [B, H, T, V] -> y [B, H, T, V]; S [B, H, K, V], z [B, H, K].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.foundation.shapes import expect_width
from weft.parts import observer
from weft.parts.attention_context import AttentionContext
from weft.parts.linear import Linear, ResidualLinear
from weft.parts.segments import Segments, continues, last_document
from weft.parts.state import TensorState
from weft.parts.token_positions import TokenPositions

FeatureName = Literal["identity", "elu", "relu"]
Sums = tuple[Tensor, Tensor]


def _elu_plus_one(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def _identity(x: Tensor) -> Tensor:
    return x


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"identity": _identity, "elu": _elu_plus_one, "relu": F.relu}


def divide(numerator: Tensor, total: Tensor | None) -> Tensor:
    """y = numerator / total, with 0 / 0 = 0; the numerator as it is when nothing is normalized."""
    if total is None:
        return numerator
    return numerator / torch.where(total == 0, torch.ones_like(total), total)[..., None]


def full(query: Tensor, key: Tensor, value: Tensor, normalize: bool = True) -> Tensor:
    """Everything sees everything, by association: phi(Q) (phi(K)^T V)."""
    total = (query @ key.sum(-2)[..., None]).squeeze(-1) if normalize else None
    return divide(query @ (key.transpose(-2, -1) @ value), total)


def parallel(query: Tensor, key: Tensor, value: Tensor, normalize: bool = True) -> Tensor:
    """Causal, all at once: (phi(Q) phi(K)^T masked) V, O(N^2)."""
    scores = (query @ key.transpose(-2, -1)).tril()
    return divide(scores @ value, scores.sum(-1) if normalize else None)


def chunked(
    query: Tensor, key: Tensor, value: Tensor, normalize: bool = True, sums: Sums | None = None, chunk: int = 64
) -> tuple[Tensor, Sums]:
    """Causal, in chunks: within a chunk parallel, from the chunks before by the running sums; O(N)."""
    S, z = sums or empty_sums(key, value)
    out = []
    for q, k, v in zip(*(x.split(chunk, dim=2) for x in (query, key, value)), strict=True):
        scores = (q @ k.transpose(-2, -1)).tril()
        total = scores.sum(-1) + (q @ z[..., None]).squeeze(-1) if normalize else None
        out.append(divide(scores @ v + q @ S, total))
        S = S + k.transpose(-2, -1) @ v
        z = z + k.sum(2)
    return torch.cat(out, dim=2) if out else torch.zeros_like(value), (S, z)


def recurrent(
    query: Tensor, key: Tensor, value: Tensor, normalize: bool = True, sums: Sums | None = None
) -> tuple[Tensor, Sums]:
    """Causal, step by step: S_t = S_(t-1) + k_t v_t^T, z_t = z_(t-1) + k_t, y_t = S_t^T q_t / z_t^T q_t: a fast RNN."""
    return chunked(query, key, value, normalize, sums, chunk=1)


def empty_sums(key: Tensor, value: Tensor) -> Sums:
    """S = 0 and z = 0."""
    B, H, _, K = key.shape
    return key.new_zeros(B, H, K, value.shape[-1]), key.new_zeros(B, H, K)


class LinearAttention(nn.Module):
    """Multi-head linear attention as a mixer, causal or not; see the head of this file."""

    def __init__(
        self,
        width: int,
        heads: int,
        causal: bool = True,
        feature: FeatureName = "elu",
        head_width: int | None = None,
        bias: bool = False,
        chunk: int = 64,
    ) -> None:
        super().__init__()
        if head_width is None and width % heads:
            raise ShapeError(f"width {width} does not divide into {heads} heads: choose heads that divide it")
        self.width, self.heads, self.head_width = width, heads, head_width or width // heads
        self.causal, self.chunk, self.normalize = causal, chunk, feature != "identity"
        self.feature = FEATURES[feature]
        self.qkv = Linear(width, 3 * heads * self.head_width, bias=bias)
        self.output = ResidualLinear(heads * self.head_width, width, bias=bias)

    def forward(self, x: Tensor, context: AttentionContext | None = None, state: TensorState | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        expect_width(x, self.width, "linear attention")
        if state is not None and not self.causal:
            raise ShapeError("linear attention over everything keeps no state: make it causal to decode")
        context = context or AttentionContext.of(x)
        token_positions = context.queries
        qkv = self.qkv(x)
        if token_positions.pads == "none" and token_positions.documents is None:
            kept = state.tensors if state is not None else None
            y, sums = self.mix(qkv, None if kept is None else (kept[0], kept[1]))
            if state is not None and sums is not None:
                state.keep(*sums)
        else:
            y = self._mix_segments(qkv, token_positions, state)
        y = self.output(y)
        for one in observer.active:
            y = one.on_linear_attention(self, x, context, state, y)
        return y

    def mix(self, qkv: Tensor, sums: Sums | None, lengths: Tensor | None = None) -> tuple[Tensor, Sums | None]:
        """Split heads, map by phi, gather; rows end after `lengths`."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        q, k = self.feature(q), self.feature(k)
        if lengths is not None:
            real = torch.arange(k.shape[2], device=k.device) < lengths[:, None]
            k, v = k * real[:, None, :, None], v * real[:, None, :, None]
        if self.causal:
            y, new = chunked(q, k, v, self.normalize, sums, self.chunk)
            return y.transpose(1, 2).flatten(-2), new
        return full(q, k, v, self.normalize).transpose(1, 2).flatten(-2), None

    def _mix_segments(self, qkv: Tensor, token_positions: TokenPositions, state: TensorState | None) -> Tensor:
        B = qkv.shape[0]
        segments = Segments.of(token_positions, B)
        if not len(segments.lengths):
            return qkv.new_zeros(*qkv.shape[:2], self.heads * self.head_width)
        kept = state.tensors if state is not None else None
        document = kept[2] if kept is not None and len(kept) > 2 else None
        size = (B, self.heads, self.head_width)
        before = (qkv.new_zeros(*size, self.head_width), qkv.new_zeros(size)) if kept is None else kept[:2]
        going_on = continues(token_positions, segments, document)
        begin = (
            before[0][segments.rows] * going_on[:, None, None, None],
            before[1][segments.rows] * going_on[:, None, None],
        )
        y, sums = self.mix(segments.gather(qkv), begin, segments.lengths)
        if state is not None and sums is not None:
            rows = (segments.rows[segments.last],)
            ends = (old.index_put(rows, new[segments.last]) for old, new in zip(before, sums, strict=True))
            state.keep(*ends, *last_document(token_positions, B, document))
        return segments.scatter(y)

    def make_state(self) -> TensorState:
        """The running sums, zero at first."""
        return TensorState()
