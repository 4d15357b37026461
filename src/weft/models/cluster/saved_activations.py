"""What the forward pass of a part keeps for its backward pass, per sequence (Korthikanti et al. 2022, section 4.1).

Each matrix product keeps its inputs, each elementwise function and norm its input, each dropout a mask of 1 byte. For a
GPT block of width h with an MLP of 4 h, s tokens and dropout that is 34 s h bytes at 2 bytes per number: 11 for
attention, 19 for the MLP, 4 for two norms. The T x S attention weights (their 5 a s / h) are not kept: fused and
blocked kernels compute them again in the backward pass, which is their selective recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from weft.foundation.matrix_products import ProductView
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.block import Block
from weft.parts.convolution import Convolution, GridConvolution
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear_attention import LinearAttention
from weft.parts.norms import NoNorm, Norm
from weft.parts.recurrence import Recurrence, Recurrent
from weft.parts.relative import AttentionPosition, Rotary

# Numbers that `weft.parts.recurrent_nets` keep per step and hidden unit: gates, and states before and after the step.
RECURRENT = {"rnn": 2, "gru": 5, "lstm": 7}


@dataclass(frozen=True)
class Saved:
    """`numbers` in the precision of activations, and `masks` of 1 byte."""

    numbers: int = 0
    masks: int = 0

    def __add__(self, other: Saved) -> Saved:
        return Saved(self.numbers + other.numbers, self.masks + other.masks)

    def __mul__(self, copies: int) -> Saved:
        return Saved(self.numbers * copies, self.masks * copies)

    def bytes(self, number: int) -> int:
        """With `number` bytes per number."""
        return self.numbers * number + self.masks


@singledispatch
def saved(part: object, view: ProductView) -> Saved:
    """What one part keeps of one sequence."""
    raise TypeError(f"what {type(part).__name__} keeps is not known: register it with saved.register")


@saved.register(type(None))
def _nothing(part: object, view: ProductView) -> Saved:
    return Saved()


@saved.register
def _self_attention(part: SelfAttention, view: ProductView) -> Saved:
    """X, Q, K, V and Z: inputs of X W_QKV, of the scores and of Z W_O."""
    H, G, K, V, D = part.heads, part.key_heads, part.head_width, part.value_width, part.qkv.in_features
    return Saved(view.queries * (D + H * K + G * (K + V) + H * V))


@saved.register
def _cross_attention(part: CrossAttention, view: ProductView) -> Saved:
    """X, Q and Z of the target; K and V of the source, whose states all layers share."""
    H, G, K, V, D = part.heads, part.key_heads, part.head_width, part.value_width, part.query.in_features
    return Saved(view.queries * (D + H * K + H * V) + view.keys * G * (K + V))


@saved.register
def _linear_attention(part: LinearAttention, view: ProductView) -> Saved:
    """X, Q, K, V, the features of Q and K, and Z."""
    return Saved(view.queries * (part.width + 6 * part.heads * part.head_width))


@saved.register
def _recurrent(part: Recurrent, view: ProductView) -> Saved:
    """Inputs, gates and states."""
    ways = 2 if part.bidirectional else 1
    return Saved(view.queries * (part.net.input_size + ways * RECURRENT[part.cell] * part.hidden))


@saved.register
def _recurrence(part: Recurrence, view: ProductView) -> Saved:
    return saved(part.recurrent, view) + Saved(view.queries * part.output.in_features)


@saved.register(Convolution)
@saved.register(GridConvolution)
def _convolution(part: Convolution | GridConvolution, view: ProductView) -> Saved:
    """Inputs of the taps and of Z W_O."""
    return Saved(2 * view.queries * part.width)


@saved.register
def _feedforward(part: FeedForward, view: ProductView) -> Saved:
    """X, and X W_1 before and after the activation."""
    hidden = view.queries * part.up.out_features
    return Saved(view.queries * part.up.in_features + 2 * hidden, hidden if part.dropout else 0)


@saved.register
def _gated(part: GatedFeedForward, view: ProductView) -> Saved:
    """X, gate and up, the gate after its activation, and the product of both."""
    hidden = view.queries * part.down.in_features
    return Saved(view.queries * part.gate_up.in_features + 4 * hidden, hidden if part.dropout else 0)


@saved.register
def _experts(part: Experts, view: ProductView) -> Saved:
    """Of each active expert X, X W_1, which backward activates again, and its output before and after the gate.

    The router keeps X and logits.
    """
    T, A = view.queries, part.active
    inside = T * A * (3 * part.width + (2 if part.gated else 1) * part.hidden)
    return Saved(inside + T * (part.width + 2 * part.experts)) + saved(part.shared, view)


def saved_by_block(
    block: Block, view: ProductView, width: int, position: AttentionPosition | None = None, source: int | None = None
) -> Saved:
    """Of one block of width D: its parts, inputs of its norms, masks of dropout on what each branch adds.

    Queries and keys that rotary positions or norms change are kept beside the fused product that they come from, of
    which the values are a view.
    """
    total = saved(block.mixer, view) + saved(block.feedforward, view)
    if isinstance(block.mixer, SelfAttention) and _changes_queries(block.mixer, position):
        total += Saved(view.queries * (block.mixer.heads + block.mixer.key_heads) * block.mixer.head_width)
    if block.cross is not None and source is not None:
        total += saved(block.cross, ProductView.full(view.queries, source))
    norms = [part for part in block.children() if isinstance(part, Norm) and not isinstance(part, NoNorm)]
    each = view.queries * width
    return total + Saved(len(norms) * each, branches(block) * each if block.dropout else 0)


def _changes_queries(mixer: SelfAttention, position: AttentionPosition | None) -> bool:
    return isinstance(mixer.rotary or position, Rotary) or mixer.query_norm is not None


def branches(block: Block) -> int:
    """How many of mixer, cross-attention and feed-forward it has."""
    return sum(part is not None for part in (block.mixer, block.cross, block.feedforward))
