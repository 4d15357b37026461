"""The Llama family: Mistral (window), Qwen2 (biases), Qwen3 (norms on queries and keys), Mixtral (experts)."""

from __future__ import annotations

from typing import Any

from weft.checkpoints.families.family import THEIR_ACTIVATIONS, Config, Family, KnownTensors, shortest_pattern
from weft.checkpoints.families.rotary_config import read_rotary, write_rotary
from weft.checkpoints.families.weight_maps import (
    ConcatenatedRows,
    Identity,
    StackedExperts,
    WeightRow,
    map_linear,
    map_norm,
)
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import (
    AttentionSpec,
    ExpertsSpec,
    GatedSpec,
    LinearHeadSpec,
    RMSNormSpec,
    TiedHeadSpec,
)
from weft.models.position_specs import RotarySpec

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
LENGTHS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768, "mixtral": 131072}
EPSILONS = {"llama": 1e-6, "mistral": 1e-6, "qwen2": 1e-6, "qwen3": 1e-6, "mixtral": 1e-5}
MISTRAL_WINDOW = 4096
FULL, SLIDING = "full_attention", "sliding_attention"


def read(config: Config, known: KnownTensors) -> DecoderSpec:
    """The spec of a config."""
    kind = str(config.get("model_type"))
    if kind not in ("llama", "qwen3"):
        config.expect("attention_bias", kind == "qwen2")
    config.expect("mlp_bias", False, *([True] if kind == "llama" else []))
    positions = read_rotary(config)
    if positions.fraction != 1.0:
        raise DataError(
            f"{config.name} sets partial_rotary_factor to {positions.fraction:g}: models of {kind} have only 1"
        )
    return DecoderSpec(
        vocabulary=config.whole("vocab_size"),
        length=config.whole("max_position_embeddings", LENGTHS[kind]),
        width=config.whole("hidden_size"),
        layers=config.whole("num_hidden_layers"),
        mixer=_mixers(config, kind),
        feedforward=_feedforward(config, kind),
        positions=positions,
        norm=RMSNormSpec(epsilon=config.number("rms_norm_eps", EPSILONS[kind])),
        head=TiedHeadSpec() if config.flag("tie_word_embeddings", False) else LinearHeadSpec(),
    )


def _mixers(config: Config, kind: str) -> tuple[AttentionSpec, ...]:
    """One attention, or a repeating pattern if layers differ in their window."""
    heads, width = config.whole("num_attention_heads"), config.whole("hidden_size")
    size = config.whole("head_dim", max(1, width // heads))
    epsilon = config.number("rms_norm_eps", EPSILONS[kind])
    whole = AttentionSpec(
        heads=heads,
        key_heads=config.whole("num_key_value_heads", heads),
        head_width=None if size * heads == width else size,
        bias=kind == "qwen2" or config.flag("attention_bias", False),
        output_bias=False if kind == "qwen2" else None,
        query_key_norm=RMSNormSpec(epsilon=epsilon) if kind == "qwen3" else None,
    )
    windows = shortest_pattern(_windows(config, kind))
    return tuple(whole if window is None else whole.replace(window=window) for window in windows)


def _windows(config: Config, kind: str) -> list[int | None]:
    """The attention window of each layer; None: no window."""
    layers = min(config.whole("num_hidden_layers"), 10_000)
    # Mistral's configs without the field mean this window; null means none.
    default = MISTRAL_WINDOW if kind == "mistral" and "sliding_window" not in config.tree else None
    if kind == "llama" or config.get("sliding_window", default) is None:
        return [None] * layers
    window = config.whole("sliding_window", default)
    if kind in ("mistral", "mixtral"):
        return [window] * layers
    if not config.flag("use_sliding_window", False):
        return [None] * layers
    kinds = config.get("layer_types")
    if kinds is None:
        first = int(config.get("max_window_layers", 28))
        return [window if layer >= first else None for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(one not in (FULL, SLIDING) for one in kinds):
        raise config.wrong("layer_types", f"a list of {layers} times {FULL} or {SLIDING}")
    return [window if one == SLIDING else None for one in kinds]


def _feedforward(config: Config, kind: str) -> GatedSpec | ExpertsSpec:
    hidden, activation = config.whole("intermediate_size"), config.activation("hidden_act", "silu")
    if kind == "mixtral":
        experts, active = config.whole("num_local_experts", 8), config.whole("num_experts_per_tok", 2)
        return ExpertsSpec(experts=experts, active=active, hidden=hidden, activation=activation, gates="renormalized")
    return GatedSpec(hidden=hidden, activation=activation, bias=config.flag("mlp_bias", False))


def write(spec: DecoderSpec) -> Tree:
    """The config of a spec: the simplest architecture of the family that has what it needs."""
    attention, positions = spec.attention(), spec.positions
    assert isinstance(positions, RotarySpec) and isinstance(spec.norm, RMSNormSpec)
    kind = _kind(spec)
    windows = [getattr(spec.mixer_of(layer), "window", None) for layer in range(spec.layers)]
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
        "rms_norm_eps": spec.norm.epsilon,
        **write_rotary(positions),
        "tie_word_embeddings": spec.head.kind == "tied",
        **_width(spec.feedforward),
    }
    if kind in ("llama", "qwen3"):
        config["attention_bias"] = attention.bias
    if kind == "llama":
        config["mlp_bias"] = bool(getattr(spec.feedforward, "bias", False))
    if kind in ("mistral", "mixtral"):
        config["sliding_window"] = windows[0]
    if kind in ("qwen2", "qwen3"):
        config["use_sliding_window"] = any(windows)
        config["sliding_window"] = next((window for window in windows if window), None)
        config["layer_types"] = [FULL if window is None else SLIDING for window in windows]
    return config


def _kind(spec: DecoderSpec) -> str:
    attention = spec.attention()
    if isinstance(spec.feedforward, ExpertsSpec):
        return "mixtral"
    if attention.query_key_norm is not None:
        return "qwen3"
    if attention.bias and attention.output_bias is False:
        return "qwen2"
    return "mistral" if attention.window is not None else "llama"


def _width(feedforward: Any) -> Tree:
    if isinstance(feedforward, ExpertsSpec):
        more = {"num_local_experts": feedforward.experts, "num_experts_per_tok": feedforward.active}
    else:
        more = {}
    return {"intermediate_size": feedforward.hidden, "hidden_act": THEIR_ACTIVATIONS[feedforward.activation], **more}


def table(spec: DecoderSpec) -> list[WeightRow]:
    """Tensor names of LlamaForCausalLM and its relatives."""
    attention = spec.attention()
    size, heads, keys = attention.size(spec.width), attention.heads, attention.key_heads or attention.heads
    sizes = (heads * size, keys * size, keys * size)
    output_bias = attention.bias if attention.output_bias is None else attention.output_bias
    rows = [
        WeightRow("embedding.weight", ("model.embed_tokens.weight",)),
        *map_norm("stack.norm", "model.norm", bias=False),
    ]
    if spec.head.kind == "linear":
        rows += map_linear("head.linear", "lm_head", bias=False)
    for layer in range(spec.layers):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        projections = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        rows += map_linear(f"{ours}.mixer.qkv", *projections, sizes=sizes, bias=attention.bias)
        rows += map_linear(f"{ours}.mixer.output", f"{theirs}.self_attn.o_proj", bias=output_bias)
        if attention.query_key_norm is not None:
            rows += map_norm(f"{ours}.mixer.query_norm", f"{theirs}.self_attn.q_norm", bias=False)
            rows += map_norm(f"{ours}.mixer.key_norm", f"{theirs}.self_attn.k_norm", bias=False)
        rows += map_norm(f"{ours}.mixer_norm", f"{theirs}.input_layernorm", bias=False)
        rows += map_norm(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm", bias=False)
        rows += _feedforward_rows(spec, ours, theirs)
    return rows


def _feedforward_rows(spec: DecoderSpec, ours: str, theirs: str) -> list[WeightRow]:
    feedforward: Any = spec.feedforward
    hidden = feedforward.hidden
    if not isinstance(feedforward, ExpertsSpec):
        sizes, bias = (hidden, hidden), feedforward.bias
        return [
            *map_linear(
                f"{ours}.feedforward.gate_up",
                f"{theirs}.mlp.gate_proj",
                f"{theirs}.mlp.up_proj",
                sizes=sizes,
                bias=bias,
            ),
            *map_linear(f"{ours}.feedforward.down", f"{theirs}.mlp.down_proj", bias=bias),
        ]
    numbers, moe = range(feedforward.experts), f"{theirs}.block_sparse_moe"
    ups = tuple(f"{moe}.experts.{number}.{name}.weight" for number in numbers for name in ("w1", "w3"))
    downs = tuple(f"{moe}.experts.{number}.w2.weight" for number in numbers)
    return [
        WeightRow(f"{ours}.feedforward.router", (f"{moe}.gate.weight",)),
        WeightRow(
            f"{ours}.feedforward.up", ups, StackedExperts(feedforward.experts, ConcatenatedRows((hidden, hidden)))
        ),
        WeightRow(f"{ours}.feedforward.down", downs, StackedExperts(feedforward.experts, Identity())),
    ]


def canonical(name: str) -> str | None:
    """Older files store the rotary frequencies, which are no weights."""
    return None if name.endswith("rotary_emb.inv_freq") else name


FAMILY = Family(
    name="Llama",
    types=tuple(ARCHITECTURES),
    architectures=tuple(ARCHITECTURES.values()),
    read=read,
    write=write,
    table=table,
    canonical=canonical,
    copies={"lm_head.weight": "model.embed_tokens.weight"},
)
