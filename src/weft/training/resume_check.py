"""A resumed run follows its own spec and plan: the options it was begun with may be given again, no others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.foundation.errors import SpecError, WeftError
from weft.foundation.spec import Spec, Tree
from weft.models.build import read_spec
from weft.models.plain_presets import PLAIN
from weft.models.presets import preset as preset_named
from weft.runs.run import task_of
from weft.tasks.task import Size, Task
from weft.training.request import TrainRequest
from weft.training.training_spec import TrainingSpec


def expect_same_options(request: TrainRequest, kind: type[Task], folder: RunFolder) -> None:
    """Refuse options that differ from the run's own, by name."""
    spec, plan = folder.read_spec(), folder.read_plan()
    own = {"steps": plan.get("steps"), "minutes": plan.get("minutes"), "seed": spec.seed}
    given = {"steps": request.steps, "minutes": request.minutes, "seed": request.seed}
    others = [f"--{name} {value:g}" for name, value in given.items() if value is not None and value != own[name]]
    others += [f"--set {name}={request.changes[name]}" for name in _other_changes(spec, kind, request.changes)]
    if not others and request.preset != "auto" and not _is_preset(folder, spec, request.preset, request.model_changes):
        others = [f"--preset {request.preset}"]
    if others:
        raise WeftError(
            f"{', '.join(others)}: the run in {folder.path} was started with other options, and --resume keeps "
            "those: leave these out, or start a new run with another --out"
        )


def expect_same_task(task: Task, folder: RunFolder, spec: RunSpec) -> None:
    """Refuse to go on if the data now give another tokenizer, other classes or scales than the run's own."""
    own = task_of(folder, spec)
    if json.dumps(_facts_of_data(task)) != json.dumps(_facts_of_data(own)):
        differs = "other classes, lengths or scales"
    elif _vocabularies(task) != _vocabularies(own):
        differs = "another tokenizer"
    else:
        return
    raise WeftError(
        f"{', '.join(spec.sources)} gives {differs} now than when the run in {folder.path} was begun: "
        "start a new run with another --out"
    )


def _facts_of_data(task: Task) -> Tree:
    """The facts without those that were learned from the trained model, which a run that goes on does not have yet."""
    return {name: fact for name, fact in task.facts().items() if name not in task.examined}


def _vocabularies(task: Task) -> tuple[str, ...]:
    tokenizer = task.tokenizer
    if tokenizer is None:
        return ()
    return (tokenizer.engine.to_str(), "" if tokenizer.target_engine is None else tokenizer.target_engine.to_str())


def _other_changes(spec: RunSpec, kind: type[Task], changes: Mapping[str, Any]) -> Iterator[str]:
    """The names of changes that would give another spec of data, training or model."""
    owners: dict[str, Spec] = {"data": kind.Options(**spec.data), "training": TrainingSpec(**spec.training)}
    for name, value in changes.items():
        section, _, field = name.partition(".")
        owner, path = (owners[section], field) if section in owners and field else (read_spec(spec.model), name)
        try:
            same = owner.replace(**{path: value}) == owner
        except SpecError:
            same = False
        if not same:
            yield name


def _is_preset(folder: RunFolder, spec: RunSpec, name: str, changes: Mapping[str, Any]) -> bool:
    """Whether the run's model is this preset, fitted to its data and changed; a plain one in the run's own size."""
    task, named, own = task_of(folder, spec), preset_named(name), read_spec(spec.model)
    if named.family not in task.families:
        return False
    fitted = task.fit_plain(name, Size.of(own)) if name in PLAIN else task.fit(named)
    # The preset meant then what specs of the run's version mean.
    meant = fitted.replace(**changes).to_tree() | {"version": spec.model.get("version", named.VERSION)}
    return read_spec(meant) == own
