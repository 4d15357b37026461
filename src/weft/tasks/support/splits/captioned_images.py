"""Images with captions, or with questions and answers, as data: each image is decoded once, however many it has."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from weft.data.batching import shuffled_order
from weft.data.readers.captions import has_questions, read_captions, read_questions
from weft.data.readers.files import DataError
from weft.data.readers.images import IN_MEMORY_BYTES, PixelFiles
from weft.data.tokenizers.tokenizer import TOKENIZER_KINDS, Tokenizer, load_tokenizer, train_tokenizer
from weft.foundation.arrays import Pixels
from weft.models.build import AnySpec
from weft.models.image_text import ImageTextSpec
from weft.models.teacher_forcing import IGNORED, teacher_forcing
from weft.tasks.support.splits.augmentation import ImageAugmentation, change_images
from weft.tasks.support.splits.split import digest
from weft.tasks.support.splits.text_pairs import Ends, evenly, like_length
from weft.tasks.task import Batch, Split

RARE, SMALL = 4, 2000  # above so many different words, those seen less often are unknown
NARROWEST = 16  # channels of the first convolution; each further one has twice as many
GRID = 6  # patches per side, about


@dataclass(frozen=True)
class Gallery:
    """Pixels [N, H, W, 3] in memory or in their files, and captions: (image, text) each.

    `questions`: one per caption, which then is its answer; none where captions describe the image.
    """

    pixels: Pixels | PixelFiles
    captions: Sequence[tuple[int, str]]
    questions: Sequence[str] = ()

    @cached_property
    def asked(self) -> list[tuple[int, str]]:
        """What can be asked: each (image, question) once, or (image, "") where there are no questions."""
        questions = self.questions or [""] * len(self.captions)
        found = {(image, question) for (image, _), question in zip(self.captions, questions, strict=True)}
        return sorted(found)

    @cached_property
    def _answers(self) -> dict[tuple[int, str], list[str]]:
        found: dict[tuple[int, str], list[str]] = {}
        for (image, text), question in zip(self.captions, self.questions or [""] * len(self.captions), strict=True):
            found.setdefault((image, question), []).append(text)
        return found

    def answers_to(self, asked: tuple[int, str]) -> list[str]:
        """All captions of an image, or all answers to a question about it."""
        return self._answers[asked]

    def only(self, images: Sequence[int]) -> Gallery:
        """The same with some of the images, numbered anew, and their captions."""
        place = {image: number for number, image in enumerate(images)}
        if isinstance(self.pixels, PixelFiles):
            kept: Pixels | PixelFiles = replace(self.pixels, paths=tuple(self.pixels.paths[image] for image in images))
        else:
            kept = self.pixels[np.array(images)]
        rows = [row for row, (image, _) in enumerate(self.captions) if image in place]
        captions = tuple((place[self.captions[row][0]], self.captions[row][1]) for row in rows)
        return Gallery(kept, captions, tuple(self.questions[row] for row in rows) if self.questions else ())


def open_gallery(captions: Sequence[tuple[Path, str]], side: int, questions: Sequence[str] = ()) -> Gallery:
    """Images of `side` x `side` pixels, decoded now where they fit into memory, else batch by batch."""
    numbers: dict[Path, int] = {}
    rows = tuple((numbers.setdefault(path, len(numbers)), text) for path, text in captions)
    files = PixelFiles(tuple(numbers), (side, side), 3)
    return Gallery(files if math.prod(files.shape) > IN_MEMORY_BYTES else files[:], rows, tuple(questions))


def read_gallery(paths: Sequence[str | Path], folder: str | None, side: int) -> Gallery:
    """Images with captions, or with questions and answers where the files have them."""
    if not has_questions(paths):
        return open_gallery(read_captions(paths, folder), side)
    rows = read_questions(paths, folder)
    return open_gallery([(image, answer) for image, _, answer in rows], side, [question for _, question, _ in rows])


def as_images(pixels: Pixels) -> Tensor:
    """Bytes [n, H, W, 3] as numbers from -1 to 1, [n, 3, H, W]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32).div(127.5).sub(1.0)


@dataclass(frozen=True)
class CaptionsSplit(Split):
    """An example is one caption with its image, which costs `patches` tokens; 0 patches: the image is not shown.

    A question stands before the start token, and the answer after it is what is learned. Captions longer than `length`,
    their question included, are cut and have no stop token to learn. `described` bounds how many images are described,
    or questions answered, when the split is evaluated. `packed`: the captions of an image share one row behind it, each
    a document of its own.
    """

    identified: ClassVar[str] = "images"
    gallery: Gallery
    texts: Sequence[Sequence[int]]
    ends: Ends
    changes: tuple[ImageAugmentation, ...] = ()
    patches: int = 0
    length: int | None = None
    described: int | None = None
    questions: Sequence[Sequence[int]] = ()
    packed: bool = False
    _images: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_images", np.array([image for image, _ in self.gallery.captions], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.texts)

    def fit(self, spec: AnySpec) -> CaptionsSplit:
        """The same for a model of this spec; only one that reads the image as a prefix can share it."""
        fitted = super().fit(spec)
        assert isinstance(fitted, CaptionsSplit)
        return fitted if isinstance(spec, ImageTextSpec) else replace(fitted, packed=False)

    @cached_property
    def _rows(self) -> list[list[int]]:
        """The examples of each row: the captions of an image."""
        found: dict[int, list[int]] = {}
        for example, image in enumerate(self._images.tolist()):
            found.setdefault(image, []).append(example)
        return list(found.values())

    def _sizes(self) -> np.ndarray:
        most = self.length or 1 << 60
        asked = [len(question) for question in self.questions] or [0] * len(self.texts)
        sizes = [len(text) + 1 + before for text, before in zip(self.texts, asked, strict=True)]
        sizes = [min(size, most) for size in sizes]
        if self.packed:
            return np.array([[self.patches + sum(sizes[example] for example in row)] for row in self._rows])
        return np.array([[self.patches + size] for size in sizes])

    @property
    def tokens(self) -> int:
        """Patches and words."""
        return int(self._sizes().sum())

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The pixels of each image once, with the first text that belongs to it."""
        titles: dict[int, str] = {}
        for image, text in self.gallery.captions:
            titles.setdefault(image, text)
        for image, text in titles.items():
            yield digest(self.gallery.pixels[[image]]), text

    def example_lengths(self) -> tuple[str, Sequence[int]]:
        return "tokens of the text", [len(text) for text in self.texts]

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
        """Captions, or rows of them, of like length, about `size` tokens per batch with their patches."""
        found = like_length(self._sizes(), size, seed, epoch)
        return [[example for row in batch for example in self._rows[row]] for batch in found] if self.packed else found

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Tokens [B, T]: question, start token, caption; labels [B, T] up to the stop token; images [B, 3, H, W].

        A question has no labels. Padding is on the right, where a causal decoder never looks. With a seed, images are
        changed a little. Packed, a row is an image with all of its captions here, and documents [B, T] tell them apart.
        """
        if self.packed:
            return self._packed(examples, seed, epoch)
        forced = teacher_forcing([self.texts[n] for n in examples], self.ends.start, self.ends.stop, self.ends.pad)
        tokens, labels = forced.inputs, forced.labels
        if self.questions:
            tokens, labels = after_questions([self.questions[n] for n in examples], tokens, labels, self.ends.pad)
        tokens, labels = tokens[:, : self.length], labels[:, : self.length]
        inputs: dict[str, object] = {"tokens": tokens}
        if self.patches:
            inputs["images"] = as_images(self._seen(np.array(examples, dtype=np.int64), seed, epoch))
        cost = tokens.numel() + self.patches * len(tokens)
        return Batch(inputs, labels, int((labels != IGNORED).sum()), cost)

    def _packed(self, examples: Sequence[int], seed: int | None, epoch: int) -> Batch:
        rows: dict[int, list[int]] = {}
        for example in examples:
            rows.setdefault(int(self._images[example]), []).append(example)
        each = [self._one_after_the_other(row) for row in rows.values()]
        width = max(len(tokens) for tokens, _, _ in each)
        fills = (self.ends.pad, IGNORED, -1)
        filled = [torch.full((len(each), width), fill) for fill in fills]
        for number, parts in enumerate(each):
            for whole, part in zip(filled, parts, strict=True):
                whole[number, : len(part)] = part
        tokens, labels, documents = filled
        images = as_images(self._seen(np.array([row[0] for row in rows.values()], dtype=np.int64), seed, epoch))
        inputs = {"tokens": tokens, "documents": documents, "images": images}
        return Batch(inputs, labels, int((labels != IGNORED).sum()), tokens.numel() + self.patches * len(tokens))

    def _one_after_the_other(self, examples: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, labels, documents) [T] of some captions."""
        parts = []
        for number, example in enumerate(examples):
            forced = teacher_forcing([self.texts[example]], self.ends.start, self.ends.stop, self.ends.pad)
            tokens, labels = forced.inputs[0, : self.length], forced.labels[0, : self.length]
            parts.append((tokens, labels, torch.full_like(tokens, number)))
        tokens, labels, documents = (torch.cat(part) for part in zip(*parts, strict=True))
        return tokens, labels, documents

    def _seen(self, examples: np.ndarray, seed: int | None, epoch: int) -> Pixels:
        pixels = self.gallery.pixels[self._images[examples]]
        if seed is None or not self.changes:
            return pixels
        changed, erased = change_images(pixels, examples, len(self), self.changes, seed, epoch)
        return np.where(erased[..., None], np.uint8(127), changed)


def after_questions(
    questions: Sequence[Sequence[int]], tokens: Tensor, labels: Tensor, pad: int
) -> tuple[Tensor, Tensor]:
    """(tokens, labels) with a question, which has no labels, before each row; padding stays on the right."""
    longest = max(map(len, questions))
    before, width = tokens.shape[1], longest + tokens.shape[1]
    wide, answers = torch.full((len(tokens), width), pad), torch.full((len(tokens), width), IGNORED)
    for row, question in enumerate(questions):
        asked = len(question)
        wide[row, :asked] = torch.as_tensor(list(question), dtype=torch.long)
        wide[row, asked : asked + before], answers[row, asked : asked + before] = tokens[row], labels[row]
    kept = max(1, int((answers != IGNORED).any(0).nonzero().max()) + 1)
    return wide[:, :kept], answers[:, :kept]


def suitable_stem(side: int) -> tuple[int, ...]:
    """Channels of convolutions that halve an image until patches of 2 x 2 cut it into about 6 x 6."""
    halvings = max(1, round(math.log2(side / (2 * GRID))))
    return tuple(NARROWEST * 2**step for step in range(halvings))


def suitable_patch(side: int, halvings: int) -> int:
    """The patch that cuts an image of this side, after its stem, into about 6 x 6."""
    after = side
    for _ in range(halvings):
        after = (after + 1) // 2
    patch = min((p for p in range(1, after + 1) if after % p == 0), key=lambda p: abs(after // p - GRID))
    if not GRID // 2 <= after // patch <= 2 * GRID:
        raise DataError(
            f"images of {side} pixels per side do not divide into patches: --set data.size={-(-side // 8) * 8}"
        )
    return patch


def hold_images_out(gallery: Gallery, share: float, seed: int) -> tuple[Gallery, Gallery]:
    """(to learn from, held out): a share of the images, each with all its captions."""
    count = len(gallery.pixels)
    if count < 2:
        raise DataError(f"{count} image: training and validation take two or more; give more images")
    if not 0 < share < 1:
        raise DataError(f"a held-out share of {share:g}: give one between 0 and 1, or --set data.validation=FILE")
    held = min(count - 1, max(1, round(share * count)))
    order = shuffled_order(count, seed, 0)
    return gallery.only(sorted(order[held:])), gallery.only(sorted(order[:held]))


def caption_tokenizer(kind: str, texts: Sequence[str], vocabulary: int, least: int | None) -> Tokenizer:
    """The one asked for, `auto` of words; of many different words those seen less than `least` times are unknown."""
    kind = "words" if kind == "auto" else kind
    if kind not in TOKENIZER_KINDS:
        return load_tokenizer(kind)
    if least is None:
        different = len({word for text in texts for word in text.split()}) if kind == "words" else 0
        least = RARE if different > SMALL else 1
    return train_tokenizer(kind, texts, vocabulary, min_frequency=least)
