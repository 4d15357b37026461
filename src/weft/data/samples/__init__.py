"""Built-in samples: generated from a seed, no download, each with a known best score.

A model that scores better than `best` allows has seen data that it should not: `sample("markov").best.beaten_by(loss)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.data.readers.files import DataError
from weft.data.samples.captions import SampleCaptions, questions, scenes
from weft.data.samples.classification import nodes, sentiment
from weft.data.samples.films import FilmCatalog, film_catalog, films
from weft.data.samples.forecast import SampleSeries, brownian, brownian3d, brownian_best, seasonal
from weft.data.samples.french_sentences import french
from weft.data.samples.images import SampleImages, digits, shapes
from weft.data.samples.proteins import proteins
from weft.data.samples.sample_definition import ReferenceScore, Sample
from weft.data.samples.sequences import BONES, JOINTS, SAMPLE_RATE, SampleSequences, skeletons, tones, write_wavs
from weft.data.samples.sets import sets
from weft.data.samples.tagging import grammar, pronouns
from weft.data.samples.text import markov, stdlib
from weft.data.samples.transcription import SpokenText, spoken, write_spoken
from weft.data.samples.translation import AlignedPair, dates

__all__ = [
    "BONES",
    "JOINTS",
    "SAMPLE_RATE",
    "AlignedPair",
    "FilmCatalog",
    "ReferenceScore",
    "Sample",
    "SampleCaptions",
    "SampleImages",
    "SampleSequences",
    "SampleSeries",
    "SpokenText",
    "brownian_best",
    "film_catalog",
    "sample",
    "samples",
    "write_spoken",
    "write_wavs",
]

SampleMaker = Callable[[int, int], Sample[Any]]

# By task, its default (`sample:`) first; the number is the default size of the training part:
# characters of text, time steps of a series, examples of all else.
SAMPLES: dict[str, dict[str, tuple[SampleMaker, int]]] = {
    "text": {"stdlib": (stdlib, 1_000_000), "markov": (markov, 200_000)},
    "translation": {"dates": (dates, 20_000), "french": (french, 20_000)},
    "classification": {
        "sentiment": (sentiment, 8_000),
        "nodes": (nodes, 2_000),
        "sets": (sets, 6_000),
        "proteins": (proteins, 6_000),
    },
    "tagging": {"grammar": (grammar, 4_000), "pronouns": (pronouns, 6_000)},
    "images": {"digits": (digits, 5_000), "shapes": (shapes, 4_000)},
    "captions": {"scenes": (scenes, 4_000), "questions": (questions, 4_000)},
    "forecast": {"seasonal": (seasonal, 4_000), "brownian": (brownian, 8_000), "brownian3d": (brownian3d, 8_000)},
    "transcription": {"spoken": (spoken, 1_500)},
    "sequences": {"skeletons": (skeletons, 800), "tones": (tones, 600), "films": (films, 4_000)},
}


def samples() -> dict[str, tuple[str, ...]]:
    """The names of the built-in samples by task; the first of a task is its default."""
    return {task: tuple(makers) for task, makers in SAMPLES.items()}


def sample(name: str, seed: int = 0, size: int | None = None) -> Sample[Any]:
    """A built-in sample by its name (or its task's name: the default one), e.g. `sample("dates", size=1000)`.

    `size` is that of the training part: characters of text, time steps of a series, examples of all else.
    """
    if name in SAMPLES:
        name = next(iter(SAMPLES[name]))
    found = next((makers[name] for makers in SAMPLES.values() if name in makers), None)
    if found is None:
        known = ", ".join(f"{task}: {' '.join(names)}" for task, names in samples().items())
        raise DataError(f"there is no sample {name!r}: choose one of {known}")
    make, usual = found
    if size is not None and size < 1:
        raise DataError(f"a sample of size {size} is empty: give a size of 1 or more, or none for {usual}")
    return make(seed, usual if size is None else size)
