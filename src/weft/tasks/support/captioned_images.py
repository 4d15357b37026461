"""Images with captions as data: each image is decoded once, however many captions it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.data.readers.images import IN_MEMORY_BYTES, PixelFiles
from weft.foundation.arrays import Pixels
from weft.models.teacher_forcing import IGNORED, teacher_forcing
from weft.tasks.support.augmentation import ImageAugmentation, change_images
from weft.tasks.support.text_pairs import Ends, evenly, like_length
from weft.tasks.task import Batch, Split


@dataclass(frozen=True)
class Gallery:
    """Pixels [N, H, W, 3] in memory or in their files, and captions: (image, text) each."""

    pixels: Pixels | PixelFiles
    captions: Sequence[tuple[int, str]]

    @cached_property
    def _texts(self) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in range(len(self.pixels))]
        for image, text in self.captions:
            found[image].append(text)
        return found

    def texts_of(self, image: int) -> list[str]:
        """All captions of one image."""
        return self._texts[image]

    def only(self, images: Sequence[int]) -> Gallery:
        """The same with some of the images, numbered anew, and their captions."""
        place = {image: number for number, image in enumerate(images)}
        if isinstance(self.pixels, PixelFiles):
            kept: Pixels | PixelFiles = replace(self.pixels, paths=tuple(self.pixels.paths[image] for image in images))
        else:
            kept = self.pixels[np.array(images)]
        return Gallery(kept, tuple((place[image], text) for image, text in self.captions if image in place))


def open_gallery(captions: Sequence[tuple[Path, str]], side: int) -> Gallery:
    """Images of `side` x `side` pixels, decoded now where they fit into memory, else batch by batch."""
    numbers: dict[Path, int] = {}
    rows = tuple((numbers.setdefault(path, len(numbers)), text) for path, text in captions)
    files = PixelFiles(tuple(numbers), (side, side), 3)
    return Gallery(files if math.prod(files.shape) > IN_MEMORY_BYTES else files[:], rows)


def as_images(pixels: Pixels) -> Tensor:
    """Bytes [n, H, W, 3] as numbers from -1 to 1, [n, 3, H, W]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32).div(127.5).sub(1.0)


@dataclass(frozen=True)
class CaptionsSplit(Split):
    """An example is one caption with its image, which costs `patches` tokens; 0 patches: the image is not shown.

    Captions longer than `length` are cut and have no stop token to learn. `described` bounds how many images are
    described when the split is evaluated.
    """

    gallery: Gallery
    texts: Sequence[Sequence[int]]
    ends: Ends
    changes: tuple[ImageAugmentation, ...] = ()
    patches: int = 0
    length: int | None = None
    described: int | None = None
    _images: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_images", np.array([image for image, _ in self.gallery.captions], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.texts)

    def _sizes(self) -> np.ndarray:
        most = self.length or 1 << 60
        return np.array([[self.patches + min(len(text) + 1, most)] for text in self.texts])

    @property
    def tokens(self) -> int:
        """Patches and words."""
        return int(self._sizes().sum())

    def cut(self, length: int) -> CaptionsSplit:
        """The same for a model that writes `length` tokens."""
        return replace(self, length=length)

    def limit(self, count: int) -> CaptionsSplit:
        """At most `count` images, evenly spread, with all their captions."""
        if count >= len(self.gallery.pixels):
            return self
        images = evenly(len(self.gallery.pixels), count)
        kept = [n for n, image in enumerate(self._images) if image in set(images)]
        return replace(self, gallery=self.gallery.only(images), texts=[self.texts[n] for n in kept])

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Captions of like length, about `size` tokens per batch with their patches."""
        return like_length(self._sizes(), size, seed, epoch)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Tokens [B, T] from the start token on, labels [B, T] up to the stop token, images [B, 3, H, W].

        Padding is on the right, where a causal decoder never looks. With a seed, images are changed a little.
        """
        forced = teacher_forcing([self.texts[n] for n in examples], self.ends.start, self.ends.stop, self.ends.pad)
        tokens, labels = forced.inputs[:, : self.length], forced.labels[:, : self.length]
        inputs: dict[str, object] = {"tokens": tokens}
        if self.patches:
            inputs["images"] = as_images(self._seen(np.array(examples, dtype=np.int64), seed, epoch))
        cost = tokens.numel() + self.patches * len(tokens)
        return Batch(inputs, labels, int((labels != IGNORED).sum()), cost)

    def _seen(self, examples: np.ndarray, seed: int | None, epoch: int) -> Pixels:
        pixels = self.gallery.pixels[self._images[examples]]
        if seed is None or not self.changes:
            return pixels
        changed, erased = change_images(pixels, examples, len(self), self.changes, seed, epoch)
        return np.where(erased[..., None], np.uint8(127), changed)
