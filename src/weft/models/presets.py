"""Presets: numbers only. The classics have the parameter counts of the originals, exactly; nano ones suit two cores.

Those of `plain_presets` are the lectures' own models, of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.foundation.errors import WeftError
from weft.models.decoder import DecoderSpec
from weft.models.encoder import EncoderSpec, PooledSpec, TokensSpec, VectorsSpec
from weft.models.encoder_decoder import EncoderDecoderSpec, EncoderSideSpec
from weft.models.image_text import ImageTextSpec
from weft.models.part_specs import (
    AttentionSpec,
    ClassicSpec,
    ConvolutionSpec,
    ExpertsSpec,
    GatedSpec,
    InitializationSpec,
    LayerNormSpec,
    LinearHeadSpec,
    NoFeedForwardSpec,
    NoNormSpec,
    RecurrenceSpec,
    RMSNormSpec,
    TiedHeadSpec,
)
from weft.models.plain_presets import PLAIN, plain_preset
from weft.models.position_specs import (
    BucketedSpec,
    GridTableSpec,
    LearnedSpec,
    Llama3ScalingSpec,
    NoPositionsSpec,
    RotarySpec,
    SinusoidalSpec,
)
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.models.series import SeriesSpec
from weft.models.sources import PatchSourceSpec, SeriesSourceSpec
from weft.models.vision import VisionSpec

if TYPE_CHECKING:
    from weft.models.build import AnySpec

_ZERO = InitializationSpec(scheme="fan-in", zero_residual=True)


def _gpt(layers: int, width: int, heads: int, length: int = 1024) -> DecoderSpec:
    return DecoderSpec(
        vocabulary=50257,
        length=length,
        width=width,
        layers=layers,
        mixer=AttentionSpec(heads=heads),
        feedforward=ClassicSpec(activation="gelu-tanh"),
        positions=LearnedSpec(),
    )


def _llama(
    vocabulary: int,
    layers: int,
    width: int,
    heads: int,
    key_heads: int,
    hidden: int,
    length: int,
    positions: RotarySpec | None = None,
    epsilon: float = 1e-5,
    window: int | None = None,
    tied: bool = False,
) -> DecoderSpec:
    return DecoderSpec(
        vocabulary=vocabulary,
        length=length,
        width=width,
        layers=layers,
        mixer=AttentionSpec(heads=heads, key_heads=key_heads, bias=False, window=window),
        feedforward=GatedSpec(hidden=hidden),
        positions=positions or RotarySpec(),
        norm=RMSNormSpec(epsilon=epsilon),
        head=TiedHeadSpec() if tied else LinearHeadSpec(),
    )


def _mixtral() -> DecoderSpec:
    base = _llama(32000, 32, 4096, 32, 8, 14336, 32768, RotarySpec(base=1e6))
    return base.replace(feedforward=ExpertsSpec(experts=8, active=2, hidden=14336))


def _bert(layers: int, width: int, heads: int, hidden: int) -> EncoderSpec:
    return EncoderSpec(
        input=TokensSpec(vocabulary=30522, segments=2),
        length=512,
        width=width,
        layers=layers,
        mixer=AttentionSpec(heads=heads),
        feedforward=ClassicSpec(hidden=hidden),
        positions=LearnedSpec(),
        norm=LayerNormSpec(epsilon=1e-12),
        arrangement="post-norm",
        input_norm=True,
        output=PooledSpec(hidden=width),
    )


def _vit(layers: int, width: int, heads: int) -> VisionSpec:
    return VisionSpec(
        image=224,
        patch=16,
        width=width,
        layers=layers,
        mixer=AttentionSpec(heads=heads),
        norm=LayerNormSpec(epsilon=1e-12),
        grid=GridTableSpec(),
        classes=1000,
    )


def _t5(vocabulary: int, layers: int, width: int, heads: int, length: int = 512) -> EncoderDecoderSpec:
    return EncoderDecoderSpec(
        vocabulary=vocabulary,
        length=length,
        width=width,
        layers=layers,
        mixer=AttentionSpec(heads=heads, score="dot", bias=False),
        feedforward=ClassicSpec(hidden=4 * width, activation="relu", bias=False),
        positions=BucketedSpec(),
        norm=RMSNormSpec(epsilon=1e-6),
        head=TiedHeadSpec(scale=width**-0.5),
        initialization=InitializationSpec(scheme="fan-in", embedding=1.0),
    )


def _vaswani(width: int, heads: int, hidden: int, dropout: float) -> EncoderDecoderSpec:
    return EncoderDecoderSpec(
        vocabulary=37000,
        length=512,
        width=width,
        layers=6,
        mixer=AttentionSpec(heads=heads),
        feedforward=ClassicSpec(hidden=hidden, activation="relu"),
        positions=SinusoidalSpec(),
        arrangement="post-norm",
        dropout=dropout,
        embedding_scale=math.sqrt(width),
        initialization=InitializationSpec(scheme="xavier", embedding=width**-0.5),
    )


def _nano(**fields: object) -> DecoderSpec:
    """Rotary positions, RMSNorm, norms on queries and keys, squared ReLU, zero-initialized output projections."""
    numbers: dict[str, object] = {
        "vocabulary": 256,
        "length": 256,
        "width": 128,
        "layers": 4,
        "mixer": AttentionSpec(heads=4, bias=False, query_key_norm=RMSNormSpec()),
        "feedforward": ClassicSpec(activation="squared-relu", bias=False),
        "positions": RotarySpec(),
        "norm": RMSNormSpec(),
        "initialization": _ZERO,
    }
    return DecoderSpec(**(numbers | fields))


def _nano_llama(**fields: object) -> DecoderSpec:
    """A small model that other programs know, for export."""
    return _llama(256, 4, 128, 4, 2, 352, 256, tied=True).replace(initialization=_ZERO, **fields)


def _nano_encoder(**fields: object) -> EncoderSpec:
    numbers: dict[str, object] = {
        "length": 256,
        "width": 128,
        "layers": 4,
        "mixer": AttentionSpec(heads=4),
        "positions": LearnedSpec(),
        "class_token": True,
        "output": PooledSpec(classes=2),
    }
    return EncoderSpec(**(numbers | fields))


def _nano_image_seq2seq() -> EncoderDecoderSpec:
    """Patches of an image in, text out; each word looks at the image by cross-attention."""
    return EncoderDecoderSpec(
        source=PatchSourceSpec(image=48, patch=8),
        length=64,
        width=128,
        layers=2,
        decoder_layers=3,
        mixer=AttentionSpec(heads=4),
        positions=LearnedSpec(),
    )


def _nano_speech_seq2seq() -> EncoderDecoderSpec:
    """Log-mel frames in, text out: the encoder mixes near frames by convolution and all by attention in turn."""
    return EncoderDecoderSpec(
        source=SeriesSourceSpec(channels=40, patch=4, length=256),
        length=128,
        width=128,
        layers=4,
        decoder_layers=2,
        mixer=AttentionSpec(heads=4),
        encoder=EncoderSideSpec(width=96, mixer=(ConvolutionSpec(kernel=5), AttentionSpec(heads=3))),
        positions=SinusoidalSpec(),
        initialization=InitializationSpec(scheme="fan-in"),
    )


def _nano_gru(attention: str, **fields: object) -> RecurrentSeq2SeqSpec:
    return RecurrentSeq2SeqSpec(attention=attention, vocabulary=256, width=96, hidden=128, **fields)


_PRESETS: dict[str, Callable[[], AnySpec]] = {
    "gpt2": lambda: _gpt(12, 768, 12),
    "gpt2-medium": lambda: _gpt(24, 1024, 16),
    "gpt2-large": lambda: _gpt(36, 1280, 20),
    "gpt2-xl": lambda: _gpt(48, 1600, 25),
    "gpt3-175b": lambda: _gpt(96, 12288, 96, length=2048),
    "llama-2-7b": lambda: _llama(32000, 32, 4096, 32, 32, 11008, 4096),
    "llama-3.2-1b": lambda: _llama(
        128256, 16, 2048, 32, 8, 8192, 131072, RotarySpec(base=5e5, scaling=Llama3ScalingSpec(factor=32.0)), tied=True
    ),
    "smollm2-135m": lambda: _llama(49152, 30, 576, 9, 3, 1536, 8192, RotarySpec(base=1e5), tied=True),
    "mistral-7b": lambda: _llama(32000, 32, 4096, 32, 8, 14336, 32768, window=4096),
    "mixtral-8x7b": _mixtral,
    "bert-base": lambda: _bert(12, 768, 12, 3072),
    "minilm-l6": lambda: _bert(6, 384, 12, 1536),
    "vit-b16": lambda: _vit(12, 768, 12),
    "vit-l16": lambda: _vit(24, 1024, 16),
    "t5-small": lambda: _t5(32128, 6, 512, 8),
    "vaswani-base": lambda: _vaswani(512, 8, 2048, 0.1),
    "vaswani-big": lambda: _vaswani(1024, 16, 4096, 0.3),
    "nano-gpt": _nano,
    "nano-moe": lambda: _nano(feedforward=ExpertsSpec(experts=8, active=2, hidden=176)),
    "nano-llama": _nano_llama,
    "nano-mixtral": lambda: _nano_llama(feedforward=ExpertsSpec(experts=8, active=2, hidden=176)),
    "nano-rnn": lambda: _nano(mixer=RecurrenceSpec(cell="gru"), positions=NoPositionsSpec()),
    "nano-conv": lambda: _nano(mixer=ConvolutionSpec(kernel=7), positions=NoPositionsSpec()),
    "nano-encoder": _nano_encoder,
    "nano-sequences": lambda: _nano_encoder(
        input=VectorsSpec(channels=60), length=512, output=PooledSpec(pool="mean", classes=4), class_token=False
    ),
    "lookup": lambda: EncoderSpec(
        input=VectorsSpec(channels=10),
        length=16,
        width=32,
        layers=1,
        mixer=AttentionSpec(heads=1, bias=False),
        feedforward=NoFeedForwardSpec(),
        positions=NoPositionsSpec(),
        norm=NoNormSpec(),
        output=PooledSpec(pool="first", classes=4),
        initialization=InitializationSpec(scheme="fan-in"),
    ),
    "nano-seq2seq": lambda: EncoderDecoderSpec(
        vocabulary=256,
        length=256,
        width=128,
        layers=3,
        mixer=AttentionSpec(heads=4),
        positions=SinusoidalSpec(),
        embedding_scale=math.sqrt(128),
        initialization=InitializationSpec(scheme="xavier", embedding=128**-0.5),
    ),
    "nano-image-seq2seq": _nano_image_seq2seq,
    "nano-speech-seq2seq": _nano_speech_seq2seq,
    "nano-t5": lambda: _t5(256, 3, 128, 4, 256),
    "nano-gru-additive": lambda: _nano_gru("additive"),
    "nano-gru-bilinear": lambda: _nano_gru("bilinear", wiring="after"),
    "nano-gru-dot": lambda: _nano_gru("dot", wiring="after", bidirectional=False),
    "nano-gru-plain": lambda: _nano_gru("none"),
    "nano-vit": lambda: VisionSpec(
        image=28, patch=4, channels=1, width=96, layers=4, mixer=AttentionSpec(heads=4), classes=10
    ),
    "nano-image-text": lambda: ImageTextSpec(
        width=128, layers=4, mixer=AttentionSpec(heads=4), positions=LearnedSpec(), image=48, patch=8, length=64
    ),
    "nano-series": lambda: SeriesSpec(width=64, layers=3, mixer=AttentionSpec(heads=4), patch=8, length=64),
}


def presets() -> list[str]:
    """The names of all presets."""
    return [*PLAIN, *_PRESETS]


def preset(name: str) -> AnySpec:
    """The spec of this name; frozen, `replace` gives a changed copy."""
    if name in PLAIN:
        return plain_preset(name)
    if name not in _PRESETS:
        raise WeftError(f"there is no preset {name!r}: choose one of {', '.join(presets())}")
    return _PRESETS[name]()
