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

LONG = timedelta(days=7)  # reading a corpus or a last evaluation takes as long as it takes
TIMEOUT = 600.0  # seconds after which a process that does not answer is given up


def started_by_torchrun() -> bool:
    """Whether this process is one of several that torchrun, or another launcher that speaks its language, started."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def leads() -> bool:
    """Whether this is the first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0 or not started_by_torchrun()


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, `local_rank` on its machine; `store` holds small facts that all can read."""

    rank: int
    size: int
    local_rank: int
    store: Store
    device: torch.device
    timeout: float

    @property
    def leads(self) -> bool:
        """The first process prints, plans and writes."""
        return self.rank == 0

    def from_leader(self, name: str, make: Callable[[], Any]) -> Any:
        """What the first process makes, as plain JSON, on every process; however long it takes."""
        if self.leads:
            self.store.set(f"fact/{name}", json.dumps(make()))
        self.store.wait([f"fact/{name}"], LONG)
        return json.loads(self.store.get(f"fact/{name}"))

    def first_here(self, name: str, do: Callable[[], Any]) -> Any:
        """`do` on the first process of each machine, then on its others: these find what the first one has cached."""
        machine = os.environ.get("GROUP_RANK", "0")
        if self.local_rank:
            self.store.wait([f"done/{name}/{machine}"], LONG)
            return do()
        result = do()
        self.store.set(f"done/{name}/{machine}", "")
        return result

    def leave(self) -> None:
        """Leave together, once the first process is done, which may host what the others read from."""
        self.from_leader("finished", lambda: True)
        if self.store.add("left", 1) == self.size:
            self.store.set("all left", "")
        if self.leads:
            self.store.wait(["all left"], timedelta(seconds=30))


_met: list[World] = []


def join_world(device: str | None, timeout: float = TIMEOUT) -> World:
    """The world for one training. Processes that train several times stay together, and agree on each anew."""
    if not _met:
        _met.append(_join(device, timeout))
        atexit.register(dist.destroy_process_group)
    world = _met[0]
    trainings = next(_trainings)
    return replace(world, store=PrefixStore(f"training {trainings}", world.store))


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
    limit = timedelta(seconds=timeout)
    store, rank, size = next(iter(rendezvous("env://", timeout=limit)))
    store = PrefixStore(meet(store, rank, size, timeout), store)
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=limit)
    return World(rank, size, local, PrefixStore("weft", store), own, timeout)


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
    raise WeftError(f"rank {rank} of {size}: the others did not come within {timeout:g} s: see whether they run")


def end_with_parent() -> None:
    """Let the system end this process when its agent dies, also by kill -9: no orphan goes on training (Linux)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died in between
        os._exit(1)
