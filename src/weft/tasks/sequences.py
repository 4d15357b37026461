"""Task sequences: an encoder tells the class of a sequence of vectors: bodies in motion, sensors, speech.

p(c | x_1 .. x_T) = softmax(W mean_t z_t + b), with convolution (near steps) and attention (all steps) in turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import nn

from weft.data.batching import READ_AT_ONCE, groups_of_like_length
from weft.data.readers.files import DataError
from weft.data.readers.sequences import LabeledSequences, Values, read_sequences
from weft.data.readers.skeletons import SKELETON_FILE
from weft.data.readers.sounds import log_mel
from weft.data.samples import SAMPLE_RATE
from weft.foreign.user_module import ModuleInterface
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.encoder import EncoderSpec, PooledSpec, VectorsSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, ConvolutionSpec, InitializationSpec, LayerNormSpec
from weft.tasks.support.class_labels import (
    ASKED,
    COMPARED,
    Labels,
    class_answers,
    class_preview,
    class_probabilities,
    classes_after,
    evenly,
    hold_out,
    in_terms_of,
    measure_classes,
    mixed,
    nearest_neighbor,
    score_classes,
)
from weft.tasks.support.evaluation.class_scores import TemperatureScaled, always_commonest, commonest
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report
from weft.tasks.support.inputs.input_rows import FileExample, FileExamples
from weft.tasks.support.losses import class_loss
from weft.tasks.support.splits.augmentation import VerticalAxis, resample
from weft.tasks.support.splits.vector_sequences import Preparation, VectorSequencesSplit, padded, step_changes
from weft.tasks.task import (
    Answer,
    Batch,
    DataSpec,
    GenerationOptions,
    Loss,
    Names,
    PreparedData,
    Recipe,
    Size,
    Split,
    Task,
    find_sample,
)

LENGTH_MARGIN = 1.5  # a model takes sequences so many times as long as the longest it learned from
SMALL_DATA_STEPS = 200_000  # steps; below, batches are small, so that an epoch has several
BATCHES_AN_EPOCH = 8
LEAST_BATCH = 512
COMPARED_TIMES = 8  # places in time that the nearest neighbor compares


FORMATS = """\
.npz with x [N, T, C] and y [N], and lengths [N] if the sequences are padded; .ts as the UEA archive has it;
a folder of .wav files per class; a folder or archive of skeletons; or a table (.csv, .tsv), where a row is one step:

  id,time,x,y,label
  walk-1,0,0.12,-0.50,walking
  walk-1,1,0.18,-0.41,walking
  jump-1,0,0.02,-0.93,jumping

Rows with one id are one sequence, in the order of time; all columns but id, time and label are its values. With a
header, columns may be in any order, and time may be left out; without one, they are in the order above."""


class SequencesOptions(DataSpec):
    """`length`: longer sequences are strided (means over so many steps) to have about so many at most.

    `train_names`: sequences whose names it matches (a regular expression) are learned from, the others held out:
    `_s0[13579]_` takes the odd subjects of a01_s03_e02_skeleton.txt. `scaled`: channels get mean 0 and deviation 1.
    `vertical`: channels are x, y, z of joints in turn, and this one points up (auto: y in files of skeletons; none).
    `differences`: what changes from step to step as more channels; by default for joints.
    `augmentation`: auto, none, or some of warp (time), noise, turn (joints about the vertical axis).
    """

    length: PositiveInt = 256
    train_names: str | None = None
    scaled: bool = True
    vertical: Literal["auto", "none", "x", "y", "z"] = "auto"
    differences: bool | None = None
    augmentation: Names = ("auto",)


class SequencesTask(TemperatureScaled, FileExamples, Task):
    """An encoder learns to tell classes of sequences of vectors."""

    name = "sequences"
    families = ("encoder",)
    metric = "accuracy"
    picture = "sequences"
    example = "sequence.npz"
    takes_module = True
    Options = SequencesOptions
    auto = "an encoder with convolution and attention in turn, rotary positions and mean pool (hybrid)"
    formats = FORMATS

    def __init__(
        self, options: SequencesOptions, classes: Sequence[str], raw: int, length: int, preparation: Preparation
    ) -> None:
        self.options, self.classes, self.raw, self.length = options, tuple(classes), raw, length
        self.preparation = preparation
        self.seen = 0

    @classmethod
    def prepare(
        cls, paths: Sequence[str], options: SequencesOptions, seed: int, cache: Path, known: SequencesTask | None = None
    ) -> PreparedData:
        """Read sequences; classes, stride and scale come from those that are learned from."""
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            data = _as_sequences(found.name, found.train, found.classes)
            held = _as_sequences(found.name, found.validation, found.classes)
            up: VerticalAxis | None = "z" if found.name == "skeletons" else None
            options = options if found.train.ordered else options.replace(augmentation=("none",))
        else:
            data, held = _hold_out(read_sequences(paths), options, seed)
            up = "y" if all(SKELETON_FILE.match(name) for name in data.names) else None
        if known is None:
            task = cls._learn(data, options, up)
        else:
            classes = classes_after(data.classes, known.classes)
            task = cls(options, classes, known.raw, known.length, known.preparation)
        train, validation = task._split(data, learn=True), task._split(held)
        task.seen = train.tokens
        return PreparedData(task, train, validation, None if found is None else found.best)

    @property
    def answers(self) -> tuple[str, ...]:
        return self.classes

    def with_new_classes(self, spec: AnySpec) -> EncoderSpec:
        assert isinstance(spec, EncoderSpec) and isinstance(spec.output, PooledSpec)
        return spec.replace(output=spec.output.replace(classes=len(self.classes)))

    @classmethod
    def _learn(cls, data: LabeledSequences, options: SequencesOptions, up: VerticalAxis | None) -> SequencesTask:
        vertical = up if options.vertical == "auto" else None if options.vertical == "none" else options.vertical
        _expect_joints(data, vertical)
        lengths = [len(one) for one in data.values]
        stride = max(1, -(-int(np.quantile(lengths, 0.95)) // options.length))
        differences = vertical is not None if options.differences is None else options.differences
        preparation = Preparation.learn(data.values, stride, vertical, differences, options.scaled)
        longest = -(-max(lengths) // stride)
        return cls(options, data.classes, data.channels, 8 * -(-int(LENGTH_MARGIN * longest) // 8), preparation)

    def _split(self, data: LabeledSequences, learn: bool = False) -> VectorSequencesSplit:
        if data.channels != self.raw:
            raise DataError(f"sequences of {data.channels} channels, but the model learned {self.raw}: give the same")
        data = data if learn else _chosen(data, mixed(len(data.values)))
        labels = in_terms_of(self.classes, data.labels, data.classes)
        values = [self.preparation.begin(one) for one in data.values]
        changes = step_changes(self.options.augmentation, self.preparation.vertical) if learn else ()
        return VectorSequencesSplit(values, labels, self.preparation, changes)

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Any) -> SequencesTask:
        preparation = Preparation.from_tree(facts["preparation"])
        task = cls(options, facts["classes"], facts["channels"], facts["length"], preparation)
        return task.with_temperature(facts)

    def facts(self) -> Tree:
        """Classes, channels, the longest sequence that fits, and how values are prepared."""
        return {
            "classes": list(self.classes),
            "channels": self.raw,
            "length": self.length,
            "preparation": self.preparation.to_tree(),
            **self.temperature_facts(),
        }

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        found = find_sample(self.name, paths, 0)
        if found is not None:
            return self._split(_as_sequences(found.name, found.validation, found.classes))
        return self._split(read_sequences(paths, learn=False))

    def default_model(self, size: Size) -> EncoderSpec:
        """Convolution over near steps and attention over all in turn, rotary positions, the mean of all steps."""
        return self.fit(
            EncoderSpec(
                width=size.width,
                layers=size.layers,
                mixer=[
                    ConvolutionSpec(kernel=5),
                    AttentionSpec(heads=size.heads, bias=False, query_key_norm=LayerNormSpec(bias=False)),
                ],
                feedforward=ClassicSpec(activation="squared-relu", bias=False),
                norm=LayerNormSpec(bias=False),
                initialization=InitializationSpec(scheme="fan-in", zero_residual=True),
                dropout=size.dropout,
                output=PooledSpec(pool="mean"),
            )
        )

    def fit(self, spec: AnySpec) -> EncoderSpec:
        """Vectors of this data's channels in, its classes out, and its lengths."""
        assert isinstance(spec, EncoderSpec)
        answer = spec.output if isinstance(spec.output, PooledSpec) else PooledSpec(pool="mean")
        return spec.replace(
            input=VectorsSpec(channels=self.preparation.channels(self.raw)),
            output=answer.replace(classes=len(self.classes)),
            length=self.length,
        )

    def module_interface(self) -> ModuleInterface:
        """Vectors [B, T, channels] in, logits of the classes out."""
        return ModuleInterface.of_vectors(len(self.classes), self.preparation.channels(self.raw), self.length)

    def sizes(self, train: Split) -> Sequence[Size]:
        """Few sequences suit one small model; the time plan chooses where there are many."""
        if train.tokens < SMALL_DATA_STEPS:
            return (Size(96, 4),)
        return (Size(64, 2), Size(96, 4), Size(128, 4), Size(192, 6))

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Few examples that are seen hundreds of times are held back by dropout, smoothing and averaged weights."""
        training: Tree = {"smoothing": 0.1, "ema": 0.99, "decay": 0.7, "weight_decay": 0.5}
        most = None
        if 0 < self.seen < SMALL_DATA_STEPS:
            most = max(LEAST_BATCH, 1 << (self.seen // BATCHES_AN_EPOCH).bit_length() - 1)
        return Recipe(0.1 if epochs < 20 else 0.3, training, most_epochs=400, most_batch=most)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        return class_loss(module(**batch.inputs), batch.labels, batch.count, smoothing)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        return measure_classes(module, split, size, self.temperature)

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        assert isinstance(split, VectorSequencesSplit)
        return score_classes(module, split, size, self.classes, range(len(split)), report, self.temperature)

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """The class of each sequence in each file; labels in the files are not looked at and may be missing."""
        data = read_sequences([str(given) for given in inputs], labeled=False)
        split = self._unlabeled(data.values).cut(self.length)
        device = next(module.parameters()).device
        rows = [split.row(number) for number in range(len(split))]
        found = torch.zeros(len(rows), len(self.classes))
        lengths = [len(row) for row in rows]
        for some in groups_of_like_length(lengths, READ_AT_ONCE, device, generation.batch):
            given = {name: x.to(device) for name, x in padded([rows[number] for number in some]).items()}
            found[some] = class_probabilities(module, given, self.temperature).float().cpu()
        return class_answers(data.names, found, self.classes)

    def open_example(self, path: Path, number: int, folder: Path) -> FileExample:
        """A sequence and its class, written as a file of its own; labels may be missing."""
        data = read_sequences([path], labeled=False)
        if number >= len(data.values):
            most = len(data.values)
            raise DataError(f"{path.name} has {most:,} sequences, from 0 to {most - 1:,}, but no sequence {number:,}")
        values, file = data.values[number], folder / f"{number}.npz"
        np.savez(file, x=values[None], lengths=np.array([len(values)]))
        return FileExample(str(file), f"{path.name} {number}", data.classes[data.labels[number]] or None)

    def _unlabeled(self, values: Sequence[Values]) -> VectorSequencesSplit:
        if values[0].shape[1] != self.raw:
            raise DataError(f"sequences of {values[0].shape[1]} channels, but the model learned {self.raw}")
        return VectorSequencesSplit(
            [self.preparation.begin(one) for one in values], np.zeros(len(values), int), self.preparation
        )

    def preview(self, module: nn.Module, split: Split) -> str:
        """A few held-out sequences: what they are, and what the model says."""
        return class_preview(module, split, self.classes)

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """The nearest neighbor among sequences stretched to the same few steps."""
        assert isinstance(train, VectorSequencesSplit) and isinstance(split, VectorSequencesSplit)
        (known, names), (asked, truth) = _stretched(train, COMPARED), _stretched(split, ASKED)
        return {"nearest neighbor accuracy": float(np.mean(nearest_neighbor(known, names, asked) == truth))}

    def baseline_facts(self, train: Split) -> Tree:
        assert isinstance(train, VectorSequencesSplit)
        return commonest(train.labels, self.classes)

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """The accuracy of training's most frequent class."""
        assert isinstance(split, VectorSequencesSplit)
        return always_commonest(facts, split.labels, self.classes)


def _as_sequences(name: str, split: Any, classes: Sequence[str]) -> LabeledSequences:
    """A sample's split; tones go the way of .wav files."""
    values = [log_mel(one[:, 0], SAMPLE_RATE) if name == "tones" else one for one in split.values]
    return LabeledSequences(
        values, split.labels, tuple(classes), [f"{number} of {name}" for number in range(len(values))]
    )


def _hold_out(
    data: LabeledSequences, options: SequencesOptions, seed: int
) -> tuple[LabeledSequences, LabeledSequences]:
    """(to learn from, held out): by other files, by names, or by chance."""
    if options.validation:
        return data, read_sequences(options.validation, learn=False)
    if options.train_names is None:
        kept, held = hold_out(data.labels, options.held_out, seed)
        return _chosen(data, kept), _chosen(data, held)
    try:
        pattern = re.compile(options.train_names)
    except re.error as error:
        raise DataError(f"train_names {options.train_names!r} is no regular expression: {error}") from None
    matched = np.array([pattern.search(name) is not None for name in data.names])
    if matched.all() or not matched.any():
        raise DataError(
            f"train_names {options.train_names!r} matches {int(matched.sum())} of {len(matched)} names such as "
            f"{data.names[0]!r}: some must match, and some not"
        )
    missing = set(data.labels[~matched].tolist()) - set(data.labels[matched].tolist())
    if missing:
        raise DataError(
            f"no sequence of class {data.classes[min(missing)]!r} has a name that train_names "
            f"{options.train_names!r} matches: choose another"
        )
    return _chosen(data, np.flatnonzero(matched)), _chosen(data, np.flatnonzero(~matched))


def _chosen(data: LabeledSequences, rows: Labels) -> LabeledSequences:
    names = [data.names[row] for row in rows]
    return LabeledSequences([data.values[row] for row in rows], data.labels[rows], data.classes, names)


def _expect_joints(data: LabeledSequences, vertical: VerticalAxis | None) -> None:
    if vertical is not None and data.channels % 3:
        raise DataError(f"{data.channels} channels are no x, y, z of joints in turn: leave --set data.vertical out")


def _stretched(split: VectorSequencesSplit, most: int) -> tuple[NDArray[np.float32], Labels]:
    """(sequences at a few places in time [n, places x channels], labels)."""
    chosen = evenly(len(split), most)
    rows = [split.row(int(number)) for number in chosen]
    flat = [resample(row, np.linspace(0, len(row) - 1, COMPARED_TIMES)).ravel() for row in rows]
    return cast(NDArray[np.float32], np.stack(flat)), split.labels[chosen]
