"""Fine-tuning: training that starts from the model, tokenizer and weights of a finished or imported run.

Where the data have other classes than the run, or the run had none (an embedding model), the last linear map is
trained from scratch, and everything below it starts from the run's weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.checkpoints.sample_runs import locate_run
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import DiskError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, build, read_spec
from weft.runs.run import task_of
from weft.tasks.task import Task

# Learning rates that do not destroy what was learned before: inverse to the width, as in published fine-tunings
# (2e-5 at 4,096, 1e-4 at 576); adapters, which start at zero, take ten times as much.
RATE_TIMES_WIDTH, LARGEST_RATE, ADAPTER_FACTOR = 0.06, 1e-3, 10.0
SETTLED_OPTIONS = ("tokenizer", "vocabulary", "size")  # options that were decided when the run was first trained
HEAD, NGRAMS = "head", "ngrams"
CLASS_WEIGHTS = ("head.linear.", "head.distilled.", f"{NGRAMS}.")  # the maps from hidden states or n-grams to classes


@dataclass(frozen=True)
class BaseRun:
    """The run that a fine-tuning starts from."""

    folder: RunFolder
    spec: RunSpec
    task: Task
    kind: type[Task]

    def options(self, chosen: Tree) -> Any:
        """The run's data options with the changes; which data are held out is never inherited.

        A run that was imported, or is of another task, has none: then the task's options for trained models.
        """
        settled = next(
            (name for name in chosen if name in SETTLED_OPTIONS and name in self.kind.Options.model_fields), None
        )
        if settled is not None:
            raise WeftError(f"data.{settled} was decided when {self.folder.path} was trained: leave it out with --from")
        trained_here = self.spec.training and isinstance(self.task, self.kind)
        before = self.spec.data if trained_here else self.kind.fine_tuning_options
        return self.kind.Options(**{k: v for k, v in before.items() if k not in ("validation", "split")} | chosen)

    def has_new_classes(self, task: Task) -> bool:
        """Whether the task's classes are others than the run's."""
        return task.answers != self.task.answers

    def model_spec(self, changes: Tree, task: Task) -> AnySpec:
        """The run's model with the task's classes and with changes that keep its weights' shapes, such as dropout."""
        model = read_spec(self.spec.model)
        model = task.with_new_classes(model) if self.has_new_classes(task) else model
        spec: AnySpec = model.replace(**changes) if changes else model
        if _shapes(spec) != _shapes(model):
            names = ", ".join(changes)
            raise WeftError(
                f"{names}: the weights of {self.folder.path} would not fit the model; leave out this, or --from"
            )
        return spec

    def load_weights(self, module: nn.Module, task: Task) -> None:
        """Load the run's weights, in the module's own dtype; the map to new classes stays as initialized."""
        weights = self.folder.read_model()
        if self.has_new_classes(task):
            own = module.state_dict()
            weights = {
                name: tensor for name, tensor in weights.items() if name in own and not name.startswith(CLASS_WEIGHTS)
            }
            fresh = (f"{HEAD}.", f"{NGRAMS}.")
            weights |= {name: own[name] for name in own if name.startswith(fresh) and name not in weights}
        try:
            module.load_state_dict(weights)
        except RuntimeError:
            raise DiskError(f"{self.folder.path}: model.safetensors does not fit spec.json: train it again") from None


def open_base_run(path: Path, kind: type[Task]) -> BaseRun:
    """The run at `path`, as the start of a fine-tuning for a task of this kind."""
    folder = RunFolder(locate_run(path))
    spec = folder.read_spec()
    known = (kind.name, *kind.compatible_tasks)
    if spec.task not in known:
        raise WeftError(
            f"{path} is a run of task {spec.task}, but the task is {kind.name}: "
            f"give --from a run of task {' or '.join(known)}"
        )
    return BaseRun(folder, spec, task_of(folder, spec), kind)


def fully_trained_parts(task: Task) -> tuple[str, ...]:
    """Parts whose weights are all trained beside adapters: the head, where a model chooses among classes."""
    return () if task.answers is None else (HEAD,)


def fine_tuning_defaults(spec: AnySpec, rank: int | None) -> Tree:
    """Training options that suit a trained model; with `rank` those for adapters."""
    rate = min(LARGEST_RATE, RATE_TIMES_WIDTH / spec.width)
    if rank is not None:
        return {"optimizer": "adamw", "rate": min(ADAPTER_FACTOR * rate, 3 * LARGEST_RATE), "weight_decay": 0.0}
    return {"optimizer": "adamw", "rate": rate, "weight_decay": 0.01}


def _shapes(spec: AnySpec) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in build(spec, device="meta").state_dict().items()}
