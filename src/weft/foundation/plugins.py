"""Plugins: kinds that other installed packages add, found by entry points such as `weft.tasks`.

A package adds a task by one entry in its pyproject.toml; nothing in Weft is edited, and a run folder names the kind
alone, never code:

    [project.entry-points."weft.tasks"]
    haiku = "my_package.haiku:HaikuTask"
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from weft.foundation.errors import WeftError

_Kind = TypeVar("_Kind")


class Registry(Generic[_Kind]):
    """Kinds by name: built-in ones, given as objects or as `module:name`, and those of the entry-point group.

    Each is loaded when it is first asked for. A plugin cannot replace a built-in kind.
    """

    def __init__(self, group: str, what: str, builtin: Mapping[str, _Kind | str]) -> None:
        self.group, self.what, self.builtin = group, what, dict(builtin)
        self._loaded: dict[str, _Kind] = {}

    def names(self) -> tuple[str, ...]:
        """All names, built-in ones first."""
        return (*self.builtin, *sorted(set(self._plugins()) - set(self.builtin)))

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self._plugins()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> _Kind:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> _Kind:
        found = self.builtin.get(name)
        if found is not None and not isinstance(found, str):
            return found
        if found is not None:
            module, _, attribute = found.partition(":")
            return cast(_Kind, getattr(importlib.import_module(module), attribute))
        point = self._plugins().get(name)
        if point is None:
            raise WeftError(f"there is no {self.what} {name!r}: choose one of {', '.join(self.names())}")
        try:
            return cast(_Kind, point.load())
        except Exception as error:  # a plugin is somebody else's program
            raise WeftError(
                f"{self.what} {name!r} of {_owner(point)} cannot be loaded ({type(error).__name__}: {error}): "
                "update or uninstall that package"
            ) from error

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def _owner(point: EntryPoint) -> str:
    distribution: Any = point.dist
    return f"package {distribution.name}" if distribution is not None else f"module {point.module}"
