"""Sequences of vectors with texts as data: frames of sound or other numbers on one side, tokens on the other.

Axes: T steps (each sequence has its own number), C channels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from weft.data.batching import shuffled_order
from weft.data.readers.files import DataError
from weft.data.readers.transcripts import SourceSequences, Transcripts
from weft.foundation.errors import WeftError
from weft.models.teacher_forcing import IGNORED, teacher_forcing
from weft.tasks.support.splits.augmentation import Floats, own_random, resample, shake
from weft.tasks.support.splits.split import digest
from weft.tasks.support.splits.text_pairs import Ends, like_length
from weft.tasks.support.splits.vector_sequences import Preparation
from weft.tasks.task import Batch, Split

FrameAugmentation = Literal["speed", "noise", "erase"]
FRAME_AUGMENTATIONS: tuple[FrameAugmentation, ...] = get_args(FrameAugmentation)
SPEED = 0.15  # share of the time by which a sequence is slower or faster
NOISE, STRENGTH = 0.1, 0.1  # in standard deviations; in parts of the whole
ERASED_STEPS, ERASED_CHANNELS = 0.06, 0.15  # the most that is erased of each, as a share


def frame_changes(names: Sequence[str]) -> tuple[FrameAugmentation, ...]:
    """Changes by name."""
    unknown = next((name for name in names if name not in (*FRAME_AUGMENTATIONS, "none")), None)
    if unknown is not None:
        raise WeftError(
            f"there is no augmentation {unknown!r}: choose none, or some of {','.join(FRAME_AUGMENTATIONS)}"
        )
    return tuple(change for change in FRAME_AUGMENTATIONS if change in names)


def erase_stretches(values: Floats, random: np.random.Generator) -> Floats:
    """One stretch of time and one band of channels set to 0, their mean (SpecAugment, Park et al. 2019)."""
    erased = values.copy()
    for axis, share in ((0, ERASED_STEPS), (1, ERASED_CHANNELS)):
        size = int(random.integers(round(share * values.shape[axis]) + 1))
        first = int(random.integers(values.shape[axis] - size + 1))
        np.swapaxes(erased, 0, axis)[first : first + size] = 0
    return erased


@dataclass(frozen=True)
class TranscriptsSplit(Split):
    """Sequences whose preparation has begun, with their texts in tokens; `patch` steps cost as much as a token.

    Texts longer than `length` are cut and have no stop token to learn. `decoded` bounds how many sequences are
    transcribed when the split is evaluated.
    """

    values: Sequence[Floats]
    texts: Sequence[str]
    targets: Sequence[Sequence[int]]
    ends: Ends
    preparation: Preparation
    changes: tuple[FrameAugmentation, ...] = ()
    patch: int = 1
    length: int | None = None
    decoded: int | None = None

    def __len__(self) -> int:
        return len(self.values)

    def pick(self, numbers: Sequence[int]) -> TranscriptsSplit:
        """The same with these sequences alone."""
        values, texts, targets = ([field[n] for n in numbers] for field in (self.values, self.texts, self.targets))
        return replace(self, values=cast(Any, values), texts=cast(Any, texts), targets=cast(Any, targets))

    def _sizes(self) -> NDArray[np.int64]:
        most = self.length or 1 << 60
        rows = zip(self.values, self.targets, strict=True)
        return np.array([(-(-len(one) // self.patch), min(len(text) + 1, most)) for one, text in rows])

    @property
    def tokens(self) -> int:
        """Patches of the sequences and tokens of the texts."""
        return int(self._sizes().sum())

    def identities(self) -> Iterator[tuple[Hashable, str]]:
        """The frames, whatever the augmentation."""
        for values, text in zip(self.values, self.texts, strict=True):
            yield digest(values), text

    def example_lengths(self) -> tuple[str, Sequence[int]]:
        return "frames", [len(values) for values in self.values]

    def cut(self, length: int) -> TranscriptsSplit:
        """The same for a model that writes `length` tokens."""
        return replace(self, length=length)

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Sequences of like length, about `size` tokens per batch."""
        return like_length(self._sizes(), size, seed, epoch)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Source [B, T, C] with zeros after its `source_lengths` [B]; target [B, N] from the start token on; labels.

        The target's padding is on the right, where a causal decoder never looks. With a seed, sources are augmented.
        """
        rows = [torch.from_numpy(self.row(int(example), seed, epoch)) for example in examples]
        forced = teacher_forcing([self.targets[n] for n in examples], self.ends.start, self.ends.stop, self.ends.pad)
        target, labels = forced.inputs[:, : self.length], forced.labels[:, : self.length]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        inputs = {"source": source, "source_lengths": torch.tensor([len(row) for row in rows]), "target": target}
        cost = len(rows) * -(-source.shape[1] // self.patch) + target.numel()
        return Batch(inputs, labels, int((labels != IGNORED).sum()), cost)

    def row(self, example: int, seed: int | None = None, epoch: int = 0) -> Floats:
        """One sequence as the model sees it."""
        values = self.values[example]
        if seed is None or not self.changes:
            return self.preparation.end(values)
        random = own_random(seed, epoch, example)
        if "speed" in self.changes:
            length = max(1, round(len(values) * (1 + SPEED * random.uniform(-1, 1))))
            values = resample(values, np.linspace(0, len(values) - 1, length))
        row = self.preparation.end(values)
        if "noise" in self.changes:
            row = shake(row, random, NOISE, STRENGTH)
        return erase_stretches(row, random) if "erase" in self.changes else row


def hold_transcripts_out(data: Transcripts, share: float, seed: int) -> tuple[Transcripts, Transcripts]:
    """(to learn from, held out): a share of the sequences."""
    count = len(data.texts)
    if count < 2:
        raise DataError(f"{count} sequence: training and validation take two or more; give more of them")
    if not 0 < share < 1:
        raise DataError(f"a held-out share of {share:g}: give one between 0 and 1, or --set data.validation=FILE")
    held = min(count - 1, max(1, round(share * count)))
    order = shuffled_order(count, seed, 0)
    return _chosen(data, sorted(order[held:])), _chosen(data, sorted(order[:held]))


def _chosen(data: Transcripts, rows: Sequence[int]) -> Transcripts:
    sources = data.sources
    chosen = SourceSequences([sources.names[row] for row in rows], [sources.values[row] for row in rows], sources.rate)
    return Transcripts(chosen, [data.texts[row] for row in rows])
