"""Embedded source: the lines of Weft that are an equation, read from the file when shown, so that they cannot drift."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.foundation.errors import WeftError

MIME = "application/vnd.weft.source+json"


@dataclass(frozen=True)
class SourceText:
    """Lines of one function, method or class: `name` is its module and name, joined by a colon."""

    name: str
    file: str
    line: int
    text: str


class Source:
    """Shows itself as code with the file it stands in; in a notebook as Markdown."""

    def __init__(self, parts: tuple[SourceText, ...]) -> None:
        self.parts = parts

    def __repr__(self) -> str:
        return "\n".join(f"# {part.file}, line {part.line}\n{part.text}" for part in self.parts)

    def markdown(self) -> str:
        """The lines in fences, each after its file."""
        return "\n\n".join(f"`src/{part.file}`, line {part.line}:\n\n```python\n{part.text}```" for part in self.parts)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        names = [part.name for part in self.parts]
        return {"text/plain": repr(self), "text/markdown": self.markdown(), MIME: {"names": names}}


def source(*objects: Any) -> Source:
    """The source of functions, methods or classes of Weft."""
    return Source(tuple(_read(one) for one in objects))


def source_by_name(*names: str) -> Source:
    """The same from names such as `weft.parts.scores:scaled_dot`, as stored notebooks hold them."""
    found = []
    for name in names:
        module, _, path = name.partition(":")
        one: Any = importlib.import_module(module)
        for step in path.split("."):
            one = inspect.getattr_static(one, step)
        found.append(one)
    return source(*found)


def _read(one: Any) -> SourceText:
    if isinstance(one, property):
        one = one.fget
    one = inspect.unwrap(getattr(one, "__func__", one))
    module = str(getattr(one, "__module__", ""))
    if module.split(".")[0] != "weft" or not (inspect.isfunction(one) or inspect.isclass(one)):
        raise WeftError(f"{one!r} is not a function, method or class of Weft: pass one, such as weft.parts.scores.dot")
    lines, first = inspect.getsourcelines(one)
    file = Path(inspect.getfile(one)).resolve()
    inside = file.relative_to(Path(__file__).resolve().parents[2]).as_posix()
    return SourceText(f"{module}:{one.__qualname__}", inside, first, textwrap.dedent("".join(lines)))
