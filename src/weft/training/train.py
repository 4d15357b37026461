"""From data to a run: read, plan, train, evaluate. `weft.train` and the command `weft train` call this."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.data.fingerprints import expect_unchanged, take_fingerprints
from weft.data.hub import local_sources
from weft.foreign.wrap_module import GivenModule
from weft.foundation.errors import WeftError
from weft.foundation.folders import cache_folder
from weft.foundation.seeds import derive
from weft.models.build import AnySpec, read_spec
from weft.models.plain_presets import PLAIN
from weft.models.presets import preset as preset_named
from weft.parts.lora import adapt
from weft.runs.run import task_of
from weft.tasks.registry import task_named
from weft.tasks.support.model_choice import describe_choice
from weft.tasks.task import DataSpec, PreparedData, Size, Task
from weft.training.averaging import recompute_blocks
from weft.training.distribution import Distribution
from weft.training.fine_tuning import BaseRun, fine_tuning_defaults, fully_trained_parts, open_base_run
from weft.training.guards import expect_lawful
from weft.training.loop import Loop
from weft.training.model_source import ModelSource, expect_trainable, model_source
from weft.training.parallel.join import distribution_of
from weft.training.plan import TrainingPlan
from weft.training.planner import Planner
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.result import SimpleScores, TrainingResult, evaluate_result
from weft.training.resume_check import expect_same_options, expect_same_task
from weft.training.step_timing import number_of_threads
from weft.training.training_spec import TrainingSpec

DEFAULT_MINUTES = 5.0
LOG = logging.getLogger(__name__)


def run_training(request: TrainRequest, reporter: Reporter, module: GivenModule | None = None) -> TrainingResult | None:
    """Train as requested; the run's folder is locked against other writers all the while.

    Where torchrun started several processes, the first one gives the result and the others None.
    """
    request = request.with_edges()
    with distribution_of(request) as distribution:
        return _run(request, reporter if distribution.leads else Reporter(), module, distribution)


def _run(
    request: TrainRequest, reporter: Reporter, module: GivenModule | None, distribution: Distribution
) -> TrainingResult | None:
    started = request.clock()
    kind = task_named(request.task)
    if not kind.trainable:
        raise WeftError(f"runs of task {request.task} are imported, not trained here: weft import FOLDER --out RUN")
    if module is not None:
        expect_trainable(module, request, kind)
    out = request.out
    folder = distribution.open_folder(out)
    folder.expect_usable()
    with _remove_if_unused(out) if distribution.leads else contextlib.nullcontext(), folder.hold():
        exists = distribution.agree("run", lambda: folder.exists)
        if exists and not (request.resume or distribution.restarted(folder)):
            raise WeftError(f"{out} holds a run already: continue it with --resume, or choose another --out")
        if exists:
            return _resume(request, kind, folder, reporter, module, distribution)
        if request.resume:
            reporter.on_note(f"{out} holds no run to resume: a new one begins")
        return _begin(request, kind, folder, reporter, started, module, distribution)


@contextlib.contextmanager
def _remove_if_unused(out: Path) -> Iterator[None]:
    """Remove a folder that was created only to be locked, if no run was begun in it."""
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
    request: TrainRequest,
    kind: type[Task],
    folder: RunFolder,
    reporter: Reporter,
    started: float,
    given: GivenModule | None,
    distribution: Distribution,
) -> TrainingResult | None:
    seed = request.seed or 0
    base = None if request.base is None else open_base_run(Path(request.base), kind)
    if base is None and request.training_changes.get("lora") is not None:
        raise WeftError("adapters are trained beside the weights of a trained model: give it with --from RUN")
    suited = kind.plain_options if request.preset in PLAIN or given is not None else {}
    options = kind.Options(**{**suited, **request.data_changes}) if base is None else base.options(request.data_changes)
    reporter.on_stage(f"reading {', '.join(request.data)}")
    known = None if base is None else base.task
    sources, local = _fetched(request, options)
    prepared = distribution.first_here(lambda: kind.prepare(sources, local, seed, cache_folder(), known))
    for note in prepared.notes:
        reporter.on_note(note)
    reporter.on_stage("measuring this machine" if request.steps is None else "planning")
    models = model_source(given, prepared.task, seed)
    spec, training, plan = _agreed_plan(
        distribution, lambda: _plan(request, prepared, base, models, distribution, started)
    )
    if base is None and request.preset == "auto":
        described = describe_choice(prepared.task, spec)
        if described:
            reporter.on_model(described)
    folder.path.mkdir(parents=True, exist_ok=True)
    tokenizer = prepared.task.tokenizer
    if tokenizer is not None:
        folder.write_tokenizer(tokenizer)
    folder.write_plan(plan.to_tree())
    if fingerprints := take_fingerprints((*sources, *local.validation)):
        folder.write_fingerprints(fingerprints)
    folder.write_spec(
        RunSpec(
            task=kind.name,
            sources=request.data,
            base=request.base,
            seed=seed,
            data=options.to_tree(),
            facts=prepared.task.facts(),
            model=spec.to_tree(),
            training=training.to_tree(),
        )
    )
    module = models.build(spec, seed, distribution.build_device)
    if base is not None:
        base.load_weights(module, prepared.task)
        if base.has_new_classes(prepared.task):
            reporter.on_note(f"the classes differ from those of {request.base}: its last layer is trained from scratch")
    return _train(request, prepared, module, training, plan, folder, seed, distribution, reporter, started)


def _agreed_plan(
    distribution: Distribution, make: Callable[[], tuple[AnySpec, TrainingSpec, TrainingPlan]]
) -> tuple[AnySpec, TrainingSpec, TrainingPlan]:
    """The plan of the first process, for all."""
    spec, training, plan = distribution.agree("plan", lambda: [part.to_tree() for part in make()])
    return read_spec(spec), TrainingSpec(**training), TrainingPlan.from_tree(plan)


def _fetched(request: TrainRequest, options: DataSpec) -> tuple[list[str], DataSpec]:
    """The data and the options with files in place of names on the hub."""
    held = local_sources(options.validation)
    same = tuple(held) == options.validation
    return local_sources(request.data), options if same else options.replace(validation=tuple(held))


def _resume(
    request: TrainRequest,
    kind: type[Task],
    folder: RunFolder,
    reporter: Reporter,
    given: GivenModule | None,
    distribution: Distribution,
) -> TrainingResult | None:
    """Follow the folder's own spec and plan, to the same bits."""
    spec = folder.read_spec()
    if spec.task != kind.name:
        raise WeftError(f"{folder.path} is a run of task {spec.task}, not {kind.name}: resume it with its own task")
    if request.data != spec.sources:
        raise WeftError(f"{folder.path} was trained on {', '.join(spec.sources)}: resume it with the same data")
    if request.base is not None and request.base != spec.base:
        raise WeftError(f"{folder.path} started from {spec.base or 'no other run'}: resume it without another --from")
    expect_same_options(request, kind, folder)
    sources, local = _fetched(request, kind.Options(**spec.data))
    if fingerprints := folder.read_fingerprints():
        expect_unchanged(fingerprints, (*sources, *local.validation), folder.path)
    reporter.on_stage(f"reading {', '.join(request.data)}")
    known = None if spec.base is None else task_of(folder, spec)
    prepared = distribution.first_here(lambda: kind.prepare(sources, local, spec.seed, cache_folder(), known))
    expect_same_task(prepared.task, folder, spec)
    plan = TrainingPlan.from_tree(folder.read_plan())
    models = model_source(given, prepared.task, spec.seed)
    module = models.build(read_spec(spec.model), spec.seed, distribution.build_device)
    if spec.base is not None and folder.newest_state() is None:
        open_base_run(Path(spec.base), kind).load_weights(module, prepared.task)
    training = TrainingSpec(**spec.training)
    return _train(request, prepared, module, training, plan, folder, spec.seed, distribution, reporter)


def _plan(
    request: TrainRequest,
    prepared: PreparedData,
    base: BaseRun | None,
    models: ModelSource,
    distribution: Distribution,
    started: float,
) -> tuple[AnySpec, TrainingSpec, TrainingPlan]:
    task = prepared.task
    spec: AnySpec | None = models.only
    design: Callable[[Size], AnySpec] | None = None
    if base is not None:
        spec = base.model_spec(request.model_changes, task)
    elif request.preset != "auto":
        named = preset_named(request.preset)
        if named.family not in task.families:
            raise WeftError(
                f"preset {request.preset} is of family {named.family}, but task {task.name} takes "
                f"{' or '.join(task.families)}: see `weft show` for presets"
            )
        if request.preset in PLAIN:
            design = partial(task.fit_plain, request.preset)
        else:
            spec = task.fit(named)
    training = TrainingSpec(**request.training_changes)
    defaults = models.defaults if spec is None or base is None else fine_tuning_defaults(spec, training.lora)
    planner = Planner(
        task=task,
        train=prepared.train,
        validation=prepared.validation,
        model_changes=request.model_changes,
        training_changes=request.training_changes,
        seed=request.seed or 0,
        device=distribution.device,
        defaults=defaults,
        design=design,
        models=models,
        data_ranks=distribution.data_ranks,
        compile=request.compile if distribution.compiles else False,
        test=prepared.test,
        clock=request.clock,
    )
    steps = request.steps or training.steps
    if steps is not None:
        return planner.plan_steps(spec, steps)
    return planner.plan_minutes(spec, DEFAULT_MINUTES if request.minutes is None else request.minutes, started)


def _train(
    request: TrainRequest,
    prepared: PreparedData,
    module: nn.Module,
    training: TrainingSpec,
    plan: TrainingPlan,
    folder: RunFolder,
    seed: int,
    distribution: Distribution,
    reporter: Reporter,
    started: float | None = None,
) -> TrainingResult | None:
    """Take the steps and evaluate; `started` is when a new training was asked for."""
    train, validation = (part.fit(cast(AnySpec, module.spec)) for part in (prepared.train, prepared.validation))
    if training.lora is not None:
        adapters = derive(seed, "adapters")
        adapt(module, training.lora, training.lora_alpha, adapters, fully_trained_parts(prepared.task))
    if training.precision == "float64":
        module.double()
    if training.guard and distribution.leads and folder.newest_state() is None:
        expect_lawful(module, 0)
    if training.recompute:
        recompute_blocks(module)
    with number_of_threads(
        plan.threads if distribution.data_ranks == 1 else min(plan.threads, torch.get_num_threads())
    ):
        shares = (training, plan, folder, seed, reporter, distribution, request.clock)
        loop = Loop(prepared.task, module, train, validation, *shares)
        LOG.info("threads for training: %d", plan.threads)
        if loop.restore():
            folder.keep_metrics_until(loop.step)
            reporter.on_note(f"continuing from step {loop.step:,}")
        learning = None if training.lora is None else sum(weight.numel() for weight in loop.weights)
        reporter.on_plan(plan, describe_plan(plan, learning))
        reporter.on_stage("measuring simple methods")
        simple = distribution.agree("simple methods", lambda: asdict(SimpleScores.of(prepared.task, train, validation)))
        if plan.compiled if request.compile is None else request.compile:
            loop.compile()
        if started is not None and plan.minutes is not None:
            loop.plan = plan.replace(before=distribution.leaders(request.clock() - started))
            folder.write_plan(loop.plan.to_tree())
        loop.run()
        if loop.stop_reason == "interrupt":
            raise KeyboardInterrupt
        return evaluate_result(prepared, validation, loop, SimpleScores(**simple)) if distribution.leads else None


def describe_plan(plan: TrainingPlan, trainable: int | None = None) -> str:
    """The plan in one line; `trainable` is the number of trained parameters where most are frozen."""
    adapters = "" if trainable is None else f" and adapters ({trainable:,} trainable)"
    text = (
        f"{plan.parameters:,} parameters{adapters}, {plan.last:,} steps of {plan.batch:,} tokens "
        f"({plan.epochs * plan.last / plan.steps:.1f} epochs), about {plan.memory / 2**20:,.0f} MiB"
    )
    return text if plan.seconds is None else f"{text}, {plan.seconds / 60:.1f} min"
