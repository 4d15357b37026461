"""Phi-3 and Phi-4: Llama's blocks with one matrix for queries, keys and values, and one for gate and up.

LongRoPE, whose frequencies change with the length of the text, is refused: then cached keys would have to turn anew.
"""

from __future__ import annotations

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.rotary_config import read_rotary, write_rotary
from weft.checkpoints.families.weight_maps import WeightRow, map_linear, map_norm
from weft.foundation.spec import Tree
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec, GatedSpec, LinearHeadSpec, RMSNormSpec, TiedHeadSpec
from weft.models.position_specs import RotarySpec


def read(config: Config, known: KnownTensors) -> DecoderSpec:
    """The spec of a config."""
    heads, width = config.whole("num_attention_heads", 32), config.whole("hidden_size", 3072)
    size = config.whole("head_dim", max(1, width // heads))
    window = config.get("sliding_window")
    return DecoderSpec(
        vocabulary=config.whole("vocab_size", 32064),
        length=config.whole("max_position_embeddings", 4096),
        width=width,
        layers=config.whole("num_hidden_layers", 32),
        mixer=AttentionSpec(
            heads=heads,
            key_heads=config.whole("num_key_value_heads", heads),
            head_width=None if size * heads == width else size,
            window=None if window is None else config.whole("sliding_window"),
            bias=False,
        ),
        feedforward=GatedSpec(
            hidden=config.whole("intermediate_size", 8192), activation=config.activation("hidden_act", "silu")
        ),
        positions=read_rotary(config, kinds=("default",)),
        norm=RMSNormSpec(epsilon=config.number("rms_norm_eps", 1e-5)),
        head=TiedHeadSpec() if config.flag("tie_word_embeddings", False) else LinearHeadSpec(),
    )


def write(spec: DecoderSpec) -> Tree:
    """The config of a spec."""
    attention, feedforward, positions = spec.attention(), spec.feedforward, spec.positions
    assert isinstance(feedforward, GatedSpec) and isinstance(spec.norm, RMSNormSpec)
    assert isinstance(positions, RotarySpec) and positions.scaling is None
    return {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.length,
        "original_max_position_embeddings": spec.length,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.key_heads or attention.heads,
        "head_dim": attention.size(spec.width),
        "sliding_window": attention.window,
        "intermediate_size": feedforward.hidden,
        "hidden_act": THEIR_ACTIVATIONS[feedforward.activation],
        "rms_norm_eps": spec.norm.epsilon,
        **write_rotary(positions),
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def table(spec: DecoderSpec) -> list[WeightRow]:
    """Names of Phi3ForCausalLM."""
    rows = [
        WeightRow("embedding.weight", ("model.embed_tokens.weight",)),
        *map_norm("stack.norm", "model.norm", bias=False),
    ]
    if spec.head.kind == "linear":
        rows += map_linear("head.linear", "lm_head", bias=False)
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        rows += map_linear(f"{ours}.mixer.qkv", f"{theirs}.self_attn.qkv_proj", bias=False)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.self_attn.o_proj", bias=False)
        rows += map_linear(f"{ours}.feedforward.gate_up", f"{theirs}.mlp.gate_up_proj", bias=False)
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.mlp.down_proj", bias=False)
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.input_layernorm", bias=False)
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm", bias=False)
    return rows


def canonical(name: str) -> str | None:
    """Older files store the rotary frequencies, which are no weights."""
    return None if name.endswith("rotary_emb.inv_freq") else name


FAMILY = Family(
    name="Phi-3",
    types=("phi3",),
    architectures=("Phi3ForCausalLM",),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies={"lm_head.weight": "model.embed_tokens.weight"},
)
