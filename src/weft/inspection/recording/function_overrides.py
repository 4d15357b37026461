"""Function overrides: methods of foreign modules and torch functions, wrapped while somebody observes them.

Weft's own parts tell observers themselves (`weft.parts.observer`); this is for code that cannot be changed. Classes and
files of code are patched, never an observed object itself, so that copies made meanwhile are ordinary ones. Wrappers
act only in the thread that made them and on the objects asked for; other calls go straight through.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

from torch import nn

Wrapper = Callable[..., Any]
_lock = threading.RLock()
_overrides: dict[tuple[int, str], _Override] = {}


class _Override:
    """One wrapped name of one owner: a class, a file of code, or an object that has the name as its own."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.own = name in vars(owner)
        self.before = vars(owner).get(name)
        self.original: Callable[..., Any] = getattr(owner, name)
        self.wrappers: dict[tuple[int, int | None], tuple[Wrapper, ...]] = {}
        self.wrapper = self._wrap()
        setattr(owner, name, self.wrapper)

    def _wrap(self) -> Callable[..., Any]:
        original, wrappers = self.original, self.wrappers
        if isinstance(self.owner, type):

            @functools.wraps(original)
            def method(part: Any, *args: Any, **kwargs: Any) -> Any:
                thread = threading.get_ident()
                chosen = wrappers.get((thread, id(part)), ()) + wrappers.get((thread, None), ())
                return _chain(original, chosen)(part, *args, **kwargs)

            return method
        if isinstance(self.owner, ModuleType):

            @functools.wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                return _chain(original, wrappers.get((threading.get_ident(), None), ()))(*args, **kwargs)

            return function

        @functools.wraps(original)
        def own(*args: Any, **kwargs: Any) -> Any:
            def run(part: Any, *args: Any, **kwargs: Any) -> Any:
                return original(*args, **kwargs)

            chosen = wrappers.get((threading.get_ident(), id(self.owner)), ())
            return _chain(run, chosen)(self.owner, *args, **kwargs)

        return own

    def restore(self) -> None:
        """Put back what was there, unless somebody else has put something over it since."""
        if vars(self.owner).get(self.name) is not self.wrapper:
            return
        if self.own:
            setattr(self.owner, self.name, self.before)
        else:
            delattr(self.owner, self.name)


def _chain(run: Callable[..., Any], wrappers: tuple[Wrapper, ...]) -> Callable[..., Any]:
    for wrapper in wrappers:
        run = functools.partial(wrapper, run)
    return run


class FunctionOverrides:
    """Overrides that end together when the context does, in any order with those of others.

    They act in the thread that makes this object.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._held: list[tuple[_Override, tuple[int, int | None], Wrapper, Any]] = []

    def on(self, part: nn.Module, name: str, wrapper: Wrapper) -> None:
        """Wrap one method of one part: `wrapper(run, part, *args, **kwargs)`."""
        owner = part if name in vars(part) else type(part)
        self._hold(owner, name, id(part), wrapper, part)

    def everywhere(self, owner: type | ModuleType, name: str, wrapper: Wrapper) -> None:
        """Wrap a method of all objects of a class, or a function: `wrapper(run, *args, **kwargs)`."""
        self._hold(owner, name, None, wrapper, owner)

    def _hold(self, owner: Any, name: str, part: int | None, wrapper: Wrapper, alive: Any) -> None:
        key = (self._thread, part)
        with _lock:
            override = _overrides.get((id(owner), name))
            if override is None:
                override = _overrides[id(owner), name] = _Override(owner, name)
            override.wrappers[key] = (*override.wrappers.get(key, ()), wrapper)
            self._held.append((override, key, wrapper, alive))

    def release(self) -> None:
        """Put everything back."""
        with _lock:
            while self._held:
                override, key, wrapper, _ = self._held.pop()
                rest = list(override.wrappers[key])
                rest.remove(wrapper)
                if rest:
                    override.wrappers[key] = tuple(rest)
                    continue
                del override.wrappers[key]
                if not override.wrappers:
                    override.restore()
                    _overrides.pop((id(override.owner), override.name), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()
