"""What is measured: a contest of entries that compute the same, and what each entry's process is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Numbers = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Work:
    """What a contestant's process makes: `run` is one timed call, `check` gives numbers that all contestants share.

    `check` is called once, before any call is timed; names that another contestant does not give are not compared.
    Where `run` returns a dict, its numbers are kept beside the time (the machine's limits, memory).
    """

    run: Callable[[], Any]
    check: Callable[[], Numbers] = dict


@dataclass(frozen=True)
class Cost:
    """What one call must at least do: floating-point operations of the model, bytes of weights read, int8 operations.

    Operations count 2 per multiply-add. The share of the machine's limit that a contestant reaches is its rate of the
    one that is given, over the best rate that the machine showed in the same run.
    """

    flops: float = 0.0
    bytes_read: float = 0.0
    int8_operations: float = 0.0


@dataclass(frozen=True)
class Entry:
    """A contestant: `make` names the function, as package.module:function, that makes its `Work` from the arguments.

    `peer` is the library that it stands for, None for Weft's own; `threads` its own number, where it is not the
    contest's. `cost` replaces the contest's.
    """

    name: str
    make: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    peer: str | None = None
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    cost: Cost | None = None


@dataclass(frozen=True)
class Contest:
    """Entries that compute the same. `amount` of `unit` is computed per call; checked numbers agree to `tolerance`.

    Agreement: |a - b| <= tolerance (1 + |b|). Weft's entries are compared with the best peer, or all others with the
    entry named `reference`. `shapes` are products (M, N, K) that the calls consist of, for the limit of the machine.
    `limits`: whether the machine's limits are measured beside them.
    """

    name: str
    entries: tuple[Entry, ...]
    unit: str
    amount: float = 1.0
    tolerance: float = 1e-3
    cost: Cost = Cost()
    shapes: tuple[tuple[int, int, int], ...] = ()
    reference: str | None = None
    limits: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchOptions:
    """How cases are measured; what is None is the case's own choice.

    `peers`: names of libraries to compare with, all that are installed if None. `rounds` of turns of about `seconds`
    each, after a warm-up; `sizes`: names of contests or rows, all if empty. `quick`: tiny sizes, to see that all runs.
    `compiled`: training also through torch.compile; `precision` of training: float32 or bf16, for all alike.
    """

    peers: tuple[str, ...] | None = None
    rounds: int = 9
    seconds: float = 1.0
    threads: int = 2
    sizes: tuple[str, ...] = ()
    quick: bool = False
    compiled: bool = False
    precision: str = "float32"
    data: str | None = None
    out: str = "runs/bench"
    minutes: float | None = None
    seeds: tuple[int, ...] = (0,)
    again: bool = False
    largest: float | None = None
    url: str | None = None
