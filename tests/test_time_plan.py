"""A training of so many minutes ends on time, whatever the machine does; by an artificial clock, in no time."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import torch
from torch import nn

from weft.checkpoints.run_folder import RunFolder
from weft.tasks.task import Split
from weft.tasks.text import TextTask
from weft.training.distribution import Distribution
from weft.training.loop import TOLD, Loop
from weft.training.planning.pace import Pace
from weft.training.planning.plan import Costs, TrainingPlan
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training
from weft.training.training_spec import TrainingSpec

MINUTES = 5.0
BUDGET = 60 * MINUTES
STEP = 0.1  # seconds, as planned


class Machine:
    """A clock that work moves on: `speed(share)` is the machine's speed when that share of the time has passed."""

    def __init__(self, speed=lambda share: 1.0, jitter=0.0, pauses=(), now=0.0):
        self.now, self.speed, self.pauses = now, speed, list(pauses)
        self.draw, self.jitter = random.Random(7), jitter

    def __call__(self):
        return self.now

    def work(self, seconds):
        noise = self.draw.lognormvariate(-(self.jitter**2) / 2, self.jitter) if self.jitter else 1.0
        self.now += seconds * noise / self.speed(self.now / BUDGET)
        if self.pauses and self.now > self.pauses[0][0] * BUDGET:
            self.now += self.pauses.pop(0)[1] * BUDGET


class Simulated(Distribution):
    """Evaluations and checkpoints that only take time."""

    def __init__(self, machine, evaluation=0.5, checkpoint=0.3):
        super().__init__()
        self.machine, self.evaluation, self.cost = machine, evaluation, checkpoint

    def mean_loss(self, step, split, size, most):
        self.machine.work(self.evaluation)
        return 1.0

    def save(self, *args):
        self.machine.work(self.cost)
        super().save(*args)


class Steps(Loop):
    """Steps that only take time; remembers the learning rates."""

    def one_step(self):
        self.rates.append(self._rate_share(self.step))
        self.distribution.machine.work(self.training.rate)  # the rate is at hand as the seconds of a step
        return torch.tensor(1.0), 10


class Nothing(Split):
    tokens = 10

    def __len__(self):
        return 1

    def batch(self, examples, seed=None, epoch=0):
        raise NotImplementedError

    def batches(self, size, seed, epoch=0):
        return [[0]]


class Silent:
    def preview(self, module, part):
        return ""


class Notes(Reporter):
    def __init__(self):
        self.said = []

    def on_note(self, text):
        self.said.append(text)


def plan_of(step=STEP, **more):
    """As the planner makes it: evaluations are a tenth of the steps apart."""
    steps = int((BUDGET - 10 - 4) / (1.05 * step))
    every = max(1, steps // 10)
    looks = {"evaluate_every": every, "evaluate_tokens": 9000, "held_out": 18_000, "checkpoint_every": every}
    given = {"steps": steps, "batch": 600, "minutes": MINUTES, "before": 10.0, "step_seconds": step, **looks, **more}
    return TrainingPlan(
        threads=1, parameters=1, tokens=1, epochs=1.0, memory=1, final_tokens=given["held_out"], **given
    )


def loop_of(folder, machine, plan=None, step=STEP, notes=None, **options):
    spec = TrainingSpec(guard=False, rate=step, **{"schedule": "trapezoid", **options})
    folder.mkdir(exist_ok=True)
    loop = Steps(
        Silent(), nn.Linear(2, 2), Nothing(), Nothing(), spec, plan or plan_of(), RunFolder(folder), 0,
        notes or Reporter(), Simulated(machine), machine,
    )  # fmt: skip
    loop.rates = []
    loop.folder.write_plan(loop.plan.to_tree())
    return loop


def ends_at(loop):
    """The end of the training, with its final evaluation, as a share of the time that was given."""
    loop.run()
    assert loop.step == loop.plan.last
    machine = loop.distribution.machine
    machine.work(1.3 * 0.5 * 2)  # validation data are twice as many as an evaluation takes
    return (loop.plan.before + machine.now) / BUDGET


SPEEDS = {
    "constant": lambda share: 1.0,
    "all slower than planned": lambda share: 0.6,
    "all faster than planned": lambda share: 1.7,
    "doubled at 30 %": lambda share: 1.0 if share < 0.3 else 2.0,
    "doubled at 90 %": lambda share: 1.0 if share < 0.9 else 2.0,
    "halved at 50 %": lambda share: 1.0 if share < 0.5 else 0.5,
    "halved at 80 %": lambda share: 1.0 if share < 0.8 else 0.5,
    "halved at 93 %": lambda share: 1.0 if share < 0.93 else 0.5,
    "a tenth at 60 %": lambda share: 1.0 if share < 0.6 else 0.1,
    "up and down": lambda share: 0.5 if int(share * 10) % 2 else 2.0,
}


@pytest.mark.parametrize("name", SPEEDS)
@pytest.mark.parametrize("step", [0.05, 0.3, 3.1])
def test_the_plan_fills_its_time(tmp_path, name, step):
    end = ends_at(loop_of(tmp_path, Machine(SPEEDS[name]), plan_of(step), step))
    whole = name == "a tenth at 60 %" and step > 3  # a single step then takes a tenth of all the time
    assert end == pytest.approx(1.0, abs=0.15 if whole else 0.05)


@pytest.mark.parametrize("jitter", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("name", ["constant", "doubled at 30 %", "halved at 50 %"])
def test_steps_of_different_lengths(tmp_path, name, jitter):
    loop = loop_of(tmp_path, Machine(SPEEDS[name], jitter))
    assert ends_at(loop) == pytest.approx(1.0, abs=0.05)
    assert len(loop.plan.revisions) < 12


def test_a_constant_speed_needs_few_revisions(tmp_path):
    loop = loop_of(tmp_path, Machine())
    ends_at(loop)
    assert len(loop.plan.revisions) <= 1


@pytest.mark.parametrize("at", [0.0, 0.2, 0.6])
def test_a_pause_is_made_up_for_and_taken_for_no_slow_machine(tmp_path, at):
    loop = loop_of(tmp_path, Machine(pauses=[(at, 0.25)]))
    assert ends_at(loop) == pytest.approx(1.0, abs=0.05)
    assert all(revision.speed == pytest.approx(1.0, abs=0.02) for revision in loop.plan.revisions)


def test_after_a_pause_that_outlasts_the_time_the_rate_comes_down_in_a_few_steps(tmp_path):
    loop = loop_of(tmp_path, Machine(pauses=[(0.3, 5.0)]))
    end = ends_at(loop)
    assert 5.3 < end < 5.3 + 0.08
    assert loop.rates[-1] < 0.1 and min(loop.rates[100:700]) == 1.0


def test_evaluations_and_checkpoints_count(tmp_path):
    """Ten evaluations of 2 % of the time each, twenty checkpoints of 1 %: as many steps as fit beside them."""
    loop = loop_of(tmp_path, Machine(), plan_of().replace(checkpoint_every=140))
    loop.distribution.evaluation, loop.distribution.cost = 6.0, 3.0
    loop.run()
    loop.distribution.machine.work(1.3 * 6.0 * 2)
    assert (loop.plan.before + loop.distribution.machine.now) / BUDGET == pytest.approx(1.0, abs=0.05)
    assert loop.plan.last < 0.8 * loop.plan.steps


@pytest.mark.parametrize("schedule", ["trapezoid", "cosine", "inverse-root"])
@pytest.mark.parametrize("name", SPEEDS)
def test_the_rate_makes_no_jump_and_never_rises_again(tmp_path, name, schedule):
    loop = loop_of(tmp_path, Machine(SPEEDS[name]), schedule=schedule)
    loop.run()
    rates = loop.rates
    peak = rates.index(max(rates))
    assert all(a >= b for a, b in itertools.pairwise(rates[peak:]))
    assert all(a <= b for a, b in itertools.pairwise(rates[: peak + 1]))
    steepest = 0.02 + 20 / (0.5 * loop.plan.steps)  # ten times as slow: ten times as steep
    assert all(a - b < steepest for a, b in itertools.pairwise(rates[peak:]))
    if schedule != "inverse-root":
        assert rates[-1] < 0.1


def test_a_number_of_steps_is_kept(tmp_path):
    plan = plan_of(minutes=None, step_seconds=None)
    loop = loop_of(tmp_path, Machine(SPEEDS["up and down"]), plan)
    loop.run()
    assert loop.step == plan.steps and loop.plan is plan


def test_limits_of_steps_hold(tmp_path):
    fast = loop_of(tmp_path, Machine(SPEEDS["all faster than planned"]), plan_of(most_steps=3000))
    fast.run()
    assert fast.step == 3000
    slow = loop_of(tmp_path / "slow", Machine(SPEEDS["all slower than planned"]), plan_of(least_steps=2300))
    slow.run()
    assert slow.step == 2300


def test_patience_ends_before_the_plan(tmp_path):
    loop = loop_of(tmp_path, Machine(SPEEDS["doubled at 30 %"]), patience=3)
    loop.run()
    assert loop.stop_reason == "patience" and loop.step == 4 * loop.plan.evaluate_every < loop.plan.last


class Killed(Exception):
    pass


@pytest.mark.parametrize("kill", [0.35, 0.5, 0.66])
def test_a_killed_training_ends_on_time_by_its_record(tmp_path, kill):
    """Elapsed time and pace come from the training state; revisions after it are followed as they were made."""
    broken = loop_of(tmp_path, Machine(SPEEDS["doubled at 30 %"]))
    steps = broken.one_step

    def step():
        if broken.clock() > kill * BUDGET:
            raise Killed
        return steps()

    broken.one_step = step
    with pytest.raises(Killed):
        broken.run()
    on_record = TrainingPlan.from_tree(RunFolder(tmp_path).read_plan())
    assert on_record == broken.plan and on_record.revisions
    machine = Machine(lambda share: 2.0, now=1000.0)
    resumed = loop_of(tmp_path, machine, on_record)
    assert resumed.restore() and 0 < resumed.step <= broken.step
    at, seconds = resumed.step, resumed.seconds
    resumed.run()
    assert resumed.plan.revisions[: len(on_record.revisions)] == on_record.revisions
    assert resumed.rates[: broken.step - at] == broken.rates[at : broken.step]
    spent = on_record.before + seconds + (machine.now - 1000.0) + 1.3 * 0.5 * 2 / 2
    assert spent / BUDGET == pytest.approx(1.0, abs=0.05)


def test_each_revision_is_on_record_and_large_ones_are_one_line(tmp_path):
    notes = Notes()
    loop = loop_of(tmp_path, Machine(SPEEDS["halved at 50 %"]), notes=notes)
    loop.run()
    written = json.loads((tmp_path / "plan.json").read_text())
    assert TrainingPlan.from_tree(written) == loop.plan
    assert len(loop.plan.revisions) == len(written["revisions"]) > 0
    told, steps = [], loop.plan.steps
    for made in loop.plan.revisions:
        if abs(made.steps / steps - 1) > TOLD:
            told, steps = [*told, made], made.steps
    assert 0 < len(told) == len(notes.said)
    for made, said in zip(told, notes.said, strict=True):
        assert f"to {made.steps:,} steps" in said and "of the planned speed" in said
    last = loop.plan.revisions[-1]
    assert last.speed == pytest.approx(0.5, abs=0.02) and last.step_seconds == pytest.approx(2 * STEP, rel=0.05)
    assert "\n" not in "".join(notes.said)


class Follower(Simulated):
    """Another process than the first, which is told the first one's numbers."""

    def __init__(self, machine, told):
        super().__init__(machine)
        self.told = iter(told)

    def leaders(self, number):
        return next(self.told)


def test_all_processes_follow_the_first_ones_clock(tmp_path):
    first = loop_of(tmp_path, Machine(SPEEDS["halved at 50 %"]))
    said = []
    first.distribution.leaders = lambda number: said.append(number) or number
    first.run()
    other = loop_of(tmp_path / "other", Machine(SPEEDS["up and down"]))
    other.distribution = Follower(other.distribution.machine, said)
    other.run()
    assert other.plan == first.plan and other.rates == first.rates
    assert next(other.distribution.told, None) is None


OLD = {
    "steps": 1000, "least_steps": 1, "batch": 99, "evaluate_every": 100, "evaluate_tokens": 99, "held_out": 70,
    "checkpoint_every": 100, "threads": 1, "parameters": 1, "tokens": 1, "epochs": 1.0, "memory": 1, "minutes": 1.0,
    "before": 10.0, "seconds": 60.0, "step_seconds": 0.05, "tried": [],
}  # fmt: skip


def test_plans_of_version_1_are_read_and_their_schedule_is_kept():
    whole = TrainingPlan.from_tree({**OLD, "shortened": None})
    assert (whole.last, whole.revisions, whole.final_tokens, whole.position(300)) == (1000, (), 70, 300)
    cut = TrainingPlan.from_tree({**OLD, "shortened": {"at": 100, "steps": 500, "slower": 2.0}})
    assert cut.last == 500 and cut.revisions[0].speed == 0.5 and cut.revisions[0].step_seconds == 0.1
    assert TrainingPlan.from_tree(json.loads(json.dumps(cut.to_tree()))) == cut
    spec = TrainingSpec()
    for step in range(499):
        old = spec.build_schedule(500 if step >= 100 else 1000).share(step)
        assert spec.build_schedule(cut.steps).share(cut.position(step)) == pytest.approx(old, abs=1e-12)


def test_a_run_that_version_1_cut_goes_on_and_ends_on_time(tmp_path):
    plan = TrainingPlan.from_tree(
        {**plan_of().to_tree(), "version": 1, "shortened": {"at": 500, "steps": 1300, "slower": 2.1}}
    )
    loop = loop_of(tmp_path, Machine(SPEEDS["all slower than planned"]), plan)
    loop.step, loop.seconds = 600, 0.45 * BUDGET
    loop.distribution.machine.now = 0.45 * BUDGET
    assert ends_at(loop) == pytest.approx(1.0, abs=0.05)


SMALL = {
    "width": 24, "layers": 1, "mixer.heads": 2, "length": 19, "training.batch": 133, "training.threads": 1,
    "training.guard": False,
}  # fmt: skip


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 60)
    return str(tmp_path / "book.txt")


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_a_whole_training_ends_on_time_with_reading_planning_and_scoring(tmp_path, monkeypatch, book, speed):
    """Real steps of a tiny model, which take two seconds each by the clock of the request."""
    machine = Machine(lambda share: 1.0 if share < 0.4 else speed)

    def costly(owner, name, seconds):
        real = getattr(owner, name)

        def wrapped(*args, **more):
            machine.work(seconds)
            return real(*args, **more)

        monkeypatch.setattr(owner, name, wrapped)

    costly(Loop, "one_step", 2.0)
    costly(Distribution, "mean_loss", 1.0)
    costly(Distribution, "save", 1.0)
    costly(TextTask, "references", 17.0)
    costly(TextTask, "score_examples", 3.0)
    monkeypatch.setattr(StepTimer, "fastest", lambda *_: machine.work(11.0) or StepTiming(2.0, 133, 1))
    request = TrainRequest("text", (book,), tmp_path / "run", changes=SMALL, minutes=MINUTES, clock=machine)
    result = run_training(request, Reporter())
    assert result.seconds == pytest.approx(machine.now) and machine.now == pytest.approx(BUDGET, rel=0.05)
    plan = TrainingPlan.from_tree(RunFolder(tmp_path / "run").read_plan())
    assert plan == result.plan and plan.before >= 28 and result.steps == plan.last
    assert (plan.last > plan.steps) == (speed > 1) and plan.revisions  # the simple methods took longer than planned


def test_a_run_folder_of_version_1_is_resumed_by_its_record(tmp_path, book):
    class PullThePlug(Reporter):
        def on_evaluation(self, step, loss, best):
            if step == 15:
                raise Killed

    changes = SMALL | {"training.checkpoint_every": 4, "training.evaluate_every": 3}
    request = TrainRequest("text", (book,), tmp_path / "run", changes=changes, steps=23)
    with pytest.raises(Killed):
        run_training(request, PullThePlug())
    tree = json.loads((tmp_path / "run" / "plan.json").read_text())
    for name in ("version", "revisions", "most_steps", "final_tokens", "final_seconds"):
        del tree[name]
    old = {"minutes": 1.0, "step_seconds": 0.1, "shortened": {"at": 8, "steps": 15, "slower": 2.0}}
    (tmp_path / "run" / "plan.json").write_text(json.dumps(tree | old))
    result = run_training(TrainRequest("text", (book,), tmp_path / "run", resume=True), Reporter())
    assert result.steps == result.plan.last == 15 and RunFolder(tmp_path / "run").read_snapshot().step == 15


def test_steps_that_fit_by_hand():
    plan = plan_of().replace(steps=1000, evaluate_every=100, checkpoint_every=250, before=0.0)
    costs = Costs(step=0.2, error=0.0, evaluation=2.0, checkpoint=5.0, final=7.0)
    # 100 s left, less 14 at the end: 400 steps, 3 evaluations before the last and one checkpoint are 91 s.
    steps = plan.steps_that_fit(500, 200.0, costs)
    assert plan.seconds_between(500, steps, costs) <= 86 < plan.seconds_between(500, steps + 1, costs)
    assert steps == 500 + int((86 - 3 * 2 - 5) / 0.2)
    assert plan.steps_that_fit(500, 200.0, Costs(0.2, 9.9, 2.0, 5.0, 7.0)) == 1000  # too uncertain


def test_what_steps_take_is_learned_from_the_recent_ones():
    pace = Pace(plan_of())
    assert pace.step == STEP
    for _ in range(1000):
        pace.add_step(0.1)
    for _ in range(200):
        pace.add_step(0.3)
    assert pace.step == pytest.approx(0.3) and pace.costs(plan_of()).error < 0.01
    pace.add_evaluation(6.0, 3.0)
    costs = pace.costs(plan_of())
    assert costs.evaluation == pytest.approx(6.0) and costs.final == pytest.approx(1.3 * 2 * 3.0)
    again = Pace(plan_of())
    again.restore(json.loads(json.dumps(pace.facts())))
    assert again.costs(plan_of()).evaluation == pytest.approx(6.0) and again.step == pytest.approx(0.3)
