"""Exactness: a float64 copy that really computes in float64.

Norms, softmaxes, routers and rotary angles of other libraries cast to float32 inside, whatever the weights' type; right
for training, but their rounding would hide violations below 1e-7. In a checked copy those casts give float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)


class Exact(TorchFunctionMode):
    """Within it, whatever asks for a narrower floating-point type, or for none, is given float64.

    `casts` counts what asked for a narrower one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.casts = 0
        self._before: list[torch.dtype] = []

    def __enter__(self) -> Any:
        self._before.append(torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._before.pop())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            self.casts += 1
            func = torch.Tensor.double
        if any(isinstance(argument, torch.dtype) and argument in NARROW for argument in args):
            self.casts += 1
            args = tuple(_wide(argument) for argument in args)
        if kwargs.get("dtype") in NARROW:
            self.casts += 1
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


class AsIs(Exact):
    """Changes nothing: for a module that computes in its own types."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *problem: Any) -> None:
        return None


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value
