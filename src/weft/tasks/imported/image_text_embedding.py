"""Task image-text-embedding: one vector per image or text, so that an image lies close to texts about it.

Models of two towers are imported, not trained. Labels that were never learned are given as texts (Radford et al. 2021):

    p(label | image) = softmax_label(exp(s) u . v_label),   |u| = |v| = 1

Measured so on images with classes: each class is a label, written by a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.readers.files import DataError
from weft.data.readers.images import IMAGE_SUFFIXES, ResizeCrop, read_image
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.two_tower import TwoTowerSpec
from weft.tasks.images import read_like
from weft.tasks.support.class_labels import class_answers, class_probabilities, measure_classes
from weft.tasks.support.language.imported_text import ImportedTextTask, expect_tokenizer, padded_inputs
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.support.losses import class_loss
from weft.tasks.support.splits.images_split import ImagesSplit, Scale
from weft.tasks.task import Answer, Batch, DataSpec, GenerationOptions, Loss, Split

PLACE = "{label}"


class ImageTextEmbeddingOptions(DataSpec):
    """`prompt`: the text that stands for a class of images when a run is evaluated."""

    prompt: str = f"a photo of a {PLACE}"


@dataclass(frozen=True)
class LabeledPictures(ImagesSplit):
    """Images with classes; `texts` are what a model is called with for the texts of all classes."""

    texts: Tree = field(default_factory=dict)

    def fit(self, spec: AnySpec) -> LabeledPictures:
        """Each image counts as the patches that this model makes of it."""
        assert isinstance(spec, TwoTowerSpec)
        return replace(self, patches=spec.image.side**2)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Images, the texts of all classes, and the number of each image's own."""
        found = super().batch(examples, seed, epoch)
        return Batch({**found.inputs, **self.texts}, found.labels, found.count, found.tokens)


class ImageTextEmbeddingTask(ImportedTextTask):
    """Two towers give images and texts vectors of one space."""

    name = "image-text-embedding"
    families = ("two-tower",)
    metric = "accuracy"
    picture = "image_text_embedding"
    example = 'photo.png --labels "a cat,a dog"'
    Options = ImageTextEmbeddingOptions
    takes_images = takes_labels = True

    def __init__(
        self, options: Any, tokenizer: Tokenizer, frame: Frame, length: int, scale: Scale, fitting: ResizeCrop
    ) -> None:
        super().__init__(options, tokenizer, frame, length)
        self.scale, self.fitting = scale, fitting

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> ImageTextEmbeddingTask:
        scale, how = Scale(tuple(facts["mean"]), tuple(facts["deviation"])), facts["fitting"]
        fitting = ResizeCrop(int(facts["side"]), tuple(how["scaled"]), how["filter"])
        return cls(options, expect_tokenizer(tokenizer), Frame.of(facts), int(facts["length"]), scale, fitting)

    def facts(self) -> Tree:
        """The ids around each text, how many tokens are read, and how images are prepared."""
        images = {"side": self.fitting.side, "mean": list(self.scale.mean), "deviation": list(self.scale.deviation)}
        how = {"scaled": list(self.fitting.scaled), "filter": self.fitting.filter}
        return {**self.frame.to_tree(), "length": self.length, **images, "fitting": how}

    @property
    def channels(self) -> int:
        """3 for color."""
        return len(self.scale.mean)

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """Images with classes, and a text for each class."""
        prompt = self.options.prompt
        if PLACE not in prompt:
            raise WeftError(f"the prompt {prompt!r:.60} has no {PLACE}: write one such as 'a photo of a {PLACE}'")
        images = read_like(paths, self.fitting.side, self.channels, self.fitting)
        texts = self._inputs([prompt.replace(PLACE, name) for name in images.classes])
        rows = np.arange(len(images.labels))
        return LabeledPictures(images.pixels, rows, images.labels, self.scale, patches=1, texts=texts)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Cross-entropy of the classes' texts."""
        return class_loss(module(**batch.inputs), batch.labels, batch.count, smoothing)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """How often the text of an image's own class is the closest."""
        return measure_classes(module, split, size)

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """The vector of each image or text; with labels, each image's likeliest, with probabilities."""
        if generation.labels:
            return self._label(module, inputs, generation)
        vectors = self.embed(module, inputs, generation.batch)
        return [Answer(str(given), vector.tolist()) for given, vector in zip(inputs, vectors, strict=True)]

    def _label(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        text = next((given for given in inputs if not is_image(given)), None)
        if text is not None:
            raise WeftError(f"labels are compared with images, but {str(text)!r:.60} is a text: give paths of images")
        device = next(module.parameters()).device
        texts = {name: x.to(device) for name, x in self._inputs(generation.labels).items()}
        answers: list[Answer] = []
        for first in range(0, len(inputs), generation.batch):
            some = inputs[first : first + generation.batch]
            found = class_probabilities(module, {**texts, "images": self._pixels(some).to(device)})
            answers += class_answers([str(path) for path in some], found, generation.labels, len(generation.labels))
        return answers

    def embed(self, module: nn.Module, texts: Sequence[Any], batch: int = 64) -> Tensor:
        """Unit vectors [N, P] of texts and of images, which are given by their paths."""
        device = next(module.parameters()).device
        found = torch.zeros(len(texts), cast(TwoTowerSpec, module.spec).width)
        pictured = [is_image(given) for given in texts]
        with torch.inference_mode():
            for images in (True, False):
                places = [place for place, image in enumerate(pictured) if image == images]
                for first in range(0, len(places), batch):
                    some = places[first : first + batch]
                    given = [texts[place] for place in some]
                    inputs = {"images": self._pixels(given)} if images else self._inputs([str(one) for one in given])
                    found[some] = module(**{name: x.to(device) for name, x in inputs.items()}).logits.float().cpu()
        return found

    def _pixels(self, paths: Sequence[Any]) -> Tensor:
        """Images [n, C, H, W] as the model takes them."""
        return self.scale.tensors(np.stack([read_image(path, self.fitting, self.channels) for path in paths]))

    def _inputs(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Tokens of texts, and which of them are real; a long text loses its end, not its end token."""
        rows = [self.frame.put(ids, self.length) for ids in self.tokenizer.encode_many(texts)]
        return padded_inputs(rows, self.tokenizer.pad)


def is_image(given: Any) -> bool:
    """Whether an input is the path of an image: all others are texts."""
    if isinstance(given, Path):
        return True
    if not str(given).lower().endswith(IMAGE_SUFFIXES):
        return False
    if not Path(given).is_file():
        raise DataError(f"there is no image {given}: check the path; a text does not end in {Path(given).suffix}")
    return True
