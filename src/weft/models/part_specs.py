"""Specs of parts: numbers and names, each with its own builder. Parts themselves never see a spec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn

from weft.foundation.spec import Spec
from weft.models.mask_specs import MaskSpec
from weft.models.position_specs import HeadSizes, RotarySpec
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.convolution import Convolution, GridConvolution
from weft.parts.experts import Experts, GateName
from weft.parts.feedforward import FeedForward, GatedFeedForward, gated_width
from weft.parts.initialization import FanIn, Normal, Scheme, Xavier
from weft.parts.linear_attention import FeatureName, LinearAttention
from weft.parts.masks import Mask, Window
from weft.parts.norms import LayerNorm, NoNorm, Norm, RMSNorm, ZeroCenteredRMSNorm
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.recurrence import Recurrence
from weft.parts.scores import SCORES, build_score, setting_remedy

Share = Annotated[float, Field(ge=0, lt=1)]
LayerCount = Annotated[int, Field(ge=0, le=4096)]  # more are never built in the time that a user waits
ActivationName = Literal["relu", "gelu", "gelu-tanh", "quick-gelu", "silu", "squared-relu"]


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


class ZeroCenteredRMSNormSpec(Spec):
    """RMSNorm whose scale is 1 + gamma."""

    kind: Literal["zero-centered-rms"] = "zero-centered-rms"
    epsilon: float = 1e-6

    def build(self, width: int) -> Norm:
        return ZeroCenteredRMSNorm(width, self.epsilon)


class NoNormSpec(Spec):
    """No norm: the size of what flows through the blocks is kept."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> Norm:
        return NoNorm()


NormSpec = Annotated[LayerNormSpec | RMSNormSpec | ZeroCenteredRMSNormSpec | NoNormSpec, Field(discriminator="kind")]


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
    """E experts of which `active` run for a token; `shared` adds one that always runs, of the same hidden width.

    `gates`: renormalized, or each expert's probability; if not given, the probability where one expert is active (its
    renormalized gate would be 1 always, and its router would not learn from the output), else renormalized.
    """

    kind: Literal["experts"] = "experts"
    experts: PositiveInt = 8
    active: PositiveInt = 2
    hidden: PositiveInt | None = None
    activation: ActivationName = "silu"
    gated: bool = True
    shared: bool = False
    gates: GateName | None = None

    def build(self, width: int) -> nn.Module:
        hidden = self.hidden or (gated_width(width) if self.gated else 4 * width)
        kind: type[GatedFeedForward | FeedForward] = GatedFeedForward if self.gated else FeedForward
        shared = kind(width, hidden, self.activation, False) if self.shared else None
        return Experts(width, hidden, self.experts, self.active, self.activation, self.gated, shared, self.gates)


class NoFeedForwardSpec(Spec):
    """No feed-forward: then attention can only re-average."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> None:
        return None


FeedForwardSpec = Annotated[ClassicSpec | GatedSpec | ExpertsSpec | NoFeedForwardSpec, Field(discriminator="kind")]


class AttentionSpec(Spec):
    """Attention in `heads` heads, see `weft.parts.attention`; `score` is one of `weft.parts.scores`.

    `score_scale` stands in place of 1/sqrt(D_K), `score_cap` is the bound of a capped score; each score says which it
    has. `rotary` positions stand in place of the model's own, in models of rotary positions.
    It sees what the model may see, within `window` keys and under `mask`, if they are given.
    """

    kind: Literal["attention"] = "attention"
    heads: PositiveInt = 4
    key_heads: PositiveInt | None = None
    head_width: PositiveInt | None = None
    value_width: PositiveInt | None = None
    score: ScoreName = "scaled-dot"
    score_scale: PositiveFloat | None = None
    score_cap: PositiveFloat | None = None
    window: PositiveInt | None = None
    mask: MaskSpec | None = None
    bias: bool = True
    output_bias: bool | None = None
    query_key_norm: NormSpec | None = None
    rotary: RotarySpec | None = None
    dropout: Share = 0.0

    def build(self, width: int, causal: bool) -> SelfAttention:
        """Self-attention; what it may see is its layer's mask."""
        rotary = None if self.rotary is None else self.rotary.build_attention(self.heads, self.size(width), causal)
        return SelfAttention(width, self.heads, *(*self._parts(width), rotary))

    def build_cross(self, width: int, memory_width: int | None = None) -> CrossAttention:
        """Attention to a memory, of the same width where no other is given; it sees all of it, whatever the window."""
        return CrossAttention(width, self.heads, memory_width, *self._parts(width))

    def _parts(self, width: int) -> tuple[Any, ...]:
        """What self- and cross-attention are built with alike, in the order of their arguments."""
        size = self.size(width)
        score = build_score(self.score, size, size, self.heads, self.score_scale, self.score_cap)
        norms = [None if self.query_key_norm is None else self.query_key_norm.build(size) for _ in "qk"]
        return (self.key_heads, size, self.value_width, score, self.bias, self.output_bias, *norms, self.dropout)

    def size(self, width: int) -> int:
        """D_K, the size of one head's queries and keys."""
        return self.head_width or width // self.heads

    def head_sizes(self, width: int) -> HeadSizes:
        """H, D_K and D_V."""
        size = self.size(width)
        return HeadSizes(self.heads, size, self.value_width or size)

    def visible(self, seen: Mask) -> Mask:
        """What this layer may see: what the model may, in its window and under its mask."""
        seen = seen if self.mask is None else self.mask.within(seen)
        return seen if self.window is None else seen & Window(self.window)

    def clashes(self, width: int, causal: bool) -> str | None:
        """Why these numbers do not fit together, if they do not."""
        if self.head_width is None and width % self.heads:
            return f"width {width} does not divide into mixer.heads {self.heads}: change one, or give mixer.head_width"
        if self.key_heads is not None and self.heads % self.key_heads:
            return f"mixer.key_heads {self.key_heads} does not divide mixer.heads {self.heads}: choose one that does"
        for name, value in (("scale", self.score_scale), ("cap", self.score_cap)):
            if value is not None and name not in getattr(SCORES[self.score], "settings", ()):
                return f"mixer.score_{name} is given, but the score {self.score} has none: {setting_remedy(name)}"
        return None


class _PlainMixerSpec(Spec):
    """What mixers without a mask of their own share: they see what the model may see."""

    def visible(self, seen: Mask) -> Mask:
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
    """Logits by a matrix of their own; within +-`cap` where it is given."""

    kind: Literal["linear"] = "linear"
    bias: bool = False
    cap: PositiveFloat | None = None

    def build(self, width: int, vocabulary: int) -> LanguageHead | CappedHead:
        head = LanguageHead(width, vocabulary, self.bias)
        return head if self.cap is None else CappedHead(head, self.cap, vocabulary)


class TiedHeadSpec(Spec):
    """Logits by the embedding's own matrix; within +-`cap` where it is given."""

    kind: Literal["tied"] = "tied"
    scale: float = 1.0
    bias: bool = False
    cap: PositiveFloat | None = None

    def build(self, width: int, vocabulary: int) -> TiedHead | CappedHead:
        head = TiedHead(width, vocabulary, self.scale, self.bias)
        return head if self.cap is None else CappedHead(head, self.cap, vocabulary)


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
