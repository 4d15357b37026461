"""GPT-NeoX and Pythia: parallel branches, rotary positions of a part of each head, biases everywhere.

Queries, keys and values of a head stand one after the other in one matrix.
"""

from __future__ import annotations

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors
from weft.checkpoints.families.rotary_config import read_rotary, write_rotary
from weft.checkpoints.families.weight_maps import HeadByHead, WeightRow, map_linear, map_norm
from weft.foundation.spec import Tree
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, LayerNormSpec, LinearHeadSpec, TiedHeadSpec
from weft.models.position_specs import RotarySpec

ROTARY_FRACTION = 0.25  # the share of each head that turns, where a config does not say


def read(config: Config, known: KnownTensors) -> DecoderSpec:
    """The spec of a config; older ones name the rotary base rotary_emb_base and the share that turns rotary_pct."""
    old = {"rope_theta": config.get("rotary_emb_base"), "partial_rotary_factor": config.get("rotary_pct")}
    named = Config({**{key: value for key, value in old.items() if value is not None}, **config.tree}, config.name)
    return DecoderSpec(
        vocabulary=config.whole("vocab_size", 50432),
        length=config.whole("max_position_embeddings", 2048),
        width=config.whole("hidden_size", 6144),
        layers=config.whole("num_hidden_layers", 44),
        mixer=AttentionSpec(
            heads=config.whole("num_attention_heads", 64),
            bias=config.flag("attention_bias", True),
        ),
        feedforward=ClassicSpec(
            hidden=config.whole("intermediate_size", 24576), activation=config.activation("hidden_act", "gelu")
        ),
        positions=read_rotary(named, fraction=ROTARY_FRACTION),
        norm=LayerNormSpec(epsilon=config.number("layer_norm_eps", 1e-5)),
        arrangement="parallel" if config.flag("use_parallel_residual", True) else "pre-norm",
        head=TiedHeadSpec() if config.flag("tie_word_embeddings", False) else LinearHeadSpec(),
    )


def write(spec: DecoderSpec) -> Tree:
    """The config of a spec."""
    feedforward, positions = spec.feedforward, spec.positions
    assert isinstance(feedforward, ClassicSpec) and isinstance(spec.norm, LayerNormSpec)
    assert isinstance(positions, RotarySpec)
    rope = write_rotary(positions)
    rope["rope_parameters"]["partial_rotary_factor"] = positions.fraction  # without it the library turns a quarter
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.length,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.attention().heads,
        "attention_bias": spec.attention().bias,
        "intermediate_size": feedforward.hidden or 4 * spec.width,
        "hidden_act": THEIR_ACTIVATIONS[feedforward.activation],
        "layer_norm_eps": spec.norm.epsilon,
        "use_parallel_residual": spec.arrangement == "parallel",
        "rotary_emb_base": positions.base,
        "rotary_pct": positions.fraction,
        **rope,
        "tie_word_embeddings": spec.head.kind == "tied",
    }


def table(spec: DecoderSpec) -> list[WeightRow]:
    """Names of GPTNeoXForCausalLM."""
    attention = spec.attention()
    kinds = ("weight", "bias") if attention.bias else ("weight",)
    rows = [
        WeightRow("embedding.weight", ("gpt_neox.embed_in.weight",)),
        *map_norm("stack.norm", "gpt_neox.final_layer_norm"),
    ]
    if spec.head.kind == "linear":
        rows += map_linear("head.linear", "embed_out", bias=False)
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"gpt_neox.layers.{layer}"
        fused = f"{theirs}.attention.query_key_value"
        rows += [
            WeightRow(f"{ours}.mixer.qkv.{kind}", (f"{fused}.{kind}",), HeadByHead(attention.heads)) for kind in kinds
        ]
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.attention.dense", bias=attention.bias)
        rows += map_linear(f"{ours}.feedforward.up", f"{theirs}.mlp.dense_h_to_4h")
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.mlp.dense_4h_to_h")
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.input_layernorm")
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm")
    return rows


def canonical(name: str) -> str | None:
    """Older files store the causal mask and the rotary frequencies, newer ones call the head lm_head."""
    if name.endswith((".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")):
        return None
    return name.replace("lm_head.", "embed_out.")


FAMILY = Family(
    name="GPT-NeoX",
    types=("gpt_neox",),
    architectures=("GPTNeoXForCausalLM",),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
)
