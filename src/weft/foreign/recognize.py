"""Which adapter fits a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.plain import PlainSubject, plain_subject
from weft.foreign.subject import Subject
from weft.foreign.user_module import UserModule
from weft.foreign.weft_models import KINDS, WeftSubject
from weft.foundation.errors import WeftError

DECLARABLE = (
    "causal",
    "cached",
    "positions",
    "window",
    "reach",
    "prefix",
    "length",
    "vocabulary",
    "order_free",
    "experts",
)


class _Function(nn.Module):
    """A plain callable as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, content: Tensor) -> Any:
        return self.function(content)


def subject_of(module: Any, example: Tensor | None = None, **declared: Any) -> Subject:
    """The subject for a module of any library; `declared` overrides what it is taken to declare (causal=True, ...)."""
    if example is not None and not isinstance(example, Tensor):
        raise WeftError(f"an example is a tensor of tokens [B, T] or vectors [B, T, C], not a {type(example).__name__}")
    subject = module if isinstance(module, Subject) else _recognize(module, example)
    unknown = set(declared) - set(DECLARABLE)
    if unknown:
        raise WeftError(f"nothing called {min(unknown)!r} can be declared: choose from {', '.join(DECLARABLE)}")
    if declared:
        subject.declares = type(subject.declares)(**{**subject.declares.__dict__, **declared})
        if "causal" in declared and isinstance(subject, PlainSubject):
            subject.decided = True
        said = ", ".join(f"{name}={value}" for name, value in declared.items())
        subject.assumed = (*subject.assumed, f"declared by the caller: {said}")
    return subject


def _recognize(module: Any, example: Tensor | None) -> Subject:
    if isinstance(module, KINDS):
        return WeftSubject.of(module, example)
    if isinstance(module, UserModule):
        return _user_subject(module, example)
    if not isinstance(module, nn.Module):
        if not callable(module):
            raise WeftError(f"a {type(module).__name__} cannot be checked: give a torch module or a callable")
        module = _Function(module)
    names = {kind.__module__.split(".")[0] for kind in type(module).__mro__}
    if "PreTrainedModel" in {kind.__name__ for kind in type(module).__mro__} and "transformers" in names:
        from weft.foreign.huggingface import huggingface_subject

        return huggingface_subject(module, example)
    if "x_transformers" in names:
        from weft.foreign.x_transformers import x_transformers_subject

        return x_transformers_subject(module, example)
    if type(module).__module__.startswith(torch.nn.__name__):
        from weft.foreign.torch_modules import torch_subject

        found = torch_subject(module, example)
        if found is not None:
            return found
    return plain_subject(module, example)


def _user_subject(wrapped: UserModule, example: Tensor | None) -> Subject:
    """The user's module by itself, with what the task that it was trained for needs it to declare."""
    interface, spec = wrapped.interface, wrapped.spec
    given = interface.example if interface.example.is_floating_point() else None
    declared: dict[str, Any] = {"causal": True} if interface.causal else {}
    declared |= {name: size for name in ("length", "vocabulary") if (size := getattr(spec, name)) is not None}
    return subject_of(wrapped.module, given if example is None else example, **declared)
