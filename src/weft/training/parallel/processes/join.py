"""The distribution of this training: one process, or those that torchrun started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft.foundation.errors import WeftError
from weft.foundation.numerics import pick_device
from weft.training.distribution import Distribution
from weft.training.parallel.layout import ParallelLayout
from weft.training.parallel.processes.give_up import SilentExit, same_on_all, tells_here
from weft.training.parallel.world import (
    TIMEOUT,
    ProcessesLost,
    World,
    end_with_parent,
    join_world,
    started_by_torchrun,
)
from weft.training.request import TrainRequest


@contextlib.contextmanager
def distribution_of(request: TrainRequest) -> Iterator[Distribution]:
    """Inside, the processes of a training have met; afterwards they leave together."""
    layout = ParallelLayout.parse(request.parallel or "ddp")
    if not started_by_torchrun():
        if layout != ParallelLayout():
            raise WeftError(
                f"--parallel {layout} needs several processes: add --processes N, or start weft with torchrun"
            )
        yield Distribution(pick_device(request.device))
        return
    from weft.training.parallel.processes.failures import end_by_signals, tell_once

    end_with_parent()
    with end_by_signals():
        world = _joined(request)
        with tell_once(world):
            several = _several(world, layout)
            world.limit_all_groups()
            yield several
            world.leave()


def _joined(request: TrainRequest) -> World:
    with same_on_all():
        if request.compile:
            raise WeftError("--compile works in one process: leave it out where several train")
    try:
        return join_world(request.device, request.timeout or TIMEOUT)
    except ProcessesLost:
        if not tells_here():
            raise SilentExit(1) from None
        raise


def _several(world: World, layout: ParallelLayout) -> Distribution:
    from weft.training.parallel.spread import Replicated

    if layout == ParallelLayout():
        return Replicated(world, layout)
    from weft.training.parallel.sharded import Sharded  # loads DTensors, which takes seconds

    return Sharded(world, layout)
