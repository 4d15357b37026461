"""Task tagging: one label per word, p(tag_t | sentence) = softmax(W h_t + b) of an encoder's state h_t at that word.

Loss: - log p(tag), in nats. A word is seen whole and by its characters, so that new words are known by their endings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import nn

from weft.data.batching import READ_AT_ONCE
from weft.data.readers.classes import number_labels
from weft.data.readers.files import DataError
from weft.data.readers.texts import read_tagged
from weft.data.tokenizers.lexicon import Lexicon
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.encoder import EncoderSpec, PerTokenSpec
from weft.models.output import Output
from weft.models.part_specs import AttentionSpec, ClassicSpec, ConvolutionSpec, InitializationSpec
from weft.models.position_specs import RotarySpec
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.class_labels import classes_after, in_terms_of
from weft.tasks.support.evaluation.baselines import FrequentTag
from weft.tasks.support.evaluation.class_scores import (
    ClassEvaluation,
    TemperatureScaled,
    always_commonest,
    commonest,
    evaluate_classes,
)
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, f1
from weft.tasks.support.evaluation.metrics import entity_f1, entity_spans, has_spans, token_accuracy
from weft.tasks.support.evaluation.resampling import Statistic
from weft.tasks.support.inputs.input_rows import TextInputs
from weft.tasks.support.inputs.tag_encoders import PieceTagEncoder, TagEncoder, WordTagEncoder, learn_tag_encoder
from weft.tasks.support.language.imported_text import ImportedTextTask
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.support.losses import class_loss
from weft.tasks.support.ngram_fit import FitsNgrams, ngram_skip
from weft.tasks.support.splits.sentences import Sentences, ask, probabilities
from weft.tasks.task import (
    Answer,
    Batch,
    DataSpec,
    GenerationOptions,
    Loss,
    PreparedData,
    Recipe,
    Size,
    Split,
    Task,
    find_sample,
)

Tagged = tuple[Sequence[str], Sequence[str]]
LONGEST_SENTENCE = 512
SHOWN = 12


class TaggingOptions(DataSpec):
    """`column` of the tag, from 1: without it UPOS in CoNLL-U (column 4; 5 is XPOS), else the last one.

    `tokenizer`: auto (words with their characters), words, characters, bpe, or a file to load; of a word in pieces the
    first one has the tag. `vocabulary` bounds words and bpe. A word seen n times is hidden in training with chance
    rarity / (rarity + n), so that the model learns to go by its characters or its neighbors; then it can do so with new
    words.
    """

    column: PositiveInt | None = None
    tokenizer: str = "auto"
    vocabulary: PositiveInt = 30_000
    rarity: NonNegativeFloat = 1.0


class TaggingTask(FitsNgrams, TemperatureScaled, TextInputs, Task):
    """An encoder learns the tags of words."""

    name = "tagging"
    families = ("encoder",)
    metric = "accuracy"
    picture = "tagging"
    example = '"a sentence"'
    Options = TaggingOptions
    formats = "CoNLL-U, or lines of word and tag with blank lines between sentences (.conll, .txt, .tsv, .bio)"
    auto = (
        "an encoder that reads words by their characters, with convolution and attention in turn (hybrid) and a skip "
        "from n-grams to the tags"
    )
    compatible_tasks = ("embedding", "fill-mask", "regression")
    plain_options: ClassVar[Tree] = {"tokenizer": "words"}

    def __init__(self, options: TaggingOptions, encoder: TagEncoder, tags: tuple[str, ...]) -> None:
        self.options, self.encoder, self.tags = options, encoder, tags
        self.tokenizer = encoder.tokenizer

    @classmethod
    def prepare(
        cls,
        paths: Sequence[str],
        options: TaggingOptions,
        seed: int,
        cache: Path,
        known: TaggingTask | ImportedTextTask | None = None,
    ) -> PreparedData:
        """Read tagged sentences, learn words, characters and tags from what is not held out."""
        found = find_sample(cls.name, paths, seed)
        train: Sequence[Tagged]
        held: Sequence[Tagged]
        if found is not None:
            train, held = found.train, found.validation
        else:
            train, held = read_tagged(paths, options.column), []
        _, tags = number_labels([tag for _, of_words in train for tag in of_words], learn=False)
        if options.validation:
            held = read_tagged(options.validation, options.column)
        elif found is None:
            train, held = _hold_out(train, options.held_out, seed)
        if len(tags) < 2:
            raise DataError(f"there is only one tag ({tags[0]!r}): two or more are needed to tell apart")
        if known is None:
            task = cls(options, learn_tag_encoder(options.tokenizer, [w for w, _ in train], options.vocabulary), tags)
        else:
            encoder = (
                PieceTagEncoder(known.tokenizer, known.frame) if isinstance(known, ImportedTextTask) else known.encoder
            )
            task = cls(options, encoder, classes_after(tags, known.answers or ()))
        best = None if found is None else found.best
        # The pieces of a model that was trained elsewhere are all known to it.
        hides = known is None or isinstance(task.encoder, WordTagEncoder)
        return PreparedData(task, task._split(train, options.rarity if hides else 0.0), task._split(held), best)

    def _split(self, sentences: Sequence[Tagged], rarity: float = 0.0) -> Sentences:
        numbers, names = number_labels([tag for _, tags in sentences for tag in tags], learn=False)
        numbers = in_terms_of(self.tags, numbers, names)
        labels = np.split(numbers, np.cumsum([len(tags) for _, tags in sentences])[:-1])
        return self.encoder.make_split([tuple(words) for words, _ in sentences], labels, rarity)

    @property
    def answers(self) -> tuple[str, ...]:
        return self.tags

    def with_new_classes(self, spec: AnySpec) -> EncoderSpec:
        assert isinstance(spec, EncoderSpec)
        return spec.replace(output=PerTokenSpec(classes=len(self.tags)))

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> TaggingTask:
        tags = tuple(facts["tags"])
        if "lexicon" in facts:
            return cls(options, WordTagEncoder(Lexicon.from_tree(facts["lexicon"])), tags).with_temperature(facts)
        if tokenizer is None:
            raise WeftError("this run has no tokenizer.json: restore the file or train again")
        return cls(options, PieceTagEncoder(tokenizer, Frame.of(facts)), tags).with_temperature(facts)

    def facts(self) -> Tree:
        """Tags, what is known about words, and the temperature."""
        return {"tags": list(self.tags), **self.encoder.facts(), **self.temperature_facts()}

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """Tagged sentences to evaluate on; a tag that training never saw is an error."""
        found = find_sample(self.name, paths, 0)
        return self._split(found.validation if found is not None else read_tagged(paths, self.options.column))

    def default_model(self, size: Size) -> EncoderSpec:
        """Convolution and attention in turn: what stands beside a word, and what far from it; and what single words,
        pairs and endings tell."""
        spec = self.fit(
            EncoderSpec(
                width=size.width,
                layers=size.layers,
                length=size.context,
                mixer=(ConvolutionSpec(kernel=3), AttentionSpec(heads=size.heads)),
                feedforward=ClassicSpec(hidden=2 * size.width),
                positions=RotarySpec(),
                dropout=size.dropout,
                initialization=InitializationSpec(scheme="fan-in", zero_residual=True, embedding=0.1),
            )
        )
        return ngram_skip(spec)

    def fit(self, spec: AnySpec) -> EncoderSpec:
        """The words, characters and tags of this data."""
        assert isinstance(spec, EncoderSpec)
        return self.encoder.fit_spec(spec, len(self.tags))

    def fit_plain(self, name: str, size: Size) -> AnySpec:
        """Every word has an answer of its own, so there is no class token."""
        return super().fit_plain(name, size).replace(class_token=False)

    def sizes(self, train: Split) -> Sequence[Size]:
        """Small ones: a word's tag follows from few others."""
        return tuple(Size(width, 2, LONGEST_SENTENCE) for width in (32, 64, 96, 128, 192))

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Much is held back; tags are learned in a few epochs."""
        training = {"smoothing": 0.05, "ema": 0.99}
        return Recipe(dropout=0.4 if epochs > 4 else 0.2, training=training, most_epochs=12)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- log p(tag) of each word."""
        return class_loss(ask(module, batch), batch.labels, batch.count, smoothing)

    def call(self, module: nn.Module, batch: Batch) -> Output:
        return ask(module, batch)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Token accuracy, macro F1 over tags, loss in nats per word; where tags mark spans also their F1."""
        return self.score_examples(module, split, size).metrics

    def _metrics(self, evaluation: ClassEvaluation) -> dict[str, Any]:
        numbers = {"sentences": len(evaluation.truth), "words": int(evaluation.counts.sum())}
        found: dict[str, Any] = {**evaluation.metrics(), **numbers}
        if has_spans(self.tags):
            found["entity_f1"] = entity_f1(*self._tags(evaluation))
        return found

    def _tags(self, evaluation: ClassEvaluation) -> tuple[list[list[str]], list[list[str]]]:
        """(said, truth) by name."""
        return [self._names(row) for row in evaluation.said], [self._names(row) for row in evaluation.truth]

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """Examples are sentences; where tags mark spans, each adds those that are right, given and true."""
        assert isinstance(split, Sentences)
        evaluation = evaluate_classes(module, split, size, self.call, report, self.temperature)
        scores = evaluation.scores(self._metrics(evaluation), self.tags, lambda n: " ".join(split.texts[n]))
        if has_spans(self.tags):
            pairs = zip(*self._tags(evaluation), strict=True)
            spans = [(set(entity_spans(said)), set(entity_spans(true))) for said, true in pairs]
            rows = [(len(ours & theirs), len(ours), len(theirs)) for ours, theirs in spans]
            scores.statistics["entity_f1"] = Statistic(np.array(rows, dtype=np.float64), f1)
        return scores

    def _names(self, numbers: Any) -> list[str]:
        return [self.tags[number] for number in numbers]

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """For each sentence, a text or a list of words, its words' tags; with the words and the tags' probabilities."""
        sentences = [self._words(given) for given in inputs]
        if not sentences:
            return []
        labels = [np.zeros(len(words), dtype=np.int64) for words in sentences]
        split = self.encoder.make_split(sentences, labels).cut(cast(Any, module.spec).length)
        # A long sentence is cut into pieces, one after the other; put end to end they are the sentences again.
        asked = torch.from_numpy(np.concatenate(split.labels) != IGNORED)
        shares_of_all = torch.cat(probabilities(module, split, READ_AT_ONCE, self.temperature))[asked]
        answers = []
        for given, words, shares in zip(inputs, sentences, shares_of_all.split([*map(len, sentences)]), strict=True):
            best = self._names(shares.argmax(-1).tolist())
            sure = [round(share, 6) for share in shares.amax(-1).tolist()]
            answers.append(Answer(given, best, {"tokens": words, "probabilities": sure}))
        return answers

    def _words(self, given: Any) -> list[str]:
        words = self.encoder.split(given) if isinstance(given, str) else [str(word) for word in given]
        if not words:
            raise WeftError("a sentence without a word cannot be tagged: give one or more words")
        return words

    def preview(self, module: nn.Module, split: Split) -> str:
        """The first held-out sentence with the tags that the model gives; wrong ones with the true tag."""
        assert isinstance(split, Sentences)
        words = list(split.texts[0])[:SHOWN]
        answer = self.predict(module, [words], GenerationOptions())[0]
        truth = self._names(split.answers(0)[: len(words)])
        said = (tag if tag == right else f"{tag}(!{right})" for tag, right in zip(answer.output, truth, strict=True))
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, said, strict=True))

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """Each word's most frequent tag, new words by their ending."""
        assert isinstance(train, Sentences) and isinstance(split, Sentences)
        known, truth = ([self._names(one.answers(n)) for n in range(len(one))] for one in (train, split))
        said = FrequentTag.fit(list(zip(train.texts, known, strict=True))).predict(split.texts)
        return {"most frequent tag": token_accuracy(said, truth)}

    def baseline_facts(self, train: Split) -> Tree:
        assert isinstance(train, Sentences)
        return commonest(train.labels, self.tags)

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """The accuracy of training's most frequent tag, given to every word."""
        assert isinstance(split, Sentences)
        return always_commonest(facts, split.labels, self.tags)


def _hold_out(sentences: Sequence[Tagged], share: float, seed: int) -> tuple[list[Tagged], list[Tagged]]:
    """(to learn from, held out), drawn by the seed."""
    if not 0 < share < 1:
        raise WeftError(f"held_out {share:g} is no share: choose a number between 0 and 1, such as 0.1")
    if len(sentences) < 2:
        raise DataError("one sentence cannot be split: give more, or --set data.validation=FILE")
    order = torch.randperm(len(sentences), generator=generator(seed, "hold out")).tolist()
    out = set(order[: max(1, min(len(sentences) - 1, round(share * len(sentences))))])
    both: tuple[list[Tagged], list[Tagged]] = ([], [])
    for number, sentence in enumerate(sentences):
        both[number in out].append(sentence)
    return both
