"""`--processes N`: starts this command N times, by torchrun's own elastic agent, which restarts them if one dies."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.foundation.errors import WeftError
from weft.foundation.numerics import pick_device
from weft.training.parallel.layout import ParallelLayout
from weft.training.parallel.processes.give_up import GIVE_UP, INTERRUPTED, read_note
from weft.training.parallel.world import started_by_torchrun
from weft.training.request import TrainRequest

RESTARTS = 3  # after a process was killed, from the last checkpoint
MOST_PER_CORE = 16  # processes; each takes some hundred megabytes
SHUTDOWN = 120  # seconds in which interrupted processes end their step and write a checkpoint


def launch(words: Sequence[str], count: int, request: TrainRequest) -> int:
    """Run `weft WORDS...` in `count` processes until all have ended; gives an exit code."""
    if count < 1:
        raise WeftError(f"--processes {count}: give 1 or more")
    most = MOST_PER_CORE * (os.cpu_count() or 1)
    if count > most:
        raise WeftError(f"--processes {count}: this machine runs at most {most} at once; give one for each device")
    if started_by_torchrun():
        raise WeftError("torchrun has started the processes already: leave --processes out")
    layout = ParallelLayout.parse(request.parallel or "ddp")
    layout.data_ranks(count)
    layout.expect_possible(pick_device(request.device).type)
    threads = max(1, (os.cpu_count() or 1) // count)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # warnings of sockets that closed
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        os.environ[GIVE_UP] = "1"
        try:
            code = _run_agent(["-m", "weft", *words], count, folder)
        finally:
            del os.environ[GIVE_UP]
        notes = [read_note(path) for path in Path(folder).iterdir() if path.is_dir()]
        return code or next((note for note in notes if note is not None), 0)


def _run_agent(words: Sequence[str], count: int, logs: str) -> int:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # its workers tell what went wrong
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=RESTARTS,
        monitor_interval=0.2,
        shutdown_timeout=SHUTDOWN,
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )
    try:
        elastic_launch(config, sys.executable)(*words)
    except ChildFailedError as error:
        failure: Any = error.get_first_failure()[1]
        return int(failure.exitcode) if failure.exitcode > 0 else 1
    except (SignalException, KeyboardInterrupt):
        return INTERRUPTED
    return 0
