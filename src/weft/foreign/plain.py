"""Modules called as `module(tokens)` that give logits or hidden states [B, T, C], as a tensor or first in a tuple."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from weft.foreign.subject import Call, Subject, Unable
from weft.models.output import Declaration

OUTPUTS = ("logits", "last_hidden_state", "hidden")
REAL_NAMES = ("attention_mask", "padding_mask", "mask", "real", "src_key_padding_mask")
POSITION_NAMES = ("position_ids", "positions", "pos")


def first_tensor(out: Any) -> Tensor:
    """The answer of a call: a tensor, its `logits` or hidden states, or the first tensor in a tuple or dict."""
    if isinstance(out, Tensor):
        return out
    for name in OUTPUTS:
        value = getattr(out, name, None)
        if isinstance(value, Tensor):
            return value
    values = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise Unable(f"its answer is a {type(out).__name__} without a tensor: wrap it so that it gives [B, T, C]")


def per_token(out: Tensor, length: int) -> Tensor:
    """Refuse an answer that is not one vector a token."""
    if out.dim() != 3 or out.shape[1] != length:
        raise Unable(f"its answer has shape {tuple(out.shape)}, not one vector for each of {length} tokens")
    return out


class PlainSubject(Subject):
    """Called with the content alone; a mask or positions only where the signature names them."""

    def run(self, call: Call) -> Tensor:
        """module(content, ...)."""
        names = inspect.signature(self.module.forward).parameters
        real = next((name for name in REAL_NAMES if name in names), None)
        position = next((name for name in POSITION_NAMES if name in names), None)
        call.takes(*(["real"] if real else []), *(["positions"] if position else []))
        extra: dict[str, Any] = {}
        if call.real is not None and real:
            extra[real] = ~call.real if real == "src_key_padding_mask" else call.real
        if call.positions is not None and position:
            extra[position] = call.positions
        return per_token(first_tensor(self.module(call.content, **extra)), call.content.shape[1])


def guess_causal(module: nn.Module) -> tuple[bool, str]:
    """Whether a module is taken to look only back, and why: its name, or that of a part that calls itself a decoder."""
    name = type(module).__name__.lower()
    for word in ("causallm", "lmhead", "gpt", "decoder", "languagemodel"):
        if word in name and "encoder" not in name:
            return True, f"{type(module).__name__} is named a decoder, so it is taken to declare causality"
    flag = getattr(module, "causal", getattr(module, "is_causal", None))
    if isinstance(flag, bool):
        return flag, f"its attribute causal is {flag}"
    return False, f"{type(module).__name__} is not named a decoder, so no causality is taken as declared"


def plain_subject(module: nn.Module, example: Tensor | None) -> PlainSubject:
    """The last resort: a callable from content to one vector a token."""
    causal, why = guess_causal(module)
    declares = Declaration(type(module).__name__, causal, False, "absolute")
    return PlainSubject(module, declares, (why, "called as module(content)"), example, library="torch")
