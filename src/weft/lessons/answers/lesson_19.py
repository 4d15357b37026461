"""Answers to lesson 19: devices for a model, bytes in a ring, and when to write a checkpoint."""

from __future__ import annotations

from weft.lessons.checking import Question, expect_number
from weft.models.cluster.communication import all_reduce_bytes
from weft.models.cluster.device_memory import SIZES, state_memory
from weft.models.cluster.failures import young_interval


def fewest_devices(parameters: int, memory: int) -> int:
    """Over which the state of a training can be sharded."""
    return next(n for n in range(1, 100) if sum(state_memory(parameters, SIZES["bf16"], n)) <= memory)


QUESTIONS = {
    "19.1": Question(
        expect_number(lambda: fewest_devices(7_000_000_000, 80_000_000_000), "7 x 16 = 112 GB."),
        solution=2,
        wrong=(1, 14),
    ),
    "19.2": Question(
        expect_number(lambda: all_reduce_bytes(1_000_000, 8), "2 (n - 1) / n of the payload."),
        solution=1_750_000,
        wrong=(875_000, 2_000_000, 7_000_000),
    ),
    "19.3": Question(
        expect_number(lambda: young_interval(50, 10_000), "sqrt(2 C M)."), solution=1000, wrong=(500, 707)
    ),
}
