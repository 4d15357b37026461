"""Images: hand-drawn digits and colored shapes, rendered from signed distances, without fonts.

A stroke or shape is the set of points with negative signed distance; the distance in pixels, clipped to one pixel,
gives smooth edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.data.samples.sample_definition import ReferenceScore, Sample, numpy_generator, validation_size
from weft.foundation.arrays import Array, Pixels

Stroke = list[tuple[float, float]]

DIGIT_SIZE, SHAPE_SIZE = 28, 32
PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (45, 98, 214),
    "yellow": (240, 196, 25),
    "purple": (142, 68, 173),
    "white": (245, 245, 245),
}


@dataclass(frozen=True)
class SampleImages:
    """Pictures [N, H, W] or [N, H, W, 3] from 0 to 255, and the class number of each."""

    pixels: Pixels
    labels: NDArray[np.int64]


def digits(seed: int, size: int) -> Sample[SampleImages]:
    """Digits of 28 x 28 gray pixels, white on black, with wobbling, slanted, rotated and stretched strokes."""
    why = "by construction: strokes are shaken by less than what tells one digit from another"
    return _split("digits", seed, size, [str(digit) for digit in range(10)], draw_digit, why)


def shapes(seed: int, size: int) -> Sample[SampleImages]:
    """Colored shapes in 32 x 32 pixels at random places, sizes, angles and colors; the class is the shape."""
    why = "by construction: the outline alone tells the shape; color, place, size and angle are drawn apart from it"
    return _split("shapes", seed, size, list(SHAPES), _draw_shape, why)


def _split(
    name: str,
    seed: int,
    size: int,
    classes: list[str],
    draw: Callable[[str, np.random.Generator], Pixels],
    why: str,
) -> Sample[SampleImages]:
    random = numpy_generator(seed, name)
    total = size + validation_size(size, len(classes))
    labels = np.concatenate([random.permutation(len(classes)) for _ in range(-(-total // len(classes)))])[:total]
    pixels = np.stack([draw(classes[label], random) for label in labels])
    train, validation = SampleImages(pixels[:size], labels[:size]), SampleImages(pixels[size:], labels[size:])
    return Sample(name, "images", train, validation, ReferenceScore("accuracy", 1.0, why), classes=tuple(classes))


def _arc(x: float, y: float, across: float, down: float, start: float, end: float, steps: int = 14) -> Stroke:
    """Points along an ellipse from one angle to another, in degrees; 0 is right, 90 is down."""
    angles = [math.radians(start + (end - start) * step / (steps - 1)) for step in range(steps)]
    return [(x + across * math.cos(angle), y + down * math.sin(angle)) for angle in angles]


# Strokes in a box from (-1, -1), top left, to (1, 1), bottom right. Some digits have two forms.
DIGITS: dict[str, list[list[Stroke]]] = {
    "0": [[_arc(0, 0, 0.62, 0.95, -90, 270, 24)]],
    "1": [[[(-0.35, -0.6), (0.1, -0.95), (0.1, 0.95)]], [[(0.0, -0.95), (0.0, 0.95)]]],
    "2": [[[*_arc(0, -0.42, 0.58, 0.52, -170, 35), (-0.62, 0.93), (0.66, 0.93)]]],
    "3": [[_arc(-0.05, -0.48, 0.55, 0.46, -150, 90), _arc(-0.05, 0.46, 0.64, 0.5, -90, 150)]],
    "4": [[[(0.1, -0.95), (-0.65, 0.3), (0.7, 0.3)], [(0.3, -0.3), (0.3, 0.95)]]],
    "5": [[[(0.55, -0.93), (-0.45, -0.93), (-0.5, -0.1), *_arc(-0.02, 0.38, 0.62, 0.56, -125, 140)]]],
    "6": [[[(0.4, -0.95), (-0.2, -0.5), (-0.57, 0.2), *_arc(0, 0.42, 0.57, 0.52, 190, -170, 20)]]],
    "7": [
        [[(-0.62, -0.92), (0.62, -0.92), (-0.15, 0.95)]],
        [[(-0.62, -0.92), (0.62, -0.92), (-0.15, 0.95)], [(-0.3, 0.02), (0.5, 0.02)]],
    ],
    "8": [[_arc(0, -0.48, 0.48, 0.46, -90, 270, 20), _arc(0, 0.47, 0.6, 0.48, -90, 270, 20)]],
    "9": [[_arc(-0.03, -0.42, 0.55, 0.5, 0, 360, 20), [(0.53, -0.45), (0.45, 0.25), (0.15, 0.95)]]],
}


def draw_digit(digit: str, random: np.random.Generator) -> Pixels:
    """One digit with random slant, size, place, pen and wobble."""
    turn, slant = random.normal(0, 0.1), random.normal(0.12, 0.12)
    height, width = random.uniform(7.5, 10), random.uniform(6, 9)
    place = np.array([0.0, 0.0]) + DIGIT_SIZE / 2 - 0.5 + random.uniform(-2, 2, 2)
    spin = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    shape = spin @ np.array([[width, -slant * height], [0.0, height]])
    pen, ink = random.uniform(0.8, 1.6), random.uniform(200, 255)
    distance = np.full((DIGIT_SIZE, DIGIT_SIZE), np.inf)
    ways = DIGITS[digit]
    for stroke in ways[random.integers(len(ways))]:
        points = np.array(stroke)
        points = (points + _shake(len(points), random)) @ shape.T + place
        distance = np.minimum(distance, _to_line(points, DIGIT_SIZE))
    paint = np.clip(pen - distance + 0.5, 0, 1) * ink + random.normal(0, 5, distance.shape)
    return np.clip(paint, 0, 255).astype(np.uint8)


def _shake(points: int, random: np.random.Generator) -> Array:
    """A smooth wobble along a stroke: two slow waves of random strength in either direction."""
    along = np.linspace(0, math.pi, points)[:, None]
    return np.asarray(sum(np.sin(k * along + random.uniform(0, 6, 2)) * random.normal(0, 0.045, 2) for k in (1, 2)))


def _to_line(points: Array, size: int) -> Array:
    """Distance of each pixel to a line through points (x, y)."""
    rows, columns = np.mgrid[0:size, 0:size].astype(float)
    return np.sqrt(_nearest(columns, rows, points[:-1], points[1:]))


def _nearest(x: Array, y: Array, start: Array, end: Array) -> Array:
    """Squared distance of each place to the nearest of the lines from start to end."""
    nearest = np.full(x.shape, np.inf)
    for (a, b), (c, d) in zip(start.tolist(), end.tolist(), strict=True):
        right, down = c - a, d - b
        across, below = x - a, y - b
        along = np.clip((across * right + below * down) / max(right**2 + down**2, 1e-9), 0, 1)
        nearest = np.minimum(nearest, (across - along * right) ** 2 + (below - along * down) ** 2)
    return nearest


def _polygon(corners: Stroke) -> Callable[[Array, Array], Array]:
    """Signed distance to a polygon of unit size: negative inside (by counting crossings)."""
    first = np.array(corners)
    second = np.roll(first, -1, axis=0)

    def distance(x: Array, y: Array) -> Array:
        away = np.sqrt(_nearest(x, y, first, second))
        inside = np.zeros(x.shape, dtype=np.bool_)
        for (a, b), (c, d) in zip(first.tolist(), second.tolist(), strict=True):
            if b != d:
                inside ^= ((b > y) != (d > y)) & (x < a + (y - b) * ((c - a) / (d - b)))
        return np.where(inside, -away, away)

    return distance


def _star(points: int, inner: float) -> Stroke:
    """Corners of a star, or of a regular polygon when `inner` is 1."""
    angles = [math.pi * k / points - math.pi / 2 for k in range(2 * points)]
    return [
        ((1.0 if k % 2 == 0 else inner) * math.cos(a), (1.0 if k % 2 == 0 else inner) * math.sin(a))
        for k, a in enumerate(angles)
        if inner < 1 or k % 2 == 0
    ]


_ARM = 0.34
_CROSS: Stroke = [
    *((-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM)),
    *((_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM)),
]
# Signed distances for a shape of radius 1 at the origin.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) - 0.9,
    "square": _polygon([(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)]),
    "triangle": _polygon(_star(3, 1.0)),
    "star": _polygon(_star(5, 0.42)),
    "cross": _polygon(_CROSS),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.7) - 0.25,
}


def shape_coverage(shape: str, size: int, x: float, y: float, radius: float, angle: float = 0.0) -> Array:
    """The fraction of each pixel of a square canvas that a shape covers."""
    canvas = np.zeros((size, size))
    reach = 1.2 * radius + 1  # only near the shape, for speed
    top, left = max(0, int(y - reach)), max(0, int(x - reach))
    rows, columns = np.mgrid[top : min(size, int(y + reach) + 2), left : min(size, int(x + reach) + 2)].astype(float)
    across, down = (columns - x) / radius, (rows - y) / radius
    turned = across * math.cos(angle) + down * math.sin(angle), down * math.cos(angle) - across * math.sin(angle)
    near = np.clip(0.5 - SHAPES[shape](*turned) * radius, 0, 1)
    canvas[top : top + near.shape[0], left : left + near.shape[1]] = near
    return canvas


def background(size: int, random: np.random.Generator) -> Array:
    """A dark gray canvas with noise."""
    return np.asarray(random.uniform(15, 60) + random.normal(0, 4, (size, size, 3)))


def _draw_shape(shape: str, random: np.random.Generator) -> Pixels:
    radius = random.uniform(7, 11)
    x, y = random.uniform(radius, SHAPE_SIZE - 1 - radius, 2)
    names = list(PALETTE)
    color = np.array(PALETTE[names[random.integers(len(names))]]) + random.normal(0, 8, 3)
    amount = shape_coverage(shape, SHAPE_SIZE, x, y, radius, random.uniform(0, 2 * math.pi))[..., None]
    canvas = background(SHAPE_SIZE, random) * (1 - amount) + color * amount
    return np.clip(canvas, 0, 255).astype(np.uint8)
