"""From data to a run: read, plan, train, evaluate. `weft.train` and the command `weft train` call this."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from torch import nn

from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.data.fingerprints import expect_unchanged, take_fingerprints
from weft.data.hub import local_sources
from weft.foreign.wrap_module import GivenModule
from weft.foundation.errors import WeftError
from weft.foundation.files.folders import cache_folder
from weft.models.build import AnySpec, read_spec
from weft.models.plain_presets import PLAIN
from weft.models.presets import preset as preset_named
from weft.runs.run import task_of
from weft.tasks.registry import task_named
from weft.tasks.support.model_choice import describe_choice
from weft.tasks.task import DataSpec, PreparedData, Size, Task
from weft.training.distribution import Distribution
from weft.training.loop_setup import LoopSetup
from weft.training.parallel.processes.join import distribution_of
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planned_training import PlannedTraining
from weft.training.planning.planner import Planner
from weft.training.pretrained.fine_tuning import BaseRun, fine_tuning_defaults, open_base_run
from weft.training.pretrained.head_choice import HeadChoice
from weft.training.pretrained.model_source import ModelSource, expect_trainable, model_source
from weft.training.racing.race import Race
from weft.training.racing.race_folder import RaceFolder
from weft.training.racing.rungs import most_entrants
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.result import SimpleScores, TrainingResult, evaluate_result
from weft.training.resume_check import expect_same_options, expect_same_task
from weft.training.training_spec import TrainingSpec

DEFAULT_MINUTES = 5.0
START_SHARE = 0.1  # of the time, at most, for what is fitted before the first step
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
    if base is None and (head := request.training_changes.get("head")) in ("linear", "start"):
        raise WeftError(f"training.head={head} fits the last layer of a trained model: give it with --from RUN")
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
    entrants = _agreed(distribution, lambda: _plan(request, prepared, base, models, distribution, started))
    planned = entrants[0]
    if base is None and request.preset == "auto":
        described = describe_choice(prepared.task, planned.spec)
        if described:
            reporter.on_model(described)
    folder.path.mkdir(parents=True, exist_ok=True)
    if distribution.leads:
        RaceFolder(folder).remove() if len(entrants) == 1 else RaceFolder(folder).write_entrants(entrants)
    tokenizer = prepared.task.tokenizer
    if tokenizer is not None:
        folder.write_tokenizer(tokenizer)
    folder.write_plan(planned.plan.to_tree())
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
            model=planned.spec.to_tree(),
            training=planned.options.to_tree(),
        )
    )
    setup = LoopSetup(prepared, models, seed, distribution, reporter, request.clock)
    if len(entrants) > 1:
        planned = _race(setup, folder, entrants, started, request.compile)
    module = setup.build(planned.spec)
    if base is not None:
        base.load_weights(module, prepared.task)
        if base.has_new_classes(prepared.task):
            reporter.on_note(f"the classes differ from those of {request.base}: its last layer is learned anew")
        planned = _with_head(setup, planned, module, folder, base)
    return _train(setup, planned, module, folder, request.compile, started)


def _with_head(
    setup: LoopSetup, planned: PlannedTraining, module: nn.Module, folder: RunFolder, base: BaseRun
) -> PlannedTraining:
    """What becomes of the last layer of a trained model, before the first step."""
    choice = HeadChoice(setup, planned, module, folder, base.has_new_classes(setup.prepared.task))
    return choice.settle() if choice.applies else planned


def _agreed(distribution: Distribution, make: Callable[[], list[PlannedTraining]]) -> list[PlannedTraining]:
    """The plans of the first process, for all."""
    trees = distribution.agree("plan", lambda: [planned.to_tree() for planned in make()])
    return [PlannedTraining.from_tree(tree) for tree in trees]


def _race(
    setup: LoopSetup, folder: RunFolder, entrants: list[PlannedTraining], started: float, compiled: bool | None
) -> PlannedTraining:
    """Let the entrants race; the winner's state becomes that of the run."""
    distribution, race = setup.distribution, RaceFolder(folder)
    try:
        planned = Race(setup, race, entrants, started).run()
    except BaseException:
        if distribution.leads:
            race.empty()
        raise
    if compiled is None:
        left = planned.plan.budget - (setup.clock() - started)
        faster = distribution.agree("compiled", lambda: setup.faster_compiled(planned, left))
        planned = planned.with_plan(planned.plan.replace(compiled=faster))
    folder.write_plan(planned.plan.to_tree())
    distribution.agree("race", race.complete)
    return planned


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
    """Follow the folder's own spec and plan, to the same bits; a race that was not decided begins again."""
    started = request.clock()
    entrants = [
        PlannedTraining.from_tree(tree) for tree in distribution.agree("unfinished race", RaceFolder(folder).complete)
    ]
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
    models = model_source(given, prepared.task, spec.seed)
    setup = LoopSetup(prepared, models, spec.seed, distribution, reporter, request.clock)
    if entrants:
        started -= entrants[0].plan.before
        planned = _race(setup, folder, entrants, started, request.compile)
        return _train(setup, planned, setup.build(planned.spec), folder, request.compile, started)
    plan = TrainingPlan.from_tree(folder.read_plan())
    planned = PlannedTraining(read_spec(spec.model), TrainingSpec(**spec.training), plan)
    module = setup.build(planned.spec)
    if spec.base is not None and folder.newest_state() is None:
        base = open_base_run(Path(spec.base), kind)
        base.load_weights(module, prepared.task)
        planned = _with_head(setup, planned, module, folder, base)
    return _train(setup, planned, module, folder, request.compile)


def _plan(
    request: TrainRequest,
    prepared: PreparedData,
    base: BaseRun | None,
    models: ModelSource,
    distribution: Distribution,
    started: float,
) -> list[PlannedTraining]:
    """The plan; or those of the sizes that race for it, where the time and the model's layout allow it."""
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
        return [PlannedTraining(*planner.plan_steps(spec, steps))]
    minutes = DEFAULT_MINUTES if request.minutes is None else request.minutes
    races = spec is None and training.race and distribution.holds_whole_model
    return planner.plan_entrants(spec, minutes, started, most_entrants(minutes) if races else 1)


def _train(
    setup: LoopSetup,
    planned: PlannedTraining,
    module: nn.Module,
    folder: RunFolder,
    compiled: bool | None,
    started: float | None = None,
) -> TrainingResult | None:
    """Take the steps and evaluate; `started` is when a new training was asked for, `compiled` as users say."""
    prepared, distribution, reporter, plan = setup.prepared, setup.distribution, setup.reporter, planned.plan
    with setup.threads(plan):
        guard = planned.options.guard and distribution.leads and folder.newest_state() is None
        loop = setup.loop(planned, folder, module, guard=guard)
        LOG.info("threads for training: %d", plan.threads)
        if loop.restore():
            folder.keep_metrics_until(loop.step)
            if started is None:
                reporter.on_note(f"continuing from step {loop.step:,}")
        if loop.step == plan.race_steps:
            prepared.task.start(module, loop.train, START_SHARE * plan.budget or None)
        learning = None if planned.options.lora is None else sum(weight.numel() for weight in loop.weights)
        reporter.on_plan(plan, describe_plan(plan, learning))
        reporter.on_stage("measuring simple methods")
        simple = distribution.agree(
            "simple methods", lambda: asdict(SimpleScores.of(prepared.task, loop.train, loop.validation))
        )
        if plan.compiled if compiled is None else compiled:
            loop.compile()
        if started is not None and plan.minutes is not None:
            loop.plan = plan.replace(before=distribution.leaders(setup.clock() - started - loop.seconds))
            folder.write_plan(loop.plan.to_tree())
        if loop.plan.last:
            loop.run()
        elif folder.newest_state() is None:
            loop.keep()
        if loop.stop_reason == "interrupt":
            raise KeyboardInterrupt
        return evaluate_result(prepared, loop.validation, loop, SimpleScores(**simple)) if distribution.leads else None


def describe_plan(plan: TrainingPlan, trainable: int | None = None) -> str:
    """The plan in one line; `trainable` is the number of trained parameters where most are frozen."""
    if plan.head is not None and plan.head.frozen:
        return f"{plan.parameters:,} parameters, of which the last layer is fitted: no steps"
    adapters = "" if trainable is None else f" and adapters ({trainable:,} trainable)"
    text = (
        f"{plan.parameters:,} parameters{adapters}, {plan.last:,} steps of {plan.batch:,} tokens "
        f"({plan.epochs * plan.last / plan.steps:.1f} epochs), about {plan.memory / 2**20:,.0f} MiB"
    )
    return text if plan.seconds is None else f"{text}, {plan.seconds / 60:.1f} min"
