"""Training on: the model, tokeniser and weights of a finished or imported run, and new data of the same task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from weft.checkpoints.atomic import DiskError
from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, build, read_spec
from weft.tasks.base import Task
from weft.tasks.run import task_of

# What was learned once must not be forgotten at once: rates fall with the width, as those of published fine-tunings do
# (2e-5 at 4,096, 1e-4 at 576); adapters, which begin at nothing, take ten times as much.
RATE, LARGEST_RATE, ADAPTERS = 0.06, 1e-3, 10.0
KEPT = ("tokeniser", "vocabulary", "size")  # options that were settled when the run was first trained


@dataclass(frozen=True)
class Base:
    """A run that another goes on from."""

    folder: RunFolder
    spec: RunSpec
    task: Task

    def options(self, chosen: Tree) -> Any:
        """The run's options of data with those that are chosen anew; what is held out is never taken over."""
        known = type(self.task).Options.model_fields
        settled = next((name for name in chosen if name in KEPT and name in known), None)
        if settled is not None:
            raise WeftError(f"data.{settled} was settled when {self.folder.path} was trained: leave it out with --from")
        before = {name: value for name, value in self.spec.data.items() if name not in ("validation", "split")}
        return type(self.task).Options(**{**before, **chosen})

    def changed(self, changes: Tree) -> AnySpec:
        """The run's model with changes that need no other weights, such as dropout."""
        model = read_spec(self.spec.model)
        wanted = {name: value for name, value in changes.items() if not name.startswith("training.")}
        spec: AnySpec = model.replace(**wanted) if wanted else model
        if _shapes(spec) != _shapes(model):
            names = ", ".join(wanted)
            raise WeftError(f"{names}: the weights of {self.folder.path} would not fit; leave it out, or --from")
        return spec

    def put_weights(self, module: nn.Module) -> None:
        """Give a module of this model the run's weights, in the module's own type."""
        try:
            module.load_state_dict(self.folder.read_model())
        except RuntimeError:
            raise DiskError(f"{self.folder.path}: model.safetensors does not fit spec.json: train it again") from None


def open_base(path: Path, kind: type[Task]) -> Base:
    """The run at `path`, to be trained on as a task of this kind."""
    folder = RunFolder(path)
    spec = folder.read_spec()
    if spec.task != kind.name:
        raise WeftError(
            f"{path} is a run of task {spec.task}, but task {kind.name} is to be trained: give --from a run of the same"
        )
    return Base(folder, spec, task_of(folder, spec))


def tuning_of(spec: AnySpec, rank: int | None) -> Tree:
    """Options of training that suit a model which has learned already; with `rank` those of adapters."""
    rate = min(LARGEST_RATE, RATE / spec.width)
    if rank is not None:
        return {"optimiser": "adamw", "rate": min(ADAPTERS * rate, 3 * LARGEST_RATE), "weight_decay": 0.0}
    return {"optimiser": "adamw", "rate": rate, "weight_decay": 0.01}


def _shapes(spec: AnySpec) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in build(spec, device="meta").state_dict().items()}
