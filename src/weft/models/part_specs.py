"""Specs of parts: numbers and names, each with its own builder. Parts themselves never see a spec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveInt
from torch import nn

from weft.foundation.spec import Spec
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.convolution import Convolution, GridConvolution
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward, gated_width
from weft.parts.initialization import FanIn, Normal, Scheme, Xavier
from weft.parts.linear_attention import FeatureName, LinearAttention
from weft.parts.masks import Mask, Window
from weft.parts.norms import LayerNorm, NoNorm, Norm, RMSNorm
from weft.parts.outputs import LanguageHead, TiedHead
from weft.parts.recurrence import Recurrence
from weft.parts.scores import SCORES, build_score

Share = Annotated[float, Field(ge=0, lt=1)]
ActivationName = Literal["relu", "gelu", "gelu-tanh", "silu", "squared-relu"]


def _known_score(kind: str) -> str:
    if kind not in SCORES:
        raise ValueError(f"there is no score {kind!r}: choose one of {', '.join(SCORES)}")
    return kind


def _known_attention(kind: str) -> str:
    return kind if kind == "none" else _known_score(kind)


ScoreName = Annotated[str, AfterValidator(_known_score)]
AttentionName = Annotated[str, AfterValidator(_known_attention)]


class LayerNormSpec(Spec):
    """LayerNorm; the bias is optional."""

    kind: Literal["layer"] = "layer"
    epsilon: float = 1e-5
    bias: bool = True

    def build(self, width: int) -> Norm:
        return LayerNorm(width, self.epsilon, self.bias)


class RMSNormSpec(Spec):
    """RMSNorm."""

    kind: Literal["rms"] = "rms"
    epsilon: float = 1e-6

    def build(self, width: int) -> Norm:
        return RMSNorm(width, self.epsilon)


class NoNormSpec(Spec):
    """No norm: the size of what flows through the blocks is kept."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> Norm:
        return NoNorm()


NormSpec = Annotated[LayerNormSpec | RMSNormSpec | NoNormSpec, Field(discriminator="kind")]


class ClassicSpec(Spec):
    """The classic MLP; `hidden` 4 D if not given."""

    kind: Literal["classic"] = "classic"
    hidden: PositiveInt | None = None
    activation: ActivationName = "gelu"
    bias: bool = True
    dropout: Share = 0.0

    def build(self, width: int) -> nn.Module:
        return FeedForward(width, self.hidden, self.activation, self.bias, self.dropout)


class GatedSpec(Spec):
    """The gated MLP: SwiGLU (silu), GEGLU (gelu), ReGLU (relu); `hidden` 8 D / 3 if not given."""

    kind: Literal["gated"] = "gated"
    hidden: PositiveInt | None = None
    activation: ActivationName = "silu"
    bias: bool = False
    dropout: Share = 0.0

    def build(self, width: int) -> nn.Module:
        return GatedFeedForward(width, self.hidden, self.activation, self.bias, self.dropout)


class ExpertsSpec(Spec):
    """E experts of which `active` run for a token; `shared` adds one that always runs, of the same hidden width."""

    kind: Literal["experts"] = "experts"
    experts: PositiveInt = 8
    active: PositiveInt = 2
    hidden: PositiveInt | None = None
    activation: ActivationName = "silu"
    gated: bool = True
    shared: bool = False

    def build(self, width: int) -> nn.Module:
        hidden = self.hidden or (gated_width(width) if self.gated else 4 * width)
        kind: type[GatedFeedForward | FeedForward] = GatedFeedForward if self.gated else FeedForward
        shared = kind(width, hidden, self.activation, False) if self.shared else None
        return Experts(width, hidden, self.experts, self.active, self.activation, self.gated, shared)


class NoFeedForwardSpec(Spec):
    """No feed-forward: then attention can only re-average."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> None:
        return None


FeedForwardSpec = Annotated[ClassicSpec | GatedSpec | ExpertsSpec | NoFeedForwardSpec, Field(discriminator="kind")]


class AttentionSpec(Spec):
    """Attention in `heads` heads, see `weft.parts.attention`; `score` is one of `weft.parts.scores`."""

    kind: Literal["attention"] = "attention"
    heads: PositiveInt = 4
    key_heads: PositiveInt | None = None
    head_width: PositiveInt | None = None
    value_width: PositiveInt | None = None
    score: ScoreName = "scaled-dot"
    window: PositiveInt | None = None
    bias: bool = True
    output_bias: bool | None = None
    query_key_norm: NormSpec | None = None
    dropout: Share = 0.0

    def build(self, width: int, causal: bool) -> SelfAttention:
        """Self-attention; what it may see is its layer's mask."""
        return SelfAttention(width, self.heads, *self._parts(width))

    def build_cross(self, width: int, memory_width: int | None = None) -> CrossAttention:
        """Attention to a memory, of the same width where no other is given; it sees all of it, whatever the window."""
        return CrossAttention(width, self.heads, memory_width, *self._parts(width))

    def _parts(self, width: int) -> tuple[Any, ...]:
        """What self- and cross-attention are built with alike, in the order of their arguments."""
        size = self.size(width)
        score = build_score(self.score, size, size, self.heads)
        norms = [None if self.query_key_norm is None else self.query_key_norm.build(size) for _ in "qk"]
        return (self.key_heads, size, self.value_width, score, self.bias, self.output_bias, *norms, self.dropout)

    def size(self, width: int) -> int:
        """D_K, the size of one head's queries and keys."""
        return self.head_width or width // self.heads

    def mask(self, seen: Mask) -> Mask:
        """What this layer may see: what the model may, in its window."""
        return seen if self.window is None else seen & Window(self.window)

    def clashes(self, width: int, causal: bool) -> str | None:
        """Why these numbers do not fit together, if they do not."""
        if self.head_width is None and width % self.heads:
            return f"width {width} does not divide into mixer.heads {self.heads}: change one, or give mixer.head_width"
        if self.key_heads is not None and self.heads % self.key_heads:
            return f"mixer.key_heads {self.key_heads} does not divide mixer.heads {self.heads}: choose one that does"
        return None


class _PlainMixerSpec(Spec):
    """What mixers without a mask of their own share: they see what the model may see."""

    def mask(self, seen: Mask) -> Mask:
        return seen

    def clashes(self, width: int, causal: bool) -> str | None:
        return None


class LinearAttentionSpec(_PlainMixerSpec):
    """Attention without the softmax."""

    kind: Literal["linear-attention"] = "linear-attention"
    heads: PositiveInt = 4
    feature: FeatureName = "elu"
    head_width: PositiveInt | None = None
    bias: bool = False

    def build(self, width: int, causal: bool) -> LinearAttention:
        return LinearAttention(width, self.heads, causal, self.feature, self.head_width, self.bias)

    def clashes(self, width: int, causal: bool) -> str | None:
        if self.head_width is None and width % self.heads:
            return f"width {width} does not divide into mixer.heads {self.heads}: change one, or give mixer.head_width"
        return None


class RecurrenceSpec(_PlainMixerSpec):
    """A recurrent net as the mixer; two directions where the model is not causal and `bidirectional` is set."""

    kind: Literal["recurrence"] = "recurrence"
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    hidden: PositiveInt | None = None
    bidirectional: bool = False

    def build(self, width: int, causal: bool) -> Recurrence:
        return Recurrence(width, self.cell, self.hidden, self.bidirectional)

    def clashes(self, width: int, causal: bool) -> str | None:
        if causal and self.bidirectional:
            return "mixer.bidirectional looks ahead, but this model is causal: set mixer.bidirectional to false"
        return None


class ConvolutionSpec(_PlainMixerSpec):
    """A 1-D convolution as the mixer, causal where the model is, centered elsewhere."""

    kind: Literal["convolution"] = "convolution"
    kernel: PositiveInt = 5
    groups: PositiveInt = 1

    def build(self, width: int, causal: bool) -> Convolution:
        return Convolution(width, self.kernel, causal, self.groups)

    def clashes(self, width: int, causal: bool) -> str | None:
        if not causal and self.kernel % 2 == 0:
            return f"mixer.kernel {self.kernel} has no center, and this model is not causal: choose an odd one"
        if width % self.groups:
            return f"width {width} does not divide into mixer.groups {self.groups}: choose groups that divide it"
        return None


class GridConvolutionSpec(_PlainMixerSpec):
    """A 2-D convolution over the grid of patches as the mixer; for vision models without a class token."""

    kind: Literal["grid-convolution"] = "grid-convolution"
    kernel: PositiveInt = 3
    groups: PositiveInt = 1

    def build(self, width: int, causal: bool) -> GridConvolution:
        return GridConvolution(width, self.kernel, self.groups)

    def clashes(self, width: int, causal: bool) -> str | None:
        if self.kernel % 2 == 0 or width % self.groups:
            return f"a grid convolution needs an odd mixer.kernel and mixer.groups that divide width {width}"
        return None


class NoMixerSpec(_PlainMixerSpec):
    """No mixer: every token for itself."""

    kind: Literal["none"] = "none"

    def build(self, width: int, causal: bool) -> None:
        return None


MixerSpec = Annotated[
    AttentionSpec | LinearAttentionSpec | RecurrenceSpec | ConvolutionSpec | GridConvolutionSpec | NoMixerSpec,
    Field(discriminator="kind"),
]


class LinearHeadSpec(Spec):
    """Logits by a matrix of their own."""

    kind: Literal["linear"] = "linear"
    bias: bool = False

    def build(self, width: int, vocabulary: int) -> LanguageHead:
        return LanguageHead(width, vocabulary, self.bias)


class TiedHeadSpec(Spec):
    """Logits by the embedding's own matrix."""

    kind: Literal["tied"] = "tied"
    scale: float = 1.0
    bias: bool = False

    def build(self, width: int, vocabulary: int) -> TiedHead:
        return TiedHead(width, vocabulary, self.scale, self.bias)


HeadSpec = Annotated[LinearHeadSpec | TiedHeadSpec, Field(discriminator="kind")]


class InitializationSpec(Spec):
    """How weights start; see `weft.parts.initialization`."""

    scheme: Literal["normal", "xavier", "fan-in"] = "normal"
    std: NonNegativeFloat = 0.02
    embedding: NonNegativeFloat = 0.02
    zero_residual: bool = False

    def build(self) -> Scheme:
        if self.scheme == "normal":
            return Normal(self.embedding, self.zero_residual, self.std)
        return (Xavier if self.scheme == "xavier" else FanIn)(self.embedding, self.zero_residual)
