"""Augmentation: training examples changed a little, differently in every epoch, so that few examples teach like many.

What happens to an example follows from (seed, epoch, example) alone: not from the batch that it is in.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from weft.foundation.arrays import Pixels
from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive, generator

Floats = NDArray[np.float32]
ImageAugmentation = Literal["shift", "flip", "erase"]
IMAGE_AUGMENTATIONS: tuple[ImageAugmentation, ...] = get_args(ImageAugmentation)
SHIFT = 1 / 14  # of a side: 2 pixels of 28
ERASED = (0.1, 0.35)  # of a side
ERASE_SHARE = 0.5

VerticalAxis = Literal["x", "y", "z"]
AXES: tuple[VerticalAxis, ...] = get_args(VerticalAxis)


def image_changes(names: tuple[str, ...]) -> tuple[ImageAugmentation, ...]:
    """Changes by name, in a fixed order; none for `none`."""
    unknown = next((name for name in names if name not in (*IMAGE_AUGMENTATIONS, "none")), None)
    if unknown is not None:
        raise WeftError(
            f"there is no augmentation {unknown!r}: choose auto, none, or some of {','.join(IMAGE_AUGMENTATIONS)}"
        )
    return tuple(change for change in IMAGE_AUGMENTATIONS if change in names)


@lru_cache(maxsize=2)
def _draws(count: int, seed: int, epoch: int) -> Floats:
    """Uniform numbers [count, 8] in 0 .. 1: the fate of each example in this epoch."""
    found: Floats = torch.rand(count, 8, generator=generator(seed, "augment", epoch)).numpy()
    return found


def change_images(
    pixels: Pixels,
    examples: NDArray[np.int64],
    count: int,
    changes: tuple[ImageAugmentation, ...],
    seed: int,
    epoch: int,
) -> tuple[Pixels, NDArray[np.bool_]]:
    """(pixels [n, H, W, C], which are erased [n, H, W]); `examples` are numbers below `count`.

    shift: by up to 1/14 of a side, black moves in; flip: left and right change places in half of the pictures;
    erase: a rectangle of half of the pictures is blotted out (Zhong et al. 2020).
    """
    u = _draws(count, seed, epoch)[examples]
    n, H, W = pixels.shape[:3]
    rows, columns = np.tile(np.arange(H), (n, 1)), np.tile(np.arange(W), (n, 1))
    if "flip" in changes:
        columns = np.where(u[:, :1] < 0.5, W - 1 - columns, columns)
    if "shift" in changes:
        far = max(1, round(SHIFT * min(H, W)))
        down, right = (np.floor(u[:, place, None] * (2 * far + 1)).astype(np.int64) for place in (1, 2))
        rows, columns = rows + down, columns + right
        pixels = np.pad(pixels, ((0, 0), (far, far), (far, far), (0, 0)))
    if changes and changes != ("erase",):
        pixels = pixels[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
    erased = np.zeros((n, H, W), dtype=np.bool_)
    if "erase" in changes:
        low, high = ERASED
        tall, wide = (low + (high - low) * u[:, place] for place in (3, 4))
        top, left = u[:, 5] * (1 - tall), u[:, 6] * (1 - wide)
        y, x = (np.arange(H) + 0.5) / H, (np.arange(W) + 0.5) / W
        inside_y = (y >= top[:, None]) & (y < (top + tall)[:, None])
        inside_x = (x >= left[:, None]) & (x < (left + wide)[:, None])
        erased = inside_y[:, :, None] & inside_x[:, None, :] & (u[:, 7] < ERASE_SHARE)[:, None, None]
    return pixels, erased


def own_random(seed: int, epoch: int, example: int) -> np.random.Generator:
    """The random numbers of one example in one epoch."""
    return np.random.default_rng(derive(seed, "augment", epoch, example))


def warp_time(values: Floats, random: np.random.Generator, strength: float) -> Floats:
    """[T, C] -> [T', C]: a window of it, at another and slowly changing speed; strength 0.2 is up to a fifth."""
    T = len(values)
    kept = max(1, round(T * (1 - strength * random.random())))
    first = int(random.integers(T - kept + 1))
    length = max(1, round(kept * (1 + strength * random.uniform(-1, 1))))
    along = np.linspace(0, 1, length)
    bent = along + strength / 4 * random.uniform(-1, 1) * np.sin(math.pi * along)
    return resample(values, first + np.clip(bent, 0, 1) * (kept - 1))


def resample(values: Floats, places: NDArray[np.float64]) -> Floats:
    """Values [T, C] at places between 0 and T - 1, in a line between neighbors."""
    below = np.clip(np.floor(places).astype(np.int64), 0, len(values) - 1)
    above = np.minimum(below + 1, len(values) - 1)
    share = (places - below).astype(np.float32)[:, None]
    found: Floats = values[below] * (1 - share) + values[above] * share
    return found


def turn_joints(values: Floats, axis: VerticalAxis, angle: float) -> Floats:
    """x, y and z of joints in turn [T, 3 joints], turned about one axis by an angle in radians."""
    points = values.reshape(len(values), -1, 3)
    a, b = ((1, 2), (2, 0), (0, 1))[AXES.index(axis)]
    turned = points.copy()
    cosine, sine = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    turned[..., a] = cosine * points[..., a] - sine * points[..., b]
    turned[..., b] = sine * points[..., a] + cosine * points[..., b]
    return turned.reshape(values.shape)


def shake(values: Floats, random: np.random.Generator, noise: float, scale: float) -> Floats:
    """(values + N(0, noise^2)) times one factor in 1 +- scale."""
    noisy = values + noise * random.standard_normal(values.shape, dtype=np.float32)
    return (noisy * np.float32(1 + scale * random.uniform(-1, 1))).astype(np.float32)
