"""GPT-2: learned positions, pre-norm, tied embedding; its linear maps are stored [in, out]."""

from __future__ import annotations

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.weight_maps import Transposed, WeightRow, map_linear, map_norm
from weft.foundation.spec import Tree
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec, LinearHeadSpec, TiedHeadSpec
from weft.models.position_specs import LearnedSpec


def read(config: Config, known: KnownTensors) -> DecoderSpec:
    """The spec of a config."""
    config.expect("scale_attn_weights", True)
    config.expect("scale_attn_by_inverse_layer_idx", False)
    config.expect("add_cross_attention", False)
    width = config.whole("n_embd", 768)
    return DecoderSpec(
        vocabulary=config.whole("vocab_size", 50257),
        length=config.whole("n_positions", 1024),
        width=width,
        layers=config.whole("n_layer", 12),
        mixer=AttentionSpec(heads=config.whole("n_head", 12)),
        feedforward=ClassicSpec(
            hidden=config.whole("n_inner", 4 * width), activation=config.activation("activation_function", "gelu_new")
        ),
        positions=LearnedSpec(),
        norm=LayerNormSpec(epsilon=config.number("layer_norm_epsilon", 1e-5)),
        head=TiedHeadSpec() if config.flag("tie_word_embeddings", True) else LinearHeadSpec(),
    )


def write(spec: DecoderSpec) -> Tree:
    """The config of a spec."""
    feedforward = spec.feedforward
    assert isinstance(feedforward, ClassicSpec) and isinstance(spec.norm, LayerNormSpec)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": spec.vocabulary,
        "n_positions": spec.length,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_head": spec.attention().heads,
        "n_inner": feedforward.hidden or 4 * spec.width,
        "activation_function": THEIR_ACTIVATIONS[feedforward.activation],
        "layer_norm_epsilon": spec.norm.epsilon,
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def table(spec: DecoderSpec) -> list[WeightRow]:
    """Names of GPT2LMHeadModel."""
    rows = [
        WeightRow("embedding.weight", ("transformer.wte.weight",)),
        WeightRow("input.position.table", ("transformer.wpe.weight",)),
        *map_norm("stack.norm", "transformer.ln_f"),
    ]
    if spec.head.kind == "linear":
        rows += map_linear("head.linear", "lm_head", bias=False)
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"transformer.h.{layer}"
        rows += map_linear(f"{ours}.mixer.qkv", f"{theirs}.attn.c_attn", transform=Transposed())
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.attn.c_proj", transform=Transposed())
        rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", transform=Transposed())
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", transform=Transposed())
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.ln_1")
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
    return rows


def canonical(name: str) -> str | None:
    """Older files have no prefix, and store the causal mask as a buffer."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return name.removeprefix("transformer.")


FAMILY = Family(
    name="GPT-2",
    types=("gpt2",),
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies={"lm_head.weight": "wte.weight"},
)
