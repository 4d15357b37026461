"""The command `weft`: each command has a file of its own; none imports torch before it runs, so help is fast."""

from __future__ import annotations

from weft.cli.app import app, run
from weft.cli.commands import (
    bench,
    chat,
    compare,
    demo,
    evaluate,
    export,
    import_checkpoint,
    laws,
    look,
    lookup,
    plan,
    predict,
    serve,
    show,
    tokens,
    train,
)

__all__ = [
    "app",
    "bench",
    "chat",
    "compare",
    "demo",
    "evaluate",
    "export",
    "import_checkpoint",
    "laws",
    "look",
    "lookup",
    "plan",
    "predict",
    "run",
    "serve",
    "show",
    "tokens",
    "train",
]
