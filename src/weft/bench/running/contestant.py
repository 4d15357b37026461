"""A contestant's process: makes its work, then blocks on its input until it is its turn.

`python -m weft.bench.running.contestant` reads one JSON value per line and answers each with one: first the entry
(`make`, `arguments`, `threads`), then commands: `check`, `turn` with a number of calls. While others run it sleeps in
the read. What libraries print goes to stderr, because answers go through a copy of stdout that only this file knows.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from weft.bench.contest import Work


def make_work(make: str, arguments: Mapping[str, Any], threads: int) -> Work:
    """The work that `package.module:function` makes of these arguments."""
    module, _, function = make.partition(":")
    maker = getattr(importlib.import_module(module), function)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    work = maker(**arguments)
    assert isinstance(work, Work), f"{make} gives no Work"
    return work


def take_turn(work: Work, calls: int) -> dict[str, Any]:
    """Wall seconds of so many calls, and the numbers that the last one gave."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(calls):
            given = work.run()
        seconds = time.perf_counter() - start
    finally:
        gc.enable()
    return {"seconds": seconds, "values": given if isinstance(given, dict) else {}}


def _answer(work: Work, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "check":
        return {"numbers": {name: [float(x) for x in values] for name, values in work.check().items()}}
    return take_turn(work, command["calls"])


def serve(source: TextIO, target: TextIO) -> None:
    """Answer commands until the input ends; an error is the last answer."""
    work: Work | None = None
    for line in source:
        command = json.loads(line)
        try:
            if work is None:
                work = make_work(command["make"], command["arguments"], command["threads"])
                answer: dict[str, Any] = {"ready": os.getpid()}
            else:
                answer = _answer(work, command)
        except Exception as error:
            traceback.print_exc()
            reason = (str(error).strip().splitlines() or [""])[-1]
            answer = {"error": f"{type(error).__name__}: {reason}" if reason else type(error).__name__}
        target.write(json.dumps(answer) + "\n")
        target.flush()
        if "error" in answer:
            return


def main() -> None:
    """Serve on stdin and a copy of stdout."""
    target = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, target)


if __name__ == "__main__":
    main()
