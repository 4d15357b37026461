"""Captions: scenes of one or two colored shapes, and the sentence that describes each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.data.samples.images import PALETTE, background, shape_coverage
from weft.data.samples.sample_definition import ReferenceScore, Sample, numpy_generator, validation_size
from weft.foundation.arrays import Array, Pixels

SIZE = 48
# Shapes that differ even when small.
FORMS = ("circle", "square", "triangle", "cross")
# Where the first shape is relative to the second, in words, and the direction from the first to the second in x and y.
RELATIONS = {"left of": (1, 0), "right of": (-1, 0), "above": (0, 1), "below": (0, -1)}
SINGLE_SHAPE_SHARE = 0.2


@dataclass(frozen=True)
class SampleCaptions:
    """Pictures [N, 48, 48, 3] from 0 to 255, and one sentence per picture."""

    pixels: Pixels
    texts: tuple[str, ...]


def scenes(seed: int, size: int) -> Sample[SampleCaptions]:
    """Scenes with sentences such as "a large red circle left of a small blue square"; the large one is named first."""
    random = numpy_generator(seed, "scenes")
    drawn = [_scene(random) for _ in range(size + validation_size(size))]
    pixels, texts = np.stack([picture for picture, _ in drawn]), tuple(text for _, text in drawn)
    best = ReferenceScore(
        "exact_match", 1.0, "by construction: the large shape is named first, so each scene has one sentence"
    )
    kinds = len(FORMS) * len(PALETTE)
    share = SINGLE_SHAPE_SHARE
    why = f"without the picture: the likeliest sentence, a single one of {kinds} shapes alone ({share} of the scenes)"
    shortcut = ReferenceScore("exact_match", share / kinds, why)
    train, validation = SampleCaptions(pixels[:size], texts[:size]), SampleCaptions(pixels[size:], texts[size:])
    return Sample("scenes", "captions", train, validation, best, shortcut)


def _scene(random: np.random.Generator) -> tuple[Pixels, str]:
    kinds = [(color, form) for color in PALETTE for form in FORMS]
    first, second = (kinds[k] for k in random.choice(len(kinds), 2, replace=False))
    canvas = background(SIZE, random)
    middle = (SIZE - 1) / 2
    if random.random() < SINGLE_SHAPE_SHARE:
        x, y = middle + random.uniform(-12, 12, 2)
        return _finish(_paint(canvas, first, x, y, random.uniform(6, 11))), f"a {first[0]} {first[1]}"
    names = list(RELATIONS)
    relation = names[random.integers(len(names))]
    across, down = RELATIONS[relation]
    large, small = random.uniform(9, 10.5), random.uniform(4.5, 6)
    # Far apart along the relation, close across it.
    apart, aside = random.uniform(18, 24), random.uniform(-5, 5)
    step = np.array([across * apart + down * aside, down * apart + across * aside])
    center = middle + random.uniform(-3, 3, 2)
    (x, y), (u, v) = center - step * 0.4, center + step * 0.6
    canvas = _paint(_paint(canvas, first, x, y, large), second, u, v, small)
    return _finish(canvas), f"a large {first[0]} {first[1]} {relation} a small {second[0]} {second[1]}"


def _paint(canvas: Array, kind: tuple[str, str], x: float, y: float, radius: float) -> Array:
    amount = shape_coverage(kind[1], SIZE, x, y, radius)[..., None]
    return canvas * (1 - amount) + np.array(PALETTE[kind[0]]) * amount


def _finish(canvas: Array) -> Pixels:
    return np.clip(canvas, 0, 255).astype(np.uint8)
