"""This process among those of a training: joining them, agreeing on facts, and telling a failure once."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from weft.foundation.errors import WeftError
from weft.foundation.numerics import pick_device
from weft.training.parallel.processes.give_up import tells_here
from weft.training.parallel.processes.pulse import Pulse

TIMEOUT = 600.0  # seconds after which a process that does not answer is given up


def started_by_torchrun() -> bool:
    """Whether this process is one of several that torchrun, or another launcher that speaks its language, started."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def leads() -> bool:
    """Whether this is the first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0 or not started_by_torchrun()


class ProcessesLost(WeftError):
    """Other processes of the training cannot be reached; another try may reach them."""

    exit_code = 1


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, `local_rank` on its machine; `store` holds small facts that all can read."""

    rank: int
    size: int
    local_rank: int
    store: Store
    device: torch.device
    timeout: float
    pulse: Pulse

    @property
    def leads(self) -> bool:
        """The first process prints, plans and writes."""
        return self.rank == 0

    def from_leader(self, name: str, make: Callable[[], Any]) -> Any:
        """What the first process makes, as plain JSON, on every process; however long it takes."""
        if self.leads:
            self.store.set(f"fact/{name}", json.dumps(make()))
        self._wait_for(f"fact/{name}", 0)
        return json.loads(self.store.get(f"fact/{name}"))

    def first_here(self, name: str, do: Callable[[], Any]) -> Any:
        """`do` on the first process of each machine, then on its others: these find what the first one has cached."""
        machine = os.environ.get("GROUP_RANK", "0")
        if self.local_rank:
            self._wait_for(f"done/{name}/{machine}", self.rank - self.local_rank)
            return do()
        result = do()
        self.store.set(f"done/{name}/{machine}", "")
        return result

    def _wait_for(self, key: str, rank: int) -> None:
        """Until the process has set the key: however long it takes, as long as that one lives."""
        pause = 0.01
        while not self.store.check([key]):
            self.pulse.expect_alive(rank)
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def limit_all_groups(self) -> None:
        """Give the timeout to groups of processes that were made without one: torch's own is half an hour."""
        for group in list(dist.distributed_c10d._world.pg_map):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout), group)

    def leave(self) -> None:
        """Leave together, once the first process is done, which may host what the others read from."""
        self.from_leader("finished", lambda: True)
        if self.store.add("left", 1) == self.size:
            self.store.set("all left", "")
        if self.leads:
            with contextlib.suppress(RuntimeError):  # all is written by now
                self.store.wait(["all left"], timedelta(seconds=30))


_met: list[World] = []


def join_world(device: str | None, timeout: float = TIMEOUT) -> World:
    """The world for one training. Processes that train several times stay together, and agree on each anew."""
    if not _met:
        _met.append(_join(device, timeout))
        atexit.register(dist.destroy_process_group)
    world = _met[0]
    store = PrefixStore(f"training {next(_trainings)}", world.store)
    pulse = Pulse(store, world.rank, world.timeout, lambda: _tell_unreachable(world))
    pulse.start()
    return replace(world, store=store, pulse=pulse)


_trainings = itertools.count()


def _join(device: str | None, timeout: float) -> World:
    """Meet the other processes: by nccl on GPUs, one per process, else by gloo."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    own = pick_device(device)
    if own.type == "cuda":
        own = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(own)
    if own.type not in ("cpu", "cuda"):
        raise WeftError(f"several processes train on CPUs or on CUDA devices, not on {own.type}: add --device cpu")
    try:
        return _meet_all(own, local, timeout)
    except RuntimeError as error:
        rank, size, host, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ProcessesLost(
            f"rank {rank} of {size}: the processes did not meet at {host}:{port} within {timeout:g} s ({reason}): see "
            "whether all of them run, and whether their machines reach each other"
        ) from None


def _meet_all(device: torch.device, local: int, timeout: float) -> World:
    limit = timedelta(seconds=timeout)
    store, rank, size = next(iter(rendezvous("env://", timeout=limit)))
    store = PrefixStore(meet(store, rank, size, timeout), store)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=limit)
    facts = PrefixStore("weft", store)
    return World(rank, size, local, facts, device, timeout, Pulse(facts, rank, timeout, lambda: None))


def _tell_unreachable(world: World) -> None:
    if tells_here():
        print(
            f"weft: rank {world.rank} of {world.size}: the machine of process 0 ({os.environ['MASTER_ADDR']}) did not "
            f"answer for {world.timeout:g} s; the last good state is kept",
            file=sys.stderr,
        )


def meet(store: Store, rank: int, size: int, timeout: float) -> str:
    """A name for this meeting of processes, under which none finds what earlier ones left in the store.

    torchrun may keep a store while it starts workers again, without telling them that it is another time. Each process
    leaves a number of its own; the first one answers with a name and the numbers it saw, until all have seen theirs.
    """
    own, name = uuid.uuid4().hex, uuid.uuid4().hex
    deadline = time.monotonic() + timeout
    store.set(f"hello/{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            seen = {r: store.get(f"hello/{r}").decode() for r in range(size) if store.check([f"hello/{r}"])}
            store.set("meeting", json.dumps([name, size, seen]))
        if store.check(["meeting"]):
            found, count, seen = json.loads(store.get("meeting"))
            if count == size and seen.get(str(rank)) == own:
                store.set(f"met/{found}/{rank}", "")
                if rank or all(store.check([f"met/{found}/{r}"]) for r in range(size)):
                    return str(found)
        time.sleep(0.02)
    raise RuntimeError("not all came")


def end_with_parent() -> None:
    """Let the system end this process when its agent dies, also by kill -9: no orphan goes on training (Linux)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died in between
        os._exit(1)
