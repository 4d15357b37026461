"""What a training was asked for, checked once: `weft.train`, the command and the demo build a TrainRequest."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from weft.data.readers.graphs import read_edges
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.training.planning.pace import Clock

DATA, TRAINING = "data.", "training."
MASK_FILE = "mask.file"


@dataclass(frozen=True)
class TrainRequest:
    """A task, its data, the folder of the run, and how to train.

    `changes` sets single options by dotted names: `{"layers": 2, "training.rate": 1e-3, "data.held_out": 0.2}`. A graph
    that is a mask is named by the file of its edges: `{"mixer.mask.file": "edges.csv"}`.
    `preset` "auto" fits the model to data and time. A `seed` of None is 0 for a new run, and that of the run for a
    resumed one. `base` is the folder of a run whose model, tokenizer and weights training starts from. Of several
    processes, `parallel` is the layout (ddp if not given), and `timeout` the seconds after which one that does not
    answer is given up. `compile` None: the plan takes torch.compile where it pays within the minutes. `clock` tells the
    time by which `minutes` are planned and kept.
    """

    task: str
    data: tuple[str, ...]
    out: Path
    preset: str = "auto"
    changes: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    minutes: float | None = None
    seed: int | None = None
    resume: bool = False
    device: str | None = None
    compile: bool | None = None
    base: str | None = None
    parallel: str | None = None
    timeout: float | None = None
    clock: Clock = field(default=time.perf_counter, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.data:
            raise WeftError(f"no data for task {self.task}: name files or folders, or sample: for built-in data")
        self._check_length()
        if self.seed is not None and not _is_whole(self.seed):
            raise WeftError(f"seed {self.seed!r}: give a whole number, such as 0")
        for name in ("preset", "device"):
            if not isinstance(value := getattr(self, name), str | None):
                raise WeftError(f"{name} {value!r}: give a name in quotes")
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise WeftError(f"--timeout {self.timeout:g}: give a number of seconds above 0, such as 600")
        if self.base is not None and self.preset != "auto":
            raise WeftError(f"--from takes the model of {self.base} as it is: leave --preset out")

    def _check_length(self) -> None:
        """At most one of steps and minutes, and a possible one."""
        if self.minutes is not None and (self.steps is not None or self.changes.get(f"{TRAINING}steps") is not None):
            raise WeftError("steps and minutes both say how long: give one of them")
        if self.steps is not None and not _is_whole(self.steps):
            raise WeftError(f"steps {self.steps!r}: give a whole number, such as 2000")
        if self.steps is not None and self.steps < 1:
            raise WeftError(f"{self.steps} steps: give 1 or more")
        if self.minutes is None:
            return
        if isinstance(self.minutes, bool) or not isinstance(self.minutes, Real):
            raise WeftError(f"minutes {self.minutes!r}: give a number, such as 5")
        if not 0 < self.minutes < math.inf:
            raise WeftError(f"{self.minutes:g} minutes: give a time above 0, such as 5")

    def with_edges(self) -> TrainRequest:
        """The same with the edges in place of the files that hold them: a run needs no file that may be gone later."""
        return replace(self, changes=_with_edges(self.changes))

    @property
    def data_changes(self) -> Tree:
        """Changes of how data are read, by their names without `data.`."""
        return _below(self.changes, DATA)

    @property
    def training_changes(self) -> Tree:
        """Changes of the training options, by their names without `training.`."""
        return _below(self.changes, TRAINING)

    @property
    def model_changes(self) -> Tree:
        """Changes of the model's spec."""
        return {name: value for name, value in self.changes.items() if not name.startswith((DATA, TRAINING))}


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _below(changes: Mapping[str, Any], prefix: str) -> Tree:
    return {name.removeprefix(prefix): value for name, value in changes.items() if name.startswith(prefix)}


def _with_edges(changes: Mapping[str, Any]) -> Tree:
    """Options by dotted names, or tables of them, with each `mask.file` replaced by the graph in it."""
    found: Tree = {}
    for name, value in changes.items():
        if name == MASK_FILE or name.endswith(f".{MASK_FILE}"):
            mask = name.removesuffix("file")
            graph = _graph(str(value), changes.get(f"{mask}kind", "graph"), changes.get(f"{mask}nodes"))
            found |= {f"{mask}{field}": own for field, own in graph.items()}
        elif isinstance(value, Mapping) and "file" in value and name.rpartition(".")[2] == "mask":
            found[name] = _graph(str(value["file"]), value.get("kind", "graph"), value.get("nodes"))
        else:
            found.setdefault(name, _with_edges(value) if isinstance(value, Mapping) else value)
    return found


def _graph(file: str, kind: str, nodes: int | None) -> Tree:
    """The fields of the graph in a file; more nodes than have edges may be given."""
    if kind != "graph":
        raise WeftError(f"mask.file {file} holds the edges of a graph, but mask.kind is {kind}: leave one of them out")
    found, edges = read_edges(file)
    return {"kind": "graph", "nodes": found if nodes is None else nodes, "edges": [list(edge) for edge in edges]}
