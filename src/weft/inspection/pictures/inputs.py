"""What a run is shown: a text or a path as users give it, or `sample:NAME/N`, the N-th held-out example of a sample.

A series has no examples but windows: 0 is the end of the part to learn from, N ends N horizons earlier.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from weft.data.readers.graphs import LabeledGraph
from weft.data.readers.sounds import log_mel
from weft.data.samples import SAMPLE_RATE, Sample, sample, samples
from weft.foundation.errors import WeftError

Array = NDArray[np.float64]
SAMPLE = "sample:"
PROMPT = 96  # characters of a sample's text


@dataclass(frozen=True)
class Given:
    """What the run is options, how a title calls it, and what is known to be right: a label, a `Pair`, tags, a text."""

    ask: Any
    name: str
    truth: Any = None


@contextmanager
def opened(task: str, given: Any, seed: int = 0) -> Iterator[Given]:
    """The input as the run takes it; pictures and sequences of a sample lie in files while the context lasts."""
    if not (isinstance(given, str) and given.startswith(SAMPLE)) or task == "forecast":
        yield Given(given, str(given))
        return
    found, number = _find(task, given, seed)
    with tempfile.TemporaryDirectory() as folder:
        yield _example(found, number, Path(folder))


def _find(task: str, given: str, seed: int) -> tuple[Sample[Any], int]:
    name, _, place = given.removeprefix(SAMPLE).partition("/")
    if (name or task) not in (task, *samples().get(task, ())):
        known = ", ".join(f"{SAMPLE}{known}" for known in samples().get(task, ()))
        raise WeftError(f"task {task} has no sample {name!r}: choose one of {known}, or give an input of your own")
    if place and not place.isdecimal():
        raise WeftError(f"{given!r}: after the slash comes the number of an example, such as {SAMPLE}{name}/3")
    return sample(name or task, seed), int(place or 0)


def window_of(given: str, seed: int, context: int, horizon: int) -> Array:
    """The history [T, C], at most `context` steps, of `sample:NAME/N` of a series."""
    found, number = _find("forecast", given, seed)
    values: Array = found.train.values
    end = len(values) - number * horizon
    if number and end < context:
        most = max(0, (len(values) - context) // horizon)
        raise WeftError(
            f"sample {found.name} has no window {number}: its {len(values):,} steps hold {context} of history up to "
            f"number {most}, each {horizon} steps earlier"
        )
    return values[max(0, end - context) : end]


def _example(found: Sample[Any], number: int, folder: Path) -> Given:
    part = found.validation
    if found.task == "text":
        start = number * PROMPT
        _expect(start < len(part), found, number)
        return Given(part[start : start + PROMPT], f"{found.name}, character {start}")
    if found.task in ("images", "captions"):
        _expect(number < len(part.pixels), found, number)
        path = folder / f"{number}.png"
        Image.fromarray(part.pixels[number]).save(path)
        truth = part.texts[number] if found.task == "captions" else found.classes[int(part.labels[number])]
        return Given(str(path), f"{found.name} {number}", truth)
    if found.task == "sequences":
        _expect(number < len(part.values), found, number)
        values = part.values[number]
        values = log_mel(values[:, 0], SAMPLE_RATE) if found.name == "tones" else values
        path = folder / f"{number}.npz"
        np.savez(path, x=values[None], lengths=np.array([len(values)]))
        return Given(str(path), f"{found.name} {number}", found.classes[int(part.labels[number])])
    _expect(number < len(part), found, number)
    return _texts(part[number], f"{found.name} {number}")


def _texts(row: Any, name: str) -> Given:
    """A pair, a tagged sentence, a labeled text or a graph."""
    if isinstance(row, LabeledGraph):
        edges = [[int(i), int(j)] for i, j in np.argwhere(np.triu(row.adjacency))]
        return Given({"nodes": list(row.nodes), "edges": edges}, name, row.labels)
    if hasattr(row, "source"):
        return Given(row.source, row.source, row)
    given, truth = row
    return Given(given if isinstance(given, str) else list(given), given if isinstance(given, str) else name, truth)


def _expect(inside: bool, found: Sample[Any], number: int) -> None:
    if not inside:
        raise WeftError(f"sample {found.name} has no held-out example {number}: choose a smaller number, from 0 on")
