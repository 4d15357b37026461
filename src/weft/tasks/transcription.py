"""Task transcription: a text from a sequence of vectors, p(y | x) = prod_t p(y_t | x, y_1 .. y_(t-1)).

The vectors are log-mel frames of speech, or any others. An encoder listens to all of them; the decoder spells the text
and looks at the encoder's states by cross-attention (Listen, Attend and Spell, Chan et al. 2016).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import nn

from weft.data.readers.files import DataError
from weft.data.readers.sounds import HOP, log_mel
from weft.data.readers.transcripts import SourceSequences, Transcripts, read_sources, read_transcripts
from weft.data.samples import SAMPLE_RATE, SpokenText
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import LengthError, WeftError
from weft.foundation.spec import Tree
from weft.inference.decoding.generated import GeneratedText
from weft.inference.decoding.request import GenerationRequest
from weft.models.build import AnySpec
from weft.models.encoder_decoder import EncoderDecoderSpec, EncoderSideSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, ConvolutionSpec, InitializationSpec, LayerNormSpec
from weft.models.position_specs import LearnedSpec
from weft.models.sources import SeriesSourceSpec, VectorSourceSpec
from weft.tasks.support.class_labels import ASKED, COMPARED, nearest_neighbor
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, error_rate_statistics, text_scores
from weft.tasks.support.evaluation.metrics import character_error_rate, exact_match, word_error_rate
from weft.tasks.support.language.generation import generate_texts
from weft.tasks.support.losses import language_loss, mean_loss
from weft.tasks.support.splits.augmentation import Floats, resample
from weft.tasks.support.splits.text_pairs import Ends, evenly, learn_tokenizer, real_mask
from weft.tasks.support.splits.transcripts import TranscriptsSplit, frame_changes, hold_transcripts_out
from weft.tasks.support.splits.vector_sequences import Preparation
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

LENGTH_MARGIN, SHORTEST = 1.5, 32  # a model's lengths: what was seen in training and half as much again
PATCHES_A_TOKEN, WIDEST_PATCH = 2, 4  # an encoder sees about so many patches per token of text, of so many steps
MOST_WORD_TOKENS = 64  # different ones, that are tokens by themselves
SMALL_DATA_TOKENS = 400_000  # tokens; below, one small model is enough, and small batches
SEQUENCES_TIMED = 16  # sequences by which the pace of transcribing is measured
COMPARED_TIMES = 16  # places in time that the nearest neighbor compares
SIZES = (Size(64, 2), Size(96, 4), Size(128, 4), Size(192, 6), Size(256, 6), Size(384, 8))


class TranscriptionOptions(DataSpec):
    """`files`: the folder that sounds or vectors lie in. `columns`: those of file and text, by name or number.

    `tokenizer`: auto (words where there are few, else characters for short texts or bpe), characters, words, bpe or a
    file; `vocabulary` bounds it. `lower`: all in lower case. `augment`: speed, noise, erase or none. `beam` and
    `penalty` are those of the beam search that the model is evaluated with.
    """

    files: str | None = None
    columns: Names = ()
    tokenizer: str = "auto"
    vocabulary: PositiveInt | None = None
    lower: bool = True
    augment: Names = ("speed", "noise", "erase")
    beam: PositiveInt = 3
    penalty: NonNegativeFloat = 1.0


class TranscriptionTask(Task):
    """An encoder-decoder learns to write what is said, or what any sequence of vectors means."""

    name = "transcription"
    families = ("encoder-decoder",)
    metric = "cer"
    picture = "transcription"
    auto = "an encoder-decoder over vectors, whose encoder has convolution and attention in turn (hybrid)"
    example = "speech.wav"
    Options = TranscriptionOptions
    generates = True

    tokenizer: Tokenizer

    def __init__(
        self,
        options: TranscriptionOptions,
        tokenizer: Tokenizer,
        preparation: Preparation,
        sources: Tree,
        longest: tuple[int, int],
    ) -> None:
        """`sources`: channels and sampling rate; `longest`: steps of a source and tokens of a text."""
        self.options, self.tokenizer, self.preparation = options, tokenizer, preparation
        self.sources, self.longest = sources, longest
        self.ends = Ends.of(tokenizer)
        self.changes = frame_changes(options.augment)

    @classmethod
    def prepare(
        cls,
        paths: Sequence[str],
        options: TranscriptionOptions,
        seed: int,
        cache: Path,
        known: TranscriptionTask | None = None,
    ) -> PreparedData:
        """Read sequences and texts, hold a share out, learn a tokenizer and the scale of each channel."""
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            train, held = _of_sample(found.train), _of_sample(found.validation)
        elif options.validation:
            train, held = (
                read_transcripts(given, options.files, options.columns) for given in (paths, options.validation)
            )
        else:
            data = read_transcripts(paths, options.files, options.columns)
            train, held = hold_transcripts_out(data, options.held_out, seed)
        task = (
            cls._learn(train, options)
            if known is None
            else cls(options, known.tokenizer, known.preparation, known.sources, known.longest)
        )
        split = task._split(train, learn=True)
        steps, tokens = max(map(len, split.values)), max(map(len, split.targets)) + 1
        task.longest = max(task.longest[0], steps), max(task.longest[1], tokens)
        return PreparedData(task, split, task._split(held), None if found is None else found.best)

    @classmethod
    def _learn(cls, data: Transcripts, options: TranscriptionOptions) -> TranscriptionTask:
        texts = [_spelled(text, options) for text in data.texts]
        kind = options.tokenizer
        if kind == "auto" and len({word for text in texts for word in text.split()}) <= MOST_WORD_TOKENS:
            kind = "words"
        tokenizer = learn_tokenizer(kind, texts, options.vocabulary)
        preparation = Preparation.learn(data.sources.values, 1, None, differences=False, scaled=True)
        steps = sum(map(len, data.sources.values))
        tokens = sum(len(ids) + 1 for ids in tokenizer.encode_many(texts))
        patch = max(1, min(WIDEST_PATCH, steps // (PATCHES_A_TOKEN * tokens)))
        facts = {"channels": data.sources.channels, "rate": data.sources.rate, "patch": patch}
        return cls(options, tokenizer, preparation, facts, (1, 1))

    def _split(self, data: Transcripts, learn: bool = False) -> TranscriptsSplit:
        texts = [_spelled(text, self.options) for text in data.texts]
        targets = self.tokenizer.encode_many(texts)
        changes = self.changes if learn else ()
        return TranscriptsSplit(
            self._begun(data.sources), texts, targets, self.ends, self.preparation, changes, self.sources["patch"]
        )

    def _begun(self, data: SourceSequences) -> list[Floats]:
        """Values before augmentation, refused if they are of another kind than those that were learned from."""
        if data.channels != self.sources["channels"]:
            raise DataError(
                f"{data.names[0]} has {data.channels} channels, but the run learned from {self.sources['channels']}"
            )
        if data.rate != self.sources["rate"]:
            said = [
                f"sounds of {rate} samples per second" if rate else "vectors"
                for rate in (data.rate, self.sources["rate"])
            ]
            raise DataError(f"{data.names[0]}: {said[0]}, but the run learned from {said[1]}: give the same")
        return [self.preparation.begin(one) for one in data.values]

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> TranscriptionTask:
        if tokenizer is None:
            raise WeftError("this run has no tokenizer.json: restore the file or train again")
        steps, tokens = facts["longest"]
        return cls(options, tokenizer, Preparation.from_tree(facts["preparation"]), facts["sources"], (steps, tokens))

    def facts(self) -> Tree:
        """Channels, sampling rate, the longest source and text, and how values are scaled."""
        return {"sources": self.sources, "longest": list(self.longest), "preparation": self.preparation.to_tree()}

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        found = find_sample(self.name, paths, 0)
        if found is not None:
            return self._split(_of_sample(found.validation))
        return self._split(read_transcripts(paths, self.options.files, self.options.columns))

    def evaluation_subset(self, module: nn.Module, split: Split, seconds: float) -> Split:
        """Transcribing takes long: as many sequences of the split as fit into the time."""
        assert isinstance(split, TranscriptsSplit)
        trial = evenly(len(split), SEQUENCES_TIMED)
        began = time.perf_counter()
        self._transcribe(module, [split.row(n) for n in trial], GenerationOptions(beam=self.options.beam))
        fitting = int(seconds * len(trial) / (time.perf_counter() - began))
        return split if fitting >= len(split) else replace(split, decoded=max(len(trial), fitting))

    # --- the model ---------------------------------------------------------------------------------------------------

    def default_model(self, size: Size) -> EncoderDecoderSpec:
        """The encoder mixes near steps by convolution and all by attention in turn; half as many decoder layers."""
        attention = AttentionSpec(heads=size.heads, bias=False, query_key_norm=LayerNormSpec(bias=False))
        return self.fit(
            EncoderDecoderSpec(
                source=SeriesSourceSpec(patch=self.sources["patch"]),
                width=size.width,
                layers=size.layers,
                decoder_layers=max(1, size.layers // 2),
                mixer=attention,
                encoder=EncoderSideSpec(mixer=(ConvolutionSpec(kernel=5), attention)),
                feedforward=ClassicSpec(hidden=2 * size.width, activation="squared-relu", bias=False),
                positions=LearnedSpec(),
                norm=LayerNormSpec(bias=False),
                initialization=InitializationSpec(scheme="fan-in", zero_residual=True),
                dropout=size.dropout,
            )
        )

    def plain_model(self, name: str, size: Size) -> AnySpec:
        """The encoder-decoder whose source is patches of vectors."""
        return super().plain_model(name, size).replace(source=SeriesSourceSpec(patch=self.sources["patch"]))

    def fit(self, spec: AnySpec) -> EncoderDecoderSpec:
        """The channels, the vocabulary and the lengths of this data."""
        assert isinstance(spec, EncoderDecoderSpec)
        source = self._vectors(spec)
        steps, tokens = (
            8 * -(-int(LENGTH_MARGIN * most) // 8) for most in (-(-self.longest[0] // source.steps), self.longest[1])
        )
        return spec.replace(
            source=source.replace(channels=self.sources["channels"], length=steps),
            vocabulary=self.tokenizer.vocabulary,
            length=max(SHORTEST, tokens),
        )

    def expect_model(self, spec: AnySpec) -> None:
        """The source must be vectors of this data's channels."""
        assert isinstance(spec, EncoderDecoderSpec)
        channels = self._vectors(spec).channels
        if channels != self.sources["channels"]:
            raise WeftError(
                f"source.channels is {channels}, but this data has {self.sources['channels']}: "
                f"--set source.channels={self.sources['channels']}"
            )

    def _vectors(self, spec: EncoderDecoderSpec) -> VectorSourceSpec:
        if not isinstance(spec.source, VectorSourceSpec):
            raise WeftError(
                f"task {self.name} reads vectors, but this model's source is {spec.source.kind}: choose "
                "source.kind series or vectors, such as --preset nano-speech-seq2seq"
            )
        return spec.source

    def sizes(self, train: Split) -> Sequence[Size]:
        """Little data is learned by one small model."""
        return SIZES[:1] if train.tokens < SMALL_DATA_TOKENS else SIZES[1:]

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Where to look is learned first, and takes many steps: small models have small batches."""
        training: Tree = {"batch": 512, "rate": 0.01} if size.width <= SIZES[0].width else {"smoothing": 0.1}
        return Recipe(0.0 if epochs < 10 else 0.1, training, most_epochs=200.0)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- log p of each token of the text, given the whole sequence and the true tokens before it."""
        x = batch.inputs
        source, real = cast(Any, module.spec).source.fill(x["source"], x["source_lengths"])
        output = module(source, x["target"], source_mask=real_mask(real))
        return language_loss(module, output, batch.labels, batch.count, smoothing)

    # --- evaluation and answers ---------------------------------------------------------------------------------------

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Loss with teacher forcing; error rates by characters and words of what a beam search finds, exact match."""
        return self.score_examples(module, split, size).metrics

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """Examples are sequences that were transcribed."""
        assert isinstance(split, TranscriptsSplit)
        chosen = evenly(len(split), split.decoded)
        found = self._transcribe(module, [split.row(n) for n in chosen], GenerationOptions(beam=self.options.beam))
        texts = [self.tokenizer.decode(row[0].tokens) for row in found]
        references = [split.texts[n] for n in chosen]
        if report is not None:
            report(1.0)
        metrics = {
            "cer": character_error_rate(texts, references),
            "wer": word_error_rate(texts, references),
            "exact_match": exact_match(texts, references),
            "loss": mean_loss(self, module, split, size),
            "sequences": len(chosen),
        }
        scores = text_scores(metrics, texts, references, lambda place: f"#{chosen[place]}")
        scores.statistics.update(error_rate_statistics(texts, references))
        return scores

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """The text of each .wav, or of each sequence of an .npz."""
        data = read_sources([str(given) for given in inputs])
        rows = [self.preparation.end(one) for one in self._begun(data)]
        source: Any = cast(Any, module.spec).source
        for name, row in zip(data.names, rows, strict=True):
            if -(-len(row) // source.steps) > source.length:
                raise LengthError(
                    f"{name} has {len(row)} steps, but this model takes {source.length * source.steps}: "
                    "cut it, or train on longer ones"
                )
        answers = []
        for name, row, found in zip(data.names, rows, self._transcribe(module, rows, generation), strict=True):
            for one in found:
                more: Tree = {"tokens": self.tokenizer.pieces(one.tokens), "source_tokens": self._moments(row, source)}
                answers.append(Answer(name, self.tokenizer.decode(one.tokens), more))
        return answers

    def _moments(self, row: Floats, source: VectorSourceSpec) -> list[str]:
        """When each token of a source begins: in seconds for sounds, else in steps."""
        firsts = range(0, len(row), source.steps)
        return [f"{step * HOP:.2f}" if self.sources["rate"] else str(step) for step in firsts]

    def _transcribe(
        self, module: nn.Module, rows: Sequence[Floats], generation: GenerationOptions
    ) -> list[list[GeneratedText]]:
        """What is written for each sequence, `generation.samples` each, in batches of like length."""
        spec: Any = module.spec
        found: list[list[GeneratedText]] = [[] for _ in rows]
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        for first in range(0, len(order), generation.batch):
            places = order[first : first + generation.batch]
            request = GenerationRequest(
                [[self.ends.start]] * len(places),
                generation.sampling(0.0),
                max_tokens=generation.max_tokens or min(spec.length, round(LENGTH_MARGIN * self.longest[1])),
                stop=(self.ends.stop,),
                seeds=[generation.seed + place for place in places],
                samples=generation.samples,
                source=[torch.from_numpy(rows[place]) for place in places],
            )
            written = generate_texts(module, request, generation, penalty=self.options.penalty)
            for place, texts in zip(places, written, strict=True):
                found[place] = texts
        return found

    def preview(self, module: nn.Module, split: Split) -> str:
        """What is written for one held-out sequence."""
        assert isinstance(split, TranscriptsSplit)
        found = self._transcribe(module, [split.row(0)], GenerationOptions())[0][0]
        return f"{self.tokenizer.decode(found.tokens)!r} ({split.texts[0]!r})"

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """CER of the nearest neighbor's text, among sequences stretched to the same few steps."""
        assert isinstance(train, TranscriptsSplit) and isinstance(split, TranscriptsSplit)
        known, asked = evenly(len(train), COMPARED), evenly(len(split), ASKED)
        near = nearest_neighbor(_stretched(train, known), np.array(known), _stretched(split, asked))
        truth = [split.texts[n] for n in asked]
        return {"cer of the nearest neighbor's text": character_error_rate([train.texts[n] for n in near], truth)}

    def baseline_facts(self, train: Split) -> Tree:
        assert isinstance(train, TranscriptsSplit)
        return {"commonest": Counter(train.texts).most_common(1)[0][0]}

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """CER of training's commonest text."""
        assert isinstance(split, TranscriptsSplit)
        if "commonest" not in facts:
            return {}
        said = [facts["commonest"]] * len(split)
        return {"cer of the commonest text": character_error_rate(said, split.texts)}


def _of_sample(split: Sequence[SpokenText]) -> Transcripts:
    """A sample's split: sounds go the way of .wav files."""
    values = [log_mel(one.samples, SAMPLE_RATE) for one in split]
    names = [f"{number} of the sample" for number in range(len(split))]
    return Transcripts(SourceSequences(names, values, SAMPLE_RATE), [one.text for one in split])


def _spelled(text: str, options: TranscriptionOptions) -> str:
    return text.lower() if options.lower else text


def _stretched(split: TranscriptsSplit, chosen: Sequence[int]) -> Floats:
    """Sequences at a few places in time, [n, places x channels]."""
    rows = [split.row(n) for n in chosen]
    return np.stack([resample(row, np.linspace(0, len(row) - 1, COMPARED_TIMES)).ravel() for row in rows])
