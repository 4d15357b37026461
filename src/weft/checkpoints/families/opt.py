"""OPT: learned positions that begin at 2, ReLU, tied embedding; pre-norm, or post-norm without a last norm."""

from __future__ import annotations

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.weight_maps import SkippedRows, WeightRow, map_linear, map_norm
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec, LinearHeadSpec, TiedHeadSpec
from weft.models.position_specs import LearnedSpec

UNUSED_POSITIONS = 2
EPSILON = 1e-5  # of all its norms


def read(config: Config, known: KnownTensors) -> DecoderSpec:
    """The spec of a config; opt-350m, whose embedding is narrower than its blocks, is refused."""
    config.expect("layer_norm_elementwise_affine", True)
    width = config.whole("hidden_size", 768)
    narrow = config.whole("word_embed_proj_dim", width)
    if narrow != width:
        raise DataError(
            f"{config.name}: word_embed_proj_dim {narrow} differs from hidden_size {width}, but Weft's embeddings are "
            "as wide as the blocks: fetch another size than opt-350m"
        )
    bias, first = config.flag("enable_bias", True), config.flag("do_layer_norm_before", True)
    return DecoderSpec(
        vocabulary=config.whole("vocab_size", 50272),
        length=config.whole("max_position_embeddings", 2048),
        width=width,
        layers=config.whole("num_hidden_layers", 12),
        mixer=AttentionSpec(heads=config.whole("num_attention_heads", 12), bias=bias),
        feedforward=ClassicSpec(
            hidden=config.whole("ffn_dim", 3072), activation=config.activation("activation_function", "relu"), bias=bias
        ),
        positions=LearnedSpec(),
        norm=LayerNormSpec(epsilon=EPSILON),
        arrangement="pre-norm" if first else "post-norm",
        last_norm=False if first and config.flag("_remove_final_layer_norm", False) else None,
        head=TiedHeadSpec() if config.flag("tie_word_embeddings", True) else LinearHeadSpec(),
    )


def write(spec: DecoderSpec) -> Tree:
    """The config of a spec."""
    feedforward = spec.feedforward
    assert isinstance(feedforward, ClassicSpec) and isinstance(spec.norm, LayerNormSpec)
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.length,
        "hidden_size": spec.width,
        "word_embed_proj_dim": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.attention().heads,
        "ffn_dim": feedforward.hidden or 4 * spec.width,
        "activation_function": THEIR_ACTIVATIONS[feedforward.activation],
        "enable_bias": spec.attention().bias,
        "do_layer_norm_before": spec.arrangement == "pre-norm",
        "_remove_final_layer_norm": spec.arrangement == "pre-norm" and spec.last_norm is False,
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def table(spec: DecoderSpec) -> list[WeightRow]:
    """Names of OPTForCausalLM."""
    bias, D, body = spec.attention().bias, spec.width, "model.decoder"
    rows = [
        WeightRow("embedding.weight", (f"{body}.embed_tokens.weight",)),
        WeightRow("input.position.table", (f"{body}.embed_positions.weight",), SkippedRows(UNUSED_POSITIONS)),
    ]
    if spec.arrangement == "pre-norm" and spec.last_norm is not False:
        rows += map_norm("stack.norm", f"{body}.final_layer_norm")
    if spec.head.kind == "linear":
        rows += map_linear("head.linear", "lm_head", bias=False)
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"{body}.layers.{layer}"
        projections = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=(D,) * 3, bias=bias)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.self_attn.out_proj", bias=bias)
        rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.fc1", bias=bias)
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.fc2", bias=bias)
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.self_attn_layer_norm")
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm")
    return rows


def canonical(name: str) -> str | None:
    """With or without the prefix of the body."""
    return None if name.endswith("decoder.version") else name.removeprefix("model.")


FAMILY = Family(
    name="OPT",
    types=("opt",),
    architectures=("OPTForCausalLM", "OPTModel"),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies={"lm_head.weight": "decoder.embed_tokens.weight"},
)
