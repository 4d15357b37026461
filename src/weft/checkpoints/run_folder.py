"""The run folder, the product of training:

spec.json            task, data options, model and training in one versioned tree
model.safetensors    the best weights so far
tokenizer.json       where the task has one; target_tokenizer.json where what is written has another
metrics.jsonl        a line a report
plan.json            the frozen time plan
training/            the newest state of training: weights, optimizer, place in the data; one file, so one rename

Every file is written atomically. Never a pickle.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from weft.checkpoints.atomic import DiskError, lock_folder, read_tensors, write_atomic, write_tensors, write_text
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import SpecError, WeftError
from weft.foundation.spec import Tree, VersionedSpec, expect_table

STATE = "state-{step:08d}.safetensors"


# Fields and tensors that version 1 spelled otherwise; the model's own spec has its own version.
RENAMED = {"tokeniser": "tokenizer", "optimiser": "optimizer", "normalise": "normalize"}


def _american(tree: Tree) -> Tree:
    """Version 1 to 2: names as PyTorch and the tokenizers package spell them; classes and labels stay as they are."""
    renamed = {
        name: {RENAMED.get(field, field): value for field, value in tree[name].items()}
        for name in ("data", "facts", "training")
        if isinstance(tree.get(name), dict)
    }
    return tree | renamed


class RunSpec(VersionedSpec):
    """What a run is: its task and the trees that data, model and training are made from.

    `base` is the folder of the run that it was trained on from, if it was.
    """

    VERSION: ClassVar[int] = 2
    MIGRATIONS: ClassVar[dict[int, Callable[[Tree], Tree]]] = {1: lambda tree: _american(tree)}
    version: int = 2

    task: str
    sources: tuple[str, ...] = ()
    base: str | None = None
    seed: int = 0
    data: dict[str, Any] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any]
    training: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The state of training after `step` steps: tensors by name, and plain facts (best loss so far, ...)."""

    step: int
    tensors: dict[str, Tensor]
    facts: Tree


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "spec.json").is_file()

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder for writing; refused while another process does."""
        try:
            return lock_folder(self.path)
        except OSError as error:
            raise DiskError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None

    def write_spec(self, spec: RunSpec) -> None:
        """Write spec.json."""
        write_text(self.path / "spec.json", spec.to_json() + "\n")

    def read_spec(self) -> RunSpec:
        """Read spec.json, of this or an older version."""
        tree = self._read_json("spec.json")
        if "task" not in tree:
            raise SpecError(f"{self.path / 'spec.json'} is no run's spec: it names no task")
        return RunSpec.from_tree(tree)

    def write_plan(self, plan: Tree) -> None:
        """Write plan.json."""
        write_text(self.path / "plan.json", json.dumps(plan, indent=2) + "\n")

    def read_plan(self) -> Tree:
        """Read plan.json."""
        return self._read_json("plan.json")

    def write_model(self, weights: dict[str, Tensor], facts: Tree | None = None) -> None:
        """Write model.safetensors."""
        write_tensors(self.path / "model.safetensors", weights, _note(facts or {}))

    def read_model(self) -> dict[str, Tensor]:
        """Read model.safetensors."""
        if not (self.path / "model.safetensors").is_file():
            raise DiskError(f"{self.path} has no model.safetensors yet: train on with --resume")
        return read_tensors(self.path / "model.safetensors")

    def write_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Write tokenizer.json, and target_tokenizer.json where the language that is written has its own."""
        write_atomic(self.path / "tokenizer.json", tokenizer.save)
        if tokenizer.target_engine is not None:
            write_atomic(self.path / "target_tokenizer.json", tokenizer.target.save)

    @property
    def tokenizer(self) -> Path | None:
        """The file of the tokenizer, if the task has one."""
        file = self.path / "tokenizer.json"
        return file if file.is_file() else None

    def write_snapshot(self, snapshot: Snapshot, keep: int = 1) -> None:
        """Write the state of training, then drop older ones; until the rename the last one stays."""
        folder = self.path / "training"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"cannot write to {folder}: {error.strerror}; the run itself is whole") from None
        note = _note({"step": snapshot.step, **snapshot.facts})
        write_tensors(folder / STATE.format(step=snapshot.step), snapshot.tensors, note)
        for old in self._states()[:-keep]:
            with contextlib.suppress(OSError):
                old.unlink()

    def read_snapshot(self) -> Snapshot | None:
        """The newest whole state of training; None if there is none."""
        from safetensors import SafetensorError, safe_open

        for file in reversed(self._states()):
            try:
                with safe_open(file, framework="pt") as opened:
                    facts = json.loads((opened.metadata() or {})["weft"])
                tensors = {_renamed(name): tensor for name, tensor in read_tensors(file).items()}
                return Snapshot(facts.pop("step"), tensors, facts)
            except (DiskError, SafetensorError, OSError, KeyError, ValueError):
                continue  # a damaged file: the one before it may be whole
        return None

    def _states(self) -> list[Path]:
        return sorted((self.path / "training").glob("state-*.safetensors"))

    def add_metrics(self, row: Tree) -> None:
        """Append a line to metrics.jsonl."""
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise DiskError(
                f"cannot write metrics.jsonl in {self.path}: {error.strerror}; the last good state is kept"
            ) from None

    def read_metrics(self) -> Iterator[Tree]:
        """The lines of metrics.jsonl; a last line cut short by a kill is left out."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):
                    yield json.loads(line)

    def keep_metrics_until(self, step: int) -> None:
        """Drop the lines after a step, which training is about to write again."""
        rows = [row for row in self.read_metrics() if row.get("step", 0) <= step and "metrics" not in row]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def _read_json(self, name: str) -> Tree:
        file = self.path / name
        try:
            return expect_table(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            where = "no run folder" if not self.exists else f"a run without {name}"
            raise WeftError(f"{self.path} is {where}: give a folder that `weft train` wrote") from None
        except NotADirectoryError:
            raise WeftError(f"{self.path} is a file: give a run's folder") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise SpecError(f"{file} cannot be read ({error}): restore it or train again") from None


def _renamed(tensor: str) -> str:
    """The name of a tensor in a state of training that version 1 may have written."""
    room, dot, rest = tensor.partition(".")
    return f"{RENAMED.get(room, room)}{dot}{rest}"


def _note(facts: Tree) -> dict[str, str]:
    """Facts for a safetensors file, as one entry: several would be written in an order that varies."""
    return {"weft": json.dumps(facts)}
