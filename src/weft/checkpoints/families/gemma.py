"""Gemma 2 and Gemma 3 (text): norms of 1 + gamma around each branch, a scaled embedding, alternating windows, GEGLU.

Gemma 2 caps scores and logits. Gemma 3 normalizes queries and keys instead, and its layers with a window turn faster
than those without.
"""

from __future__ import annotations

from weft.checkpoints.families.family import Config, Family, KnownTensors, shortest_pattern
from weft.checkpoints.families.rotary_config import read_rotary, write_rotary
from weft.checkpoints.families.weight_maps import WeightRow, map_linear, map_norm
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import (
    AttentionSpec,
    GatedSpec,
    LinearHeadSpec,
    TiedHeadSpec,
    ZeroCenteredRMSNormSpec,
)
from weft.models.position_specs import RotarySpec

ARCHITECTURES = {"gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
LENGTHS = {"gemma2": 8192, "gemma3_text": 131_072}
SCORE_CAPS = {"gemma2": 50.0, "gemma3_text": None}  # where the field is missing; null means none
LOGIT_CAPS = {"gemma2": 30.0, "gemma3_text": None}
PATTERNS = {"gemma2": 2, "gemma3_text": 6}  # every so many layers one has no window
FULL, SLIDING = "full_attention", "sliding_attention"
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0
HEAD_WIDTH, WINDOW = 256, 4096
ACTIVATION = "gelu_pytorch_tanh"
NORMS = {
    "mixer_norm": "input_layernorm",
    "mixer_output_norm": "post_attention_layernorm",
    "feedforward_norm": "pre_feedforward_layernorm",
    "feedforward_output_norm": "post_feedforward_layernorm",
}


def read(config: Config, known: KnownTensors) -> DecoderSpec:
    """The spec of a config."""
    kind = str(config.get("model_type"))
    config.expect("use_bidirectional_attention", False)
    width = config.whole("hidden_size")
    if kind == "gemma3_text":
        config.expect("attn_logit_softcapping", None)  # the library has the field, and does not use it
    positions = _rotary(config, kind, FULL)
    cap = _optional(config, "final_logit_softcapping", LOGIT_CAPS[kind])
    tied = config.flag("tie_word_embeddings", True)
    return DecoderSpec(
        vocabulary=config.whole("vocab_size"),
        length=config.whole("max_position_embeddings", LENGTHS[kind]),
        width=width,
        layers=config.whole("num_hidden_layers"),
        mixer=_mixers(config, kind, positions),
        feedforward=GatedSpec(
            hidden=config.whole("intermediate_size"), activation=config.activation("hidden_activation", ACTIVATION)
        ),
        positions=positions,
        norm=_norm(config),
        arrangement="sandwich-norm",
        embedding_scale=width**0.5,
        head=TiedHeadSpec(cap=cap) if tied else LinearHeadSpec(cap=cap),
    )


def _norm(config: Config) -> ZeroCenteredRMSNormSpec:
    return ZeroCenteredRMSNormSpec(epsilon=config.number("rms_norm_eps", 1e-6))


def _optional(config: Config, key: str, default: float | None) -> float | None:
    """A positive number; null means none, a missing field the default."""
    return config.number(key, default) if config.get(key, None if key in config.tree else default) is not None else None


def _rotary(config: Config, kind: str, layers: str) -> RotarySpec:
    """The positions of layers of a type; Gemma 3 has a table for each, in older configs rope_local_base_freq."""
    tree = dict(config.tree)
    if kind == "gemma3_text":
        tables = tree.get("rope_parameters") or {}
        if not isinstance(tables, dict) or not set(tables) <= {FULL, SLIDING}:
            raise config.wrong("rope_parameters", f"a table of {FULL} and {SLIDING}")
        own, base = ("rope_theta", GLOBAL_BASE) if layers == FULL else ("rope_local_base_freq", LOCAL_BASE)
        tree["rope_theta"] = base if tree.get(own) is None else tree[own]
        tree["rope_parameters"] = tables.get(layers)
        if layers == SLIDING:
            tree["rope_scaling"] = None
    found = read_rotary(Config(tree, config.name))
    if found.fraction != 1.0:
        raise DataError(f"{config.name} sets partial_rotary_factor to {found.fraction:g}: models of {kind} have 1")
    return found


def _mixers(config: Config, kind: str, positions: RotarySpec) -> tuple[AttentionSpec, ...]:
    """A repeating pattern of attention with a window and without."""
    size, scalar = config.whole("head_dim", HEAD_WIDTH), config.number("query_pre_attn_scalar", 256)
    cap = _optional(config, "attn_logit_softcapping", SCORE_CAPS[kind])
    whole = AttentionSpec(
        heads=config.whole("num_attention_heads"),
        key_heads=config.whole("num_key_value_heads", 4),
        head_width=size,
        score="scaled-dot" if cap is None else "capped-dot",
        score_scale=None if scalar == size else scalar**-0.5,
        score_cap=cap,
        bias=config.flag("attention_bias", False),
        query_key_norm=_norm(config) if kind == "gemma3_text" else None,
    )
    types = _types(config, kind)
    if SLIDING not in types:
        return (whole,)
    local = _rotary(config, kind, SLIDING)
    window = config.whole("sliding_window", WINDOW)
    sliding = whole.replace(window=window, rotary=None if local == positions else local)
    return tuple(shortest_pattern([sliding if one == SLIDING else whole for one in types]))


def _types(config: Config, kind: str) -> list[str]:
    """Which layers have a window."""
    layers = min(config.whole("num_hidden_layers"), 10_000)
    types = config.get("layer_types")
    if types is None:
        every = config.whole("sliding_window_pattern", PATTERNS[kind]) if kind == "gemma3_text" else PATTERNS[kind]
        return [SLIDING if (layer + 1) % every else FULL for layer in range(layers)]
    if not isinstance(types, list) or len(types) != layers or any(one not in (FULL, SLIDING) for one in types):
        raise config.wrong("layer_types", f"a list of {layers} times {FULL} or {SLIDING}")
    return types


def write(spec: DecoderSpec) -> Tree:
    """The config of a spec."""
    feedforward, positions, norm, attention = spec.feedforward, spec.positions, spec.norm, spec.attention()
    assert isinstance(feedforward, GatedSpec) and isinstance(positions, RotarySpec)
    assert isinstance(norm, ZeroCenteredRMSNormSpec) and feedforward.activation == "gelu-tanh"
    kind = "gemma2" if attention.query_key_norm is None else "gemma3_text"
    mixers = [spec.mixer_of(layer) for layer in range(spec.layers)]
    sliding = next((mixer for mixer in mixers if getattr(mixer, "window", None)), attention)
    assert isinstance(sliding, AttentionSpec)
    scale = attention.score_scale
    config: Tree = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.length,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.key_heads or attention.heads,
        "head_dim": attention.size(spec.width),
        "attention_bias": attention.bias,
        "query_pre_attn_scalar": attention.size(spec.width) if scale is None else round(scale**-2),
        "attn_logit_softcapping": attention.score_cap,
        "final_logit_softcapping": spec.head.cap,
        "sliding_window": sliding.window or WINDOW,
        "layer_types": [SLIDING if getattr(mixer, "window", None) else FULL for mixer in mixers],
        "intermediate_size": feedforward.hidden,
        "hidden_activation": ACTIVATION,
        "rms_norm_eps": norm.epsilon,
        "tie_word_embeddings": spec.head.kind == "tied",
    }
    if kind == "gemma2":
        return config | write_rotary(positions)
    local = sliding.rotary or positions
    tables = {name: write_rotary(one)["rope_parameters"] for name, one in ((FULL, positions), (SLIDING, local))}
    old: Tree = {"rope_theta": positions.base, "rope_local_base_freq": local.base}
    return config | old | {"rope_parameters": tables}


def table(spec: DecoderSpec) -> list[WeightRow]:
    """Names of Gemma2ForCausalLM and Gemma3ForCausalLM."""
    attention, feedforward = spec.attention(), spec.feedforward
    assert isinstance(feedforward, GatedSpec) and feedforward.hidden is not None
    size, keys, hidden = attention.size(spec.width), attention.key_heads or attention.heads, feedforward.hidden
    sizes = (attention.heads * size, keys * size, keys * size)
    rows = [
        WeightRow("embedding.weight", ("model.embed_tokens.weight",)),
        *map_norm("stack.norm", "model.norm", bias=False),
    ]
    if spec.head.kind == "linear":
        rows += map_linear("head.linear" if spec.head.cap is None else "head.head.linear", "lm_head", bias=False)
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        projections = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=sizes, bias=attention.bias)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.self_attn.o_proj", bias=attention.bias)
        if attention.query_key_norm is not None:
            rows += map_norm(f"{ours}.mixer.query_norm", f"{theirs}.self_attn.q_norm", bias=False)
            rows += map_norm(f"{ours}.mixer.key_norm", f"{theirs}.self_attn.k_norm", bias=False)
        gate_up = [f"{theirs}.mlp.{name}_proj" for name in ("gate", "up")]
        rows += map_linear(f"{ours}.feedforward.gate_up", *gate_up, sizes=(hidden, hidden), bias=False)
        rows += map_linear(f"{ours}.feedforward.down", f"{theirs}.mlp.down_proj", bias=False)
        for name, norm in NORMS.items():
            rows += map_norm(f"{ours}.{name}", f"{theirs}.{norm}", bias=False)
    return rows


FAMILY = Family(
    name="Gemma",
    types=tuple(ARCHITECTURES),
    architectures=tuple(ARCHITECTURES.values()),
    read=read,
    write=write,
    table=table,
    copies={"lm_head.weight": "model.embed_tokens.weight"},
)
