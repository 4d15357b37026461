"""Plain presets: the models that the lectures draw, part by part, and nothing else; their sizes are open.

The block (Vaswani et al. 2017) with an MLP D -> 4D -> D, LayerNorm, and positions added at the first layer:

    post-norm  Z = LN(Y(X) + X), X~ = LN(MLP(Z) + Z)             encoder (Devlin et al. 2019), encoder-decoder
    pre-norm   z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z'         decoder (Radford et al. 2019), vit (Dosovitskiy 2021)

A plain preset is a function of width D, layers L and heads H: training chooses them by its time plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.foundation.errors import WeftError
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec, PooledSpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.image_text import ImageTextSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LayerNormSpec, LinearHeadSpec
from weft.models.position_specs import GridTableSpec, LearnedSpec, SinusoidalSpec
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.models.series import SeriesSpec
from weft.models.vision import VisionSpec

if TYPE_CHECKING:
    from weft.models.build import AnySpec

WIDTH, LAYERS, HEADS = 128, 4, 4


def _block(width: int, layers: int, heads: int, arrangement: str) -> dict[str, Any]:
    return {
        "width": width,
        "layers": layers,
        "mixer": AttentionSpec(heads=heads),
        "feedforward": ClassicSpec(activation="gelu"),
        "norm": LayerNormSpec(),
        "arrangement": arrangement,
    }


def encoder(width: int, layers: int, heads: int) -> EncoderSpec:
    """Class token, learned positions, blocks that see everything, one linear layer on the class token."""
    block = _block(width, layers, heads, "post-norm")
    return EncoderSpec(**block, positions=LearnedSpec(), class_token=True, output=PooledSpec(pool="first", classes=2))


def decoder(width: int, layers: int, heads: int) -> DecoderSpec:
    """Embedding [V x D], learned positions, masked blocks, projection [D x V]."""
    block = _block(width, layers, heads, "pre-norm")
    return DecoderSpec(**block, positions=LearnedSpec(), head=LinearHeadSpec())


def encoder_decoder(width: int, layers: int, heads: int) -> EncoderDecoderSpec:
    """The original: sinusoids, ReLU, and in each decoder layer attention to all encoder states (Vaswani et al. 2017).

    One matrix is the embedding of both sides, scaled by sqrt(D), and the projection.
    """
    block = _block(width, layers, heads, "post-norm") | {"feedforward": ClassicSpec(activation="relu")}
    start = InitializationSpec(scheme="xavier", embedding=width**-0.5)
    return EncoderDecoderSpec(
        **block, positions=SinusoidalSpec(), embedding_scale=math.sqrt(width), initialization=start
    )


def vit(width: int, layers: int, heads: int) -> VisionSpec:
    """Patches -> D by one linear map, class token, learned positions, no mask (Dosovitskiy et al. 2021)."""
    block = _block(width, layers, heads, "pre-norm")
    return VisionSpec(**block, image=32, patch=4, channels=3, grid=GridTableSpec(), pool="first", classes=10)


def image_text(width: int, layers: int, heads: int) -> ImageTextSpec:
    """Patches and words in one sequence: the decoder, whose first tokens are the patches of an image."""
    block = _block(width, layers, heads, "pre-norm")
    return ImageTextSpec(**block, positions=LearnedSpec(), head=LinearHeadSpec(), image=48, patch=8)


def series_decoder(width: int, layers: int, heads: int) -> SeriesSpec:
    """The decoder over numbers: patches of numbers -> D by one linear map, and the next numbers' distribution."""
    return SeriesSpec(**_block(width, layers, heads, "pre-norm"), positions=LearnedSpec())


def _recurrent(attention: str, wiring: str) -> Callable[[int, int, int], RecurrentSeq2SeqSpec]:
    """h_t = f(x_t, h_(t-1)) in one direction, f a GRU, as wide as the embedding; one layer, no heads."""

    def make(width: int, layers: int, heads: int) -> RecurrentSeq2SeqSpec:
        return RecurrentSeq2SeqSpec(
            width=width, hidden=width, cell="gru", bidirectional=False, attention=attention, wiring=wiring
        )

    return make


# By family, the first of each is the one that training names beside its own choice.
PLAIN: dict[str, Callable[[int, int, int], AnySpec]] = {
    "encoder": encoder,
    "decoder": decoder,
    "encoder-decoder": encoder_decoder,
    "vit": vit,
    "image-text": image_text,
    "series-decoder": series_decoder,
    "rnn-seq2seq": _recurrent("none", "before"),
    "rnn-seq2seq-attention": _recurrent("additive", "before"),
    "rnn-seq2seq-attention-after": _recurrent("dot", "after"),
}


def plain_preset(name: str, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS) -> AnySpec:
    """The plain preset of this name and size."""
    if name not in PLAIN:
        raise WeftError(f"there is no plain preset {name!r}: choose one of {', '.join(PLAIN)}")
    return PLAIN[name](width, layers, heads)


def plain_presets(families: Sequence[str]) -> list[str]:
    """The names of the plain presets of these families, in their order."""
    return [name for family in families for name in PLAIN if plain_preset(name).family == family]
