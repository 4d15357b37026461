"""Attention: soft look-up of values by comparing queries with keys.

    Z = softmax(Q K^T / sqrt(D_K)) V,   Q = X W_Q, K = X W_K, V = X W_V          (Vaswani et al. 2017)

In named steps: project -> split heads -> position -> score -> mask -> weigh -> gather -> merge. A variant replaces a
step. Shapes: x [B, T, D]; queries [B, H, T, K]; keys [B, G, S, K] and values [B, G, S, V] with G <= H key heads.
"""

from __future__ import annotations

from typing import get_args

from torch import Tensor, nn

from weft.foundation.errors import ShapeError, WeftError
from weft.foundation.shapes import expect_width
from weft.parts import observer
from weft.parts.attention_context import AttentionContext
from weft.parts.kernels import Backend, KernelChoice, attention_weights, blocked, choose_kernel, explicit, fused
from weft.parts.linear import Linear, ResidualLinear
from weft.parts.masks import Mask, visible_pairs
from weft.parts.norms import Norm
from weft.parts.relative import Rotary
from weft.parts.scores import ScaledDot, Score, scaled_dot, weigh
from weft.parts.state import KeyValueState, TensorState


def parameter_free_attention(x: Tensor, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """(Y, W): w'_ij = x_i^T x_j, W = softmax(w'), y_i = sum_j w_ij x_j; nothing to learn. x [B, T, D].

    W is row-stochastic, so each y_i lies in the convex hull of the inputs.
    """
    context = AttentionContext.of(x, mask)
    visible = None if context.form == "everything" else visible_pairs(context.mask, context.queries, context.keys)
    weights = weigh(x @ x.transpose(-2, -1), visible)
    return weights.to(x.dtype) @ x, weights


def cross_attention(query: Tensor, data: Tensor, W_K: Tensor, W_V: Tensor) -> tuple[Tensor, Tensor]:
    """(Y, A) of queries Q [..., N_Q, D_Q], used as they are, and data X [..., N_X, D_X]:

        K = X W_K [N_X, D_Q],  V = X W_V [N_X, D_V],  E = Q K^T / sqrt(D_Q),  A = softmax(E),  Y = A V [N_Q, D_V]

    W_K is [D_X, D_Q] and W_V [D_X, D_V]: the queries alone say how wide keys are.
    """
    D_Q, D_X = query.shape[-1], data.shape[-1]
    if W_K.shape != (D_X, D_Q) or W_V.dim() != 2 or W_V.shape[0] != D_X:
        raise ShapeError(
            f"queries of width {D_Q} and data of width {D_X} need W_K [{D_X}, {D_Q}] and W_V [{D_X}, D_V], "
            f"but these are {list(W_K.shape)} and {list(W_V.shape)}: transpose or resize them"
        )
    weights = weigh(scaled_dot(query, data @ W_K))
    return weights.to(data.dtype) @ (data @ W_V), weights


class _Attention(nn.Module):
    """The steps that all kinds of attention share: score, mask, weigh, gather, merge."""

    heads: int
    key_heads: int
    head_width: int
    value_width: int
    output: ResidualLinear

    def __init__(self, score: Score | None, query_norm: Norm | None, key_norm: Norm | None, dropout: float) -> None:
        super().__init__()
        self.score = score or ScaledDot()
        self.query_norm, self.key_norm = query_norm, key_norm
        self.dropout = dropout
        self.backend: Backend = "auto"

    def split(self, x: Tensor, heads: int) -> Tensor:
        """[B, T, heads x size] -> [B, heads, T, size], a view."""
        return x.view(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)

    def gather(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
        """Score, mask, weigh and gather: Y [B, H, T, V], by the kernel that fits."""
        if not observer.active:
            return self._gather(query, key, value, context)
        with observer.during_attention(self):
            y = self._gather(query, key, value, context)
        for one in observer.active:
            y = one.on_attention(self, query, key, value, context, y)
        return y

    def _gather(self, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        kernel = self.kernel(context, query.shape[0]).kernel
        if kernel == "explicit":
            return explicit(query, key, value, context, self.score, dropout)[0]
        run = blocked if kernel == "blocked" else fused
        return run(query, key, value, context, self.score, dropout)

    def weights(self, query: Tensor, key: Tensor, context: AttentionContext) -> Tensor:
        """A [B, H, T, S] from the same queries and keys, for looking at."""
        return attention_weights(query, key, context, self.score)

    def kernel(self, context: AttentionContext, batch: int = 1) -> KernelChoice:
        """Which kernel runs for this context."""
        dropout = self.dropout if self.training else 0.0
        return choose_kernel(context, self.score, self.backend, dropout, batch * self.heads)

    def note(self, context: AttentionContext, batch: int = 1) -> str:
        """Which kernel runs for this context and why, in words."""
        found = self.kernel(context, batch)
        return f"{found.kernel}: {found.reason}"

    def merge(self, y: Tensor) -> Tensor:
        """Concatenate heads and project: [B, H, T, V] -> [B, T, D]."""
        return self.output(y.transpose(1, 2).flatten(-2))


class SelfAttention(_Attention):
    """Multi-head self-attention with one fused product for queries, keys and values.

    head_h = softmax(Q_h K_h^T / sqrt(D_K)) V_h, Y = [head_1; ...; head_H] W_O. `key_heads` < `heads` shares keys and
    values between heads (grouped; 1 = multi-query). `head_width` is D_K (D / H if not given), `value_width` D_V.
    `rotary` turns queries and keys in place of what turns those of all layers.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        key_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        score: Score | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        dropout: float = 0.0,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__(score, query_norm, key_norm, dropout)
        self.rotary = rotary
        self.width, self.heads, self.key_heads, self.head_width, self.value_width = _sizes(
            width, heads, key_heads, head_width, value_width
        )
        self.sections = [heads * self.head_width, self.key_heads * self.head_width, self.key_heads * self.value_width]
        self.qkv = Linear(width, sum(self.sections), bias=bias)
        self.output = ResidualLinear(heads * self.value_width, width, bias if output_bias is None else output_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """X W_Q, X W_K, X W_V by one product, split into heads."""
        expect_width(x, self.width, "attention")
        query, key, value = self.qkv(x).split_with_sizes(self.sections, dim=-1)
        return self.split(query, self.heads), self.split(key, self.key_heads), self.split(value, self.key_heads)

    def position(self, query: Tensor, key: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Norm queries and keys where asked for, then rotate them by their positions."""
        query = query if self.query_norm is None else self.query_norm(query)
        key = key if self.key_norm is None else self.key_norm(key)
        return self.rotate(query, context), self.rotate(key, context)

    def rotate(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Queries or keys [B, H, T, K] turned by their positions: by this layer's own rotary ones if it has them."""
        return context.rotate(x, self.rotary)

    def forward(self, x: Tensor, context: AttentionContext | None = None, state: KeyValueState | None = None) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        context = context or AttentionContext.of(x)
        query, key, value = self.project(x)
        query, key = self.position(query, key, context)
        if state is not None:
            if context.cache_write is None:
                raise WeftError(
                    "a state needs to know where its keys go: call the stack, or give a context with a cache_write"
                )
            key, value = state.append(key, value, context.cache_write)
        return self.merge(self.gather(query, key, value, context))

    def make_state(self) -> KeyValueState:
        """Empty slots for keys and values."""
        return KeyValueState()


class CrossAttention(_Attention):
    """Queries from one sequence, keys and values from another, of any width.

    Q = X W_Q, K = M W_K, V = M W_V for the memory M [B, S, D_M], Y = softmax(Q K^T / sqrt(D_K)) V, then W_O.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        memory_width: int | None = None,
        key_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        score: Score | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(score, query_norm, key_norm, dropout)
        self.width, self.heads, self.key_heads, self.head_width, self.value_width = _sizes(
            width, heads, key_heads, head_width, value_width
        )
        self.memory_width = memory_width or width
        self.sections = [self.key_heads * self.head_width, self.key_heads * self.value_width]
        self.query = Linear(width, heads * self.head_width, bias=bias)
        self.key_value = Linear(self.memory_width, sum(self.sections), bias=bias)
        self.output = ResidualLinear(heads * self.value_width, width, bias if output_bias is None else output_bias)

    def project(self, x: Tensor) -> Tensor:
        """X W_Q, split into heads."""
        expect_width(x, self.width, "cross-attention")
        query = self.split(self.query(x), self.heads)
        return query if self.query_norm is None else self.query_norm(query)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """M W_K, M W_V by one product, split into heads: computed once per memory."""
        expect_width(memory, self.memory_width, "cross-attention's memory")
        key, value = self.key_value(memory).split_with_sizes(self.sections, dim=-1)
        key = self.split(key, self.key_heads)
        return key if self.key_norm is None else self.key_norm(key), self.split(value, self.key_heads)

    def forward(
        self, x: Tensor, memory: Tensor, context: AttentionContext | None = None, state: TensorState | None = None
    ) -> Tensor:
        """[B, T, D], [B, S, D_M] -> [B, T, D]."""
        if context is None:
            context = AttentionContext(AttentionContext.of(x).queries, AttentionContext.of(memory).queries)
        if state is None or state.tensors is None:
            kept = self.project_memory(memory)
            if state is not None:
                state.keep(*kept)
        else:
            kept = (state.tensors[0], state.tensors[1])
        return self.merge(self.gather(self.project(x), *kept, context))


class PlainCrossAttention(_Attention):
    """Cross-attention as lectures first draw it: one head, queries used as they are, no output projection.

    K = X W_K, V = X W_V, Y = softmax(Q K^T / sqrt(D_Q)) V; see `cross_attention`. `CrossAttention` adds heads, W_Q and
    W_O. D_Q is `query_width`, D_X `data_width`, D_V `value_width` (D_Q if not given).
    """

    def __init__(self, query_width: int, data_width: int, value_width: int | None = None) -> None:
        super().__init__(None, None, None, 0.0)
        self.heads = self.key_heads = 1
        self.head_width, self.data_width, self.value_width = query_width, data_width, value_width or query_width
        self.key = Linear(data_width, query_width, bias=False)
        self.value = Linear(data_width, self.value_width, bias=False)

    def project(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """X W_K and X W_V, as the keys and values of one head."""
        expect_width(data, self.data_width, "cross-attention's data")
        return self.split(self.key(data), 1), self.split(self.value(data), 1)

    def merge(self, y: Tensor) -> Tensor:
        """[B, 1, T, V] -> [B, T, V]: there is one head, and nothing follows it."""
        return y.squeeze(1)

    def forward(self, query: Tensor, data: Tensor, context: AttentionContext | None = None) -> Tensor:
        """[B, N_Q, D_Q], [B, N_X, D_X] -> [B, N_Q, D_V]."""
        expect_width(query, self.head_width, "cross-attention's queries")
        if context is None:
            context = AttentionContext(AttentionContext.of(query).queries, AttentionContext.of(data).queries)
        return self.merge(self.gather(self.split(query, 1), *self.project(data), context))


def set_backend(module: nn.Module, backend: Backend) -> None:
    """Make every attention inside `module` run one backend: auto, explicit, fused or blocked."""
    if backend not in get_args(Backend):
        raise WeftError(f"there is no backend {backend!r}: choose one of {', '.join(get_args(Backend))}")
    for part in module.modules():
        if isinstance(part, _Attention):
            part.backend = backend


def _sizes(
    width: int, heads: int, key_heads: int | None, head_width: int | None, value_width: int | None
) -> tuple[int, int, int, int, int]:
    """(D, H, G, K, V), checked."""
    G = key_heads or heads
    if heads % G:
        raise ShapeError(f"{heads} heads cannot share {G} key heads evenly: choose key_heads that divides heads")
    if head_width is None and width % heads:
        raise ShapeError(f"width {width} does not divide into {heads} heads: choose heads that divide it or head_width")
    K = head_width or width // heads
    return width, heads, G, K, value_width or K


__all__ = [
    "CrossAttention",
    "PlainCrossAttention",
    "SelfAttention",
    "cross_attention",
    "parameter_free_attention",
    "set_backend",
]
