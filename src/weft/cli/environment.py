"""What the command chooses before torch is loaded, and what `weft --verbose` says about the process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, MutableMapping

WAIT_POLICY = "OMP_WAIT_POLICY"
BUSY = 0.5  # load per core from which a machine counts as busy


def choose_wait_policy(environment: MutableMapping[str, str], load: float | None, cores: int) -> str:
    """On a busy machine, let threads sleep while they wait for each other; gives a sentence that says what was chosen.

    Threads that spin make steps several times slower where others need the cores, and a quarter faster where nobody
    does. OpenMP reads the variable when torch is loaded; a value that the user set stays.
    """
    if WAIT_POLICY in environment:
        return f"waiting threads: {WAIT_POLICY}={environment[WAIT_POLICY]}, as set by the user"
    if load is None:
        return "waiting threads spin: this system tells no load average"
    if load > BUSY * cores:
        environment[WAIT_POLICY] = "PASSIVE"
        return f"waiting threads sleep ({WAIT_POLICY}=PASSIVE): load average {load:.2f} on {cores} cores"
    return f"waiting threads spin: load average {load:.2f} on {cores} cores"


def choose_for_this_machine() -> str:
    """`choose_wait_policy` for this process, by the system's load average over the last minute."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return choose_wait_policy(os.environ, load, os.cpu_count() or 1)


def load_torch() -> None:
    """Import torch with the garbage collector at rest: what it makes stays, and looking through it takes 0.2 s."""
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.enable()


def describe_process() -> Iterator[str]:
    """What a finished command used, one sentence each; loads nothing that it did not."""
    torch = sys.modules.get("torch")
    if torch is not None:
        yield f"torch {torch.__version__} with {torch.get_num_threads()} threads"
    native = sys.modules.get("weft.inference.fast.native.library")
    if native is not None and native.library.cache_info().currsize:
        yield f"native decoding step: {'off' if native.library() is None else 'on'}"
