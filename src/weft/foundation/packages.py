"""Packages whose files load when they are first asked for: `weft.parts.masks` after `import weft` alone."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any


def open_lazily(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: its files and folders by name."""

    def open_file(name: str) -> Any:
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return open_file
