"""What the class and config of a Hugging Face model say of it: causal or not, windows, positions, padding, images."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from weft.models.position_specs import Nature

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
ROTARY = ("rope_parameters", "rope_theta", "rotary_dim", "rotary_pct")
ALIBI = ("bloom", "mpt")
DECODERS = ("CausalLM", "LMHead", "GenerationDecoder")
BOTH_WAYS = ("XLNet", "XLMWithLMHead", "XLMModel", "Flaubert")
FROM_TOKENS = ("create_position_ids_from_input_ids", "make_positions")


def causal_of(module: nn.Module, seq2seq: bool, images: bool) -> tuple[bool, str]:
    """Whether the class is taken to look only back, and why."""
    kind, config = type(module).__name__, module.config
    flags = {part.is_causal for part in module.modules() if isinstance(getattr(part, "is_causal", None), bool)}
    if images:
        return False, f"{kind} takes images: it is taken to see each whole"
    if seq2seq:
        return True, f"{kind} is an encoder-decoder: its decoder is taken to declare causality"
    if kind.startswith(BOTH_WAYS):
        causal = bool(getattr(config, "causal", False)) or getattr(config, "attn_type", "bi") == "uni"
        return causal, f"{kind} is taken to {'look only back' if causal else 'see everything'}, as its config says"
    if kind.startswith("PaliGemma"):
        return False, f"{kind} is taken to see everything: image and prompt see all of each other"
    if any(word in kind for word in DECODERS):
        said = f"{kind} is a causal language model by its name, so it is taken to declare causality"
        if flags == {False} and getattr(config, "is_decoder", None) is False:
            said += "; but its config has is_decoder=False, which lets it see everything: set is_decoder=True"
        return True, said
    if getattr(config, "is_decoder", False):
        return True, f"{kind} has is_decoder=True in its config, so it is taken to declare causality"
    if True in flags:
        return True, f"attention in {kind} has is_causal=True, so it is taken to declare causality"
    return False, f"{kind} is taken to see everything: neither its name nor its config says decoder"


def window_of(module: nn.Module, text: Any) -> int | None:
    """Keys that a query sees, its own included, where every layer has the same window."""
    size, kinds = getattr(text, "sliding_window", None), getattr(text, "layer_types", None)
    if not isinstance(size, int) or size < 1 or getattr(text, "use_sliding_window", True) is False:
        return None
    if kinds is not None:
        return size if set(kinds) == {"sliding_attention"} else None
    if getattr(text, "block_types", None) is not None:
        return None
    windowed = any(hasattr(_code(part), "create_sliding_window_causal_mask") for part in module.modules())
    return size if windowed else None


def positions_of(module: nn.Module, names: Any, text: Any) -> Nature:
    """Relative where its config says rotary or ALiBi, none where it is a recurrence, else taken as absolute."""
    if "recurrent" in (getattr(text, "block_types", None) or ()):
        return "absolute"  # RecurrentGemma takes position 0 for the start of a text
    if any(getattr(text, name, None) for name in ROTARY):
        return "relative"
    if getattr(text, "model_type", "") in ALIBI or getattr(text, "alibi", False):
        return "relative"
    if "cache_params" in names or "state" in names:
        return "none"
    tables = any(word in name for name, _ in module.named_modules() for word in ("position_emb", "embed_position"))
    return "relative" if getattr(text, "relative_attention_num_buckets", None) and not tables else "absolute"


def first_position_of(module: nn.Module) -> int:
    """Where its own positions start: most count from 0, some leave the first rows of the table to padding."""
    tables = (table for name, table in module.named_buffers() if name.endswith("position_ids") and table.numel())
    return next((int(table.min()) for table in tables), 0)


def pad_token_of(module: nn.Module, text: Any) -> int | None:
    """The pad token, where a part finds positions (or neighbors that count) by looking for it among the tokens."""
    for part in module.modules():
        looks = any(hasattr(holder, name) for holder in (part, _code(part)) for name in FROM_TOKENS)
        index = getattr(part, "padding_idx", None)
        if looks and isinstance(index, int):
            return index
    return getattr(text, "pad_token_id", None) if getattr(text, "trigram_input", False) else None


def image_of(config: Any) -> Tensor:
    """An image of the size that a config names, all zeros."""
    inner = getattr(config, "vision_config", None) or config
    size = getattr(inner, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    return torch.zeros(1, getattr(inner, "num_channels", 3), height, width)


def _code(module: nn.Module) -> Any:
    """The file that a class is written in."""
    return sys.modules.get(type(module).__module__)
