"""Writes docs/PARTS.md: every part with its formula, from the docstrings; `--check` only compares."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import weft.parts

TARGET = Path(__file__).with_name("PARTS.md")
INTRODUCTION = """# Parts

Every equation of a course on attention and transformers, and where it is. Written from the docstrings by `make docs`.
"""


def page() -> str:
    """The page as text."""
    lines = [INTRODUCTION]
    for info in sorted(pkgutil.iter_modules(weft.parts.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"weft.parts.{info.name}")
        lines += [f"## `weft.parts.{info.name}`", "", (module.__doc__ or "").strip(), ""]
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", "") != module.__name__ or not callable(value):
                continue
            doc = (inspect.getdoc(value) or "").replace("\n", " ").replace("  ", " ").strip()
            if doc:
                lines.append(f"- **`{name}`**: {doc}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            raise SystemExit("docs/PARTS.md does not match the docstrings: run `make docs`")
    else:
        TARGET.write_text(text, encoding="utf-8")
        print(f"wrote {TARGET.name}: {len(text.splitlines())} lines")
