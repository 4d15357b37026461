"""Task classification: one label per text, p(class | text) = softmax(W h + b) of an encoder's pooled state h; or one
per node of a graph, where nodes see their neighbors alone.

Loss: - log p(label), in nats. Texts are read as words with their characters, or by a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt
from torch import nn

from weft.data.readers.classes import number_labels
from weft.data.readers.files import DataError
from weft.data.readers.graphs import LabeledGraph, are_graphs, read_graphs
from weft.data.readers.tables import TableOptions
from weft.data.readers.texts import read_labeled
from weft.data.tokenizers.lexicon import Lexicon
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foreign.user_module import ModuleInterface
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.build import AnySpec
from weft.models.encoder import EncoderSpec
from weft.models.output import Output
from weft.models.part_specs import Share
from weft.tasks.support.class_labels import classes_after, hold_out, in_terms_of
from weft.tasks.support.evaluation.baselines import BagOfBigrams
from weft.tasks.support.evaluation.class_scores import (
    TemperatureScaled,
    always_commonest,
    commonest,
    evaluate_classes,
)
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report
from weft.tasks.support.evaluation.metrics import accuracy
from weft.tasks.support.inputs.input_encoders import (
    InputEncoder,
    SetEncoder,
    TokenEncoder,
    WordEncoder,
    learn_encoder,
    pooled_answer,
)
from weft.tasks.support.inputs.input_rows import TextInputs
from weft.tasks.support.inputs.node_encoder import NodeEncoder, Nodes
from weft.tasks.support.inputs.table_data import TableDataSpec
from weft.tasks.support.language.imported_text import ImportedTextTask
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.support.losses import class_loss
from weft.tasks.support.ngram_fit import FitsNgrams
from weft.tasks.support.splits.sentences import Hiding, Sentences, ask
from weft.tasks.task import (
    Answer,
    Batch,
    GenerationOptions,
    Loss,
    PreparedData,
    Recipe,
    Size,
    Split,
    Task,
    find_sample,
)

Example = tuple[Any, tuple[str, ...]]  # a text with its label, or a graph with a label per node


class ClassificationOptions(TableDataSpec):
    """`columns`: text and label, by name or number from 1, such as review,stars; without it they are recognized.

    `header`: whether the first line of a table names its columns: yes, no, or auto (by how it differs from the rest).

    `tokenizer`: auto (words with their characters; characters where texts have no spaces), sets (words whose order says
    nothing), characters, words, bpe, or a file to load; `vocabulary` bounds words and bpe. In training a token seen n
    times is hidden with chance h + (1 - h) r / (r + n), h = `hidden` and r = `rarity`, so that the model relies on no
    single word.
    """

    tokenizer: str = "auto"
    vocabulary: PositiveInt = 20_000
    hidden: Share = 0.2
    rarity: NonNegativeFloat = 2.0


class ClassificationTask(FitsNgrams, TemperatureScaled, TextInputs, Task):
    """An encoder learns the labels of texts, or of the nodes of graphs."""

    name = "classification"
    families = ("encoder",)
    metric = "accuracy"
    picture = "classification"
    example = '"a text"'
    Options = ClassificationOptions
    auto = (
        "an encoder that reads words by their characters, with convolution and attention in turn (hybrid) and a skip "
        "from n-grams to the classes; for graphs, attention alone"
    )
    formats = (
        "a table of text and label (.csv, .tsv, .jsonl), a text file per class, a text per line (pos.txt neg.txt),\n"
        "a folder of text files per class with one text each, or graphs whose nodes have labels (.json, .jsonl)"
    )
    compatible_tasks = ("embedding", "fill-mask", "regression")
    fine_tuning_options: ClassVar[Tree] = {"hidden": 0.0, "rarity": 0.0}
    plain_options: ClassVar[Tree] = {"tokenizer": "words"}
    takes_module = True

    def __init__(
        self,
        options: ClassificationOptions,
        encoder: InputEncoder,
        classes: tuple[str, ...],
        columns: tuple[str, ...] = (),
    ) -> None:
        self.options, self.encoder, self.classes, self.columns = options, encoder, classes, columns
        self.tokenizer = encoder.tokenizer if isinstance(encoder, TokenEncoder) else None

    @classmethod
    def prepare(
        cls,
        paths: Sequence[str],
        options: ClassificationOptions,
        seed: int,
        cache: Path,
        known: ClassificationTask | ImportedTextTask | None = None,
    ) -> PreparedData:
        """Read labeled texts or graphs, learn words and classes from what is not held out."""
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            data, held = ReadExamples(_examples(found.train)), _examples(found.validation)
        else:
            data, held = _files(paths, options.table_options(), learn=True), []
        train = data.examples
        _, classes = number_labels([label for _, labels in train for label in labels], learn=found is None)
        if options.validation:
            held = _files(options.validation, options.table_options(data.columns), learn=False).examples
        elif found is None:
            # Texts are split by class; graphs have many labels each.
            strata, _ = number_labels([labels[0] if len(labels) == 1 else "" for _, labels in train], learn=False)
            kept, out = hold_out(strata, options.held_out, seed)
            train, held = [train[n] for n in kept], [train[n] for n in out]
        if found is not None and not found.ordered and options.tokenizer == "auto":
            options = options.replace(tokenizer="sets")
        task = cls._learn([given for given, _ in train], classes, options, known)
        task.columns = data.columns
        best = None if found is None else found.best
        hiding = Hiding(options.hidden, options.rarity, blind=True)
        return PreparedData(task, task._split(train, hiding), task._split(held), best, data.notes)

    @classmethod
    def _learn(
        cls,
        inputs: Sequence[Any],
        classes: tuple[str, ...],
        options: ClassificationOptions,
        known: ClassificationTask | ImportedTextTask | None,
    ) -> ClassificationTask:
        """How inputs are read, and the classes; what a run that is trained on knows already stays."""
        graphs = isinstance(inputs[0], LabeledGraph)
        if known is None:
            learned = NodeEncoder.learn(inputs) if graphs else None
            return cls(options, learned or learn_encoder(options.tokenizer, inputs, options.vocabulary), classes)
        encoder = TokenEncoder(known.tokenizer, known.frame) if isinstance(known, ImportedTextTask) else known.encoder
        if graphs != isinstance(encoder, NodeEncoder):
            found, learned_on = ("graphs", "texts") if graphs else ("texts", "graphs")
            raise DataError(
                f"this run was trained on {learned_on}, but {found} are given: train on data of the same kind"
            )
        return cls(options, encoder, classes_after(classes, known.answers or ()))

    @property
    def takes_texts(self) -> bool:
        return not isinstance(self.encoder, NodeEncoder)

    @property
    def answers(self) -> tuple[str, ...]:
        return self.classes

    def with_new_classes(self, spec: AnySpec) -> EncoderSpec:
        assert isinstance(spec, EncoderSpec)
        answer = pooled_answer(spec, len(self.classes))
        if answer.pool == "first" and not spec.class_token and answer.hidden is None:
            answer = answer.replace(hidden=spec.width)  # BERT's pooler, which some files leave out
        return spec.replace(output=answer)

    def _split(self, examples: Sequence[Example], hiding: Hiding | None = None) -> Split:
        numbers, names = number_labels([label for _, labels in examples for label in labels], learn=False)
        numbers = in_terms_of(self.classes, numbers, names)
        ends = np.cumsum([len(labels) for _, labels in examples])[:-1]
        return self.encoder.make_split([given for given, _ in examples], np.split(numbers, ends), hiding)

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> ClassificationTask:
        task = cls(options, _restored(facts, tokenizer), tuple(facts["classes"]), tuple(facts.get("columns", ())))
        return task.with_temperature(facts)

    def facts(self) -> Tree:
        """Names of classes and of the columns learned from, what the encoder learned, and the temperature."""
        columns = {"columns": list(self.columns)} if self.columns else {}
        learned = {"reading": self.encoder.kind, **self.encoder.facts(), **self.temperature_facts()}
        return {"classes": list(self.classes), **columns, **learned}

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """Labeled texts or graphs to evaluate on; a label that training never saw is an error."""
        found = find_sample(self.name, paths, 0)
        if found is not None:
            return self._split(_examples(found.validation))
        return self._split(_files(paths, self.options.table_options(self.columns), learn=False).examples)

    def default_model(self, size: Size) -> EncoderSpec:
        return self.encoder.with_ngrams(self.fit(self.encoder.model(size)))

    def fit(self, spec: AnySpec) -> EncoderSpec:
        """The vocabulary and the classes of this data."""
        assert isinstance(spec, EncoderSpec)
        return self.encoder.fit_spec(spec, len(self.classes))

    def module_interface(self) -> ModuleInterface:
        """Tokens [B, T] in, logits of the classes [B, C] out."""
        return self.encoder.module_interface(len(self.classes))

    def sizes(self, train: Split) -> Sequence[Size]:
        """Small ones: labels are few."""
        return self.encoder.sizes(train)

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Few labels are learned by heart soon, so much is held back."""
        return self.encoder.recipe(size, epochs)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        return class_loss(ask(module, batch), batch.labels, batch.count, smoothing)

    def call(self, module: nn.Module, batch: Batch) -> Output:
        return ask(module, batch)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Accuracy, macro F1, loss in nats per answer, and calibration error."""
        return self.score_examples(module, split, size).metrics

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        evaluation = evaluate_classes(module, split, size, self.call, report, self.temperature)
        texts = split.texts if isinstance(split, Sentences) else [f"#{number}" for number in range(len(split))]
        return evaluation.scores({**evaluation.metrics(), "examples": len(split)}, self.classes, texts.__getitem__)

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """A label with the probabilities of all classes; for a graph (a .json file or a tree) one per node."""
        return self.encoder.answer(module, inputs, self.classes, generation, self.temperature)

    def preview(self, module: nn.Module, split: Split) -> str:
        """Some held-out examples with what the model says."""
        return self.encoder.preview(module, split, self.classes)

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """Logistic regression on words and pairs of words."""
        if not (isinstance(train, Sentences) and isinstance(split, Sentences)):
            return {}
        truth = [[self.classes[label[0]] for label in one.labels] for one in (train, split)]
        bag = BagOfBigrams.fit(train.texts, truth[0])
        return {"bag of bigrams": accuracy(bag.predict(split.texts), truth[1])}

    def baseline_facts(self, train: Split) -> Tree:
        assert isinstance(train, (Sentences, Nodes))
        return commonest(train.labels, self.classes)

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """The accuracy of training's most frequent class."""
        assert isinstance(split, (Sentences, Nodes))
        return always_commonest(facts, split.labels, self.classes)


def _examples(sample: Sequence[Any]) -> list[Example]:
    """A sample's examples: texts with a label, or graphs with one per node."""
    return [(row, row.labels) if isinstance(row, LabeledGraph) else (row[0], (row[1],)) for row in sample]


@dataclass(frozen=True)
class ReadExamples:
    """Examples, the names of the columns of text and label where there are any, and notes on how files were taken."""

    examples: list[Example]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _files(paths: Sequence[str], options: TableOptions, learn: bool) -> ReadExamples:
    if are_graphs(paths):
        return ReadExamples([(graph, graph.labels) for graph in read_graphs(paths)])
    found = read_labeled(paths, options, learn)
    return ReadExamples([(text, (label,)) for text, label in found.rows], found.columns, found.notes)


def _restored(facts: Tree, tokenizer: Tokenizer | None) -> InputEncoder:
    if facts["reading"] == NodeEncoder.kind:
        return NodeEncoder(tuple(facts["names"]))
    for kind in (WordEncoder, SetEncoder):
        if facts["reading"] == kind.kind:
            return kind(Lexicon.from_tree(facts["lexicon"]))
    if tokenizer is None:
        raise WeftError("this run has no tokenizer.json: restore the file or train again")
    return TokenEncoder(tokenizer, Frame.of(facts))
