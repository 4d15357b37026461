"""Trainings with a race of tiny sizes, on a machine whose clock moves with their steps."""

from __future__ import annotations

from pathlib import Path

from weft.tasks.task import Recipe, Size
from weft.tasks.text import TextTask
from weft.training.distribution import Distribution
from weft.training.loop import Loop
from weft.training.planning import planner
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.request import TrainRequest

SECONDS = {16: 0.4, 24: 0.6, 40: 1.1, 56: 1.3}  # of a step, by width
CHANGES = {
    "length": 19, "training.batch": 133, "training.threads": 1, "training.guard": False, "dropout": 0.1,
    "training.precision": "float64",
}  # fmt: skip


class Machine:
    """A clock that work moves on; `speed` may change at any time."""

    def __init__(self) -> None:
        self.now, self.speed = 0.0, 1.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds / self.speed


def stage(set_attribute, widths, unable=()) -> Machine:
    """Texts are learned by models of these widths, of which some are `unable` to; every step takes its seconds."""
    machine = Machine()
    sizes = tuple(Size(width, 1 + (width > 40), 19) for width in widths)
    one_step, mean_loss, score = Loop.one_step, Distribution.mean_loss, TextTask.score_examples

    def step(self):
        machine.work(SECONDS[self.module.spec.width])
        return one_step(self)

    def loss(self, *args):
        machine.work(0.3)
        return mean_loss(self, *args)

    def scored(self, *args):
        machine.work(0.6)
        return score(self, *args)

    def recipe(self, size, epochs):
        return Recipe(training={"rate": 1e-12, "matrix_rate": 1e-12} if size.width in unable else {})

    def fastest(timer, spec, options, batch, like=None):
        machine.work(0.5)
        return StepTiming(SECONDS[spec.width], batch, 1)

    set_attribute(Loop, "one_step", step)
    set_attribute(Distribution, "mean_loss", loss)
    set_attribute(TextTask, "score_examples", scored)
    set_attribute(TextTask, "sizes", lambda self, train: sizes)
    set_attribute(TextTask, "recipe", recipe)
    set_attribute(StepTimer, "fastest", fastest)
    set_attribute(planner, "PROMISING", 9.0)  # the formula is not made for models of a few thousand weights
    return machine


def write_book(folder: Path) -> str:
    (folder / "book.txt").write_text("the quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 90)
    return str(folder / "book.txt")


def request(folder: Path, machine: Machine, name: str = "run", minutes: float | None = 2.0, **more) -> TrainRequest:
    changes = {**CHANGES, **more.pop("changes", {})}
    data = (str(folder / "book.txt"),)
    return TrainRequest("text", data, folder / name, changes=changes, minutes=minutes, clock=machine, **more)
