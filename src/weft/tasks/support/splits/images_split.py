"""Labeled pictures as a split: which rows of the pixels belong to it, and how pixels become tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from weft.data.batching import shuffled_order
from weft.data.readers.images import PixelFiles
from weft.foundation.arrays import Pixels
from weft.tasks.support.class_labels import evenly
from weft.tasks.support.splits.augmentation import ImageAugmentation, change_images
from weft.tasks.support.splits.split import digest
from weft.tasks.task import Batch, Split

THUMB = 8  # pixels per side of what the nearest neighbor compares


@dataclass(frozen=True)
class Scale:
    """Means and deviations of the channels, learned from training pictures; pixels count from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, pixels: Pixels) -> Scale:
        """From pixels [N, H, W, C]."""
        flat = pixels.reshape(-1, pixels.shape[-1]).astype(np.float64) / 255
        spread = np.maximum(flat.std(0), 1e-3)
        return cls(tuple(flat.mean(0).round(6).tolist()), tuple(spread.round(6).tolist()))

    def tensors(self, pixels: Pixels, erased: NDArray[np.bool_] | None = None) -> torch.Tensor:
        """[n, H, W, C] bytes -> [n, C, H, W] of mean 0 and deviation 1; what is erased is the mean, 0."""
        factor = np.array([1 / (255 * s) for s in self.deviation], dtype=np.float32)
        offset = np.array([-m / s for m, s in zip(self.mean, self.deviation, strict=True)], dtype=np.float32)
        values = pixels.astype(np.float32) * factor + offset
        if erased is not None and erased.any():
            values[erased] = 0.0
        return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


@dataclass(frozen=True)
class ImagesSplit(Split):
    """Pictures with labels; `rows` are those of `pixels` that belong to this split; each counts as `patches` tokens."""

    pixels: Pixels | PixelFiles
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    scale: Scale
    patches: int
    changes: tuple[ImageAugmentation, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """Patches of all pictures."""
        return len(self) * self.patches

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The pixels, whatever the augmentation."""
        for row in self.rows.tolist():
            yield digest(self.pixels[[row]]), f"#{row}"

    def class_numbers(self) -> NDArray[np.int64]:
        return self.labels

    def pick(self, numbers: Sequence[int]) -> ImagesSplit:
        """The same with these pictures alone."""
        return replace(self, rows=self.rows[list(numbers)], labels=self.labels[list(numbers)])

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Pictures in random order, or one after the other."""
        order = list(range(len(self))) if seed is None else shuffled_order(len(self), seed, epoch)
        count = max(1, size // self.patches)
        found = [order[first : first + count] for first in range(0, len(order), count)]
        return found[:-1] if seed is not None and len(found) > 1 and len(found[-1]) < count else found

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Pictures [n, C, H, W] and their classes; with a seed augmented."""
        chosen = np.asarray(examples, dtype=np.int64)
        pixels, erased = self.pixels[self.rows[chosen]], None
        if seed is not None and self.changes:
            pixels, erased = change_images(pixels, chosen, len(self), self.changes, seed, epoch)
        labels = torch.from_numpy(self.labels[chosen])
        return Batch({"images": self.scale.tensors(pixels, erased)}, labels, len(chosen), len(chosen) * self.patches)

    def thumbs(self, most: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(small gray copies [n, H W], labels) of at most so many pictures."""
        chosen = evenly(len(self), most)
        return thumbs(self.pixels[self.rows[chosen]]), self.labels[chosen]


def thumbs(pixels: Pixels) -> NDArray[np.float32]:
    """Small gray copies [n, 64] by means over blocks of pixels."""
    gray = torch.from_numpy(pixels.astype(np.float32)).mean(-1)
    small: NDArray[np.float32] = nn.functional.adaptive_avg_pool2d(gray[:, None], THUMB).flatten(1).numpy()
    return small
