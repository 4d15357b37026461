"""Chat templates, rendered in a process of their own that is ended when one takes too long.

The process starts with the first template and is asked again for the next: a chat takes about 0.1 ms.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from weft.foundation.errors import WeftError
from weft.tasks.support.language import template_worker

MOST_SECONDS = 10.0
MOST_TEXT = 1 << 20  # characters besides those of the messages
PACKAGES = ("jinja2", "markupsafe")


def render_template(template: str, variables: Mapping[str, Any]) -> str:
    """The text that a Jinja template makes of variables, which are plain JSON; a WeftError that says why it makes none.

    It has 10 seconds, a gigabyte of memory, and may write four times what it was given and a million characters more.
    """
    return _ask(template, dict(variables))


def check_template(template: str) -> None:
    """Refuse a template that is no Jinja, by a WeftError that says where."""
    _ask(template, None)


def _ask(template: str, variables: dict[str, Any] | None) -> str:
    given = json.dumps(variables)
    request = f'{{"template": {json.dumps(template)}, "variables": {given}, "most": {MOST_TEXT + 4 * len(given)}}}\n'
    try:
        found = _PROCESS.ask(request.encode())
    except queue.Empty:
        raise WeftError(f"it does not end within {MOST_SECONDS:g} seconds") from None
    except OSError as error:
        raise WeftError(f"it cannot be run: {error}") from None
    if "error" in found:
        # It is shown to the user, on one line.
        raise WeftError("".join(sign if sign.isprintable() else " " for sign in found["error"])[:200])
    return str(found["text"])


class _TemplateProcess:
    """One process for all templates; threads take turns, and a forked process starts one of its own."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.answers: queue.Queue[bytes] = queue.Queue()
        self.owner = 0
        self.inherited: list[subprocess.Popen[bytes]] = []  # of a process that was forked: they are its parent's

    def ask(self, request: bytes) -> dict[str, Any]:
        """The answer to one line; queue.Empty if it does not come in time."""
        with self.turn:
            if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
                self._start()
            assert self.process is not None and self.process.stdin is not None
            try:
                self.process.stdin.write(request)
                self.process.stdin.flush()
                line = self.answers.get(timeout=MOST_SECONDS)
            except BaseException:
                self.stop()
                raise
            if not line:
                self.stop()
                return {"error": "it ended the process that it ran in"}
            found: dict[str, Any] = json.loads(line)
            return found

    def _start(self) -> None:
        if self.process is not None:
            self.inherited.append(self.process)
        found = [spec.origin for name in PACKAGES if (spec := find_spec(name)) is not None and spec.origin]
        places = sorted({str(Path(file).parent.parent) for file in found})
        # In a session of its own Ctrl-C does not reach it; it ends with its input.
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(template_worker.__file__), *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.owner, self.answers = os.getpid(), queue.Queue()
        threading.Thread(target=_pass_on, args=(self.process.stdout, self.answers), daemon=True).start()

    def stop(self) -> None:
        """End the process, if this one started it."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():
            process.kill()
            process.wait()
            with contextlib.suppress(OSError):  # what was not written any more
                if process.stdin is not None:
                    process.stdin.close()


def _pass_on(source: IO[bytes] | None, to: queue.Queue[bytes]) -> None:
    """Lines, then an empty one when the process ends."""
    assert source is not None
    with source:
        for line in source:
            to.put(line)
    to.put(b"")


_PROCESS = _TemplateProcess()
atexit.register(_PROCESS.stop)
