"""Models in the user's own code, named on the command line: path/file.py:factory or package.module:factory."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.foundation.errors import WeftError


def make_module(place: str) -> Any:
    """The module that a function or class makes, or that a name holds: path/file.py:factory, package.module:factory."""
    found = find_factory(place)
    if _is_module(found):
        return found
    try:
        return found()
    except Exception as error:
        raise WeftError(f"{place} fails with {type(error).__name__}: {error}") from error


def find_factory(place: str | None) -> Any:
    """The function, class or module that a name stands for; None where none is given."""
    if place is None:
        return None
    path, _, factory = place.rpartition(":")
    if not path or not factory:
        raise WeftError(f"{place!r} names no factory: write path/file.py:factory or package.module:factory")
    code = _code(path)
    try:
        found = getattr(code, factory)
    except AttributeError:
        raise WeftError(f"{path!r} has no {factory!r}: {_offered(code)}") from None
    if not callable(found):
        raise WeftError(f"{place!r} is of type {type(found).__name__}: name a module or a function that makes one")
    return found


def _is_module(found: Any) -> bool:
    from torch import nn

    return isinstance(found, nn.Module)


def _code(path: str) -> ModuleType:
    """A file of code by its path, or by its dotted name from the current folder."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return _file(Path(path)) if path.endswith(".py") else importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise WeftError(f"there is no module {error.name!r} here: run from its folder or install it") from error
    except FileNotFoundError:
        raise WeftError(f"there is no file {path}: give its path from the current folder") from None
    except Exception as error:
        raise WeftError(f"importing {path!r} fails with {type(error).__name__}: {error}") from error


def _file(path: Path) -> ModuleType:
    """Run a file as a module of its own; files beside it can be imported as when it is run itself."""
    if not path.is_file():
        raise FileNotFoundError
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = code  # dataclasses and pickles look their module up there
    spec.loader.exec_module(code)
    return code


def _offered(code: ModuleType) -> str:
    """What of its own a file has that may give a model."""
    from torch import nn

    own = [
        name
        for name, value in vars(code).items()
        if not name.startswith("_")
        and (isinstance(value, nn.Module) or (callable(value) and getattr(value, "__module__", "") == code.__name__))
    ]
    return f"choose one of {', '.join(own)}" if own else "name a function or class that gives the model"
