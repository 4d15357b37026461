"""From data to a run: read, plan, train, judge. `weft.train` and `weft train` are this."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft.checkpoints.run_folder import RunFolder, RunSpec, Snapshot
from weft.data.samples import ReferenceScore
from weft.foundation.errors import WeftError
from weft.foundation.folders import cache_folder
from weft.foundation.numerics import pick_device
from weft.foundation.seeds import derive
from weft.foundation.spec import Tree
from weft.models.build import AnySpec, build, read_spec
from weft.models.presets import preset as preset_named
from weft.parts.lora import adapt
from weft.runs.run import Run, load, task_of
from weft.tasks.registry import task_named
from weft.tasks.task import PreparedData, Split, Task
from weft.training.averaging import recompute_blocks
from weft.training.fine_tuning import Base, open_base, tuning_of, whole_parts
from weft.training.guards import expect_lawful
from weft.training.loop import Loop
from weft.training.plan import TrainingPlan
from weft.training.planner import Planner
from weft.training.reporting import Reporter
from weft.training.resume_check import expect_same
from weft.training.training_spec import TrainingSpec

MINUTES = 5.0
JUDGING = 0.03  # of the time that was given, about, for metrics that are slow


@dataclass(frozen=True)
class Trained:
    """A finished training: the run, the plan it followed, and what was measured in the end."""

    run: Run
    plan: TrainingPlan
    steps: int
    seconds: float
    loss: float
    metrics: dict[str, Any]
    references: dict[str, float]
    best: ReferenceScore | None = None
    leak: str | None = None


@dataclass(frozen=True)
class TrainRequest:
    """What was asked for: a preset, changes by dotted names (`{"layers": 2, "training.rate": 1e-3}`), how long.

    `base` is the folder of a run that is trained on.
    """

    preset: str = "auto"
    changes: Mapping[str, Any] | None = None
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    resume: bool = False
    device: str | None = None
    compiled: bool | None = None
    base: str | None = None


def train(
    task: str,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    preset: str = "auto",
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    device: str | None = None,
    base: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Train a model and give its run: `weft.train("text", "book.txt", out="runs/book", minutes=5)`.

    `set` changes single options: `{"layers": 2, "training.rate": 0.001, "data.held_out": 0.2}`. `base` is a run that is
    trained on; with `set={"training.lora": 8}` by adapters of rank 8 alone.
    """
    request = TrainRequest(preset, set, steps, minutes, seed, resume, device, base=None if base is None else str(base))
    paths = [str(data)] if isinstance(data, (str, Path)) else [str(path) for path in data]
    return run_training(task, paths, Path(out), request, reporter or Reporter()).run


def run_training(task: str, paths: Sequence[str], out: Path, request: TrainRequest, reporter: Reporter) -> Trained:
    """Train as ordered; the folder is held for writing all the while."""
    started = time.perf_counter()
    kind = task_named(task)
    if request.steps is not None and request.minutes is not None:
        raise WeftError("steps and minutes both say how long: give one of them")
    if request.steps is not None and request.steps < 1:
        raise WeftError(f"{request.steps} steps: give 1 or more")
    if request.minutes is not None and not 0 < request.minutes < math.inf:
        raise WeftError(f"{request.minutes:g} minutes: give a time above 0, such as 5")
    folder = RunFolder(out)
    if out.exists() and not out.is_dir():
        raise WeftError(f"{out} is a file: choose a folder for --out")
    with _left_clean(out), folder.hold():
        if folder.exists and not request.resume:
            raise WeftError(f"{out} holds a run already: go on with --resume, or choose another --out")
        if request.resume and folder.exists:
            return _go_on(kind, folder, paths, request, reporter)
        if request.resume:
            reporter.noted(f"{out} holds no run to go on with: a new one begins")
        return _begin(kind, folder, paths, request, reporter, started)


@contextlib.contextmanager
def _left_clean(out: Path) -> Iterator[None]:
    """A folder that was made only to be held goes again where no run was begun in it."""
    made = not out.exists()
    try:
        yield
    except BaseException:
        lock = out / ".lock"
        if made and out.is_dir() and list(out.iterdir()) == [lock]:
            lock.unlink()
            out.rmdir()
        raise


def _begin(
    kind: type[Task], folder: RunFolder, paths: Sequence[str], request: TrainRequest, reporter: Reporter, started: float
) -> Trained:
    changes = dict(request.changes or {})
    chosen = {name.removeprefix("data."): changes.pop(name) for name in list(changes) if name.startswith("data.")}
    base = None if request.base is None else open_base(Path(request.base), kind)
    if base is None and changes.get("training.lora") is not None:
        raise WeftError("adapters learn beside the weights of a trained model: give it with --from RUN")
    options = kind.Options(**chosen) if base is None else base.options(chosen)
    reporter.began(f"reading {', '.join(paths)}")
    known = None if base is None else base.task
    prepared = kind.prepare(paths, options, request.seed, cache_folder(), known)
    for note in prepared.notes:
        reporter.noted(note)
    device = pick_device(request.device)
    reporter.began("measuring this machine" if request.steps is None else "planning")
    spec, training, plan = _plan(prepared, changes, request, base, device, started)
    folder.path.mkdir(parents=True, exist_ok=True)
    tokenizer = prepared.task.tokenizer
    if tokenizer is not None:
        folder.write_tokenizer(tokenizer)
    folder.write_plan(plan.to_tree())
    folder.write_spec(
        RunSpec(
            task=kind.name,
            sources=tuple(paths),
            base=request.base,
            seed=request.seed,
            data=options.to_tree(),
            facts=prepared.task.facts(),
            model=spec.to_tree(),
            training=training.to_tree(),
        )
    )
    module = build(spec, request.seed, str(device))
    if base is not None:
        base.put_weights(module, prepared.task)
        if base.learns_anew(prepared.task):
            reporter.noted(f"the classes are others than those of {request.base}: its last layer is learned anew")
    return _train(prepared, module, training, plan, folder, request, None, reporter)


def _go_on(
    kind: type[Task], folder: RunFolder, paths: Sequence[str], request: TrainRequest, reporter: Reporter
) -> Trained:
    """Resume: the folder's own spec and plan are followed, to the same bits."""
    spec = folder.read_spec()
    if spec.task != kind.name:
        raise WeftError(f"{folder.path} is a run of task {spec.task}, not {kind.name}: resume it as what it is")
    if tuple(paths) != spec.sources:
        raise WeftError(f"{folder.path} was trained on {', '.join(spec.sources)}: resume it with the same data")
    if request.base is not None and request.base != spec.base:
        raise WeftError(f"{folder.path} went on from {spec.base or 'no other run'}: resume it without another --from")
    lengths = {"steps": request.steps, "minutes": request.minutes, "seed": request.seed or None}
    given = {name: value for name, value in lengths.items() if value is not None}
    expect_same(folder, kind, request.preset, given, request.changes)
    reporter.began(f"reading {', '.join(paths)}")
    known = None if spec.base is None else task_of(folder, spec)
    prepared = kind.prepare(paths, kind.Options(**spec.data), spec.seed, cache_folder(), known)
    plan = TrainingPlan.from_tree(folder.read_plan())
    module = build(read_spec(spec.model), spec.seed, str(pick_device(request.device)))
    snapshot = folder.read_snapshot()
    if snapshot is None and spec.base is not None:
        open_base(Path(spec.base), kind).put_weights(module, prepared.task)
    training = TrainingSpec(**spec.training)
    again = TrainRequest(seed=spec.seed, resume=True, device=request.device, compiled=request.compiled)
    return _train(prepared, module, training, plan, folder, again, snapshot, reporter)


def _plan(
    prepared: PreparedData,
    changes: Tree,
    request: TrainRequest,
    base: Base | None,
    device: torch.device,
    started: float,
) -> tuple[AnySpec, TrainingSpec, TrainingPlan]:
    task = prepared.task
    spec: AnySpec | None = None
    if base is not None:
        if request.preset != "auto":
            raise WeftError(f"--from takes the model of {base.folder.path} as it is: leave --preset out")
        spec = base.changed(changes, task)
    elif request.preset != "auto":
        named = preset_named(request.preset)
        if named.family not in task.families:
            raise WeftError(
                f"preset {request.preset} is of family {named.family}, but task {task.name} takes "
                f"{' or '.join(task.families)}: see `weft show` for presets"
            )
        spec = task.fit(named)
    wishes = {name: value for name, value in changes.items() if name.startswith("training.")}
    training = TrainingSpec(**{name.removeprefix("training."): value for name, value in wishes.items()})
    tuning = {} if spec is None or base is None else tuning_of(spec, training.lora)
    planner = Planner(task, prepared.train, prepared.validation, training, changes, request.seed, device, tuning)
    steps = request.steps or training.steps
    if steps is not None:
        return planner.by_steps(spec, steps)
    return planner.by_minutes(spec, MINUTES if request.minutes is None else request.minutes, started)


def _train(
    prepared: PreparedData,
    module: nn.Module,
    training: TrainingSpec,
    plan: TrainingPlan,
    folder: RunFolder,
    request: TrainRequest,
    snapshot: Snapshot | None,
    reporter: Reporter,
) -> Trained:
    length = getattr(module.spec, "length", None)
    train, validation = (part if length is None else part.cut(length) for part in (prepared.train, prepared.validation))
    if training.lora is not None:
        seed = derive(request.seed, "adapters")
        adapt(module, training.lora, training.lora_alpha, seed, whole_parts(prepared.task))
    if training.recompute:
        recompute_blocks(module)
    with _threads(plan.threads):
        loop = Loop(prepared.task, module, train, validation, training, plan, folder, request.seed, reporter)
        if snapshot is not None:
            loop.restore(snapshot)
            folder.keep_metrics_until(snapshot.step)
            reporter.noted(f"going on from step {snapshot.step:,}")
        elif training.guard:
            expect_lawful(module, 0)
        learning = None if training.lora is None else sum(weight.numel() for weight in loop.weights)
        reporter.planned(plan, describe(plan, learning))
        if request.compiled:
            _compile(module, loop, reporter)
        loop.run()
        if loop.interrupted:
            raise KeyboardInterrupt
        return _judge(prepared, train, validation, loop, folder)


def _judge(prepared: PreparedData, train: Split, validation: Split, loop: Loop, folder: RunFolder) -> Trained:
    """The kept weights on the whole held-out part, beside the best that is possible and simple methods."""
    began = time.perf_counter()
    run = load(folder.path, str(loop.device))
    evaluation_subset = validation
    if loop.plan.minutes is not None:
        evaluation_subset = prepared.task.evaluation_subset(run.module, validation, JUDGING * 60 * loop.plan.minutes)
    metrics = prepared.task.measure(run.module, evaluation_subset, loop.plan.batch)
    references = prepared.task.references(train, validation)
    leak = None
    if prepared.best is not None and prepared.best.metric in metrics:
        score = float(metrics[prepared.best.metric])
        if prepared.best.beaten_by(score):
            leak = (
                f"{prepared.best.metric} {score:.4g} is better than the best possible {prepared.best.value:.4g} "
                f"({prepared.best.why}): something leaks"
            )
    loss = float(metrics.get("loss", loop.best))
    seconds = loop.seconds + time.perf_counter() - began
    folder.add_metrics({"step": loop.step, "metrics": metrics, "seconds": round(seconds, 3)})
    return Trained(run, loop.plan, loop.step, seconds, loss, metrics, references, prepared.best, leak)


def _compile(module: nn.Module, loop: Loop, reporter: Reporter) -> None:
    """torch.compile where a compiler exists; else a note, and the same numbers without it."""
    try:
        module.compile(dynamic=True)
        module.train()
        batch = loop.train.batch(loop._pieces(0)[0], loop.seed).to(loop.device)
        loop.task.loss(module, batch).total.backward()
    except Exception as error:
        module._compiled_call_impl = None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reporter.noted(f"torch.compile does not work here ({reason[:120]}): training goes on without it")
    module.zero_grad(set_to_none=True)


def describe(plan: TrainingPlan, learning: int | None = None) -> str:
    """The plan in one line; `learning`: how many numbers learn, where most weights stay."""
    some = "" if learning is None else f" and adapters ({learning:,} numbers learn)"
    words = (
        f"{plan.parameters:,} parameters{some}, {plan.last:,} steps of {plan.batch:,} tokens "
        f"({plan.epochs:.1f} epochs), about {plan.memory / 2**20:,.0f} MiB"
    )
    return words if plan.seconds is None else f"{words}, {plan.seconds / 60:.1f} min"


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
