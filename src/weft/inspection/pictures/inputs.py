"""What a run is shown: a text or a path as users give it, or `sample:NAME/N`, the N-th held-out example of a sample."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.data.samples import Sample, sample, samples
from weft.foundation.errors import WeftError
from weft.tasks.task import SAMPLE, Task


@dataclass(frozen=True)
class LookInput:
    """An input as `predict` takes it, its name in titles, and what is known to be right: a label, tags, a text."""

    value: Any
    name: str
    truth: Any = None


@dataclass(frozen=True)
class SampleExample:
    """Example `number` of a sample, as `given` by a user; files for it go into `folder`."""

    given: str
    sample: Sample[Any]
    number: int
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.sample.name} {self.number}"

    def expect(self, inside: bool) -> None:
        """An error if there is no such example."""
        if not inside:
            name, number = self.sample.name, self.number
            raise WeftError(f"sample {name} has no held-out example {number}: choose a smaller number, from 0 on")

    def row(self) -> Any:
        """The example of a sample whose held-out examples are a list."""
        self.expect(self.number < len(self.sample.validation))
        return self.sample.validation[self.number]


ExampleInput = Callable[[Any, SampleExample], LookInput]


@contextmanager
def open_input(run: Any, given: Any, example: ExampleInput | None) -> Iterator[LookInput]:
    """The input as the run takes it; files of a sample's example last as long as the context."""
    if not (isinstance(given, str) and given.startswith(SAMPLE)) or example is None:
        yield LookInput(given, str(given))
        return
    found, number = _find(run.task, given)
    with tempfile.TemporaryDirectory() as folder:
        yield example(run, SampleExample(given, found, number, Path(folder)))


def _find(task: Task, given: str) -> tuple[Sample[Any], int]:
    name, _, place = given.removeprefix(SAMPLE).partition("/")
    own = samples().get(task.name, ())
    if (name or task.name) not in (task.name, *own):
        known = ", ".join(f"{SAMPLE}{known}" for known in own)
        raise WeftError(f"task {task.name} has no sample {name!r}: choose one of {known}, or give an input of your own")
    if place and not place.isdecimal():
        raise WeftError(f"{given!r}: after the slash comes the number of an example, such as {SAMPLE}{name}/3")
    return sample(name or task.name, task.sample_seed), int(place or 0)
