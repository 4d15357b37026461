"""What an adapter is: a table of weight maps, and functions from config to spec and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weft.checkpoints.families.weight_maps import Canonical, WeightRow
from weft.data.readers.files import DataError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "relu": "relu",
    "relu2": "squared-relu",
    "silu": "silu",
    "swish": "silu",
}
# In reverse, the name that all libraries know.
THEIR_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu-tanh": "gelu_new",
    "quick-gelu": "quick_gelu",
    "relu": "relu",
    "squared-relu": "relu2",
    "silu": "silu",
    "tanh": "tanh",
}


class KnownTensors(Protocol):
    """What is known about the tensors when a config is read, by canonical names."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors are equal."""
        ...


class Config:
    """A config.json, read field by field; errors name the field."""

    def __init__(self, tree: Mapping[str, Any], name: str = "config.json") -> None:
        self.tree, self.name = tree, name

    def get(self, key: str, default: Any = None) -> Any:
        """A field as it is; null counts as missing."""
        value = self.tree.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 40:
            raise self.wrong(key, "a whole number from 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def activation(self, key: str, default: str) -> Any:
        """Weft's name of an activation."""
        name = self.get(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.wrong(key, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def architecture(self) -> str:
        """The name of the model's class; empty where a config has none."""
        names = self.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def expect(self, key: str, *allowed: Any) -> None:
        """Refuse any value but the allowed ones; the first of them is the default of a missing field."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            raise DataError(
                f"{self.name} sets {key} to {value!r:.60}, which Weft's parts do not have yet: only {allowed[0]!r}"
            )

    def wrong(self, key: str, what: str) -> DataError:
        """The error for a field of the wrong kind."""
        return DataError(
            f"{self.name}: {key} is {self.tree.get(key)!r:.60}, but {what} is needed; fetch the folder again"
        )


def shortest_pattern(layers: Sequence[Any]) -> Sequence[Any]:
    """The shortest beginning of these layers that gives them all when it is repeated."""
    fits = (n for n in range(1, len(layers) + 1) if all(one == layers[i % n] for i, one in enumerate(layers)))
    return layers[: next(fits)]


def _same_name(name: str) -> str | None:
    return name


@dataclass(frozen=True)
class Family:
    """One adapter. `types` are the model_type of its configs, `architectures` the classes that can be read.

    `canonical` maps the spellings of a tensor name to one (None: a buffer, no weight); `copies` are tied tensors that
    may be stored again; `unused` are prefixes of heads that no task here uses; `text`: whether its folders hold a
    vocabulary.
    """

    name: str
    types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Config, KnownTensors], AnySpec]
    write: Callable[[Any], Tree]
    table: Callable[[Any], list[WeightRow]]
    canonical: Canonical = _same_name
    copies: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    text: bool = True
