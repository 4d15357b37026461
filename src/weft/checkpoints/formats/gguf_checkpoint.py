"""GGUF checkpoints of Llama and GPT-2 kinds: their names and settings translated to those of Hugging Face folders.

So the same adapters serve both; names go both ways (`TENSOR_NAMES`, `to_gguf`). llama.cpp stores Llama's queries and
keys with the coordinates of each rotary pair side by side (`interleave_pairs`, `separate_pairs`), and GPT-2's linear
maps as [out, in].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.checkpoints.families.family import Config
from weft.checkpoints.formats.foreign_checkpoint import ForeignCheckpoint, inspect_checkpoint
from weft.checkpoints.formats.foreign_tensors import ForeignTensors, Shape
from weft.checkpoints.formats.gguf_file import GGUFFile, open_gguf_file
from weft.checkpoints.formats.gguf_vocabulary import read_gguf_vocabulary
from weft.data.readers.files import DataError
from weft.parts.block_formats import BLOCK_FORMATS
from weft.parts.relative import Llama3, rotary_frequencies

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
    "blk.{}.ffn_gate_inp": "model.layers.{}.block_sparse_moe.gate",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
TENSOR_NAMES: dict[str, dict[str, str]] = {"llama": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA, "gpt2": _GPT2}
# A stack of experts in one tensor, and the matrix of one expert.
EXPERT_STACKS = {"ffn_gate_exps": "w1", "ffn_down_exps": "w2", "ffn_up_exps": "w3"}
LAYER_NUMBER = re.compile(r"\.(\d+)\.")


def to_gguf(architecture: str, name: str) -> str:
    """The GGUF name of a tensor of a Hugging Face folder; experts have one name for all of a layer."""
    stem, _, last = name.rpartition(".")
    layer = LAYER_NUMBER.search(stem)
    plain = LAYER_NUMBER.sub(".{}.", stem, count=1)
    for ours, theirs in TENSOR_NAMES[architecture].items():
        if theirs == plain:
            return f"{ours}.{last}".replace("{}", layer.group(1) if layer else "")
    raise DataError(f"{name} has no name in a GGUF file of {architecture}")


def interleave_pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from (x_i .., x_(i+K/2) ..) to pairs side by side, as llama.cpp stores Llama's."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def separate_pairs(weight: Tensor, heads: int) -> Tensor:
    """The inverse of `interleave_pairs`."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


class GGUFLocation(NamedTuple):
    """Where a tensor of a Hugging Face folder is in the GGUF file; one expert is a slice."""

    name: str
    shape: Shape
    expert: int | None = None
    transposed: bool = False
    heads: int | None = None


class GGUFTensors(ForeignTensors):
    """The tensors of a GGUF file under the names of a Hugging Face folder."""

    def __init__(self, file: GGUFFile, places: Mapping[str, GGUFLocation]) -> None:
        self.file, self.places, self.files = file, places, file.path.name

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: place.shape for name, place in self.places.items()}

    def dtype_of(self, name: str) -> torch.dtype:
        """Quantized tensors are read as float32."""
        return self.file.dtype_of(self.places[name].name)

    def read(self, name: str) -> Tensor:
        """The tensor as the Hugging Face folder would have it."""
        place = self.places[name]
        tensor = self.file.read(place.name, place.expert)
        if place.heads is not None:
            tensor = separate_pairs(tensor, place.heads)
        return tensor.T if place.transposed else tensor

    def block_kind(self, name: str) -> str | None:
        """Of matrices; not of single experts."""
        place = self.places[name]
        kind = self.file.tensors[place.name].kind
        return kind if kind in BLOCK_FORMATS and len(place.shape) == 2 and place.expert is None else None

    def read_blocks(self, name: str) -> Tensor:
        """Rows in the order that the Hugging Face folder would have."""
        place = self.places[name]
        blocks = self.file.read_bytes(place.name).reshape(self.file.tensors[place.name].shape[0], -1)
        return blocks if place.heads is None else separate_pairs(blocks, place.heads)


def open_gguf(path: Path) -> ForeignCheckpoint:
    """Inspect a GGUF file."""
    file = open_gguf_file(path)
    settings = file.settings
    kind = settings.get("general.architecture")
    if not isinstance(kind, str) or kind not in TENSOR_NAMES:
        raise DataError(
            f"{path.name} is of architecture {kind!r:.40}: of GGUF files, {', '.join(TENSOR_NAMES)} are read"
        )
    tree = _config(kind, file)
    tensors = GGUFTensors(file, _places(kind, file, tree))
    tree["tie_word_embeddings"] = _tied(kind, tensors)
    vocabulary = read_gguf_vocabulary(path.name, settings)
    stops = [settings.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return inspect_checkpoint(
        path, Config(tree, path.name), tensors, vocabulary, [stop for stop in stops if stop is not None]
    )


def _tied(kind: str, tensors: ForeignTensors) -> bool:
    """Whether the model is tied: it has no head, or a copy of the embedding."""
    embedding = f"{TENSOR_NAMES[kind]['token_embd']}.weight"
    if "lm_head.weight" not in tensors.shapes:
        return True
    return embedding in tensors.shapes and tensors.same("lm_head.weight", embedding)


def _config(kind: str, file: GGUFFile) -> dict[str, Any]:
    """The settings as a config.json has them."""
    given = Config({key.removeprefix(f"{kind}."): value for key, value in file.settings.items()}, file.path.name)
    width, heads = given.whole("embedding_length"), given.whole("attention.head_count")
    table = file.tensors.get("token_embd.weight")
    common = {"vocab_size": table.shape[0] if table and len(table.shape) == 2 else given.whole("vocab_size")}
    hidden, layers, length = (given.whole(key) for key in ("feed_forward_length", "block_count", "context_length"))
    if kind == "gpt2":
        return {
            **common, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": width, "n_head": heads,
            "n_layer": layers, "n_positions": length, "n_inner": hidden,
            "layer_norm_epsilon": given.number("attention.layer_norm_epsilon", 1e-5),
        }  # fmt: skip
    size = given.whole("attention.key_length", given.whole("rope.dimension_count", max(1, width // heads)))
    experts = given.whole("expert_count") if given.get("expert_count", 0) != 0 else 0
    model = "mixtral" if experts else kind
    config = {
        **common,
        "model_type": model,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": given.whole("attention.head_count_kv", heads),
        "head_dim": size,
        "intermediate_size": hidden,
        "max_position_embeddings": length,
        "rms_norm_eps": given.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(given, file, size),
        "attention_bias": kind == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
    }
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": given.whole("expert_used_count")}
    return config


def _rope(given: Config, file: GGUFFile, size: int) -> dict[str, Any]:
    """Rotary positions; Llama 3's scaling is stored as a tensor of factors."""
    if given.whole("rope.dimension_count", size) != size:
        raise DataError(
            f"{given.name} rotates {given.get('rope.dimension_count')} of {size} coordinates: Weft's Llama rotates all"
        )
    base = given.number("rope.freq_base", 10_000.0)
    kind = given.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, base, size)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": base}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": base, "factor": given.number("rope.scaling.factor")}
    raise DataError(f"{given.name} scales rotary positions by {kind!r:.40}: Weft has none, linear and llama3")


def _llama3_scaling(file: GGUFFile, base: float, size: int) -> dict[str, Any]:
    """The parameters of Llama 3's scaling that give these factors: all its models share low 1, high 4 and 8192."""
    factors = file.read("rope_freqs.weight").double()
    plain = torch.zeros(1, dtype=torch.float64)
    scaling = Llama3(round(float(factors.max()), 4), 1.0, 4.0, 8192)
    expected = rotary_frequencies(base, size, plain) / scaling.frequencies(base, size, plain)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-3):
        raise DataError(
            f"{file.path.name} scales rotary positions by factors that are not Llama 3's: use the folder instead"
        )
    names = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "rope_theta": base, "factor": scaling.factor, **names}


def _places(kind: str, file: GGUFFile, config: Mapping[str, Any]) -> dict[str, GGUFLocation]:
    """Each tensor of the file by its name in a Hugging Face folder; unknown ones keep their name, for the error."""
    found: dict[str, GGUFLocation] = {}
    for name, stored in file.tensors.items():
        if name == "rope_freqs.weight":
            continue
        stem, _, last = name.rpartition(".")
        layer = LAYER_NUMBER.search(f"{stem}.")
        plain = LAYER_NUMBER.sub(".{}.", f"{stem}.", count=1).removesuffix(".")
        number = layer.group(1) if layer else ""
        part = plain.rpartition(".")[2]
        if part in EXPERT_STACKS and len(stored.shape) == 3 and kind == "llama":
            for expert in range(stored.shape[0]):
                theirs = f"model.layers.{number}.block_sparse_moe.experts.{expert}.{EXPERT_STACKS[part]}.weight"
                found[theirs] = GGUFLocation(name, stored.shape[1:], expert)
            continue
        theirs = f"{TENSOR_NAMES[kind].get(plain, plain).replace('{}', number)}.{last}"
        transposed = kind == "gpt2" and layer is not None and len(stored.shape) == 2
        paired = (
            {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part) if kind == "llama" else None
        )
        heads = None if paired is None else int(config[paired])
        if heads is not None and stored.shape[0] % (2 * heads):
            raise DataError(f"{file.path.name}: {name} has {stored.shape[0]} rows, which {heads} heads cannot share")
        found[theirs] = GGUFLocation(name, stored.shape[::-1] if transposed else stored.shape, None, transposed, heads)
    return found
