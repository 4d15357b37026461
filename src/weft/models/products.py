"""The matrix products of a part: what a transformer spends its time on.

A block has six in all: fused QKV, Q K^T, A V and the output of attention, two of the MLP. Other mixers, cross-attention
and experts have their own. One multiply-add counts 2 FLOPs; what is not a matrix product (norms, softmax, activations,
look-ups) counts nothing; a score counts its own products. Shapes are for one sequence, with the letters of
`weft.foundation.shapes`.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from torch import nn

from weft.foundation.matrix_products import MatrixProduct, Products, ProductView
from weft.parts.attention import CrossAttention, PlainCrossAttention, SelfAttention
from weft.parts.convolution import Convolution, GridConvolution
from weft.parts.embeddings import PatchEmbedding, TokenEmbedding, VectorEmbedding
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear_attention import LinearAttention
from weft.parts.outputs import (
    CappedHead,
    DistilledHead,
    ForecastHead,
    LanguageHead,
    MaskedLanguageHead,
    PooledHead,
    ProjectionHead,
    TiedHead,
    TokenHead,
)
from weft.parts.recurrence import Recurrence, Recurrent
from weft.parts.relative import AttentionPosition
from weft.parts.word_embedding import WordEmbedding


@singledispatch
def products(part: object, view: ProductView) -> Products:
    """The matrix products of one part in the order in which they run."""
    raise TypeError(f"the matrix products of {type(part).__name__} are not known: register them with products.register")


def _linear(name: str, formula: str, linear: nn.Linear, rows: int) -> MatrixProduct:
    return MatrixProduct(name, formula, rows, linear.in_features, linear.out_features)


@products.register(type(None))
@products.register(TokenEmbedding)
def _nothing(part: object, view: ProductView) -> Products:
    return ()


@products.register
def _self_attention(part: SelfAttention, view: ProductView) -> Products:
    H, K, V = part.heads, part.head_width, part.value_width
    return (
        _linear("fused QKV", "X W_QKV", part.qkv, view.queries),
        *part.score.matrix_products((K, K), view, H),
        MatrixProduct("A V", "A V", view.queries, view.seen, V, H),
        _linear("output", "Z W_O", part.output, view.queries),
    )


@products.register
def _cross_attention(part: CrossAttention, view: ProductView) -> Products:
    H, K, V = part.heads, part.head_width, part.value_width
    return (
        _linear("cross Q", "X W_Q", part.query, view.queries),
        _linear("cross KV", "M W_KV", part.key_value, view.keys),
        *(MatrixProduct(f"cross {p.name}", *_rest(p)) for p in part.score.matrix_products((K, K), view, H)),
        MatrixProduct("cross A V", "A V", view.queries, view.seen, V, H),
        _linear("cross output", "Z W_O", part.output, view.queries),
    )


@products.register
def _plain_cross_attention(part: PlainCrossAttention, view: ProductView) -> Products:
    K, V = part.head_width, part.value_width
    return (
        _linear("K", "X W_K", part.key, view.keys),
        _linear("V", "X W_V", part.value, view.keys),
        *part.score.matrix_products((K, K), view),
        MatrixProduct("A V", "A V", view.queries, view.seen, V),
    )


def _rest(product: MatrixProduct) -> tuple[str, int, int, int, int]:
    return product.formula, product.rows, product.inner, product.columns, product.copies


def position_products(position: AttentionPosition | None, mixer: nn.Module | None, view: ProductView) -> Products:
    """What a position inside attention multiplies, in a block with this mixer."""
    if position is None or not isinstance(mixer, SelfAttention):
        return ()
    return position.matrix_products(view, mixer.heads)


@products.register
def _linear_attention(part: LinearAttention, view: ProductView) -> Products:
    H, K, T = part.heads, part.head_width, view.queries
    chunk = min(part.chunk, T)
    within = (
        MatrixProduct("Q K^T", "Q K^T in a chunk", T, K, chunk, H),
        MatrixProduct("A V", "A V in a chunk", T, chunk, K, H),
    )
    total = MatrixProduct("Q z", "Q sum K", T, K, 1, H)
    return (
        _linear("fused QKV", "X W_QKV", part.qkv, T),
        *(within if part.causal else ()),
        MatrixProduct("K^T V", "K^T V", K, T, K, H),
        MatrixProduct("Q S", "Q (K^T V)", T, K, K, H),
        *((total,) if part.normalize else ()),
        _linear("output", "Z W_O", part.output, T),
    )


@products.register
def _recurrent(part: Recurrent, view: ProductView) -> Products:
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[part.cell] * part.hidden
    ways = 2 if part.bidirectional else 1
    return (
        MatrixProduct("W x", "W x_t, all steps", view.queries, part.net.input_size, gates, ways),
        MatrixProduct("U h", "U h_(t-1), step by step", view.queries, part.hidden, gates, ways),
    )


@products.register
def _recurrence(part: Recurrence, view: ProductView) -> Products:
    return (*products(part.recurrent, view), _linear("output", "H W_O", part.output, view.queries))


@products.register(Convolution)
@products.register(GridConvolution)
def _convolution(part: Convolution | GridConvolution, view: ProductView) -> Products:
    groups = part.taps.groups
    size = part.width // groups
    taps = part.taps.weight[0, 0].numel()
    return (
        MatrixProduct("taps", "sum_o W_o x_(t-o)", view.queries, taps * size, size, groups),
        _linear("output", "Z W_O", part.output, view.queries),
    )


@products.register
def _feedforward(part: FeedForward, view: ProductView) -> Products:
    return (
        _linear("up", "X W_1", part.up, view.queries),
        _linear("down", "f(.) W_2", part.down, view.queries),
    )


@products.register
def _gated(part: GatedFeedForward, view: ProductView) -> Products:
    return (
        _linear("gate_up", "X [W_1 W_2]", part.gate_up, view.queries),
        _linear("down", "(f(.) * .) W_3", part.down, view.queries),
    )


@products.register
def _experts(part: Experts, view: ProductView) -> Products:
    T, D, A = view.queries, part.width, part.active
    shared = () if part.shared is None else products(part.shared, view)
    up, formula = ("gate_up", "X [W_1 W_2]") if part.gated else ("up", "X W_1")
    return (
        MatrixProduct("router", "X W_r", T, D, part.experts),
        MatrixProduct(f"experts' {up}", formula, T, D, part.up.shape[1], A),
        MatrixProduct("experts' down", "(.) W", T, part.hidden, D, A),
        *(MatrixProduct(f"shared {p.name}", *_rest(p)) for p in shared),
    )


@products.register
def _vectors(part: VectorEmbedding, view: ProductView) -> Products:
    return (_linear("vectors", "X W_E", part.linear, view.queries),)


@products.register
def _words(part: WordEmbedding, view: ProductView) -> Products:
    """Once for each character, however long the text."""
    C, K = part.characters.weight.shape
    return (MatrixProduct("characters", "E W_o, all o", C, K, part.taps.weight[:, 0].numel()),)


@products.register
def _patches(part: PatchEmbedding, view: ProductView) -> Products:
    """Each 3 x 3 convolution of the stem halves height and width, so the layers before it have 4 x as many pixels."""
    layers: list[Any] = [] if part.stem is None else list(part.stem.layers)
    pixels = view.queries * part.patch**2
    stem = []
    for layer in reversed(layers):
        inner = layer.in_channels * layer.weight[0, 0].numel()
        stem.append(MatrixProduct("stem", "3 x 3, stride 2", pixels, inner, layer.out_channels))
        pixels *= 4
    return (*reversed(stem), _linear("patches", "X W_E", part.linear, view.queries))


@products.register(LanguageHead)
@products.register(TiedHead)
def _language(part: LanguageHead | TiedHead, view: ProductView) -> Products:
    return (MatrixProduct("logits", "X W_C", view.queries, part.width, part.vocabulary),)


@products.register
def _capped(part: CappedHead, view: ProductView) -> Products:
    return products(part.head, view)


@products.register
def _pooled(part: PooledHead, view: ProductView) -> Products:
    hidden = () if part.hidden is None else (_linear("hidden", "x W_P", part.hidden, 1),)
    return hidden if part.linear is None else (*hidden, _linear("classes", "x W_C", part.linear, 1))


@products.register
def _projection(part: ProjectionHead, view: ProductView) -> Products:
    return (_linear("projection", "x W", part.linear, 1),)


@products.register
def _distilled(part: DistilledHead, view: ProductView) -> Products:
    return (_linear("classes", "x W_C", part.linear, 1), _linear("distilled", "x W_C", part.distilled, 1))


@products.register
def _per_token(part: TokenHead, view: ProductView) -> Products:
    return (_linear("classes", "X W_C", part.linear, view.queries),)


@products.register
def _masked_language(part: MaskedLanguageHead, view: ProductView) -> Products:
    return (_linear("transform", "X W_P", part.transform, view.queries), *products(part.tied, view))


@products.register
def _forecast(part: ForecastHead, view: ProductView) -> Products:
    return (_linear("numbers", "X W_C", part.linear, view.queries),)
