"""Task translation: a target text from a source text, p(y | x) = prod_t p(y_t | x, y_1 .. y_(t-1)).

Any pairs of texts: sentences in two languages, questions and answers, articles and summaries. The decoder learns
with the true beginning of the target (teacher forcing); BLEU, chrF, exact match and ROUGE-L score what it writes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import NonNegativeFloat, PositiveInt
from torch import nn

from weft.data.readers.texts import TextRows, read_pairs
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import LengthError, WeftError
from weft.foundation.spec import Tree
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generate import stream
from weft.inference.decoding.generated import GeneratedText
from weft.inference.decoding.request import GenerationRequest
from weft.models.build import AnySpec
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LayerNormSpec
from weft.models.position_specs import RotarySpec
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.parts.outputs import MutedHead
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, bleu_statistic, text_scores
from weft.tasks.support.evaluation.metrics import bleu, bleu_by_length, chrf, exact_match, rouge
from weft.tasks.support.evaluation.resampling import interval
from weft.tasks.support.inputs.input_rows import TextInputs
from weft.tasks.support.inputs.table_data import TableDataSpec
from weft.tasks.support.language.cross_alignment import EXAMPLES, AlignmentLayer, choose_layer, read_alignments
from weft.tasks.support.language.generation import generate_texts, name_probabilities
from weft.tasks.support.losses import language_loss, mean_loss
from weft.tasks.support.splits.text_pairs import Ends, Pairs, PairsSplit, evenly, hold_out, learn_tokenizer, real_mask
from weft.tasks.task import Answer, Batch, GenerationOptions, Loss, PreparedData, Recipe, Size, Split, Task, find_sample

PAIRS_WITHOUT_DROPOUT = 300_000  # pairs, from which on they need no dropout
LENGTH_MARGIN, SHORTEST, LONGEST = 1.5, 32, 1024  # a model's length: what was seen in training and half as much again
ALPHABET = 256  # a vocabulary up to this size is one of letters
LETTERS = {"batch": 1024, "rate": 0.01}  # what learns dates in seconds
PRESET_DROPOUT = 0.2
SENTENCES_TIMED = 32  # sentences by which the pace of translating is measured
BLEU_MARGIN, LONGER = 1.0, 3.0  # half of the interval that is aimed at, and how much more time that may take

SIZES = (Size(64, 2), Size(96, 3), Size(128, 4), Size(192, 4), Size(256, 4), Size(384, 5), Size(512, 6))
WIDTH_LIMITS = ((100_000, 128), (3_000_000, 192), (10_000_000, 256))  # (tokens, width): wider ones only learn by heart


class TranslationOptions(TableDataSpec):
    """`columns`: the source's and the target's, by name or number from 1; `header`: whether tables have one (yes, no).

    `tokenizer`: auto, characters, words, bpe or a file. One serves both sides; `vocabulary` bounds it (by default it
    follows the amount of text). `beam` and `penalty` are those of the beam search that the model is evaluated with.
    """

    tokenizer: str = "auto"
    vocabulary: PositiveInt | None = None
    beam: PositiveInt = 5
    penalty: NonNegativeFloat = 1.0


class TranslationTask(TextInputs, Task):
    """An encoder-decoder, or a recurrent one with or without attention, learns to say a text as another."""

    name = "translation"
    families = ("encoder-decoder", "recurrent-seq2seq")
    metric = "bleu"
    picture = "translation"
    example = '"a sentence"'
    Options = TranslationOptions
    auto = "an encoder-decoder of attention alone, with rotary positions and squared ReLU"
    formats = "a table of source and target (.csv, .tsv, .jsonl), or two text files, line by line (plain or .gz)"
    generates = True
    examined = ("alignment",)

    tokenizer: Tokenizer

    def __init__(
        self,
        options: TranslationOptions,
        tokenizer: Tokenizer,
        longest: tuple[int, int],
        pairs: int,
        ends: Ends | None = None,
        alignment_layer: AlignmentLayer | None = None,
        columns: tuple[str, ...] = (),
    ) -> None:
        self.options, self.tokenizer, self.longest, self.pairs = options, tokenizer, longest, pairs
        self.own_ends, self.ends = ends is None, ends or Ends.of(tokenizer)
        self.alignment_layer, self.columns = alignment_layer, columns
        self._writer: tuple[nn.Module, nn.Module] | None = None

    @classmethod
    def prepare(
        cls,
        paths: Sequence[str],
        options: TranslationOptions,
        seed: int,
        cache: Path,
        known: TranslationTask | None = None,
    ) -> PreparedData:
        """Read pairs, hold a share of the sources out, learn one tokenizer for both sides."""
        found = find_sample(cls.name, paths, seed)
        train: Pairs
        held: Pairs
        data = TextRows([]) if found is not None else read_pairs(paths, options.table_options())
        if found is not None:
            train, held = ([(pair.source, pair.target) for pair in split] for split in (found.train, found.validation))
        elif options.validation:
            train, held = data.rows, read_pairs(options.validation, options.table_options(data.columns)).rows
        else:
            train, held = hold_out(data.rows, options.held_out, seed)
        if known is None:
            texts = [text for pair in train for text in pair]
            task = cls(options, learn_tokenizer(options.tokenizer, texts, options.vocabulary), (1, 1), len(train))
        else:
            ends = None if known.own_ends else known.ends
            task = cls(options, known.tokenizer, known.longest, len(train), ends)
        split = task._split(train)
        seen = (max(map(len, split.sources)) + 1, max(map(len, split.targets)) + 1)
        task.longest = (max(task.longest[0], seen[0]), max(task.longest[1], seen[1]))
        task.columns = data.columns
        return PreparedData(task, split, task._split(held), None if found is None else found.best, data.notes)

    def _split(self, pairs: Pairs) -> PairsSplit:
        sources = [[*self.ends.before, *ids] for ids in self.tokenizer.encode_many([source for source, _ in pairs])]
        written = self.tokenizer.target.encode_many([target for _, target in pairs])
        return PairsSplit(pairs, sources, [[*self.ends.first, *ids] for ids in written], self.ends)

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> TranslationTask:
        if tokenizer is None:
            raise WeftError("this run has no tokenizer.json: restore the file or train again")
        source, target = facts["longest"]
        layer = AlignmentLayer.from_tree(facts.get("alignment"))
        known = (int(source), int(target)), int(facts["pairs"]), Ends.from_tree(facts)
        return cls(options, tokenizer, *known, layer, tuple(facts.get("columns", ())))

    def facts(self) -> Tree:
        """The longest source and target in tokens, the number of pairs, their columns; of imported models their ends.

        Of a trained transformer also the layer whose attention is its alignment.
        """
        layer = {} if self.alignment_layer is None else {"alignment": self.alignment_layer.to_tree()}
        ends = {} if self.own_ends else self.ends.to_tree()
        columns = {"columns": list(self.columns)} if self.columns else {}
        return {"longest": list(self.longest), "pairs": self.pairs, **columns, **ends, **layer}

    def examine(self, module: nn.Module, validation: Split) -> bool:
        """Choose the layer that aligns, on held-out pairs."""
        assert isinstance(validation, PairsSplit)
        chosen = evenly(len(validation), EXAMPLES)
        examples = [
            (validation.source(example), [self.ends.start, *validation.targets[example]][: validation.length])
            for example in chosen
        ]
        self.alignment_layer = choose_layer(module, examples)
        return self.alignment_layer is not None

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        found = find_sample(self.name, paths, 0)
        if found is not None:
            return self._split([(pair.source, pair.target) for pair in found.validation])
        return self._split(read_pairs(paths, self.options.table_options(self.columns)).rows)

    def evaluation_subset(self, module: nn.Module, split: Split, seconds: float) -> Split:
        """Translating takes long: as many sources as fit into the time; up to three times as many where the 95 %
        interval of BLEU, as a few sentences foretell it, would be wider than +- 1.
        """
        assert isinstance(split, PairsSplit)
        trial = evenly(len(split), SENTENCES_TIMED)
        began = time.perf_counter()
        texts, _ = self._texts(module, split, trial)
        pace = (time.perf_counter() - began) / len(trial)
        ends = interval(bleu_statistic(texts, [split.pairs[example][1] for example in trial]))
        # The interval narrows with the root of the number of sentences.
        needed = 0 if ends is None else math.ceil(len(trial) * ((ends[1] - ends[0]) / 2 / BLEU_MARGIN) ** 2)
        fitting = max(int(seconds / pace), min(needed, int(LONGER * seconds / pace)))
        return split if fitting >= len(split) else replace(split, decoded=max(len(trial), fitting))

    # --- the model ---------------------------------------------------------------------------------------------------

    def default_model(self, size: Size) -> EncoderDecoderSpec:
        """As many decoder as encoder layers, rotary positions, layer norms without bias, one embedding for all."""
        spec: EncoderDecoderSpec = self.fit(
            EncoderDecoderSpec(
                width=size.width,
                layers=size.layers,
                mixer=AttentionSpec(heads=size.heads, bias=False, query_key_norm=LayerNormSpec(bias=False)),
                feedforward=ClassicSpec(hidden=2 * size.width, activation="squared-relu", bias=False),
                positions=RotarySpec(),
                norm=LayerNormSpec(bias=False),
                initialization=InitializationSpec(scheme="fan-in", zero_residual=True),
            )
        )
        return spec.replace(dropout=size.dropout)

    def fit(self, spec: AnySpec) -> Any:
        """The vocabulary and the lengths of this data; dropout against few pairs where a preset has none."""
        assert isinstance(spec, (EncoderDecoderSpec, RecurrentSeq2SeqSpec))
        self.expect_model(spec)
        length = min(LONGEST, max(SHORTEST, 8 * math.ceil(LENGTH_MARGIN * max(self.longest) / 8)))
        dropout = spec.dropout or (0.0 if self.letters or self.pairs > PAIRS_WITHOUT_DROPOUT else PRESET_DROPOUT)
        return spec.replace(
            vocabulary=self.tokenizer.vocabulary, target_vocabulary=None, length=length, dropout=dropout
        )

    def expect_model(self, spec: AnySpec) -> None:
        """The source must be tokens."""
        if isinstance(spec, EncoderDecoderSpec) and spec.source.kind != "tokens":
            raise WeftError(
                f"task {self.name} reads tokens, but this model's source is {spec.source.kind}: "
                "choose source.kind tokens, such as --preset nano-seq2seq"
            )

    @property
    def letters(self) -> bool:
        """Whether tokens are letters."""
        return self.tokenizer.vocabulary <= ALPHABET

    def sizes(self, train: Split) -> Sequence[Size]:
        """Little text is learned by small models, in letters by very small ones."""
        if self.letters and train.tokens < 1_000_000:
            return [Size(64, 2)]
        most = next((width for tokens, width in WIDTH_LIMITS if train.tokens < tokens), SIZES[-1].width)
        return [size for size in SIZES if size.width <= most]

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Smoothed labels, and dropout that grows with the epochs; letters need neither."""
        if self.letters:
            return Recipe(training=LETTERS, most_epochs=60.0)
        dropout = 0.0 if epochs < 3 else 0.1 if epochs < 10 else 0.2 if epochs < 25 else 0.3
        return Recipe(dropout=dropout, training={"smoothing": 0.1})

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- log p of each target token, given the source and the true tokens before it."""
        x = batch.inputs
        output = module(x["source"], x["target"], source_mask=real_mask(x.get("source_real")))
        return language_loss(module, output, batch.labels, batch.count, smoothing)

    # --- evaluation and answers ---------------------------------------------------------------------------------------

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Loss with teacher forcing; BLEU, chrF, exact match and ROUGE-L of what a beam search finds."""
        return self.score_examples(module, split, size).metrics

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """Examples are sentences that were translated."""
        assert isinstance(split, PairsSplit)
        chosen = evenly(len(split), split.decoded)
        texts, sure = self._texts(module, split, chosen, report)
        sources, references = ([split.pairs[example][side] for example in chosen] for side in (0, 1))
        metrics = {
            "bleu": bleu(texts, references),
            "chrf": chrf(texts, references),
            "exact_match": exact_match(texts, references),
            "rouge_l": rouge(texts, references)["rougeL"],
            "loss": mean_loss(self, module, split, size),
            "bleu_by_length": [row._asdict() for row in bleu_by_length(sources, texts, references)],
            "sentences": len(chosen),
            **({"sentences_held_out": len(split)} if len(chosen) < len(split) else {}),
            **({"cut": split.too_long} if split.too_long else {}),
        }
        return text_scores(metrics, texts, references, sources.__getitem__, sure)

    def _texts(
        self, module: nn.Module, split: PairsSplit, chosen: Sequence[int], report: Report | None = None
    ) -> tuple[list[str], list[float]]:
        """What a beam search writes for each chosen source, and how sure the model is of it."""
        generation = GenerationOptions(beam=self.options.beam, top=0)
        found = self._translate(module, [split.source(example) for example in chosen], generation, report)
        return [self.tokenizer.decode(row[0].tokens).strip() for row in found], [row[0].confidence for row in found]

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """Translations with their tokens, how sure the model is and, where it says so, the alignment to the source."""
        texts = [str(text) for text in inputs]
        rows = [[*self.ends.before, *ids, self.ends.stop] for ids in self.tokenizer.encode_many(texts)]
        longest = self._length(module)
        for text, row in zip(texts, rows, strict=True):
            if len(row) > longest:
                raise LengthError(
                    f"{text[:40]!r} is {len(row)} tokens with its stop token, but this model reads {longest}: "
                    "shorten it, or train with a larger --set length"
                )
        answers = []
        written = self._translate(module, rows, generation)
        aligned = iter(self._alignments(module, rows, written))
        for text, row, found in zip(texts, rows, written, strict=True):
            for one in found:
                more: Tree = {"tokens": self.tokenizer.pieces(one.tokens), "source_tokens": self.tokenizer.pieces(row)}
                if (alignment := next(aligned)) is not None:
                    more["alignment"] = [[round(share, 6) for share in looks] for looks in alignment]
                more |= {"confidence": round(one.confidence, 6), **name_probabilities(one, self.tokenizer)}
                answers.append(Answer(text, self.tokenizer.decode(one.tokens).strip(), more))
        return answers

    def _alignments(
        self, module: nn.Module, rows: Sequence[Sequence[int]], written: Sequence[Sequence[GeneratedText]]
    ) -> list[list[list[float]] | None]:
        """Of each text written: a recurrent model's own, or by the layer of a transformer that aligns."""
        texts = [(row, one) for row, found in zip(rows, written, strict=True) for one in found]
        if self.alignment_layer is None:
            return [None if one.alignment is None else one.alignment.tolist() for _, one in texts]
        first = [self.ends.start, *self.ends.first]
        examples = [(row, [*first, *one.tokens[:-1]]) for row, one in texts]
        found = read_alignments(module, self.alignment_layer, examples, self.ends.pad)
        return [map[len(first) - 1 :][: len(one.tokens)] for map, (_, one) in zip(found, texts, strict=True)]

    def _length(self, module: nn.Module) -> int:
        spec: Any = module.spec
        return int(spec.length)

    def _most(self, module: nn.Module) -> int:
        """How many tokens are written at most, if no number is asked for."""
        return min(self._length(module) - len(self.ends.first), round(LENGTH_MARGIN * self.longest[1]))

    def _to_write(self, module: nn.Module) -> nn.Module:
        """The model itself; a copy that shares its weights and never writes what is forbidden, where something is."""
        if not self.ends.forbidden:
            return module
        if self._writer is None or self._writer[0] is not module:
            twin = copy.copy(module)
            twin._modules = {**module._modules, "head": MutedHead(cast(Any, module.head), self.ends.forbidden)}
            self._writer = module, twin
        return self._writer[1]

    def _translate(
        self,
        module: nn.Module,
        rows: Sequence[Sequence[int]],
        generation: GenerationOptions,
        report: Report | None = None,
    ) -> list[list[GeneratedText]]:
        """What is written for each source, `generation.samples` each, in batches of like length."""
        found: list[list[GeneratedText]] = [[] for _ in rows]
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        module, most = self._to_write(module), generation.max_tokens or self._most(module)
        for first in range(0, len(order), generation.batch):
            places = order[first : first + generation.batch]
            batch = [rows[place] for place in places]
            for place, written in zip(places, self._write(module, batch, places, most, generation), strict=True):
                found[place] = written
            if report is not None:
                report((first + len(places)) / len(order))
        return found

    def _write(
        self, module: nn.Module, batch: list[Sequence[int]], places: list[int], most: int, generation: GenerationOptions
    ) -> list[list[GeneratedText]]:
        request = GenerationRequest(
            [[self.ends.start, *self.ends.first]] * len(batch),
            generation.sampling(0.0),
            max_tokens=most,
            stop=(self.ends.stop,),
            seeds=[generation.seed + place for place in places],
            samples=generation.samples,
            source=batch,
        )
        return generate_texts(module, request, generation, penalty=self.options.penalty)

    def stream(self, module: nn.Module, given: Any, generation: GenerationOptions) -> Iterator[str]:
        """A translation as it is written."""
        row = [*self.ends.before, *self.tokenizer.encode(str(given)), self.ends.stop]
        request = GenerationRequest(
            [[self.ends.start, *self.ends.first]],
            generation.sampling(0.0),
            max_tokens=generation.max_tokens or self._most(module),
            stop=(self.ends.stop,),
            seeds=generation.seed,
            source=[row],
            detokenizer=Detokenizer(self.tokenizer, tuple(generation.stop)),
        )
        steps = stream(self._to_write(module), request)
        return (step.text for step in steps if step.text)

    def preview(self, module: nn.Module, split: Split) -> str:
        """The translation of one held-out source."""
        assert isinstance(split, PairsSplit)
        source, target = split.pairs[0]
        found = self._translate(module, [split.source(0)], GenerationOptions(top=0))[0][0]
        return f"{source!r} -> {self.tokenizer.decode(found.tokens)!r} ({target!r})"

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """BLEU of the source itself as its translation."""
        assert isinstance(split, PairsSplit)
        return {"bleu of the source itself": bleu(*zip(*split.pairs, strict=True))}
