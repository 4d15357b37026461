"""The command `weft`: each command has a file of its own; none imports torch before it runs, so help is fast."""

from __future__ import annotations

import sys

from weft.cli import demo, evaluate, export, import_checkpoint, laws, look, predict, show, train
from weft.cli.app import INTERRUPTED, app
from weft.cli.environment import choose_for_this_machine

__all__ = ["app", "demo", "evaluate", "export", "import_checkpoint", "laws", "look", "predict", "run", "show", "train"]


def run() -> None:
    """The entry point of `weft` and `python -m weft`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a question mark instead of a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    waiting = choose_for_this_machine()
    try:
        app(prog_name="weft", obj=waiting)
    except KeyboardInterrupt:
        print("weft: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
