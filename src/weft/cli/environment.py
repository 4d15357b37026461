"""What the command chooses before torch is loaded, and what `weft --verbose` says about the process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence

from weft.cli.core_probe import received_share, usable_cores

WAIT_POLICY = "OMP_WAIT_POLICY"
USERS_OWN = (WAIT_POLICY, "KMP_BLOCKTIME", "GOMP_SPINCOUNT")  # any of them says how threads wait
FREE = 0.85  # of the cores: what a process must get for its threads to spin
BUSY = 0.5  # load per core from which a machine counts as busy, where the cores were not tried
LONG_COMMANDS = frozenset({"bench", "chat", "compare", "demo", "eval", "predict", "serve", "train"})


def choose_wait_policy(
    environment: MutableMapping[str, str], cores: int, share: float | None, load: float | None
) -> str:
    """On a busy machine, let threads sleep while they wait for each other; gives a sentence that says what was chosen.

    Threads that spin make steps several times slower where others need the cores, and a quarter faster where nobody
    does. `share` is what a process gets of the cores now; where that is not known, the `load` average of the last
    minute decides. OpenMP reads the variable when torch is loaded; values that the user set stay.
    """
    for name in USERS_OWN:
        if name in environment:
            return f"waiting threads: {name}={environment[name]}, as set by the user"
    if share is not None:
        busy, why = share < FREE, f"a probe got {share:.0%} of {cores} cores"
    elif load is not None:
        busy, why = load > BUSY * cores, f"load average {load:.2f} on {cores} cores"
    else:
        busy, why = False, "this system tells no load average"
    if not busy:
        return f"waiting threads spin: {why}"
    environment[WAIT_POLICY] = "PASSIVE"
    return f"waiting threads sleep ({WAIT_POLICY}=PASSIVE): {why}"


def computes_for_long(words: Sequence[str]) -> bool:
    """Whether a command line, without the program's name, is one that trains or decodes: worth a probe of 30 ms."""
    command = next((word for word in words if not word.startswith("-")), None)
    return command in LONG_COMMANDS and not {"-h", "--help"} & set(words)


def choose_for_this_machine(words: Sequence[str]) -> str:
    """`choose_wait_policy` for this process and its command line."""
    cores = usable_cores()
    decided = any(name in os.environ for name in USERS_OWN)
    share = received_share(cores) if computes_for_long(words) and not decided else None
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return choose_wait_policy(os.environ, cores, share, load)


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
