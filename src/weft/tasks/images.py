"""Task images: a vision transformer tells the class of a picture. p(c | x) = softmax(W mean_t z_t + b).

Axes: N pictures, H = W pixels per side, C channels. A few 3 x 3 convolutions of stride 2 make patches (Xiao et al.
2021): on small pictures they learn in far fewer examples than patches that are cut out directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import nn

from weft.data.readers.files import DataError, find_files
from weft.data.readers.images import IMAGE_SUFFIXES, LabeledImages, PixelFiles, ResizeCrop, read_image, read_images
from weft.foreign.user_module import ModuleInterface
from weft.foundation.arrays import Pixels
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, GridConvolutionSpec, InitializationSpec, LayerNormSpec
from weft.models.vision import VisionSpec, patch_side
from weft.tasks.support.class_labels import (
    ASKED,
    COMPARED,
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
from weft.tasks.support.inputs.image_inputs import ImageInputs
from weft.tasks.support.losses import class_loss
from weft.tasks.support.splits.augmentation import ImageAugmentation, image_changes
from weft.tasks.support.splits.images_split import THUMB, ImagesSplit, Scale
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

LARGEST_GRID = 8  # patches per side
WIDEST_STEM = 64
PICTURES_FOR_STATISTICS = 2000  # pictures that means and deviations are learned from
SAME = 0.9  # mirror images that are known nearly as well as the pictures themselves may be learned from


class ImagesOptions(DataSpec):
    """`size` scales pictures to a square of that side; without it those of several sizes get one that suits most, up to
    64. `augmentation`: auto, none, or some of shift,flip,erase.

    auto shifts, and flips left and right where mirror images look like the same class (a digit's do not).
    """

    size: PositiveInt | None = None
    augmentation: Names = ("auto",)


class ImagesTask(TemperatureScaled, ImageInputs, Task):
    """A vision transformer learns to tell classes of pictures."""

    name = "images"
    families = ("vision",)
    formats = (
        "a folder per class of images, or an archive of such folders (.tar, .tar.gz, .tar.xz, .zip);\n"
        ".npz with images [N, H, W] or [N, H, W, 3] and labels [N]; or IDX files of images and labels (plain or .gz)"
    )
    metric = "accuracy"
    picture = "images"
    example = "picture.png"
    Options = ImagesOptions
    auto = "a vision transformer with a stem of convolutions, convolution and attention in turn, and mean pool (hybrid)"
    takes_images = takes_module = True

    def __init__(
        self,
        options: ImagesOptions,
        classes: Sequence[str],
        side: int,
        scale: Scale,
        changes: tuple[ImageAugmentation, ...],
        fitting: ResizeCrop | None = None,
    ) -> None:
        self.options, self.classes, self.side = options, tuple(classes), side
        self.scale, self.changes, self.fitting = scale, changes, fitting

    @classmethod
    def prepare(
        cls, paths: Sequence[str], options: ImagesOptions, seed: int, cache: Path, known: ImagesTask | None = None
    ) -> PreparedData:
        """Read pictures; classes, means, deviations and whether mirror images may be learned from come from them."""
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            data, held = (_as_images(split, found.classes) for split in (found.train, found.validation))
            if known is not None:
                fitted = (_fitted(one.pixels, known.side, known.channels) for one in (data, held))
                data, held = (replace(one, pixels=pixels) for one, pixels in zip((data, held), fitted, strict=True))
            rows, other = np.arange(len(data.labels)), np.arange(len(held.labels))
        else:
            if known is None:
                data = held = read_images(paths, options.size or "auto")
            else:
                data = held = read_like(paths, known.side, known.channels, known.fitting)
            if options.validation:
                held = read_like(
                    options.validation, data.pixels.shape[1], data.channels, None if known is None else known.fitting
                )
                rows, other = np.arange(len(data.labels)), np.arange(len(held.labels))
            else:
                rows, other = hold_out(data.labels, options.held_out, seed)
        if known is None:
            sample = data.pixels[rows[evenly(len(rows), PICTURES_FOR_STATISTICS)]]
            task = cls(options, data.classes, int(data.pixels.shape[1]), Scale.of(sample), ())
        else:
            classes = classes_after(data.classes, known.classes)
            task = cls(options, classes, known.side, known.scale, (), known.fitting)
        train, validation = task._split(data, rows), task._split(held, other[mixed(len(other))])
        task.changes = _changes(options.augmentation, train)
        train = replace(train, changes=task.changes)
        side = f"{task.side} x {task.side}"
        note = f"the pictures were scaled to {side}; --set data.size=N takes another size"
        best = None if found is None else found.best
        return PreparedData(task, train, validation, best, (note,) if data.scaled else ())

    @property
    def answers(self) -> tuple[str, ...]:
        return self.classes

    def with_new_classes(self, spec: AnySpec) -> VisionSpec:
        assert isinstance(spec, VisionSpec)
        return spec.replace(classes=len(self.classes))

    def _expect_classes(self) -> None:
        """Models from elsewhere may have none yet."""
        if not self.classes:
            raise WeftError("this model has no classes yet: weft train images DATA --from RUN --out NEW")

    def _split(self, images: LabeledImages, rows: NDArray[np.int64] | None = None) -> ImagesSplit:
        rows = mixed(len(images.labels)) if rows is None else rows
        labels = in_terms_of(self.classes, images.labels[rows], images.classes)
        return ImagesSplit(images.pixels, rows, labels, self.scale, self.default_model(Size()).side ** 2)

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Any) -> ImagesTask:
        scale = Scale(tuple(facts["mean"]), tuple(facts["deviation"]))
        how, side = facts.get("fitting"), int(facts["side"])
        fitting = None if how is None else ResizeCrop(side, tuple(how["scaled"]), how["filter"])
        changes = image_changes(tuple(facts["augmentation"]))
        return cls(options, facts["classes"], side, scale, changes, fitting).with_temperature(facts)

    def facts(self) -> Tree:
        """Classes, side of the pictures, scales of channels, how they are augmented and fitted, and the temperature."""
        facts: Tree = {
            "classes": list(self.classes),
            "side": self.side,
            "mean": list(self.scale.mean),
            "deviation": list(self.scale.deviation),
            "augmentation": list(self.changes),
            **self.temperature_facts(),
        }
        if self.fitting is not None:
            facts["fitting"] = {"scaled": list(self.fitting.scaled), "filter": self.fitting.filter}
        return facts

    @property
    def channels(self) -> int:
        """1 for gray, 3 for color."""
        return len(self.scale.mean)

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """Pictures to evaluate on, scaled to the size learned."""
        self._expect_classes()
        found = find_sample(self.name, paths, 0)
        if found is not None:
            images = _as_images(found.validation, found.classes)
            return self._split(replace(images, pixels=_fitted(images.pixels, self.side, self.channels)))
        return self._split(read_like(paths, self.side, self.channels, self.fitting))

    def default_model(self, size: Size) -> VisionSpec:
        """A convolution stem down to a small grid, then convolution and attention in turn, and the mean of all."""
        stem = _stem(self.side, size.width)
        return VisionSpec(
            image=self.side,
            patch=_patch(self.side, stem),
            channels=self.channels,
            stem=stem,
            width=size.width,
            layers=size.layers,
            mixer=[
                GridConvolutionSpec(kernel=3, groups=size.width),
                AttentionSpec(heads=size.heads, bias=False, query_key_norm=LayerNormSpec(bias=False)),
            ],
            feedforward=ClassicSpec(activation="squared-relu", bias=False),
            norm=LayerNormSpec(bias=False),
            initialization=InitializationSpec(scheme="fan-in", zero_residual=True),
            dropout=size.dropout,
            pool="mean",
            classes=len(self.classes),
        )

    def fit(self, spec: AnySpec) -> VisionSpec:
        """Side, channels and classes of this data; a patch that does not divide the side becomes the next that does."""
        assert isinstance(spec, VisionSpec)
        patch = _patch(self.side, spec.stem, spec.patch)
        return spec.replace(image=self.side, channels=self.channels, classes=len(self.classes), patch=patch)

    def fit_plain(self, name: str, size: Size) -> VisionSpec:
        """Patches that leave a small grid."""
        spec = super().fit_plain(name, size)
        assert isinstance(spec, VisionSpec)
        return spec.replace(patch=_patch(self.side, spec.stem))

    def module_interface(self) -> ModuleInterface:
        """Images [B, C, H, W] of mean 0 and deviation 1 in, logits of the classes out."""
        return ModuleInterface.of_images(len(self.classes), self.channels, self.side)

    def sizes(self, train: Split) -> Sequence[Size]:
        """Small pictures need no large model."""
        return (Size(48, 2), Size(64, 4), Size(96, 4), Size(128, 4), Size(192, 4), Size(256, 6))

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Labels are smoothed; what is seen often is held back by dropout; the average of the weights is kept."""
        training: Tree = {"smoothing": 0.1 if epochs > 2 else 0.05, "decay": 0.7, "ema": 0.99, "weight_decay": 0.1}
        return Recipe(0.0 if epochs < 5 else 0.1 if epochs < 30 else 0.2, training, most_epochs=100)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        return class_loss(module(**batch.inputs), batch.labels, batch.count, smoothing)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        return measure_classes(module, split, size, self.temperature)

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        assert isinstance(split, ImagesSplit)
        scores = score_classes(module, split, size, self.classes, split.rows.tolist(), report, self.temperature)
        return replace(scores, picture=lambda example: split.pixels[split.rows[[example]]][0])

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """The class of each picture; a folder means all pictures in it."""
        self._expect_classes()
        device = next(module.parameters()).device
        paths = find_files([str(given) for given in inputs], IMAGE_SUFFIXES)
        answers: list[Answer] = []
        for first in range(0, len(paths), generation.batch):
            some = paths[first : first + generation.batch]
            pixels = np.stack([read_image(path, self.fitting or self.side, self.channels) for path in some])
            found = class_probabilities(module, {"images": self.scale.tensors(pixels).to(device)}, self.temperature)
            answers += class_answers([str(path) for path in some], found, self.classes)
        return answers

    def preview(self, module: nn.Module, split: Split) -> str:
        """A few held-out pictures: what they are, and what the model says."""
        return class_preview(module, split, self.classes)

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """The nearest neighbor among small gray copies."""
        assert isinstance(train, ImagesSplit) and isinstance(split, ImagesSplit)
        (known, names), (asked, truth) = train.thumbs(COMPARED), split.thumbs(ASKED)
        return {"nearest neighbor accuracy": float(np.mean(nearest_neighbor(known, names, asked) == truth))}

    def baseline_facts(self, train: Split) -> Tree:
        assert isinstance(train, ImagesSplit)
        return commonest(train.labels, self.classes)

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """The accuracy of training's most frequent class."""
        assert isinstance(split, ImagesSplit)
        return always_commonest(facts, split.labels, self.classes)


def _as_images(split: Any, classes: Sequence[str]) -> LabeledImages:
    pixels = split.pixels[..., None] if split.pixels.ndim == 3 else split.pixels
    return LabeledImages(pixels, split.labels, tuple(classes), pixels.shape[3])


def read_like(paths: Sequence[str], side: int, channels: int, fitting: ResizeCrop | None = None) -> LabeledImages:
    """Pictures to evaluate on, of the side and color that was learned."""
    images = read_images(paths, fitting or side, learn=False)
    return replace(images, pixels=_fitted(images.pixels, side, channels), channels=channels)


def _fitted(pixels: Pixels | PixelFiles, side: int, channels: int) -> Pixels | PixelFiles:
    if pixels.shape[1:3] != (side, side):
        raise DataError(f"pictures of {pixels.shape[2]}x{pixels.shape[1]}, but the model learned {side}x{side}")
    if pixels.shape[3] == channels:
        return pixels
    if isinstance(pixels, PixelFiles):
        return replace(pixels, channels=channels)
    if channels == 3:
        return np.repeat(pixels, 3, axis=3)
    return np.rint(pixels @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]


def _stem(side: int, width: int) -> tuple[int, ...]:
    """Widths of the convolutions: each halves the side and doubles the width, until the grid is small."""
    steps = 0
    size = side
    while size > LARGEST_GRID and steps < 3:
        size, steps = (size + 1) // 2, steps + 1
    return tuple(max(16, min(width, WIDEST_STEM) >> (steps - 1 - step)) for step in range(steps))


def _patch(side: int, stem: tuple[int, ...], most: int | None = None) -> int:
    """The largest patch up to `most` that divides what the stem leaves of a side; without `most`, for a small grid."""
    left = patch_side(side, stem, 1)
    most = max(1, -(-left // LARGEST_GRID)) if most is None else most
    if most == 1:
        return 1
    return max(patch for patch in range(1, min(most, left) + 1) if left % patch == 0)


def _changes(names: Sequence[str], train: ImagesSplit) -> tuple[ImageAugmentation, ...]:
    """Those named; auto shifts, and flips if a nearest neighbor knows mirror images nearly as well as pictures."""
    if tuple(names) != ("auto",):
        return image_changes(tuple(names))
    small, labels = train.thumbs(COMPARED)
    asked = np.arange(len(small)) % 4 == 0
    if asked.all() or len(set(labels[~asked])) < 2:
        return ("shift",)
    mirrored = small[asked].reshape(-1, THUMB, THUMB)[:, :, ::-1].reshape(-1, THUMB * THUMB)
    right, mirror = (
        float(np.mean(nearest_neighbor(small[~asked], labels[~asked], np.ascontiguousarray(some)) == labels[asked]))
        for some in (small[asked], mirrored)
    )
    return ("shift", "flip") if mirror >= SAME * right else ("shift",)
