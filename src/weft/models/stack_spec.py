"""The body that all families share: a stack of blocks from numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from torch import Tensor

from weft.foundation.errors import ShapeError
from weft.foundation.spec import Tree, VersionedSpec, rename_fields
from weft.models.mask_specs import PrefixMaskSpec, WindowMaskSpec
from weft.models.output import Declaration
from weft.models.part_specs import (
    AttentionSpec,
    ClassicSpec,
    ExpertsSpec,
    FeedForwardSpec,
    InitializationSpec,
    LayerCount,
    LayerNormSpec,
    MixerSpec,
    NormSpec,
    Share,
)
from weft.models.position_specs import AnyPositionSpec, RotarySpec, old_relative_scale
from weft.parts.attention import CrossAttention
from weft.parts.block import Block, Parallel, PostNorm, PreNorm, SandwichNorm
from weft.parts.masks import Causal, Everything, Mask, Real
from weft.parts.norms import Norm
from weft.parts.position_counter import PositionCounter
from weft.parts.relative import AttentionPosition
from weft.parts.stack import Stack
from weft.parts.state import State
from weft.parts.token_positions import TokenPositions


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else (value,)


MixerPattern = Annotated[tuple[MixerSpec, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


ArrangementName = Literal["pre-norm", "post-norm", "sandwich-norm", "parallel"]
ARRANGEMENTS: dict[ArrangementName, type[Block]] = {
    "pre-norm": PreNorm,
    "post-norm": PostNorm,
    "sandwich-norm": SandwichNorm,
    "parallel": Parallel,
}


def _keep_version_2(tree: Tree) -> Tree:
    """What runs learned under the rules of version 2 stays so; a tree without a version was written by hand."""
    return old_relative_scale(_keep_gates(tree)) if "version" in tree else tree


def _keep_gates(tree: Tree) -> Tree:
    """Until version 2 the gate of a single active expert was renormalized, so always 1."""
    feedforward = tree.get("feedforward")
    if not isinstance(feedforward, dict):
        return tree
    known = [feedforward.get(name) for name in ("kind", "active", "gates")]
    if known != ["experts", 1, None]:
        return tree
    return tree | {"feedforward": feedforward | {"gates": "renormalized"}}


class ModelSpec(VersionedSpec):
    """What every family's spec shares: its version, and how older ones are read."""

    RENAMED: ClassVar[dict[str, str]] = {
        "initialisation": "initialization",
        "two_ways": "bidirectional",
        "depth": "stochastic_depth",
    }
    VERSION: ClassVar[int] = 3
    MIGRATIONS: ClassVar[dict[int, Callable[[Tree], Tree]]] = {
        1: lambda tree: rename_fields(tree, ModelSpec.RENAMED),
        2: _keep_version_2,
    }
    version: int = 3


class StackSpec(ModelSpec):
    """Fields of every model with blocks. `mixer` is one mixer, or a pattern of several that repeats over the layers."""

    CAUSAL: ClassVar[bool] = False
    SKIPS: ClassVar[tuple[str, ...]] = ("grid-convolution",)
    MASKS: ClassVar[tuple[str, ...]] = ("window", "dilated", "strided", "block-sparse")

    width: PositiveInt = 128
    layers: LayerCount = 4
    mixer: MixerPattern = (AttentionSpec(),)
    feedforward: FeedForwardSpec = ClassicSpec()
    positions: AnyPositionSpec = RotarySpec()
    norm: NormSpec = LayerNormSpec()
    arrangement: ArrangementName = "pre-norm"
    last_norm: bool | None = None
    dropout: Share = 0.0
    stochastic_depth: Share = 0.0
    initialization: InitializationSpec = InitializationSpec()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for mixer in self.mixer:
            if mixer.kind in self.SKIPS:
                raise ValueError(f"mixer {mixer.kind!r} does not work in this family: choose another mixer.kind")
            mask = getattr(mixer, "mask", None)
            if mask is not None and mask.kind not in self.MASKS:
                known = f"choose {', '.join(self.MASKS)}" if self.MASKS else "leave it out"
                raise ValueError(f"mixer.mask {mask.kind!r} does not work in this family: {known}")
            clash = mixer.clashes(self.width, self.CAUSAL)
            if clash:
                raise ValueError(clash)
        if isinstance(self.feedforward, ExpertsSpec) and self.feedforward.active > self.feedforward.experts:
            raise ValueError(
                f"feedforward.active {self.feedforward.active} exceeds feedforward.experts "
                f"{self.feedforward.experts}: choose fewer active experts"
            )
        self._positions_fit()
        return self

    def _positions_fit(self) -> None:
        kind = self.positions.kind
        attentions = [mixer for mixer in self.mixer if isinstance(mixer, AttentionSpec)]
        own = [mixer for mixer in attentions if mixer.rotary is not None]
        if own and not isinstance(self.positions, RotarySpec):
            raise ValueError(f"mixer.rotary is in place of rotary positions, but positions are {kind!r}: change one")
        if self.positions.own_width() >= self.width:
            raise ValueError(f"positions.width {self.positions.own_width()} leaves nothing of width {self.width}")
        if self.positions.nature() != "relative":
            return
        if not attentions:
            raise ValueError(
                f"positions {kind!r} act inside attention, but mixer has none: use learned, sinusoidal or no positions"
            )
        sizes = {m.head_sizes(self.width) for m in attentions}
        shared = sizes if self.positions.acts_on_values() else {(s.heads, s.key_width) for s in sizes}
        if len(shared) > 1:
            raise ValueError(
                f"positions {kind!r} are shared by all layers, so all mixers need the same heads and sizes"
            )
        if not isinstance(self.positions, RotarySpec):
            return
        for rotary in (self.positions, *(mixer.rotary for mixer in own if mixer.rotary is not None)):
            size = int(next(iter(sizes)).key_width * rotary.fraction)
            if size < 2 or size % 2:
                raise ValueError(
                    f"rotary positions rotate pairs, but positions.fraction of mixer.head_width is {size}: make it even"
                )

    def mixer_of(self, layer: int) -> MixerSpec:
        return self.mixer[layer % len(self.mixer)]

    def attention(self) -> AttentionSpec:
        """The first attention in the pattern: its heads serve positions."""
        return next(mixer for mixer in self.mixer if isinstance(mixer, AttentionSpec))

    def build_stack(
        self,
        seen: Mask,
        layers: int | None = None,
        cross: Callable[[], CrossAttention] | None = None,
        causal: bool | None = None,
    ) -> Stack:
        """The blocks, each seeing `seen` under its own mask, the position inside attention and the last norm.

        `cross` makes each block's attention to a memory.
        """
        causal = self.CAUSAL if causal is None else causal
        kind = ARRANGEMENTS[self.arrangement]
        count = self.layers if layers is None else layers
        blocks = []
        for layer in range(count):
            mixer = self.mixer_of(layer)
            drop_path = self.stochastic_depth * layer / max(count - 1, 1)
            blocks.append(
                kind(
                    mixer.build(self.width, causal),
                    self.feedforward.build(self.width),
                    lambda: self.norm.build(self.width),
                    None if cross is None else cross(),
                    self.dropout,
                    drop_path,
                )
            )
        return Stack(blocks, self._layer_masks(seen, count), self._build_position(causal), self._build_last_norm())

    def _layer_masks(self, seen: Mask, layers: int) -> tuple[Mask, ...]:
        """What each layer sees; layers of the same mixer share one mask."""
        masks = [mixer.visible(seen) for mixer in self.mixer]
        return tuple(masks[layer % len(masks)] for layer in range(layers))

    def _build_position(self, causal: bool) -> AttentionPosition | None:
        if self.positions.nature() != "relative":
            return None
        return self.positions.build_inside(self.attention().head_sizes(self.width), causal)

    def _build_last_norm(self) -> Norm | None:
        wanted = self.arrangement != "post-norm" if self.last_norm is None else self.last_norm
        return self.norm.build(self.width) if wanted else None

    def declare(
        self, family: str, layers: int | None = None, length: int | None = None, causal: bool | None = None, **more: Any
    ) -> Declaration:
        """What a model of this body promises; `layers` and `causal` where what it promises is not of all."""
        causal = self.CAUSAL if causal is None else causal
        mixers = [self.mixer_of(layer) for layer in range(self.layers if layers is None else layers)]
        windows = [_window(mixer) for mixer in mixers if mixer.kind != "none"]
        reaches = [_reach(mixer) for mixer in mixers if mixer.kind != "none"]
        bounded = bool(reaches) and None not in reaches
        ordered = any(mixer.kind in ("recurrence", "convolution", "grid-convolution") for mixer in mixers)
        own = [mixer.mask for mixer in mixers if isinstance(mixer, AttentionSpec) and mixer.mask is not None]
        longest = [most for most in (length, *(mask.longest() for mask in own)) if most is not None]
        prefixes = [mask.length for mask in own if isinstance(mask, PrefixMaskSpec)]
        return Declaration(
            family=family,
            causal=causal,
            cached=causal,
            positions=self.positions.nature(),
            order_free=not (causal or ordered or own or any(windows)) and self.positions.nature() == "none",
            window=next(iter(windows)) if windows and len(set(windows)) == 1 else None,
            reach=1 + sum(r - 1 for r in reaches if r is not None) if bounded else None,
            length=min(longest) if longest else None,
            text_prefix=max(prefixes, default=None),
            masks=self._layer_masks(seen_by(causal), len(mixers)) if own else None,
            experts=isinstance(self.feedforward, ExpertsSpec),
            **more,
        )


def _window(mixer: MixerSpec) -> int | None:
    """The number of keys that the window of a layer shows, if it has one."""
    if not isinstance(mixer, AttentionSpec):
        return None
    widths = (mixer.window, mixer.mask.width if isinstance(mixer.mask, WindowMaskSpec) else None)
    return min((width for width in widths if width is not None), default=None)


def _reach(mixer: MixerSpec) -> int | None:
    """How many tokens back one layer looks, its own included; None without a bound."""
    if mixer.kind == "convolution":
        return mixer.kernel
    back, ahead = mixer.visible(Everything()).band() if isinstance(mixer, AttentionSpec) else (None, None)
    return None if back is None or ahead is None else 1 + max(back, ahead)


def seen_by(causal: bool) -> Mask:
    """What a layer may see at most."""
    return Causal() if causal else Everything()


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """A mask as given; a boolean [B, T] marks real tokens."""
    if isinstance(mask, Tensor):
        return Real(mask.bool())
    if mask is not None and not isinstance(mask, Mask):
        raise ShapeError(f"a mask is one of weft.parts.masks or a boolean [B, T], not a {type(mask).__name__}")
    return mask


def arrange_call(
    tokens: Tensor,
    positions: Tensor | None,
    mask: Mask | None,
    state: State | None,
    counter: PositionCounter | None = None,
) -> TokenPositions:
    """Where the tokens [B, T, ...] of a call stand: as given, or after the mask's padding and the state's counter."""
    batch, length = tokens.shape[:2]
    if length == 0:
        raise ShapeError("an empty sequence: give at least one token")
    if state is not None:
        state.expect_batch(batch)
    if counter is None:
        counter = PositionCounter(batch, tokens.device) if state is None else state.counter
    token_positions = counter.arrange(length, positions, mask)
    if token_positions.given is not None and token_positions.given.shape[0] not in (1, batch):
        raise ShapeError(
            f"mask or positions of {token_positions.given.shape[0]} rows for {batch} rows of tokens: give each its own"
        )
    return token_positions


def expect_tokens(tokens: Tensor) -> None:
    """Refuse anything but [B, T]."""
    if tokens.dim() != 2:
        raise ShapeError(f"tokens are [B, T], not {tuple(tokens.shape)}: for one text use tokens[None]")
