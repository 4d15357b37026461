"""Sizes by evidence: who races, how losses are extrapolated, that the winner goes on from where it is."""

from __future__ import annotations

import itertools
import json
import os

import pytest
import torch

from racing import SECONDS, request, stage, write_book
from weft.checkpoints.run_folder import RunFolder
from weft.foundation.errors import WeftError
from weft.foundation.numerics import pick_device
from weft.reports.plan_panels import race_panels, tried_panel
from weft.tasks.registry import task_named
from weft.tasks.support.splits.split import PickedSplit
from weft.tasks.support.splits.text_windows import TextSplit
from weft.training.distribution import Distribution
from weft.training.guards import TrainingError
from weft.training.loop import Loop
from weft.training.loop_setup import LoopSetup
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planned_training import PlannedTraining
from weft.training.planning.planner import Planner, _flops
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.pretrained.model_source import SpecModels
from weft.training.racing import race_data, race_folder
from weft.training.racing.race_folder import RACE, RaceFolder
from weft.training.racing.race_record import RaceEntrant, RaceRecord
from weft.training.racing.rungs import losers_share, most_entrants, survivors
from weft.training.reporting import Reporter
from weft.training.train import run_training


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def book(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return write_book(tmp_path)


class Said(Reporter):
    """Remembers what was said, and the state of the winner at the end of the race."""

    def __init__(self, folder=None):
        self.stages, self.races, self.notes, self.folder, self.state = [], [], [], folder, None

    def on_stage(self, stage):
        self.stages.append(stage)

    def on_note(self, text):
        self.notes.append(text)

    def on_race(self, description):
        self.races.append(description)
        if self.folder is not None:
            self.entrants = RaceFolder(RunFolder(self.folder)).read_entrants()
            [where] = [file.parent.parent for file in (self.folder / RACE).glob("*/training/state-*")]
            self.state = RunFolder(where).read_snapshot()


def plan_in(folder) -> TrainingPlan:
    return TrainingPlan.from_tree(RunFolder(folder).read_plan())


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# --- who races ----------------------------------------------------------------------------------------------------


def test_who_races_and_what_it_costs():
    assert [most_entrants(minutes) for minutes in (0.1, 1.99, 2, 4.9, 5, 19, 20, 600)] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [survivors(count) for count in (4, 3, 2)] == [2, 2, 1]
    shares = [losers_share(count) for count in (1, 2, 3, 4)]
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] < 0.25
    assert shares[2] == pytest.approx(1.15 * (0.05 + 0.1))


@pytest.mark.parametrize(
    ("most", "slow", "found"), [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 3), (1, 60, 1), (4, 60, 3)]
)
def test_the_formulas_best_sizes_race_measured_or_not(tmp_path, monkeypatch, most, slow, found):
    now = [0.0]

    def timed(timer, spec, options, batch, like=None):
        now[0] += 0.5 * slow
        return StepTiming(_flops(spec) * batch / 3e9, batch, 1)

    monkeypatch.setattr(StepTimer, "fastest", timed)
    kind = task_named("text")
    prepared = kind.prepare(["sample:markov"], kind.Options(), 0, tmp_path)
    data = (prepared.train, prepared.validation)
    planner = Planner(prepared.task, *data, {}, {}, 0, torch.device("cpu"), clock=lambda: now[0])
    entrants = planner.plan_entrants(None, 20.0, 0.0, most)
    assert len(entrants) == found
    ranks = [one.entrant.expected for one in entrants]
    assert (
        ranks == sorted(ranks) and ranks[-1] <= 1.06 * ranks[0] and len({one.entrant.name for one in entrants}) == found
    )
    tried = entrants[0].plan.tried
    assert ranks == [one["expected"] for one in tried][:found]
    assert sum(one["timed"] for one in tried) == (len(tried) if slow == 1 else 1)
    lost = 1200 * losers_share(found)
    for one in entrants:
        assert one.plan.seconds <= 1200 and one.plan.parameters == one.entrant.parameters
        spent = one.plan.before + 1.05 * one.plan.steps * one.plan.step_seconds + lost
        assert one.plan.steps == one.plan.most_steps or spent == pytest.approx(1200, rel=0.02)


# --- the race --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unable", [16, 24])
def test_the_size_that_learns_wins_whatever_the_formula_expects(tmp_path, monkeypatch, unable):
    machine, said = stage(monkeypatch.setattr, (16, 24), (unable,)), Said()
    result = run_training(request(tmp_path, machine), said)
    race, spec = result.plan.race, RunFolder(tmp_path / "run").read_spec()
    assert {one.width for one in race.entrants} == {16, 24}
    winner = race.entrants[race.winner]
    assert winner.width == 40 - unable == spec.model["width"] == result.run.module.spec.width
    assert winner.extrapolated < min(one.extrapolated for one in race.entrants if one != winner)
    assert result.plan.parameters == winner.parameters == sum(w.numel() for w in result.run.module.parameters())
    assert plan_in(tmp_path / "run") == result.plan
    [line] = said.races
    assert line.startswith(f"{winner.name} ahead of {unable}x1 (expected loss {winner.at_the_end}, ")
    assert machine.now == pytest.approx(120, rel=0.05) and result.seconds == pytest.approx(machine.now)
    assert not (tmp_path / "run" / RACE).exists()
    rows = list(RunFolder(tmp_path / "run").read_metrics())
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps[0] == 1 and steps[-1] == result.steps and steps == sorted(set(steps))


@pytest.mark.parametrize(("minutes", "sizes"), [(2, 2), (5, 3), (20, 4)])
def test_more_time_more_entrants_and_losers_get_little_of_it(tmp_path, monkeypatch, minutes, sizes):
    for width in SECONDS:
        monkeypatch.setitem(SECONDS, width, 0.25 * minutes)  # a few hundred steps
    machine = stage(monkeypatch.setattr, tuple(SECONDS))
    result = run_training(request(tmp_path, machine, minutes=minutes), Said())
    race = result.plan.race
    assert len(race.entrants) == sizes
    lost = sum(one.points[-1].seconds for place, one in enumerate(race.entrants) if place != race.winner)
    assert 0 < lost < 0.25 * 60 * minutes and race.seconds < 0.4 * 60 * minutes
    assert machine.now == pytest.approx(60 * minutes, rel=0.05)
    counts = sorted(len(one.points) for one in race.entrants)
    assert counts[0] == 4 and counts[-1] == (4 if sizes == 2 or counts[-1] == 4 else 8)


def test_the_winner_is_as_if_it_had_trained_alone_bit_for_bit(tmp_path, monkeypatch):
    machine, said = stage(monkeypatch.setattr, (16, 24)), Said(tmp_path / "run")
    run_training(request(tmp_path, machine), said)
    race = plan_in(tmp_path / "run").race
    planned = PlannedTraining.from_tree(said.entrants[race.winner])
    assert planned.entrant.name == race.entrants[race.winner].name and said.state.step > 4
    kind = task_named("text")
    prepared = kind.prepare([str(tmp_path / "book.txt")], kind.Options(), 0, tmp_path / "cache")
    setup = LoopSetup(prepared, SpecModels(), 0, Distribution(pick_device("cpu")), Reporter(), machine)
    (tmp_path / "alone").mkdir()
    alone = setup.loop(planned, RunFolder(tmp_path / "alone"), setup.build(planned.spec))
    with setup.threads(planned.plan):
        alone.run(until=said.state.step)
    alone.checkpoint()
    assert same(said.state.tensors, RunFolder(tmp_path / "alone").read_snapshot().tensors)


def test_too_few_steps_tell_nothing(tmp_path, monkeypatch):
    """The slower of two sizes would take 5 steps in the first rung."""
    monkeypatch.setitem(SECONDS, 24, 1.3)
    machine = stage(monkeypatch.setattr, (16, 24))
    result = run_training(request(tmp_path, machine), Said())
    assert result.plan.race is None and machine.now == pytest.approx(120, rel=0.05)


@pytest.mark.parametrize(
    ("minutes", "changes", "more"),
    [
        (1.9, {}, {}),
        (2.0, {"training.race": False}, {}),
        (2.0, {"width": 24, "layers": 1}, {}),
        (2.0, {"width": 24, "layers": 1, "mixer.heads": 2}, {"preset": "nano-gpt"}),
        (None, {"training.steps": 30}, {}),
    ],
)
def test_no_race(tmp_path, monkeypatch, minutes, changes, more):
    machine, said = stage(monkeypatch.setattr, (16, 24)), Said()
    result = run_training(request(tmp_path, machine, minutes=minutes, changes=changes, **more), said)
    assert result.plan.race is None and said.races == []
    assert not any(stage.startswith("racing") for stage in said.stages)


def kill_at(monkeypatch, owner, name, count, error=Killed):
    """The call of this number is killed; gives a function that takes the trap away."""
    real, calls = getattr(owner, name), itertools.count(1)

    def trapped(*args, **more):
        if next(calls) == count:
            raise error
        return real(*args, **more)

    monkeypatch.setattr(owner, name, trapped)
    return lambda: monkeypatch.setattr(owner, name, real)


@pytest.mark.parametrize("left_over", [True, False])
def test_a_run_killed_in_its_race_races_again(tmp_path, monkeypatch, left_over):
    machine = stage(monkeypatch.setattr, (16, 24), (16,))
    run_training(request(tmp_path, machine, "whole"), Said())
    heal = kill_at(monkeypatch, Loop, "one_step", 9)
    if left_over:  # as after kill -9
        monkeypatch.setattr(RaceFolder, "empty", lambda self: None)
    with pytest.raises(Killed):
        run_training(request(tmp_path, machine), Said())
    monkeypatch.setattr(RaceFolder, "empty", _empty)
    run = tmp_path / "run"
    assert {path.is_dir() for path in (run / RACE).iterdir()} == ({True, False} if left_over else {False})
    assert plan_in(run).race is None and RunFolder(run).exists and RunFolder(run).newest_state() is None
    heal()
    machine.now, said = 1000.0, Said()
    with pytest.raises(WeftError, match="--minutes 3"):
        run_training(request(tmp_path, machine, minutes=3.0, resume=True), said)
    resumed = run_training(request(tmp_path, machine, minutes=None, resume=True), said)
    assert len(said.races) == 1 and not (run / RACE).exists()
    assert machine.now - 1000 == pytest.approx(120, rel=0.05)
    whole, again = plan_in(tmp_path / "whole").race, resumed.plan.race
    assert again.winner == whole.winner and again.describe() == whole.describe()
    for one, other in zip(again.entrants, whole.entrants, strict=True):
        assert [point.loss for point in one.points] == [point.loss for point in other.points]


_empty = RaceFolder.empty


@pytest.mark.parametrize("moved", [1, 2, 3])
def test_a_run_killed_after_the_decision_follows_it(tmp_path, monkeypatch, moved):
    """plan.json says who won; what was not moved yet is moved, and the training goes on with the same bits."""
    machine = stage(monkeypatch.setattr, (16, 24), (16,))
    run_training(request(tmp_path, machine, "whole"), Said())
    if moved == 3:
        heal = kill_at(monkeypatch, race_folder.shutil, "rmtree", 1)
    else:
        heal = kill_at(monkeypatch, RaceFolder, "_adopt", 1) if moved == 1 else _kill_second_move(monkeypatch)
    with pytest.raises(Killed):
        run_training(request(tmp_path, machine), Said())
    heal()
    run = RunFolder(tmp_path / "run")
    assert plan_in(run.path).race is not None and (run.path / RACE).exists()
    said = Said()
    run_training(request(tmp_path, machine, minutes=None, resume=True), said)
    assert said.races == [] and not (run.path / RACE).exists()
    assert any("continuing from step" in note for note in said.notes)
    assert run.read_spec().model["width"] == 24
    assert same(run.read_model(), RunFolder(tmp_path / "whole").read_model())


def _kill_second_move(monkeypatch):
    """`training` and a file of its own are moved by renaming; atomic files rename too, elsewhere."""
    real, calls = os.replace, itertools.count(1)

    def replace(source, target):
        if RACE in str(source) and ".new" not in str(source) and next(calls) == 2:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    return lambda: monkeypatch.setattr(os, "replace", real)


def test_a_run_killed_after_its_race_ends_with_the_same_bits(tmp_path, monkeypatch):
    machine = stage(monkeypatch.setattr, (16, 24))
    whole = run_training(request(tmp_path, machine, "whole"), Said())
    machine.now = 0.0
    heal = kill_at(monkeypatch, Loop, "_evaluate", 7)
    with pytest.raises(Killed):
        run_training(request(tmp_path, machine), Said())
    heal()
    killed = plan_in(tmp_path / "run")
    resumed = run_training(request(tmp_path, machine, minutes=None, resume=True), Said())
    assert resumed.plan.race == whole.plan.race == killed.race
    assert resumed.plan.revisions == whole.plan.revisions and resumed.steps == whole.steps
    folders = [RunFolder(tmp_path / name) for name in ("whole", "run")]
    assert same(*(folder.read_snapshot().tensors for folder in folders))
    assert same(*(folder.read_model() for folder in folders))


def test_ctrl_c_in_the_race_leaves_a_run_that_can_be_resumed(tmp_path, monkeypatch):
    machine = stage(monkeypatch.setattr, (16, 24))
    step, calls = Loop.one_step, itertools.count(1)

    def interrupted(self):
        if next(calls) == 7:
            self.distribution.request_stop()
        return step(self)

    monkeypatch.setattr(Loop, "one_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_training(request(tmp_path, machine), Said())
    assert next(calls) == 8  # no step after the one that was interrupted
    assert [path.name for path in (tmp_path / "run" / RACE).iterdir()] == ["entrants.json"]
    monkeypatch.setattr(Loop, "one_step", step)
    said = Said()
    result = run_training(request(tmp_path, machine, minutes=None, resume=True), said)
    assert len(said.races) == 1 and result.plan.race is not None


def test_an_entrant_that_diverges_loses(tmp_path, monkeypatch):
    machine = stage(monkeypatch.setattr, (16, 24))
    step = Loop.one_step

    def diverging(self):
        if self.module.spec.width == 24 and self.step == 5:
            raise TrainingError("step 6: the gradient is not finite")
        return step(self)

    monkeypatch.setattr(Loop, "one_step", diverging)
    result = run_training(request(tmp_path, machine), Said())
    race = result.plan.race
    assert race.entrants[race.winner].width == 16 and "failed" in race.describe()
    assert next(one for one in race.entrants if one.width == 24).extrapolated is None
    assert len(race_panels(result)) == 2

    def all_diverge(self):
        raise TrainingError("step 1: the gradient is not finite")

    monkeypatch.setattr(Loop, "one_step", all_diverge)
    with pytest.raises(TrainingError, match="not finite"):
        run_training(request(tmp_path, machine, "other"), Said())


def test_a_machine_that_becomes_slow_ends_the_race_early(tmp_path, monkeypatch):
    machine = stage(monkeypatch.setattr, (16, 24))
    calls, step = itertools.count(1), Loop.one_step

    def slow(self):
        machine.speed = 1.0 if next(calls) < 5 else 0.08
        return step(self)

    monkeypatch.setattr(Loop, "one_step", slow)
    result = run_training(request(tmp_path, machine), Said())
    race = result.plan.race
    assert race.seconds < 0.6 * 120 and len(race.entrants[0].points) < 4
    assert machine.now < 1.3 * 120  # a step takes 2 to 4 % of the time now


def test_entrants_are_judged_on_the_same_tokens(tmp_path, monkeypatch):
    machine, asked = stage(monkeypatch.setattr, (16, 24)), []
    real = Loop.loss_on

    def seen(self, split, size, most):
        asked.append((len(split), size, most))
        assert split is self.validation
        return real(self, split, size, most)

    monkeypatch.setattr(Loop, "loss_on", seen)
    run_training(request(tmp_path, machine), Said())
    assert len(asked) == 8 and len(set(asked)) == 1


def test_validation_data_that_may_choose_nothing_do_not(tmp_path, monkeypatch):
    """Entrants are judged on training examples that they have not learned from; these are learned from later."""
    machine, learned, judged = stage(monkeypatch.setattr, (16, 24)), {}, set()
    monkeypatch.setattr(race_data, "LEAST", 20)
    batch, real = TextSplit.batch, Loop.loss_on
    racing = [True]

    def read(self, examples, seed=None, epoch=0):
        if seed is not None:
            learned.setdefault(racing[0], set()).update(examples)
        return batch(self, examples, seed, epoch)

    def seen(self, split, size, most):
        assert isinstance(split, PickedSplit) and split.whole is self.train
        judged.update(split.numbers)
        return real(self, split, size, most)

    monkeypatch.setattr(TextSplit, "batch", read)
    monkeypatch.setattr(Loop, "loss_on", seen)
    said = Said()
    said.on_race = lambda description: racing.clear() or racing.append(False)
    result = run_training(request(tmp_path, machine, changes={"training.weights": "last"}), said)
    assert result.plan.race is not None and 8 <= result.plan.held_back_until < 40
    assert len(judged) > 20 and not judged & learned[True] and judged <= learned[False]


def test_data_that_are_too_few_to_hold_any_back_have_no_race(tmp_path, monkeypatch):
    machine = stage(monkeypatch.setattr, (16, 24))
    result = run_training(request(tmp_path, machine, changes={"training.weights": "last"}), Said())
    assert result.plan.race is None and result.plan.held_back_until == 0


# --- record and report -----------------------------------------------------------------------------------------------

ENTRANTS = (
    RaceEntrant(width=96, layers=4, parameters=7, batch=5, expected=8.1,
                points=[{"seconds": 1.5, "tokens": 10, "loss": 3.0}, {"seconds": 3.0, "tokens": 20, "loss": 2.5}],
                extrapolated=1.55),
    RaceEntrant(width=128, layers=4, parameters=11, batch=5, expected=8.3,
                points=[{"seconds": 1.4, "tokens": 10, "loss": 2.9}, {"seconds": 2.9, "tokens": 20, "loss": 2.4}],
                extrapolated=1.52),
    RaceEntrant(width=192, layers=6, parameters=13, batch=5, expected=8.4, points=[], extrapolated=None),
)  # fmt: skip


def test_the_record_round_trips_and_is_one_line():
    record = RaceRecord(entrants=ENTRANTS, winner=1, seconds=24.2, scale=0.11)
    plan = TrainingPlan(
        steps=9, batch=5, evaluate_every=1, evaluate_tokens=5, checkpoint_every=1, threads=1, parameters=1, tokens=1,
        epochs=1.0, memory=1, race=record.to_tree(),
    )  # fmt: skip
    assert TrainingPlan.from_tree(json.loads(json.dumps(plan.to_tree()))) == plan and plan.race == record
    assert record.describe() == "128x4 ahead of 96x4 and 192x6 (expected loss 1.52, 1.55, failed) after 24 s"
    old = plan.to_tree()
    for name in ("race", "regularize"):
        del old[name]
    assert TrainingPlan.from_tree(old).race is None


def test_the_report_draws_the_race_and_marks_the_winner(tmp_path, monkeypatch):
    machine = stage(monkeypatch.setattr, (16, 24), (16,))
    result = run_training(request(tmp_path, machine), Said())
    table, plot = race_panels(result)
    race = result.plan.race
    assert table.marked == (race.winner,) and table.rows[race.winner][0] == "24x1 (went on)"
    assert set(plot.names) == {"24x1 (went on)", "16x1"} and plot.values.shape == (2, len(plot.places))
    for one, values in zip(race.entrants, plot.values, strict=True):
        for point in one.points:
            at = abs(plot.places - point.seconds).argmin()
            assert values[at] == pytest.approx(point.loss, rel=1e-3)
    tried = tried_panel(result)
    assert tried.rows[tried.marked[0]][1] == "24"


def test_a_broken_record_of_a_race_is_told_in_a_sentence(tmp_path):
    folder = RaceFolder(RunFolder(tmp_path))
    (tmp_path / ".race").mkdir()
    for broken in (b"", b"[{", b'[{"model": 3}]', b"{}x", b'["a"]', b"7", b"\xff"):
        (tmp_path / ".race" / "entrants.json").write_bytes(broken)
        with pytest.raises(WeftError, match=r"entrants\.json is broken .* another --out"):
            folder.read_entrants()
