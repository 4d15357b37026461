"""What a page has one run: its blocks of Python and of commands, in order; and a way to follow it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|toml|console)\n(.*?)^```", re.S | re.M)
FILE = re.compile(r"^# (\S+\.(?:py|toml|txt|csv|jsonl))\n")  # a first comment that names the file to write
PROMPT = "$ "


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """("python" or "toml", a block) and ("command", one line after its prompt), in the order of the page."""
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind != "console":
            yield kind, text
        else:
            yield from (("command", line[len(PROMPT) :]) for line in text.splitlines() if line.startswith(PROMPT))


def follow(page: Path, call: Callable[[list[str]], Any]) -> None:
    """Run the page here: Python in one namespace, or into the file that it names; commands by `call`."""
    names: dict[str, Any] = {}
    for kind, text in steps(page):
        if kind == "command":
            call(shlex.split(text, comments=True))
        elif found := FILE.match(text):
            Path(found[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(found[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, str(page), "exec"), names)
