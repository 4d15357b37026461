"""T5 and Flan-T5: pre-norm with RMS norms, no biases, bucketed distances; classic with ReLU or gated with GELU."""

from __future__ import annotations

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.weight_maps import WeightRow, map_linear, map_norm
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, GatedSpec, LinearHeadSpec, RMSNormSpec, TiedHeadSpec
from weft.models.position_specs import BucketedSpec

LENGTH = 512  # tokens that T5 was trained on; its positions have no limit


def read(config: Config, known: KnownTensors) -> EncoderDecoderSpec:
    """The spec of a config."""
    width, heads = config.whole("d_model", 512), config.whole("num_heads", 8)
    layers, size = config.whole("num_layers", 6), config.whole("d_kv", 64)
    return EncoderDecoderSpec(
        vocabulary=config.whole("vocab_size", 32128),
        length=config.whole("n_positions", LENGTH),
        width=width,
        layers=layers,
        decoder_layers=config.whole("num_decoder_layers", layers),
        mixer=AttentionSpec(heads=heads, head_width=None if size * heads == width else size, score="dot", bias=False),
        feedforward=_feedforward(config),
        positions=BucketedSpec(
            buckets=config.whole("relative_attention_num_buckets", 32),
            farthest=config.whole("relative_attention_max_distance", 128),
        ),
        norm=RMSNormSpec(epsilon=config.number("layer_norm_epsilon", 1e-6)),
        head=_head(config, known, width),
    )


def _feedforward(config: Config) -> ClassicSpec | GatedSpec:
    kind, hidden = str(config.get("feed_forward_proj", "relu")), config.whole("d_ff", 2048)
    # T5's gated-gelu is the tanh approximation.
    words = {"act": "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")}
    activation = Config(words, f"{config.name}, feed_forward_proj").activation("act", "relu")
    if kind.startswith("gated-"):
        return GatedSpec(hidden=hidden, activation=activation)
    return ClassicSpec(hidden=hidden, activation=activation, bias=False)


def _head(config: Config, known: KnownTensors, width: int) -> TiedHeadSpec | LinearHeadSpec:
    """Tied and scaled in the first T5; later ones do not scale, and mostly do not tie: the tensors tell."""
    scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    if known.has("lm_head.weight") and not known.same("lm_head.weight", "shared.weight"):
        if scaled:
            raise DataError(
                f"{config.name} scales the output as if it were tied, but lm_head and shared differ: "
                "set tie_word_embeddings to false there"
            )
        return LinearHeadSpec()
    return TiedHeadSpec(scale=width**-0.5 if scaled else 1.0)


def write(spec: EncoderDecoderSpec) -> Tree:
    """The config of a spec."""
    positions, feedforward = spec.positions, spec.feedforward
    assert isinstance(positions, BucketedSpec) and isinstance(spec.norm, RMSNormSpec)
    assert isinstance(feedforward, (ClassicSpec, GatedSpec))
    name = THEIR_ACTIVATIONS[feedforward.activation]
    gated = isinstance(feedforward, GatedSpec)
    scaled = isinstance(spec.head, TiedHeadSpec) and spec.head.scale != 1.0
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": spec.vocabulary,
        "n_positions": spec.length,
        "d_model": spec.width,
        "d_kv": spec.attention().size(spec.width),
        "d_ff": feedforward.hidden or 4 * spec.width,
        "num_layers": spec.layers,
        "num_decoder_layers": spec.layers if spec.decoder_layers is None else spec.decoder_layers,
        "num_heads": spec.attention().heads,
        "relative_attention_num_buckets": positions.buckets,
        "relative_attention_max_distance": positions.farthest,
        "layer_norm_epsilon": spec.norm.epsilon,
        "feed_forward_proj": ("gated-gelu" if name == "gelu_new" else f"gated-{name}") if gated else name,
        "tie_word_embeddings": scaled,
    }


def table(spec: EncoderDecoderSpec) -> list[WeightRow]:
    """Names of T5ForConditionalGeneration."""
    size = spec.attention().heads * spec.attention().size(spec.width)
    rows = [WeightRow("embedding.weight", ("shared.weight",))]
    if spec.head.kind == "linear":
        rows += map_linear("head.linear", "lm_head", bias=False)
    decoders = spec.layers if spec.decoder_layers is None else spec.decoder_layers
    for side, layers in (("encoder", spec.layers), ("decoder", decoders)):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows += [
            WeightRow(f"{side}.position.table", (first,)),
            *map_norm(f"{side}.norm", f"{side}.final_layer_norm", bias=False),
        ]
        for layer in range(layers):
            ours, theirs = f"{side}.blocks.{layer}", f"{side}.block.{layer}.layer"
            projections = [f"{theirs}.0.SelfAttention.{name}" for name in "qkv"]
            rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=(size,) * 3, bias=False)
            rows += map_linear(f"{ours}.mixer.output", f"{theirs}.0.SelfAttention.o", bias=False)
            rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.0.layer_norm", bias=False)
            if side == "decoder":
                rows += _cross(ours, theirs, size)
            rows += _feedforward_rows(spec, ours, f"{theirs}.{2 if side == 'decoder' else 1}")
    return rows


def _cross(ours: str, theirs: str, size: int) -> list[WeightRow]:
    projections = f"{theirs}.1.EncDecAttention"
    return [
        *map_linear(f"{ours}.cross.query", f"{projections}.q", bias=False),
        *map_linear(f"{ours}.cross.key_value", f"{projections}.k", f"{projections}.v", sizes=(size, size), bias=False),
        *map_linear(f"{ours}.cross.output", f"{projections}.o", bias=False),
        *map_norm(f"{ours}.cross_norm", f"{theirs}.1.layer_norm", bias=False),
    ]


def _feedforward_rows(spec: EncoderDecoderSpec, ours: str, theirs: str) -> list[WeightRow]:
    mlp, hidden = f"{theirs}.DenseReluDense", getattr(spec.feedforward, "hidden", None) or 0
    if isinstance(spec.feedforward, GatedSpec):
        up = map_linear(f"{ours}.feedforward.gate_up", f"{mlp}.wi_0", f"{mlp}.wi_1", sizes=(hidden,) * 2, bias=False)
    else:
        up = map_linear(f"{ours}.feedforward.up", f"{mlp}.wi", bias=False)
    down = map_linear(f"{ours}.feedforward.down", f"{mlp}.wo", bias=False)
    return [*up, *down, *map_norm(f"{ours}.feedforward_norm", f"{theirs}.layer_norm", bias=False)]


def canonical(name: str) -> str | None:
    """The first files also hold an unused table of distances for cross-attention."""
    return None if name.endswith("EncDecAttention.relative_attention_bias.weight") else name


_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
FAMILY = Family(
    name="T5",
    types=("t5",),
    architectures=("T5ForConditionalGeneration",),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies=dict.fromkeys(_TIED, "shared.weight"),
)
