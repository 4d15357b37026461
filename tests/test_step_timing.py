"""What the plan measures before it chooses: threads, precision and torch.compile."""

from __future__ import annotations

import pytest
import torch

from weft.tasks.registry import task_named
from weft.training.planning.planner import Planner
from weft.training.planning.step_timing import COMPILE_SECONDS, COMPILE_SHARE, StepTimer, StepTiming
from weft.training.training_spec import TrainingSpec

LONG = COMPILE_SECONDS / COMPILE_SHARE / 60 / 0.8  # minutes from which there is time to try torch.compile
SMALL = {"width": 16, "layers": 1}


@pytest.fixture
def prepared(tmp_path):
    kind = task_named("text")
    return kind.prepare(["sample:markov"], kind.Options(), 0, tmp_path)


def planned(prepared, minutes, **more):
    clock = lambda: 0.0  # noqa: E731
    data, cpu = (prepared.train, prepared.validation), torch.device("cpu")
    planner = Planner(prepared.task, *data, SMALL, more.pop("training", {}), 0, cpu, clock=clock, **more)
    return planner.plan_minutes(None, minutes, 0.0)


@pytest.mark.parametrize(
    ("minutes", "seconds", "cost", "taken"),
    [
        (LONG, 0.5, 20.0, True),  # twice as fast
        (LONG, 0.99, 20.0, False),  # one percent faster: 40 s of compiling are more
        (LONG, 1.5, 1.0, False),
        (LONG / 3, 0.5, 1.0, False),  # no time to try
    ],
)
def test_compiled_steps_are_taken_where_more_of_them_fit(prepared, monkeypatch, minutes, seconds, cost, taken):
    tried = []

    def compiled(timer, spec, options, batch, like):
        tried.append(spec.width)
        return StepTiming(seconds * like.seconds, like.tokens, like.threads), cost

    monkeypatch.setattr(StepTimer, "fastest", lambda self, spec, options, batch: StepTiming(1.0, batch, 1))
    monkeypatch.setattr(StepTimer, "compiled", compiled)
    _, _, plan = planned(prepared, minutes)
    assert plan.compiled is taken and tried == ([16] if minutes == LONG else [])
    assert plan.step_seconds == pytest.approx(seconds if taken else 1.0)


def test_what_users_say_about_compiling_is_not_measured(prepared, monkeypatch):
    monkeypatch.setattr(StepTimer, "fastest", lambda self, spec, options, batch: StepTiming(1.0, batch, 1))
    monkeypatch.setattr(StepTimer, "compiled", lambda *_: pytest.fail("tried"))
    for asked in (True, False):
        assert planned(prepared, LONG, compile=asked)[2].compiled is asked


def test_a_compiler_that_fails_is_left_out(prepared, monkeypatch):
    def cannot(module, **_):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", cannot)
    monkeypatch.setattr(StepTimer, "fastest", lambda self, spec, options, batch: StepTiming(1.0, batch, 1))
    assert planned(prepared, LONG)[2].compiled is False


def test_compiled_steps_are_timed_by_the_first_call_and_the_rest(prepared, monkeypatch):
    now, calls = [0.0], []

    def slow(module, **_):
        class Through(torch.nn.Module):
            def forward(self, *args, **more):
                now[0] += 0.25 if calls else 40.0
                calls.append(1)
                return module(*args, **more)

        return Through()

    monkeypatch.setattr(torch, "compile", slow)
    planner = Planner(prepared.task, prepared.train, prepared.validation, SMALL, {}, 0, torch.device("cpu"))
    spec, options = planner._configure(prepared.task.sizes(prepared.train)[0], None, 1.0)
    timer = StepTimer(prepared.task, prepared.train, planner.models, 0, torch.device("cpu"), clock=lambda: now[0])
    timing, cost = timer.compiled(spec, options, 512, StepTiming(1.0, 512, 1))
    assert timing.seconds == pytest.approx(0.25) and cost == pytest.approx(40.0, abs=0.5)


@pytest.mark.parametrize("half_is_faster", [True, False])
def test_bf16_is_taken_on_a_cpu_only_where_it_is_measured_to_be_faster(prepared, monkeypatch, half_is_faster):
    monkeypatch.setattr("weft.training.training_spec.bf16_is_fast", lambda device: True)
    asked = []

    def steps(timer, module, through, spec, options, batch, threads, half):
        asked.append(half)
        return StepTiming(1.0 if half == half_is_faster else 1.1, batch, threads, half)

    monkeypatch.setattr(StepTimer, "_steps", steps)
    _, options, _ = planned(prepared, 1.0)
    assert set(asked) == {True, False}
    assert options.precision == ("auto" if half_is_faster else "float32")
    asked.clear()
    _, options, _ = planned(prepared, 1.0, training={"precision": "bf16"})
    assert set(asked) == {True} and options.precision == "bf16"


def test_steps_are_timed_in_the_precision_asked_for(prepared):
    planner = Planner(prepared.task, prepared.train, prepared.validation, SMALL, {}, 0, torch.device("cpu"))
    spec, _ = planner._configure(prepared.task.sizes(prepared.train)[0], None, 1.0)
    seen = []
    module = planner.models.build(spec, 0, torch.device("cpu"))
    module.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    for half in (True, False):
        found = planner.timer._steps(module, module, spec, TrainingSpec(), 512, 1, half)
        assert found.half is half and set(seen) == {half}
        seen.clear()
