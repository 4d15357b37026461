"""Learning by heart: what is done about a held-out loss that no longer falls with the training loss, on record."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch import nn

import weft
from test_time_plan import BUDGET, Killed, Machine, Notes, Simulated, loop_of, plan_of
from weft.checkpoints.run_folder import RunFolder
from weft.tasks.registry import task_named
from weft.training.optimizers import build_optimizers
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planner import Planner
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.racing.gap import GapWatch, Regularization


class Judged(Simulated):
    """Losses by the share of the planned steps that were taken: `curves` gives (held-out, training)."""

    def __init__(self, machine, curves):
        super().__init__(machine)
        self.curves = curves

    def mean_loss(self, step, split, size, most):
        super().mean_loss(step, split, size, most)
        return self.curves(self.loop.step / self.loop.plan.steps)[split is self.loop.train]


def trained(folder, curves, plan=None, notes=None, speed=lambda share: 1.0, **options):
    loop = loop_of(folder, Machine(speed), plan or plan_of(), notes=notes, **options)
    loop.distribution = Judged(loop.distribution.machine, curves)
    loop.distribution.loop = loop
    return loop


def healthy(share):
    return 3 - 2 * share, 2.9 - 2.2 * share


def overfit(share):
    """From a third of the steps on the held-out loss rises, and the training loss falls on."""
    return 2 + abs(share - 0.3), 2.5 - 1.5 * share


def rows_of(folder):
    return [row for row in RunFolder(folder).read_metrics() if "validation" in row]


@pytest.mark.parametrize(
    ("looks", "grows"),
    [
        ([(3, 2.9), (2.5, 2.3), (2.2, 1.8), (2.1, 1.4)], False),  # the gap grows, but the held-out loss falls
        ([(3, 2.9), (2.5, 2.3), (2.55, 2.1)], False),  # once worse
        ([(3, 2.9), (2.5, 2.3), (2.55, 2.1), (2.6, 1.9)], True),
        ([(3, 2.9), (2.5, 2.3), (2.55, 2.1), (2.49, 1.9)], False),  # better again
        ([(3, 2.9), (2.5, 2.3), (2.55, 2.34), (2.6, 2.4)], False),  # both rise: too high a rate
        ([(2.5, 2.3), (2.501, 2.3), (2.5005, 2.299)], False),  # neither moves
        ([(-1.0, -1.1), (-0.9, -1.5), (-0.8, -1.9)], True),  # losses of densities may be negative
        ([], False),
    ],
)
def test_what_learning_by_heart_looks_like(looks, grows):
    watch = GapWatch()
    for look in looks:
        watch.add(*look)
    assert watch.grows is grows


def test_nothing_happens_to_a_healthy_training(tmp_path):
    loop = trained(tmp_path, healthy, plan_of(regularize=True))
    loop.run()
    assert all(made.reason == "time" for made in loop.plan.revisions) and loop.regularization.notches == 0
    rows = rows_of(tmp_path)
    assert len(rows) >= 10 and all(row["training"] < row["validation"] for row in rows)


def test_first_regularized_then_shortened(tmp_path):
    """Evaluations at every tenth: best at 0.3, so two that are worse by 0.5, and two more than those by 0.8."""
    notes = Notes()
    loop = trained(tmp_path, overfit, plan_of(regularize=True), notes)
    loop.run()
    made = [one for one in loop.plan.revisions if one.reason != "time"]
    every = loop.plan.evaluate_every
    assert [(one.reason, one.at) for one in made] == [("regularized", 5 * every)]  # later it would hardly be shorter
    assert loop.regularization.notches == 1 == loop.plan.notches(loop.step) and loop.plan.notches(5 * every - 1) == 0
    assert any("dropout and weight decay are raised" in said for said in notes.said)
    assert loop.rates[5 * every :][0] == loop.rates[5 * every - 1]


def test_dropout_of_the_user_stays_and_the_rate_comes_down_now(tmp_path):
    notes = Notes()
    loop = trained(tmp_path, overfit, notes=notes)
    loop.run()
    [made] = [one for one in loop.plan.revisions if one.reason != "time"]
    at = 5 * loop.plan.evaluate_every
    assert (made.reason, made.at, made.steps) == ("shortened", at, at + at // 2) and made.steps < loop.plan.steps
    assert loop.step == loop.plan.last == made.steps and loop.regularization.notches == 0
    assert any(f"the plan is shortened to {made.steps:,} steps" in said for said in notes.said)
    rates = loop.rates
    assert set(rates[100:at]) == {1.0} and rates[at] == pytest.approx(1.0, abs=0.01) and rates[-1] < 0.01
    assert all(a > b for a, b in itertools.pairwise(rates[at:]))
    assert TrainingPlan.from_tree(json.loads((tmp_path / "plan.json").read_text())) == loop.plan
    assert loop.plan.before + loop.distribution.machine.now < 0.85 * BUDGET


@pytest.mark.parametrize("schedule", ["trapezoid", "cosine"])
def test_a_shortened_plan_makes_no_jump_and_gets_no_longer_on_a_machine_that_becomes_fast(tmp_path, schedule):
    faster = lambda share: 1.0 if share < 0.55 else 3.0  # noqa: E731
    loop = trained(tmp_path, overfit, speed=faster, schedule=schedule)
    loop.run()
    [made] = [one for one in loop.plan.revisions if one.reason == "shortened"]
    assert loop.step <= made.steps
    falls = [a - b for a, b in itertools.pairwise(loop.rates[100:])]
    assert all(-1e-12 <= fall < 0.01 for fall in falls)


def test_a_slow_machine_still_ends_a_shortened_plan_on_time(tmp_path):
    slower = lambda share: 1.0 if share < 0.5 else 0.2  # noqa: E731
    loop = trained(tmp_path, overfit, speed=slower)
    loop.run()
    assert loop.plan.before + loop.distribution.machine.now < 1.05 * BUDGET


def test_a_number_of_steps_is_neither_watched_nor_shortened(tmp_path):
    loop = trained(tmp_path, overfit, plan_of(minutes=None, step_seconds=None, regularize=True))
    loop.run()
    assert loop.step == loop.plan.steps and not loop.plan.revisions
    assert not any("training" in row for row in rows_of(tmp_path))


def test_validation_data_that_may_choose_nothing_do_not(tmp_path):
    loop = trained(tmp_path, overfit, plan_of(regularize=True), weights="last")
    loop.run()
    assert all(made.reason == "time" for made in loop.plan.revisions)
    assert any("training" in row for row in rows_of(tmp_path))


def test_before_the_data_were_read_twice_the_gap_is_not_measured(tmp_path):
    loop = trained(tmp_path, healthy)
    loop.train.tokens = 600 * loop.plan.evaluate_every  # one evaluation per epoch
    loop.run()
    assert ["training" in row for row in rows_of(tmp_path)][:3] == [False, True, True]


@pytest.mark.parametrize("regularize", [True, False])
@pytest.mark.parametrize("kill", [4.5, 5.5, 6.5])
def test_a_killed_training_does_the_same_by_its_record(tmp_path, kill, regularize):
    """Killed before, after and well after the decision, at tenths of the steps."""
    whole = trained(tmp_path / "whole", overfit, plan_of(regularize=regularize))
    whole.run()
    broken = trained(tmp_path / "run", overfit, plan_of(regularize=regularize))
    step = broken.one_step

    def dying():
        if broken.step > kill * broken.plan.evaluate_every:
            raise Killed
        return step()

    broken.one_step = dying
    with pytest.raises(Killed):
        broken.run()
    machine = broken.distribution.machine
    resumed = trained(tmp_path / "run", overfit, TrainingPlan.from_tree(RunFolder(tmp_path / "run").read_plan()))
    assert resumed.restore() and resumed.step == int(kill) * resumed.plan.evaluate_every
    at = resumed.step
    resumed.distribution.machine.now = machine.now
    resumed.run()
    kept = [[one for one in loop.plan.revisions if one.reason != "time"] for loop in (whole, resumed)]
    assert kept[0] == kept[1] != []
    assert resumed.rates == whole.rates[at:]
    assert resumed.regularization.notches == whole.regularization.notches == int(regularize)


def test_a_notch_of_dropout_and_weight_decay():
    model = weft.build(weft.preset("nano-gpt").replace(vocabulary=11, width=24, layers=2, dropout=0.2))
    optimizers = build_optimizers(model, "muon", 1e-3, 1e-2, 0.1)
    regularization = Regularization(model, optimizers)
    before = {name: part.dropout for name, part in model.named_modules() if hasattr(part, "dropout")}
    assert before and set(before.values()) <= {0.0, 0.2} and 0.2 in before.values()
    decays = [group["weight_decay"] for optimizer in optimizers for group in optimizer.param_groups]
    regularization.set(1)
    for name, p in before.items():
        assert model.get_submodule(name).dropout == pytest.approx(p + 0.1 if p else 0.0)
    assert [group["weight_decay"] for o in optimizers for group in o.param_groups] == [2 * decay for decay in decays]
    regularization.set(0)
    assert {name: model.get_submodule(name).dropout for name in before} == before


def test_a_model_without_dropout_begins_in_the_branches_of_its_blocks():
    model = weft.build(weft.preset("nano-gpt").replace(vocabulary=11, width=24, layers=2, dropout=0.0)).train()
    for weight in model.parameters():  # branches begin at zero
        nn.init.normal_(weight)
    regularization = Regularization(model, [])
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    assert torch.equal(model(tokens).hidden, model(tokens).hidden)
    regularization.set(1)
    assert [block.dropout for block in model.stack.blocks] == [0.1, 0.1]
    assert model.stack.blocks[0].mixer.dropout == 0.0
    assert not torch.equal(model(tokens).hidden, model(tokens).hidden)
    regularization.set(0)
    assert torch.equal(model(tokens).hidden, model(tokens).hidden)


@pytest.mark.parametrize(
    ("model", "training", "raised"),
    [({}, {}, True), ({"dropout": 0.1}, {}, False), ({}, {"weight_decay": 0.3}, False), ({}, {"rate": 1e-3}, True)],
)
def test_what_the_user_gave_is_not_raised(tmp_path, monkeypatch, model, training, raised):
    monkeypatch.setattr(StepTimer, "fastest", lambda self, spec, options, batch: StepTiming(1.0, batch, 1))
    kind = task_named("text")
    prepared = kind.prepare(["sample:markov"], kind.Options(), 0, tmp_path)
    data = (prepared.train, prepared.validation)
    planner = Planner(prepared.task, *data, {"width": 16, **model}, training, 0, torch.device("cpu"), clock=lambda: 0.0)
    assert planner.plan_minutes(None, 1.0, 0.0)[2].regularize is raised
    assert (
        planner.plan_minutes(prepared.task.default_model(prepared.task.sizes(prepared.train)[0]), 1.0, 0.0)[
            2
        ].regularize
        is False
    )
