"""Training on: the model, tokenizer and weights of a finished or imported run, and new data.

Where the data have other classes than the run knew, or the run had none (an embedding model), the last linear map is
learned anew, and all below it goes on from what it knew.
"""

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
from weft.runs.run import task_of
from weft.tasks.task import Task

# What was learned once must not be forgotten at once: rates fall with the width, as those of published fine-tunings do
# (2e-5 at 4,096, 1e-4 at 576); adapters, which begin at nothing, take ten times as much.
RATE_TIMES_WIDTH, LARGEST_RATE, ADAPTER_FACTOR = 0.06, 1e-3, 10.0
SETTLED_OPTIONS = ("tokenizer", "vocabulary", "size")  # options that were settled when the run was first trained
HEAD, CLASS_WEIGHTS = "head", ("head.linear.", "head.distilled.")  # the maps from hidden states to classes


@dataclass(frozen=True)
class BaseRun:
    """A run that another goes on from."""

    folder: RunFolder
    spec: RunSpec
    task: Task
    kind: type[Task]

    def options(self, chosen: Tree) -> Any:
        """The run's options of data with those that are chosen anew; what is held out is never taken over.

        A run that was imported, or is of another task, has none: then those that suit a trained model.
        """
        settled = next(
            (name for name in chosen if name in SETTLED_OPTIONS and name in self.kind.Options.model_fields), None
        )
        if settled is not None:
            raise WeftError(f"data.{settled} was settled when {self.folder.path} was trained: leave it out with --from")
        trained_here = self.spec.training and isinstance(self.task, self.kind)
        before = self.spec.data if trained_here else self.kind.tuned
        return self.kind.Options(**{k: v for k, v in before.items() if k not in ("validation", "split")} | chosen)

    def has_new_classes(self, task: Task) -> bool:
        """Whether the task's classes are others than the run's."""
        return task.answers != self.task.answers

    def model_spec(self, changes: Tree, task: Task) -> AnySpec:
        """The run's model with the task's classes, and changes that need no other weights, such as dropout."""
        model = read_spec(self.spec.model)
        model = task.renew(model) if self.has_new_classes(task) else model
        wanted = {name: value for name, value in changes.items() if not name.startswith("training.")}
        spec: AnySpec = model.replace(**wanted) if wanted else model
        if _shapes(spec) != _shapes(model):
            names = ", ".join(wanted)
            raise WeftError(f"{names}: the weights of {self.folder.path} would not fit; leave it out, or --from")
        return spec

    def load_weights(self, module: nn.Module, task: Task) -> None:
        """Give a module of this model the run's weights, in the module's own type; new classes begin at random."""
        weights = self.folder.read_model()
        if self.has_new_classes(task):
            own = module.state_dict()
            weights = {
                name: tensor for name, tensor in weights.items() if name in own and not name.startswith(CLASS_WEIGHTS)
            }
            weights |= {name: own[name] for name in own if name.startswith(f"{HEAD}.") and name not in weights}
        try:
            module.load_state_dict(weights)
        except RuntimeError:
            raise DiskError(f"{self.folder.path}: model.safetensors does not fit spec.json: train it again") from None


def open_base_run(path: Path, kind: type[Task]) -> BaseRun:
    """The run at `path`, to be trained on as a task of this kind."""
    folder = RunFolder(path)
    spec = folder.read_spec()
    known = (kind.name, *kind.origins)
    if spec.task not in known:
        raise WeftError(
            f"{path} is a run of task {spec.task}, but task {kind.name} is to be trained: "
            f"give --from a run of task {' or '.join(known)}"
        )
    return BaseRun(folder, spec, task_of(folder, spec), kind)


def fully_trained_parts(task: Task) -> tuple[str, ...]:
    """What learns with all its weights beside adapters: the head, where a model chooses among classes."""
    return () if task.answers is None else (HEAD,)


def fine_tuning_defaults(spec: AnySpec, rank: int | None) -> Tree:
    """Options of training that suit a model which has learned already; with `rank` those of adapters."""
    rate = min(LARGEST_RATE, RATE_TIMES_WIDTH / spec.width)
    if rank is not None:
        return {"optimizer": "adamw", "rate": min(ADAPTER_FACTOR * rate, 3 * LARGEST_RATE), "weight_decay": 0.0}
    return {"optimizer": "adamw", "rate": rate, "weight_decay": 0.01}


def _shapes(spec: AnySpec) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in build(spec, device="meta").state_dict().items()}
