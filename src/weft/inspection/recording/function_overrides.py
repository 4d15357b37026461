"""Taps: a method or function is wrapped while someone listens, and is as it was once nobody does.

Classes and modules are wrapped, never a watched object itself, so that copies made meanwhile are ordinary ones; calls
of objects that nobody listens to pass straight through. Advice wraps a call: `advice(run, part, *args, **kwargs)`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

from torch import nn

Advice = Callable[..., Any]
_lock = threading.RLock()
_taps: dict[tuple[int, str], _Tap] = {}


class _Tap:
    """One wrapped name of one owner: a class, a module of code, or an object that has the name as its own."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.own = name in vars(owner)
        self.before = vars(owner).get(name)
        self.original: Callable[..., Any] = getattr(owner, name)
        self.advices: dict[int | None, tuple[Advice, ...]] = {}
        self.wrapper = self._wrap()
        setattr(owner, name, self.wrapper)

    def _wrap(self) -> Callable[..., Any]:
        original, advices = self.original, self.advices
        if isinstance(self.owner, type):

            @functools.wraps(original)
            def method(part: Any, *args: Any, **kwargs: Any) -> Any:
                listening = advices.get(id(part), ()) + advices.get(None, ())
                return _chain(original, listening)(part, *args, **kwargs)

            return method
        if isinstance(self.owner, ModuleType):

            @functools.wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                return _chain(original, advices.get(None, ()))(*args, **kwargs)

            return function

        @functools.wraps(original)
        def own(*args: Any, **kwargs: Any) -> Any:
            def run(part: Any, *args: Any, **kwargs: Any) -> Any:
                return original(*args, **kwargs)

            return _chain(run, advices.get(id(self.owner), ()))(self.owner, *args, **kwargs)

        return own

    def restore(self) -> None:
        """Put back what was there, unless somebody else has put something over it since."""
        if vars(self.owner).get(self.name) is not self.wrapper:
            return
        if self.own:
            setattr(self.owner, self.name, self.before)
        else:
            delattr(self.owner, self.name)


def _chain(run: Callable[..., Any], advices: tuple[Advice, ...]) -> Callable[..., Any]:
    for advice in advices:
        run = functools.partial(advice, run)
    return run


class Taps:
    """What one listener listens to; leaving the context releases all of it, in any order with other listeners."""

    def __init__(self) -> None:
        self._held: list[tuple[_Tap, int | None, Advice, Any]] = []

    def on(self, part: nn.Module, name: str, advice: Advice) -> None:
        """Listen to one method of one part: `advice(run, part, *args, **kwargs)`."""
        owner = part if name in vars(part) else type(part)
        self._hold(owner, name, id(part), advice, part)

    def everywhere(self, owner: type | ModuleType, name: str, advice: Advice) -> None:
        """Listen to a method of all objects of a class, or to a function: `advice(run, *args, **kwargs)`."""
        self._hold(owner, name, None, advice, owner)

    def _hold(self, owner: Any, name: str, key: int | None, advice: Advice, alive: Any) -> None:
        with _lock:
            tap = _taps.get((id(owner), name))
            if tap is None:
                tap = _taps[id(owner), name] = _Tap(owner, name)
            tap.advices[key] = (*tap.advices.get(key, ()), advice)
            self._held.append((tap, key, advice, alive))

    def release(self) -> None:
        """Stop listening."""
        with _lock:
            while self._held:
                tap, key, advice, _ = self._held.pop()
                rest = list(tap.advices[key])
                rest.remove(advice)
                if rest:
                    tap.advices[key] = tuple(rest)
                    continue
                del tap.advices[key]
                if not tap.advices:
                    tap.restore()
                    _taps.pop((id(tap.owner), tap.name), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()
