"""What a run is shown: a text or a path as users give it, `sample:NAME/N`, the N-th held-out example of a sample, or
`FILE#N`, example N of a data file; both count from 0.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.data.readers.files import existing_path
from weft.data.samples import Sample, sample, samples
from weft.foundation.errors import WeftError
from weft.foundation.files.json_text import as_whole_number
from weft.tasks.support.inputs.input_rows import FileExamples
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
    """The input as the run takes it; files that are made for an example last as long as the context."""
    numbered = file_and_number(given)
    if numbered is None and (example is None or not (isinstance(given, str) and given.startswith(SAMPLE))):
        yield LookInput(given, str(given))
        return
    with tempfile.TemporaryDirectory() as folder:
        if numbered is not None:
            yield _example_of_file(run.task, *numbered, Path(folder))
        elif example is not None:
            found, number = _find(run.task, given)
            yield example(run, SampleExample(given, found, number, Path(folder)))


def file_and_number(given: Any) -> tuple[Path, int] | None:
    """The file and the number of `FILE#N`, if there is such a file and none of the whole name."""
    name, mark, number = str(given).rpartition("#")
    count = as_whole_number(number)
    if not mark or count is None or existing_path(given) is not None:
        return None
    path = existing_path(name)
    return (path, count) if path is not None and path.is_file() else None


def _example_of_file(task: Task, path: Path, number: int, folder: Path) -> LookInput:
    if not isinstance(task, FileExamples):
        raise WeftError(f"a run of task {task.name} has no numbered examples in a file: leave #{number} out")
    found = task.open_example(path, number, folder)
    return LookInput(found.value, found.name, found.truth)


def _find(task: Task, given: str) -> tuple[Sample[Any], int]:
    name, _, place = given.removeprefix(SAMPLE).partition("/")
    own = samples().get(task.name, ())
    if (name or task.name) not in (task.name, *own):
        known = ", ".join(f"{SAMPLE}{known}" for known in own)
        raise WeftError(f"task {task.name} has no sample {name!r}: choose one of {known}, or give an input of your own")
    number = as_whole_number(place or "0")
    if number is None:
        raise WeftError(f"{given!r}: after the slash comes the number of an example, such as {SAMPLE}{name}/3")
    return sample(name or task.name, task.sample_seed), number
