"""The run folder, the product of training:

spec.json            task, data options, model and training in one versioned tree
model.safetensors    the best weights so far; of an imported GGUF file, in the blocks of few bits that it has
tokenizer.json       where the task has one; target_tokenizer.json if the target language has its own
metrics.jsonl        one line per report
plan.json            the frozen time plan
references.json      what simple methods reach on the validation data, and facts to measure them on other data
report.html          what was planned and reached, errors, attention and data, as one page
data.json            size, time of change and SHA-256 of each data file, by which --resume knows its data
training/            the newest training state: weights, optimizer, position in the data; one file, so one rename,
                     or while several processes train, a folder with a file of each (`sharded_files`)
.race/               while sizes race: a folder of each (`training/racing/race_folder.py`)

Every file is written atomically. Never a pickle. torch is loaded with the first tensor that is read or written.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from weft.checkpoints.sharded_files import INDEX, read_index, read_whole, write_index
from weft.data.fingerprints import Fingerprint, expect_fingerprint
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import SpecError, WeftError
from weft.foundation.files.atomic_files import DiskError, lock_folder, remove_leftovers, write_atomic, write_text
from weft.foundation.files.json_text import parse_json
from weft.foundation.files.regular_files import expect_regular
from weft.foundation.spec import Tree, VersionedSpec, expect_table

if TYPE_CHECKING:
    from torch import Tensor

    from weft.parts.quantized import BlockLayout

STATE = "state-{step:08d}.safetensors"
BLOCK_NOTES = "blocks"
WRITTEN_BEFORE_SPEC = {"tokenizer.json", "target_tokenizer.json", "plan.json", "data.json"}


# Old spellings of fields, and of prefixes of tensor names, in version 1. The model's spec has a version of its own.
RENAMED_IN_2 = {"tokeniser": "tokenizer", "optimiser": "optimizer", "normalise": "normalize"}


def _to_version_2(tree: Tree) -> Tree:
    """Rename the fields of data, facts and training; values, such as names of classes, stay as they are."""
    renamed = {
        name: {RENAMED_IN_2.get(field, field): value for field, value in tree[name].items()}
        for name in ("data", "facts", "training")
        if isinstance(tree.get(name), dict)
    }
    return tree | renamed


class RunSpec(VersionedSpec):
    """What a run is: its task, and the trees that data, model and training are built from.

    `base` is the folder of the run whose training it continued (`--from`), if any.
    """

    VERSION: ClassVar[int] = 2
    MIGRATIONS: ClassVar[dict[int, Callable[[Tree], Tree]]] = {1: _to_version_2}
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
    """The training state after `step` steps: tensors by name, and plain facts (best loss so far, ...)."""

    step: int
    tensors: dict[str, Tensor]
    facts: Tree


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

    path: Path

    @property
    def exists(self) -> bool:
        return (self.path / "spec.json").is_file()

    def expect_usable(self) -> None:
        """Refuse a folder that holds other files than a run's: a run would be written over them, or among them.

        Hidden files do not count. A run that was killed before its spec was written leaves its lock and a few files.
        """
        if str(self.path).startswith("sample:"):
            raise WeftError(f"{self.path} ships with the package and is read only: choose another folder for --out")
        if self.path.exists() and not self.path.is_dir():
            raise WeftError(f"{self.path} is a file: choose a folder for --out")
        if self.exists or not self.path.is_dir():
            return
        visible = {entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")}
        if visible and not ((self.path / ".lock").exists() and visible <= WRITTEN_BEFORE_SPEC):
            raise WeftError(
                f"{self.path} holds no run, but other files ({', '.join(sorted(visible)[:3])}, ...), which a run could "
                "overwrite: choose a new or empty folder for --out"
            )

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Lock the folder for writing; refused while another process holds it. What a killed one left is removed."""
        return self._hold()

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(lock_folder(self.path))
            except OSError as error:
                raise DiskError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None
            for folder in (self.path, self.path / "training"):
                remove_leftovers(folder)
            yield

    def write_spec(self, spec: RunSpec) -> None:
        write_text(self.path / "spec.json", spec.to_json() + "\n")

    def read_spec(self) -> RunSpec:
        """spec.json, of this or an older version."""
        tree = self._read_json("spec.json")
        if "task" not in tree:
            raise SpecError(f"{self.path / 'spec.json'} is not a run's spec: it names no task")
        return RunSpec.from_tree(tree)

    def write_plan(self, plan: Tree) -> None:
        write_text(self.path / "plan.json", json.dumps(plan, indent=2) + "\n")

    def read_plan(self) -> Tree:
        return self._read_json("plan.json")

    def write_fingerprints(self, files: list[Fingerprint]) -> None:
        rows = ",\n".join(json.dumps(asdict(file), ensure_ascii=False) for file in files)
        write_text(self.path / "data.json", f'{{"files": [\n{rows}\n]}}\n')

    def read_fingerprints(self) -> list[Fingerprint]:
        """Of the data files; none for a run of built-in data, or of a version that did not write any."""
        if not (self.path / "data.json").is_file():
            return []
        try:
            return [expect_fingerprint(row) for row in self._read_json("data.json")["files"]]
        except (KeyError, TypeError, ValueError):
            raise SpecError(f"{self.path / 'data.json'} is not a list of data files: restore or remove it") from None

    def write_references(self, found: Tree) -> None:
        write_text(self.path / "references.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")

    def read_references(self) -> Tree:
        """What simple methods reached when the run was trained; empty for a run that has not stored it."""
        return self._read_json("references.json") if (self.path / "references.json").is_file() else {}

    def write_model(self, weights: dict[str, Tensor], facts: Tree | None = None) -> None:
        from weft.foundation.files.tensor_files import write_tensors

        write_tensors(self.path / "model.safetensors", weights, _note(facts or {}))

    def read_model(self) -> dict[str, Tensor]:
        """The weights; those that are stored in blocks of few bits are computed from them, in float32."""
        from weft.parts.quantized import dequantized_state

        return dequantized_state(*self.read_stored_model())

    def read_stored_model(self) -> tuple[dict[str, Tensor], dict[str, BlockLayout]]:
        """The weights as they are stored, and the parts that have `NAME.blocks` in place of `NAME.weight`."""
        from weft.foundation.files.tensor_files import read_tensors

        if not (self.path / "model.safetensors").is_file():
            raise DiskError(f"{self.path} has no model.safetensors yet: train on with --resume")
        file = self.path / "model.safetensors"
        return read_tensors(file), _read_block_notes(file)

    def write_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Write tokenizer.json, and target_tokenizer.json if the target language has its own."""
        write_atomic(self.path / "tokenizer.json", tokenizer.save)
        if tokenizer.target_engine is not None:
            write_atomic(self.path / "target_tokenizer.json", tokenizer.target.save)

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer's file, if the task has one."""
        file = self.path / "tokenizer.json"
        return file if file.is_file() else None

    def write_snapshot(self, snapshot: Snapshot, keep: int = 1) -> None:
        """Write the training state, then remove older ones; the last one stays until the new one is in place."""
        from weft.foundation.files.tensor_files import write_tensors

        folder = self.path / "training"
        try:
            folder.mkdir(exist_ok=True)  # in the run's folder, which is not made anew if it was moved meanwhile
        except OSError as error:
            raise DiskError(f"cannot write to {folder}: {error.strerror}; resume where the run's folder is") from None
        note = _note({"step": snapshot.step, **snapshot.facts})
        write_tensors(folder / STATE.format(step=snapshot.step), snapshot.tensors, note)
        self._remove_old_states(keep)

    def sharded_state(self, step: int) -> Path:
        """The folder of the training state that several processes write after this step."""
        return (self.path / "training" / STATE.format(step=step)).with_suffix("")

    def complete_sharded_state(self, step: int, facts: Tree, scalars: dict[str, float], keep: int = 1) -> None:
        """Declare the state after this step complete, then remove older ones."""
        write_index(self.sharded_state(step), step, facts, scalars)
        self._remove_old_states(keep)

    def _remove_old_states(self, keep: int) -> None:
        """Remove all but the newest states; those that were never completed too, unless they are newer."""
        states = self._states()
        training = self.path / "training"
        unfinished = [folder for folder in training.glob("state-*") if folder.is_dir() and folder not in states]
        unfinished = [folder for folder in unfinished if states and folder.stem < states[-1].stem]
        for old in (*states[:-keep], *unfinished):
            with contextlib.suppress(OSError):
                shutil.rmtree(old) if old.is_dir() else old.unlink()

    def newest_state(self) -> Path | None:
        """The newest training state: a file, or a folder that several processes wrote."""
        return next(reversed(self._states()), None)

    def read_snapshot(self) -> Snapshot | None:
        """The newest complete training state; None if there is none."""
        for path in reversed(self._states()):
            with contextlib.suppress(DiskError):  # a damaged file: the one before it may be complete
                return self.read_state(path)
        return None

    def read_state(self, path: Path) -> Snapshot:
        """One training state: a file, or a folder that several processes wrote."""
        from safetensors import SafetensorError, safe_open

        from weft.foundation.files.tensor_files import read_tensors

        if path.is_dir():
            return Snapshot(*read_whole(path))
        try:
            with safe_open(path, framework="pt") as opened:
                facts = parse_json((opened.metadata() or {})["weft"])
            if not isinstance(facts, dict) or not isinstance(facts["step"], int):
                raise ValueError("its step is not told")
            tensors = {_current_name(name): tensor for name, tensor in read_tensors(path).items()}
            return Snapshot(facts.pop("step"), tensors, facts)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise DiskError(f"{path} is not a complete training state ({error}): an older one may be") from None

    def newest_complete_state(self) -> Path | None:
        """The newest training state whose files are all there; None if there is none."""
        for path in reversed(self._states()):
            with contextlib.suppress(DiskError):
                read_index(path) if path.is_dir() else self.read_state(path)
                return path
        return None

    def _states(self) -> list[Path]:
        """Oldest first; a file and a folder of one step are equally good."""
        training = self.path / "training"
        folders = (file.parent for file in training.glob(f"state-*/{INDEX}"))
        files = (file for file in training.glob("state-*.safetensors") if file.is_file())
        return sorted((*files, *folders), key=lambda path: path.stem)

    def add_metrics(self, row: Tree) -> None:
        """Append one line to metrics.jsonl."""
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise DiskError(
                f"cannot write metrics.jsonl in {self.path}: {error.strerror}; the last good state is kept"
            ) from None

    def read_metrics(self) -> Iterator[Tree]:
        """The rows of metrics.jsonl; a last line cut short by a kill is skipped."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    row = parse_json(line)
                    if isinstance(row, dict) and isinstance(row.get("step", 0), int):
                        yield row

    def keep_metrics_until(self, step: int) -> None:
        """Remove the rows after a step, which training is about to write again."""
        rows = [row for row in self.read_metrics() if row.get("step", 0) <= step and "metrics" not in row]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def _read_json(self, name: str) -> Tree:
        file = self.path / name
        try:
            return expect_table(parse_json(expect_regular(file).read_bytes()))
        except FileNotFoundError:
            where = "not a run folder" if not self.exists else f"a run without {name}"
            raise WeftError(f"{self.path} is {where}: give a folder that `weft train` wrote") from None
        except NotADirectoryError:
            raise WeftError(f"{self.path} is a file: give a run's folder") from None
        except (OSError, ValueError) as error:
            raise SpecError(f"{file} cannot be read ({error}): restore it or train again") from None


def _current_name(tensor: str) -> str:
    """Today's name of a tensor in a training state that version 1 may have written (`optimiser.0.NAME.exp_avg`)."""
    prefix, dot, rest = tensor.partition(".")
    return f"{RENAMED_IN_2.get(prefix, prefix)}{dot}{rest}"


def block_notes(layouts: Mapping[str, BlockLayout]) -> dict[str, str] | None:
    """Which parts are stored in blocks, as metadata of a safetensors file."""
    if not layouts:
        return None
    parts = {name: {"columns": layout.columns, "segments": layout.segments} for name, layout in layouts.items()}
    return _note({BLOCK_NOTES: parts})


def _read_block_notes(file: Path) -> dict[str, BlockLayout]:
    from weft.foundation.files.tensor_files import read_notes
    from weft.parts.quantized import BlockLayout, BlockSegment

    try:
        parts = json.loads(read_notes(file).get("weft", "{}")).get(BLOCK_NOTES, {})
        return {
            str(name): BlockLayout(
                tuple(BlockSegment(str(kind), int(rows)) for kind, rows in one["segments"]), one["columns"]
            )
            for name, one in parts.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DiskError(f"{file} says nothing readable about its blocks ({str(error)[:80]}): import it again") from None


def _note(facts: Tree) -> dict[str, str]:
    """Facts as metadata of a safetensors file, in one entry: the order of several would vary."""
    return {"weft": json.dumps(facts)}
