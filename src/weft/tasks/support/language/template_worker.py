"""A program that renders chat templates in a process of its own: requests come as lines of JSON, answers go as such.

A template is a stranger's program: Jinja's sandbox keeps it from Python's objects, but not from running for ever or
filling the memory. Here memory and output are bounded; the time is bounded by who asks, who ends the process. It
imports nothing of Weft, so it starts quickly, and all that it takes from the command line are folders of packages.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

MOST_MEMORY = 1 << 30  # bytes of address space


@lru_cache(maxsize=8)
def compile_template(template: str) -> Any:
    """The template as a program, with the names and tags that other libraries give it."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %} .. {% endgeneration %}` marks what the assistant says; it is written as it is."""

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    Generation.tags = {"generation"}

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    room = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    room.globals |= {"raise_exception": refuse, "strftime_now": lambda pattern: datetime.now().strftime(pattern)}
    room.filters["tojson"] = as_json
    return room.from_string(template)


def as_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, where Jinja's own filter would escape signs of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"text": ...} of a template and its variables, or {"error": ...}; without variables it is only compiled."""
    try:
        program = compile_template(request["template"])
        pieces: list[str] = []
        written, most = 0, request["most"]
        for piece in program.generate(request["variables"]) if request["variables"] is not None else ():
            written += len(piece)
            if written > most:
                return {"error": f"it writes more than {most:,} characters"}
            pieces.append(piece)
        return {"text": "".join(pieces)}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception as error:  # whatever a stranger's program raises
        line, message = getattr(error, "lineno", None), getattr(error, "message", None) or str(error)
        return {"error": (f"line {line}: " if line else "") + str(message)[:1000]}


def main() -> None:
    """Answer lines of stdin until it ends."""
    sys.path += sys.argv[1:]
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    except (ImportError, OSError, ValueError):  # systems without such limits
        pass
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
