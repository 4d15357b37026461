"""Captions: scenes of one or two colored shapes, and the sentence that describes each, or questions with answers."""

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
# Scenes of one shape teach colors and forms; those of two, whose color is whose.
SINGLE_ASKED_SHARE = 0.5


@dataclass(frozen=True)
class SampleCaptions:
    """Pictures [N, 48, 48, 3] from 0 to 255, and one sentence per picture; with `questions`, its answer."""

    pixels: Pixels
    texts: tuple[str, ...]
    questions: tuple[str, ...] = ()


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


def questions(seed: int, size: int) -> Sample[SampleCaptions]:
    """Scenes of one or two shapes, each with a question: "what color is the circle?" or "which shape is red?"."""
    random = numpy_generator(seed, "questions")
    drawn = [_question(random) for _ in range(size + validation_size(size))]
    pixels = np.stack([picture for picture, _, _ in drawn])
    asked, said = tuple(question for _, question, _ in drawn), tuple(answer for _, _, answer in drawn)
    best = ReferenceScore(
        "exact_match", 1.0, "by construction: one shape of each scene has the form or color asked for"
    )
    share = (1 / len(PALETTE) + 1 / len(FORMS)) / 2
    why = f"without the picture: one of {len(PALETTE)} colors, or one of {len(FORMS)} shapes, all as likely"
    train = SampleCaptions(pixels[:size], said[:size], asked[:size])
    validation = SampleCaptions(pixels[size:], said[size:], asked[size:])
    return Sample("questions", "captions", train, validation, best, ReferenceScore("exact_match", share, why))


def _question(random: np.random.Generator) -> tuple[Pixels, str, str]:
    """(picture, question, answer): one shape, or two that differ in form and color, beside or above each other."""
    count = 1 if random.random() < SINGLE_ASKED_SHARE else 2
    colors, forms = ([str(name) for name in random.permutation(list(names))[:count]] for names in (PALETTE, FORMS))
    canvas, middle = background(SIZE, random), (SIZE - 1) / 2
    step = 11 * np.array([(1, 0), (0, 1), (-1, 0), (0, -1)][random.integers(4)])
    for sign, color, form in zip((-1, 1), colors, forms, strict=False):
        x, y = middle + sign * step + random.uniform(-3, 3, 2)
        canvas = _paint(canvas, (color, form), x, y, random.uniform(6, 9))
    asked = int(random.integers(count))
    color, form = colors[asked], forms[asked]
    if random.random() < 0.5:
        return _finish(canvas), f"what color is the {form}?", color
    return _finish(canvas), f"which shape is {color}?", form


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
