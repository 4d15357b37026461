"""GGUF files for llama.cpp from runs of Llama and GPT-2 kinds; the import's weight maps in reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.checkpoints.convert_checkpoint import ConversionProgress
from weft.checkpoints.export.export_source import ExportSource
from weft.checkpoints.export.gguf_vocabulary import vocabulary_settings
from weft.checkpoints.families import explicit_spec, find_family
from weft.checkpoints.families.weight_maps import WeightRow
from weft.checkpoints.formats.foreign_tensors import Shape
from weft.checkpoints.formats.gguf_checkpoint import EXPERT_STACKS, LAYER_NUMBER, interleave_pairs, to_gguf
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_atomic
from weft.foundation.spec import Tree
from weft.parts.relative import Llama3, rotary_frequencies

GGUF_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
GGUF_ARCHITECTURES["gpt2"] = "gpt2"
LLAMA_CPP_ACTIVATIONS = {"llama": "silu", "qwen2": "silu", "qwen3": "silu", "gpt2": "gelu_new"}
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}
STORED_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
LLAMA3 = (1.0, 4.0, 8192)  # low, high and original length of all Llama 3 models; a GGUF file stores factors only
EXPERT_NAMES = {theirs: ours for ours, theirs in EXPERT_STACKS.items()}


class GGUFTensor(NamedTuple):
    """A tensor of the file: its name, shape, type, and the function that makes it."""

    name: str
    shape: Shape
    kind: str
    make: Callable[[], Tensor]


def write_gguf(
    run: ExportSource, path: Path, kind: str | None = None, progress: ConversionProgress | None = None
) -> str:
    """Write one GGUF file with weights of this type (as stored if none is given); returns the architecture."""
    if kind is not None and kind not in FILE_TYPES:
        raise WeftError(f"there is no type {kind!r}: choose one of {', '.join(FILE_TYPES)}")
    family, config = find_family(run.model, run.family)
    name = GGUF_ARCHITECTURES.get(str(config["model_type"]))
    if name is None:
        raise WeftError(f"a GGUF file holds models of Llama and GPT-2 kinds, but this one is of {family.name}'s")
    _expect_known(name, config)
    types = {tensor.dtype for tensor in run.weights.values()}
    kind = kind or STORED_TYPES.get(next(iter(types)) if len(types) == 1 else torch.float32, "f32")
    settings = {**_settings(name, config), **vocabulary_settings(run, int(config["vocab_size"]))}
    settings |= {"general.name": run.folder.path.name, "general.file_type": FILE_TYPES[kind]}
    pieces = list(_pieces(run, family.table(explicit_spec(run.model)), name, config, kind))
    write_atomic(path, lambda fresh: _write(fresh, name, settings, pieces, progress))
    return name


def _expect_known(name: str, config: Tree) -> None:
    """Refuse, by the name of the field, what llama.cpp would compute differently."""
    activation = config.get("activation_function", config.get("hidden_act"))
    if activation != LLAMA_CPP_ACTIVATIONS[name]:
        raise WeftError(
            f"feedforward.activation is {activation!r} (transformers' name), but llama.cpp computes "
            f"{LLAMA_CPP_ACTIVATIONS[name]!r} in models of kind {name}: train with that one, or export to huggingface"
        )
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None and window < config["max_position_embeddings"]:
        raise WeftError("mixer.window: a GGUF file of this kind has no window; export to huggingface instead")
    if name == "qwen2" and config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise WeftError("mixer.head_width: llama.cpp shares the width evenly among the heads of models of kind qwen2")
    if name == "qwen3" and config.get("attention_bias"):
        raise WeftError(
            "mixer.bias: llama.cpp has no such biases in models of kind qwen3; export to huggingface instead"
        )
    if config.get("mlp_bias"):
        raise WeftError("feedforward.bias: a GGUF file of this kind has no such biases; export to huggingface instead")
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3"):
        raise WeftError(
            f"positions.scaling {rope['rope_type']}: Weft writes GGUF files without it; export to huggingface instead"
        )
    given = tuple(rope.get(key) for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    if rope.get("rope_type") == "llama3" and given != LLAMA3:
        raise WeftError(f"positions.scaling {given}: a GGUF file can only say those of Llama 3, {LLAMA3}")


def _settings(name: str, config: Tree) -> Tree:
    """Sizes as llama.cpp names them."""
    if name == "gpt2":
        own = {
            "context_length": config["n_positions"],
            "embedding_length": config["n_embd"],
            "block_count": config["n_layer"],
            "feed_forward_length": config["n_inner"],
            "attention.head_count": config["n_head"],
            "attention.layer_norm_epsilon": float(config["layer_norm_epsilon"]),
        }
        return {f"{name}.{key}": value for key, value in own.items()}
    rope, size = config["rope_parameters"], config["head_dim"]
    own = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": size,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if rope["rope_type"] == "linear":
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if "num_local_experts" in config:
        own |= {"expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"]}
    return {f"{name}.{key}": value for key, value in own.items()}


def _pieces(run: ExportSource, rows: list[WeightRow], name: str, config: Tree, kind: str) -> Iterator[GGUFTensor]:
    """All tensors of the file."""
    for row in rows:
        ours = run.weights[row.ours]
        shapes = row.transform.shapes(tuple(ours.shape))
        groups: dict[str, list[int]] = {}
        for place, theirs in enumerate(row.theirs):
            groups.setdefault(_name(name, theirs), []).append(place)
        for own, places in groups.items():
            shape = shapes[places[0]]
            transposed = name == "gpt2" and own.startswith("blk.") and len(shape) == 2
            if "_exps" in own:
                shape = (len(places), *shape)
            make = _maker(row, ours, places, own, name, config)
            yield GGUFTensor(
                own, shape[::-1] if transposed else shape, _kind(own, shape[::-1] if transposed else shape, kind), make
            )
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        size = int(config["head_dim"])
        yield GGUFTensor("rope_freqs.weight", (size // 2,), "F32", lambda: _rope_factors(rope, size))


def _name(architecture: str, theirs: str) -> str:
    """The tensor's name in the file; the experts of a layer share one."""
    if ".experts." not in theirs:
        return to_gguf(architecture, theirs)
    layer, matrix = LAYER_NUMBER.search(theirs), theirs.split(".")[-2]
    assert layer is not None
    return f"blk.{layer.group(1)}.{EXPERT_NAMES[matrix]}.weight"


def _maker(
    row: WeightRow, ours: Tensor, places: list[int], own: str, architecture: str, config: Tree
) -> Callable[[], Tensor]:
    """The function that makes a tensor: theirs from ours, then in llama.cpp's layout."""
    part = own.split(".")[-2]
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part)

    def make() -> Tensor:
        theirs = row.transform.write(ours)
        tensor = torch.stack([theirs[place] for place in places]) if "_exps" in own else theirs[places[0]]
        if architecture == "llama" and heads is not None:
            tensor = interleave_pairs(tensor, int(config[heads]))
        return tensor.T if architecture == "gpt2" and own.startswith("blk.") and tensor.dim() == 2 else tensor

    return make


def _kind(name: str, shape: Shape, wanted: str) -> str:
    """Vectors, positions and routers stay in float32; rows that do not divide into blocks cannot be quantized."""
    if len(shape) == 1 or name.startswith("position_embd") or "ffn_gate_inp" in name:
        return "F32"
    return "F16" if wanted == "q8_0" and shape[-1] % 32 else wanted.upper()


def _rope_factors(rope: Tree, size: int) -> Tensor:
    """The factor by which each rotary frequency is reduced."""
    plain = torch.zeros(1, dtype=torch.float64)
    base, scaling = float(rope["rope_theta"]), Llama3(float(rope["factor"]), *LLAMA3)
    return (rotary_frequencies(base, size, plain) / scaling.frequencies(base, size, plain)).float()


def _write(
    path: Path, name: str, settings: Tree, pieces: list[GGUFTensor], progress: ConversionProgress | None
) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
    from gguf.quants import quantize

    class Writer(GGUFWriter):
        """The package's writer omits empty lists, but a byte tokenizer has no merges."""

        def _pack_val(self, val: Any, vtype: Any, add_vtype: bool, sub_type: Any = None) -> bytes:
            if vtype == GGUFValueType.ARRAY and len(val) == 0:
                head = self._pack("I", vtype) if add_vtype else b""
                return bytes(head + self._pack("I", GGUFValueType.STRING) + self._pack("Q", 0))
            return bytes(super()._pack_val(val, vtype, add_vtype, sub_type))

    writer = Writer(path, name)
    try:
        for key, value in settings.items():
            writer.add_key_value(key, value, _value_type(value))
        writer.add_quantization_version(2)
        for piece in pieces:
            kind = GGMLQuantizationType[piece.kind]
            block, size = GGML_QUANT_SIZES[kind]
            count = int(np.prod(piece.shape)) // block * size
            writer.add_tensor_info(piece.name, piece.shape, np.dtype(np.float32), count, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for number, piece in enumerate(pieces):
            if progress is not None:
                progress(number / len(pieces), piece.name)
            data = piece.make().float().contiguous().numpy()
            writer.write_tensor_data(np.ascontiguousarray(quantize(data, GGMLQuantizationType[piece.kind])))
    finally:
        writer.close()


def _value_type(value: Any) -> Any:
    from gguf import GGUFValueType

    if isinstance(value, list):
        return GGUFValueType.ARRAY
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, int):
        return GGUFValueType.UINT32
    return GGUFValueType.FLOAT32 if isinstance(value, float) else GGUFValueType.STRING
