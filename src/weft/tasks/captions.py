"""Task captions: a text about an image, p(y | image) = prod_t p(y_t | image, y_1 .. y_(t-1)).

Either the image's patches are the first tokens, seen by all that follows, and the text after them is causal; or an
encoder reads the patches, and each word looks at them by cross-attention (`--preset nano-image-seq2seq`).

With questions, the text is the answer to one: question, start token, answer, and only the answer is learned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from weft.data.readers.files import DataError
from weft.data.readers.images import read_image
from weft.data.samples import SampleCaptions
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.inference.decoding.generated import GeneratedText
from weft.inference.decoding.request import GenerationRequest
from weft.models.build import AnySpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.image_text import ImageTextSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LayerNormSpec
from weft.models.position_specs import LearnedSpec
from weft.models.sources import PatchSourceSpec
from weft.parts.masks import Documents
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, text_scores
from weft.tasks.support.evaluation.metrics import bleu, exact_match
from weft.tasks.support.inputs.image_questions import AskedImage, QuestionInputs, commonest_answers, usual_answers
from weft.tasks.support.language.generation import generate_texts, name_probabilities
from weft.tasks.support.losses import language_loss, mean_loss
from weft.tasks.support.splits.augmentation import image_changes
from weft.tasks.support.splits.captioned_images import (
    CaptionsSplit,
    Gallery,
    as_images,
    caption_tokenizer,
    hold_images_out,
    read_gallery,
    suitable_patch,
    suitable_stem,
)
from weft.tasks.support.splits.text_pairs import Ends, evenly
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

SIDE = 96  # pixels, where none are asked for
SMALL_VOCABULARY = 256
MOST_TOKENS = 128
LENGTH_MARGIN = 1.5
IMAGES_TIMED = 16  # images by which the pace of describing is measured
SIZES = (Size(64, 3), Size(96, 3), Size(128, 4), Size(192, 4), Size(256, 5), Size(384, 6))


class CaptionsOptions(DataSpec):
    """`images`: the folder that they lie in. `size`: pixels per side; each image covers that square, its center is cut.

    `held_out` is a share of the images. `tokenizer`: auto (words), words, bpe, characters or a file; `least`: words
    that are seen less often are unknown; `lower`: all in lower case. `augment`: shift, flip, erase or none; flip makes
    captions wrong that say left and right. `blind`: learn from the texts alone, to see what the images are worth.
    `beam` and `penalty` are those of the beam search that the model is evaluated with.
    """

    images: str | None = None
    size: PositiveInt | None = None
    tokenizer: str = "auto"
    vocabulary: PositiveInt = 8192
    least: PositiveInt | None = None
    lower: bool = True
    augment: Names = ("shift",)
    blind: bool = False
    beam: PositiveInt = 3
    penalty: NonNegativeFloat = 1.0


class CaptionsTask(QuestionInputs, Task):
    """An image+text decoder, or an encoder-decoder that reads patches, learns what to say, or answer, of an image."""

    name = "captions"
    families = ("image-text", "encoder-decoder")
    metric = "bleu"
    picture = "captions"
    example = "picture.png"
    Options = CaptionsOptions
    auto = "an image-text decoder with a stem of convolutions before the patches (hybrid)"
    formats = (
        '.jsonl with lines such as {"image": "a.png", "text": "a red circle"}, or a table of image and caption;\n'
        'to answer questions: {"image": "a.png", "question": "what color is it?", "answer": "red"}, or such a table'
    )
    generates = takes_images = True

    tokenizer: Tokenizer

    def __init__(
        self, options: CaptionsOptions, tokenizer: Tokenizer, side: int, longest: int, question: int = 0
    ) -> None:
        """`longest` caption and `question` in tokens; without questions, the latter is 0."""
        self.options, self.tokenizer, self.side, self.longest = options, tokenizer, side, longest
        self.question, self.takes_questions = question, question > 0
        self.metric = "exact_match" if question else "bleu"
        self.ends = Ends.of(tokenizer)
        self.changes = image_changes(options.augment)

    @classmethod
    def prepare(
        cls, paths: Sequence[str], options: CaptionsOptions, seed: int, cache: Path, known: CaptionsTask | None = None
    ) -> PreparedData:
        """Read images and captions, hold a share of the images out, learn a tokenizer."""
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            train, held = _of_sample(found.train), _of_sample(found.validation)
        else:
            side = (options.size or SIDE) if known is None else known.side
            train = read_gallery(paths, options.images, side)
            if options.validation:
                held = read_gallery(options.validation, options.images, side)
            else:
                train, held = hold_images_out(train, options.held_out, seed)
        side = int(train.pixels.shape[1])
        asked = bool(train.questions)
        if known is None:
            texts = [_spelled(text, options) for text in (*(text for _, text in train.captions), *train.questions)]
            tokenizer = caption_tokenizer(options.tokenizer, texts, options.vocabulary, options.least)
            task = cls(options, tokenizer, side, 1, int(asked))
        elif side != known.side:
            raise DataError(f"images of {side} pixels per side, but the base run learned from {known.side}")
        else:
            task = cls(options, known.tokenizer, side, known.longest, known.question)
        split = task._split(train)
        task.longest = max(task.longest, max(map(len, split.texts)) + 1)
        task.question = max(task.question, *map(len, split.questions), 0)
        return PreparedData(task, split, task._split(held), None if found is None else found.best)

    def _split(self, gallery: Gallery) -> CaptionsSplit:
        self.expect_kind(gallery)
        texts = self.tokenizer.encode_many([_spelled(text, self.options) for _, text in gallery.captions])
        questions = [self._ask(question) for question in gallery.questions]
        patches = 0 if self.options.blind else self.default_model(Size()).prefix
        found = CaptionsSplit(gallery, texts, self.ends, self.changes, patches, questions=questions)
        return replace(found, packed=patches > 0 and not questions and len(texts) > len(gallery.pixels))

    def _ask(self, question: str) -> list[int]:
        return self.tokenizer.encode(_spelled(question, self.options))

    def question_pieces(self, question: str) -> list[str]:
        """The tokens of a question as texts."""
        return self.tokenizer.pieces(self._ask(question))

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> CaptionsTask:
        if tokenizer is None:
            raise WeftError("this run has no tokenizer.json: restore the file or train again")
        return cls(options, tokenizer, int(facts["side"]), int(facts["longest"]), int(facts.get("question", 0)))

    def facts(self) -> Tree:
        """The images' side in pixels, the longest caption in tokens, and the longest question if there are any."""
        return {"side": self.side, "longest": self.longest, **({"question": self.question} if self.question else {})}

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        found = find_sample(self.name, paths, 0)
        if found is not None:
            gallery = _of_sample(found.validation)
            if gallery.pixels.shape[1] != self.side:
                size = gallery.pixels.shape[1]
                raise DataError(
                    f"the sample's images have {size} pixels per side, but the run learned from {self.side}"
                )
            return self._split(gallery)
        return self._split(read_gallery(paths, self.options.images, self.side))

    def evaluation_subset(self, module: nn.Module, split: Split, seconds: float) -> Split:
        """Describing takes long: as many images of the split as fit into the time."""
        assert isinstance(split, CaptionsSplit)
        trial = evenly(len(split.gallery.asked), IMAGES_TIMED)
        began = time.perf_counter()
        self._describe(module, split, trial)
        fitting = int(seconds * len(trial) / (time.perf_counter() - began))
        return split if fitting >= len(split.gallery.asked) else replace(split, described=max(len(trial), fitting))

    # --- the model ---------------------------------------------------------------------------------------------------

    def default_model(self, size: Size) -> ImageTextSpec:
        """Convolutions of stride 2 make the patches; learned positions, layer norms without bias."""
        stem = suitable_stem(self.side)
        spec = self.fit(
            ImageTextSpec(
                width=size.width,
                layers=size.layers,
                mixer=AttentionSpec(heads=size.heads, bias=False, query_key_norm=LayerNormSpec(bias=False)),
                feedforward=ClassicSpec(activation="squared-relu", bias=False),
                positions=LearnedSpec(),
                norm=LayerNormSpec(bias=False),
                initialization=InitializationSpec(scheme="fan-in", zero_residual=True),
                image=self.side,
                patch=suitable_patch(self.side, len(stem)),
                stem=stem,
                dropout=size.dropout,
            )
        )
        assert isinstance(spec, ImageTextSpec)
        return spec

    def fit(self, spec: AnySpec) -> ImageTextSpec | EncoderDecoderSpec:
        """The vocabulary, the images' side and the length of this data; patches that divide the image."""
        fitted = {
            "vocabulary": self.tokenizer.vocabulary,
            "length": min(MOST_TOKENS, max(16, round(LENGTH_MARGIN * (self.question + self.longest)))),
        }
        if isinstance(spec, ImageTextSpec):
            return spec.replace(**fitted, **self._fit_patches(spec))
        self.expect_model(spec)
        assert isinstance(spec, EncoderDecoderSpec) and isinstance(spec.source, PatchSourceSpec)
        return spec.replace(**fitted, source=spec.source.replace(**self._fit_patches(spec.source)))

    def expect_model(self, spec: AnySpec) -> None:
        """The source of an encoder-decoder must be an image's patches."""
        if not isinstance(spec, EncoderDecoderSpec):
            return
        if not isinstance(spec.source, PatchSourceSpec):
            raise WeftError(
                f"task {self.name} reads images, but this model's source is {spec.source.kind}: choose "
                "source.kind patches, such as --preset nano-image-seq2seq"
            )
        if self.options.blind:
            raise WeftError("a model that looks at images by cross-attention cannot be blind: leave --preset out")

    def _fit_patches(self, given: ImageTextSpec | PatchSourceSpec) -> Tree:
        after = self.side if not given.stem else -(-self.side // 2 ** len(given.stem))
        patch = given.patch if after % given.patch == 0 else suitable_patch(self.side, len(given.stem))
        return {"image": self.side, "patch": patch, "channels": 3}

    def plain_model(self, name: str, size: Size) -> AnySpec:
        """Patches that leave a small grid: before the text, or as the source of an encoder-decoder."""
        spec, patches = super().plain_model(name, size), {"image": self.side, "patch": suitable_patch(self.side, 0)}
        if isinstance(spec, EncoderDecoderSpec):
            return spec.replace(source=PatchSourceSpec(**patches))
        return spec.replace(**patches)

    def sizes(self, train: Split) -> Sequence[Size]:
        """Thousands of captions do not fill a wide model, few words do not fill a middling one."""
        if self.tokenizer.vocabulary < SMALL_VOCABULARY:
            return SIZES[:2]
        return [size for size in SIZES if size.width <= (192 if len(train) < 20_000 else 256)]

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Photos and their captions are few: dropout grows with the epochs."""
        dropout = 0.0 if epochs < 3 or self.tokenizer.vocabulary < SMALL_VOCABULARY else 0.1 if epochs < 8 else 0.2
        return Recipe(
            dropout=dropout, training={"smoothing": 0.0 if self.tokenizer.vocabulary < SMALL_VOCABULARY else 0.1}
        )

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- log p of each token of the caption, given the image and the true tokens before it."""
        tokens, images = batch.inputs["tokens"], batch.inputs.get("images")
        mask = Documents(batch.inputs["documents"]) if "documents" in batch.inputs else None
        output = module(images, tokens) if _crosses(module) else module(tokens, mask=mask, images=images)
        return language_loss(module, output, batch.labels, batch.count, smoothing)

    # --- evaluation and answers ---------------------------------------------------------------------------------------

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Loss over all captions; BLEU of one caption per image against all that it has.

        Of questions the share of answers that are, word for word, one of those given.
        """
        return self.score_examples(module, split, size).metrics

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """Examples are images that were described, or questions that were answered."""
        assert isinstance(split, CaptionsSplit)
        chosen = evenly(len(split.gallery.asked), split.described)
        texts, references = self._describe(module, split, chosen, report), self._references(split, chosen)
        matched, loss = exact_match(texts, references), mean_loss(self, module, split, size)
        if self.takes_questions:
            metrics = {"exact_match": matched, "loss": loss, "questions": len(chosen)}
        else:
            metrics = {"loss": loss, "bleu": bleu(texts, references), "exact_match": matched, "images": len(chosen)}
        asked = [split.gallery.asked[number] for number in chosen]
        return text_scores(metrics, texts, references, lambda place: f"#{asked[place][0]} {asked[place][1]}".strip())

    def _references(self, split: CaptionsSplit, chosen: Sequence[int]) -> list[list[str]]:
        answers = [split.gallery.answers_to(split.gallery.asked[number]) for number in chosen]
        return [[_spelled(text, self.options) for text in texts] for texts in answers]

    def _describe(
        self, module: nn.Module, split: CaptionsSplit, chosen: Sequence[int], report: Report | None = None
    ) -> list[str]:
        """A caption for each image, or the answer to each question, by beam search."""
        generation = GenerationOptions(beam=self.options.beam, top=0)
        found: list[str] = []
        for first in range(0, len(chosen), generation.batch):
            asked = [split.gallery.asked[number] for number in chosen[first : first + generation.batch]]
            images = as_images(split.gallery.pixels[np.array([image for image, _ in asked])])
            questions = [self._ask(question) for _, question in asked]
            written = self._write(module, images, questions, generation)
            found += [self.tokenizer.decode(row[0].tokens) for row in written]
            if report is not None:
                report(len(found) / len(chosen))
        return found

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """A caption of each image; of a run that answers questions, the answer to the one that comes with it."""
        answers = []
        asked = [self.asked_image(given, generation.question) for given in inputs]
        for first in range(0, len(asked), generation.batch):
            some = asked[first : first + generation.batch]
            images = as_images(np.stack([read_image(one.image, self.side) for one in some]))
            questions = [self._ask(one.question) for one in some]
            for one, found in zip(some, self._write(module, images, questions, generation, first), strict=True):
                answers += [self._answer(one, text) for text in found]
        return answers

    def _answer(self, asked: AskedImage, text: GeneratedText) -> Answer:
        question = {"question": asked.question} if asked.question else {}
        more = {"tokens": self.tokenizer.pieces(text.tokens), **name_probabilities(text, self.tokenizer)}
        return Answer(asked.image, self.tokenizer.decode(text.tokens), {**question, **more})

    def _write(
        self,
        module: nn.Module,
        images: Tensor,
        questions: Sequence[Sequence[int]],
        generation: GenerationOptions,
        first: int = 0,
    ) -> list[list[GeneratedText]]:
        """Texts that follow each image, its question if there is one, and the start token."""
        spec: Any = module.spec
        room = spec.length - max(map(len, questions))
        if room < 1:
            raise WeftError(
                f"a question of {spec.length - room} tokens, but the model reads {spec.length}: ask shorter"
            )
        request = GenerationRequest(
            [[*question, self.ends.start] for question in questions],
            generation.sampling(0.0),
            max_tokens=generation.max_tokens or min(room, self.longest + 1),
            stop=(self.ends.stop,),
            seeds=[generation.seed + first + place for place in range(len(images))],
            samples=generation.samples,
            **({"source": images} if _crosses(module) else {"images": None if self.options.blind else images}),
        )
        return generate_texts(module, request, generation, penalty=self.options.penalty)

    def preview(self, module: nn.Module, split: Split) -> str:
        """The caption of one held-out image, or the answer to a question about it."""
        assert isinstance(split, CaptionsSplit)
        image, question = split.gallery.asked[0]
        pixels = as_images(split.gallery.pixels[np.array([image])])
        found = self._write(module, pixels, [self._ask(question)], GenerationOptions(top=0))[0][0]
        before = f"{question} " if question else ""
        return f"{before}{self.tokenizer.decode(found.tokens)!r} ({split.gallery.answers_to((image, question))[0]!r})"

    def baseline_facts(self, train: Split) -> Tree:
        assert isinstance(train, CaptionsSplit)
        return commonest_answers(train.gallery)

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """BLEU of training's commonest caption, said of every image; of questions, what each is answered with most."""
        assert isinstance(split, CaptionsSplit)
        if "commonest" not in facts:
            return {}
        texts = self._references(split, range(len(split.gallery.asked)))
        said = [_spelled(text, self.options) for text in usual_answers(facts, split.gallery)]
        if self.takes_questions:
            return {"exact match of the commonest answer to each question": exact_match(said, texts)}
        return {"bleu of the commonest caption": bleu(said, texts)}


def _crosses(module: nn.Module) -> bool:
    """Whether the image is the source of an encoder-decoder."""
    return isinstance(module.spec, EncoderDecoderSpec)


def _of_sample(split: SampleCaptions) -> Gallery:
    return Gallery(split.pixels, tuple(enumerate(split.texts)), split.questions)


def _spelled(text: str, options: CaptionsOptions) -> str:
    return text.lower() if options.lower else text
