"""The spec of a user's own module: what it is recognized by, and what it declares; never its code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Never, Self

from pydantic import NonNegativeInt, PositiveInt
from torch import nn

from weft.foundation.errors import WeftError
from weft.foundation.spec import VersionedSpec
from weft.models.output import Declaration

Shapes = dict[str, tuple[int, ...]]


class ModuleSpec(VersionedSpec):
    """A module whose code is the user's: a run holds its weights and this fingerprint of it.

    `name`: its class. `tensors`: the shapes of its weights and persistent buffers, by name. `digest`: the SHA-256 of
    both. `parameters`: the number of weights. `sizes`: what its factory may take by keyword (`vocabulary`, `length`,
    `classes`, ...). `length`: the longest input it takes. `cached`: whether it keeps keys and values between calls.
    """

    family: Literal["module"] = "module"
    name: str
    tensors: Shapes
    digest: str
    parameters: NonNegativeInt
    sizes: dict[str, int]
    causal: bool = False
    cached: bool = False
    length: PositiveInt | None = None
    vocabulary: PositiveInt | None = None

    @classmethod
    def of(cls, module: nn.Module, **facts: Any) -> Self:
        """The spec of a module, with what is known besides its class and tensors."""
        name, tensors = type(module).__name__, shapes_of(module)
        parameters = sum(weight.numel() for weight in module.parameters())
        return cls(name=name, tensors=tensors, digest=digest(name, tensors), parameters=parameters, **facts)

    def build(self) -> Never:
        """Refused: there is no code to build it from."""
        raise WeftError(
            f"this run is of a module of your own, {self.name}, and holds its weights, not its code: give the class or "
            "function that makes it, by --module file.py:factory, or module=factory in weft.load and weft.train"
        )

    def declares(self) -> Declaration:
        """What it promises; documents packed into one row see each other."""
        return Declaration(
            self.family,
            self.causal,
            self.cached,
            "absolute",
            length=self.length,
            vocabulary=self.vocabulary,
            isolates=False,
        )

    def expect_same(self, module: nn.Module) -> None:
        """Refuse a module of another class or with other tensors, by the name of the first that differs."""
        name, tensors = type(module).__name__, shapes_of(module)
        if digest(name, tensors) == self.digest:
            return
        remedy = "give the code that the run was trained with"
        if name != self.name:
            raise WeftError(f"the run is of a module of class {self.name}, but {name} was given: {remedy}")
        for tensor in (*self.tensors, *tensors):
            own, other = self.tensors.get(tensor), tensors.get(tensor)
            if own != other:
                raise WeftError(f"the module given is not the run's: {tensor} {_differs(own, other)}: {remedy}")
        raise WeftError(f"spec.json names no fingerprint of {self.name} that fits its own tensors: restore the file")


def shapes_of(module: nn.Module) -> Shapes:
    """The shapes of all that a state dict holds, by name."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def digest(name: str, tensors: Mapping[str, tuple[int, ...]]) -> str:
    """SHA-256 over the class and the tensors, in any order."""
    rows = [[tensor, list(shape)] for tensor, shape in sorted(tensors.items())]
    return hashlib.sha256(json.dumps([name, rows]).encode()).hexdigest()


def _differs(own: tuple[int, ...] | None, other: tuple[int, ...] | None) -> str:
    if own is None or other is None:
        return f"is in the {'module' if own is None else 'run'} only"
    return f"is {list(other)}, but {list(own)} in the run"
