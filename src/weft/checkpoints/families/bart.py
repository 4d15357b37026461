"""BART and Marian: post-norm encoder-decoders with one embedding for all.

BART has learned positions that begin at 2 and a norm before its first blocks, Marian sinusoids, sines before cosines.
"""

from __future__ import annotations

from functools import partial

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.weight_maps import Reshaped, SkippedRows, WeightRow, map_linear, map_norm
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec, TiedHeadSpec
from weft.models.position_specs import LearnedSpec, SinusoidalSpec

UNUSED_POSITIONS = 2


def read(config: Config, known: KnownTensors, marian: bool = False) -> EncoderDecoderSpec:
    """The spec of a config."""
    config.expect("normalize_before", False)
    config.expect("add_final_layer_norm", False)
    config.expect("normalize_embedding", not marian)
    config.expect("share_encoder_decoder_embeddings", True)
    config.expect("tie_word_embeddings", True)
    width = config.whole("d_model")
    return EncoderDecoderSpec(
        vocabulary=config.whole("vocab_size"),
        length=config.whole("max_position_embeddings", 1024),
        width=width,
        layers=config.whole("encoder_layers"),
        decoder_layers=config.whole("decoder_layers"),
        mixer=AttentionSpec(heads=_both(config, "attention_heads")),
        feedforward=ClassicSpec(
            hidden=_both(config, "ffn_dim"), activation=config.activation("activation_function", "gelu")
        ),
        positions=SinusoidalSpec(layout="halves") if marian else LearnedSpec(),
        norm=LayerNormSpec(epsilon=1e-5),
        arrangement="post-norm",
        input_norm=not marian,
        embedding_scale=width**0.5 if config.flag("scale_embedding", False) else 1.0,
        head=TiedHeadSpec(bias=known.has("final_logits_bias")),
    )


def _both(config: Config, key: str) -> int:
    first, second = (config.whole(f"{side}_{key}") for side in ("encoder", "decoder"))
    if first != second:
        raise DataError(
            f"{config.name}: encoder_{key} {first} and decoder_{key} {second} differ, but Weft builds both alike"
        )
    return first


def write(spec: EncoderDecoderSpec, marian: bool = False) -> Tree:
    """The config of a spec."""
    feedforward, heads = spec.feedforward, spec.attention().heads
    assert isinstance(feedforward, ClassicSpec)
    hidden = feedforward.hidden or 4 * spec.width
    return {
        "architectures": ["MarianMTModel" if marian else "BartForConditionalGeneration"],
        "model_type": "marian" if marian else "bart",
        "is_encoder_decoder": True,
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.length,
        "d_model": spec.width,
        "encoder_layers": spec.layers,
        "decoder_layers": spec.layers if spec.decoder_layers is None else spec.decoder_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": hidden,
        "decoder_ffn_dim": hidden,
        "activation_function": THEIR_ACTIVATIONS[feedforward.activation],
        "scale_embedding": spec.embedding_scale != 1.0,
        "tie_word_embeddings": True,
    }


def table(spec: EncoderDecoderSpec, marian: bool = False) -> list[WeightRow]:
    """Names of BartForConditionalGeneration and MarianMTModel."""
    D, C = spec.width, spec.vocabulary
    rows = [WeightRow("embedding.weight", ("model.shared.weight",))]
    if isinstance(spec.head, TiedHeadSpec) and spec.head.bias:
        rows.append(WeightRow("head.bias", ("final_logits_bias",), Reshaped((1, C), (C,))))
    decoders = spec.layers if spec.decoder_layers is None else spec.decoder_layers
    for side, entry, layers in (("encoder", "source", spec.layers), ("decoder", "target", decoders)):
        body = f"model.{side}"
        if not marian:
            places = (f"{body}.embed_positions.weight",)
            rows.append(WeightRow(f"{entry}_input.position.table", places, SkippedRows(UNUSED_POSITIONS)))
            rows += map_norm(f"{entry}_input.norm", f"{body}.layernorm_embedding")
        for layer in range(layers):
            ours, theirs = f"{side}.blocks.{layer}", f"{body}.layers.{layer}"
            projections = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
            rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=(D,) * 3)
            rows += map_linear(f"{ours}.mixer.output", f"{theirs}.self_attn.out_proj")
            rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                rows += _cross(ours, f"{theirs}.encoder_attn", D)
            rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.fc1")
            rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.fc2")
            rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm")
    return rows


def _cross(ours: str, theirs: str, width: int) -> list[WeightRow]:
    return [
        *map_linear(f"{ours}.cross.query", f"{theirs}.q_proj"),
        *map_linear(f"{ours}.cross.key_value", f"{theirs}.k_proj", f"{theirs}.v_proj", sizes=(width, width)),
        *map_linear(f"{ours}.cross.output", f"{theirs}.out_proj"),
        *map_norm(f"{ours}.cross_norm", f"{theirs}_layer_norm"),
    ]


def canonical(name: str, marian: bool = False) -> str | None:
    """With or without the body's prefix; Marian's positions are a formula, even if a file stores them."""
    name = name.removeprefix("model.")
    if name in ("encoder.version", "decoder.version") or (marian and name.endswith("coder.embed_positions.weight")):
        return None
    return name


_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
BART = Family(
    name="BART",
    types=("bart",),
    architectures=("BartForConditionalGeneration", "BartModel"),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies=dict.fromkeys(_TIED, "shared.weight"),
)
MARIAN = Family(
    name="Marian",
    types=("marian",),
    architectures=("MarianMTModel",),
    read=partial(read, marian=True),
    write=partial(write, marian=True),
    table=partial(table, marian=True),
    canonical=partial(canonical, marian=True),
    copies=dict.fromkeys(_TIED, "shared.weight"),
)
