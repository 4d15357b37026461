"""Calling what is inspected: a run or a module of any library, in evaluation mode, with inputs of any family."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.recognize import subject_of
from weft.foreign.subject import Subject, SubjectCall
from weft.foreign.user_module import UserModule
from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import eval_mode


def module_of(subject: Any) -> nn.Module:
    """The torch module of a `Run`, or the module itself; the user's own inside what Weft calls it by."""
    module = subject if isinstance(subject, nn.Module) else getattr(subject, "module", None)
    module = module.module if isinstance(module, UserModule) else module
    if not isinstance(module, nn.Module):
        raise WeftError(f"a {type(subject).__name__} cannot be watched: give a Run or a torch module")
    return module


def answers(subject: Any, content: Tensor, source: Tensor | None = None, real: Tensor | None = None) -> Tensor:
    """Logits [B, T, C] for content [B, T] of any family that answers every token, in evaluation mode."""
    own = caller(subject)
    with eval_mode(own.module), torch.no_grad():
        return own.run(SubjectCall(content, real, source=source))


def caller(subject: Any) -> Subject:
    """How the module is called, whatever library it comes from."""
    return subject_of(module_of(subject))


def tokens_of(tokens: Any, module: nn.Module) -> Tensor:
    """Tokens [T] or [B, T], a list or a tensor, as [B, T] on the module's device."""
    device = next(module.parameters()).device
    found = torch.as_tensor(tokens, device=device)
    if found.dim() not in (1, 2) or not found.shape[-1]:
        raise WeftError(f"tokens are [T] or [B, T] and not empty, but these have shape {tuple(found.shape)}")
    return found[None] if found.dim() == 1 else found
