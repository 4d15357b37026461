"""How texts become what an encoder reads: words with their characters, or the tokens of a tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from torch import nn

from weft.data.batching import READ_AT_ONCE
from weft.data.tokenizers.lexicon import Lexicon, split_words
from weft.data.tokenizers.tokenizer import TOKENIZER_KINDS, Tokenizer, load_tokenizer, train_tokenizer
from weft.foreign.user_module import ModuleInterface
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.models.encoder import EncoderSpec, MaskedLanguageSpec, PooledSpec, TokensSpec, WordsSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, ConvolutionSpec, InitializationSpec
from weft.models.position_specs import NoPositionsSpec, RotarySpec
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.support.ngram_fit import ngram_skip
from weft.tasks.support.splits.sentences import Forms, Hiding, Numbers, Sentences, probabilities, words_split
from weft.tasks.task import Answer, GenerationOptions, Recipe, Size, Split

LONGEST_TEXT = 512
PREVIEWS, SHOWN = 2, 60
LONG_WORD = 24  # characters


class InputEncoder(ABC):
    """What was learned about the inputs of a classifier, and the encoder that suits them."""

    kind: ClassVar[str]

    @abstractmethod
    def facts(self) -> Tree:
        """What was learned, as plain JSON, but for a tokenizer."""

    @abstractmethod
    def make_split(self, inputs: Sequence[Any], labels: Sequence[Numbers], hiding: Hiding | None = None) -> Split:
        """Inputs with their labels as a split, and what of it is hidden in training."""

    @abstractmethod
    def fit_spec(self, spec: EncoderSpec, classes: int) -> EncoderSpec:
        """The spec with this input and so many classes."""

    def with_ngrams(self, spec: EncoderSpec) -> EncoderSpec:
        """The spec with an n-gram skip, where single n-grams tell something about the class."""
        return spec

    def module_interface(self, classes: int) -> ModuleInterface:
        """How a module of the user's own is called, where it is by tokens."""
        raise WeftError(
            f"a module of your own takes token ids, but these data are read by parts of words or graphs ({self.kind}): "
            "--set data.tokenizer=words, characters or bpe"
        )

    @abstractmethod
    def model(self, size: Size) -> EncoderSpec:
        """The encoder that suits, before `fit_spec`."""

    @abstractmethod
    def sizes(self, train: Split) -> Sequence[Size]:
        """The sizes that a time plan chooses from, small to large."""

    @abstractmethod
    def recipe(self, size: Size, epochs: float) -> Recipe:
        """How a model of this size is trained over so many epochs."""

    @abstractmethod
    def answer(
        self,
        module: nn.Module,
        inputs: Sequence[Any],
        classes: Sequence[str],
        generation: GenerationOptions,
        temperature: float = 1.0,
    ) -> list[Answer]:
        """Answers to inputs as the command line gives them, with probabilities softmax(logits / temperature)."""

    @abstractmethod
    def preview(self, module: nn.Module, split: Split, classes: Sequence[str]) -> str:
        """Some held-out examples with what the model says."""


class TextEncoder(InputEncoder):
    """What both ways to encode a text share: the model, and how it is trained."""

    def with_ngrams(self, spec: EncoderSpec) -> EncoderSpec:
        return ngram_skip(spec)

    def model(self, size: Size) -> EncoderSpec:
        """Convolution, which finds turns of phrase, and attention over all of them; then the mean over all places."""
        return EncoderSpec(
            width=size.width,
            layers=size.layers,
            length=size.context,
            mixer=(ConvolutionSpec(kernel=3), AttentionSpec(heads=size.heads)),
            feedforward=ClassicSpec(hidden=2 * size.width),
            positions=RotarySpec(),
            dropout=size.dropout,
            output=PooledSpec(pool="mean"),
            initialization=InitializationSpec(scheme="fan-in", zero_residual=True, embedding=0.1),
        )

    def sizes(self, train: Split) -> Sequence[Size]:
        """One size: labeled texts are few."""
        return (Size(128, 2, LONGEST_TEXT),)

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Strong regularization, for the same reason."""
        return Recipe(
            dropout=0.3, training={"batch": 2048, "rate": 1e-3, "smoothing": 0.1, "ema": 0.99}, most_epochs=20
        )

    def answer(
        self,
        module: nn.Module,
        inputs: Sequence[Any],
        classes: Sequence[str],
        generation: GenerationOptions,
        temperature: float = 1.0,
    ) -> list[Answer]:
        """The likeliest class of each text, and the probabilities of all."""
        texts = [str(given) for given in inputs]
        if not texts:
            return []
        split = self.make_split(texts, [np.zeros(1, dtype=np.int64)] * len(texts)).cut(cast(Any, module.spec).length)
        found = []
        for text, shares in zip(texts, probabilities(module, split, READ_AT_ONCE, temperature), strict=True):
            best = classes[int(shares.argmax())]
            by_name = {name: round(float(p), 6) for name, p in zip(classes, shares, strict=True)}
            found.append(Answer(text, best, {"probabilities": by_name}))
        return found

    def preview(self, module: nn.Module, split: Split, classes: Sequence[str]) -> str:
        """The first texts that are held out."""
        assert isinstance(split, Sentences)
        answers = self.answer(module, split.texts[:PREVIEWS], classes, GenerationOptions())
        lines = []
        for answer, labels in zip(answers, split.labels[:PREVIEWS], strict=True):
            share = answer.more["probabilities"][answer.output]
            text = answer.input if len(answer.input) <= SHOWN else answer.input[:SHOWN] + "..."
            lines.append(f"{text!r} -> {answer.output} {share:.0%} (it is {classes[labels[0]]})")
        return "\n".join(lines)


@dataclass(frozen=True)
class WordEncoder(TextEncoder):
    """Texts as words with their characters."""

    lexicon: Lexicon
    kind: ClassVar[str] = "words"

    def facts(self) -> Tree:
        return {"lexicon": self.lexicon.to_tree()}

    def make_split(self, inputs: Sequence[str], labels: Sequence[Numbers], hiding: Hiding | None = None) -> Split:
        """A text without a word is one unknown word."""
        words = [split_words(text) or [""] for text in inputs]
        return words_split(self.lexicon, words, labels, inputs, tagged=False, hiding=hiding)

    def fit_spec(self, spec: EncoderSpec, classes: int) -> EncoderSpec:
        """Words in, one answer out."""
        lexicon = self.lexicon
        words = WordsSpec(vocabulary=lexicon.vocabulary, characters=lexicon.alphabet, longest=lexicon.longest)
        if isinstance(spec.input, WordsSpec):
            words = words.replace(character_width=spec.input.character_width, kernel=spec.input.kernel)
        return spec.replace(input=words, output=pooled_answer(spec, classes))


@dataclass(frozen=True)
class SetEncoder(WordEncoder):
    """Multisets of words: their order says nothing, so the model has no positions and no convolution."""

    kind: ClassVar[str] = "sets"

    def make_split(self, inputs: Sequence[str], labels: Sequence[Numbers], hiding: Hiding | None = None) -> Split:
        """Nothing is hidden: each element counts."""
        return super().make_split(inputs, labels)

    def with_ngrams(self, spec: EncoderSpec) -> EncoderSpec:
        """None: which elements are neighbors says nothing."""
        return spec

    def model(self, size: Size) -> EncoderSpec:
        """Attention alone, then the mean over all elements: permuted inputs give the same answer."""
        return super().model(size).replace(mixer=AttentionSpec(heads=size.heads), positions=NoPositionsSpec())

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """No smoothing: the answers are certain."""
        return Recipe(dropout=0.0, training={"batch": 1024, "rate": 3e-3, "ema": 0.99}, most_epochs=60)

    def sizes(self, train: Split) -> Sequence[Size]:
        """A small one, which takes many steps: counting is learned slowly."""
        return (Size(64, 2, LONGEST_TEXT),)


@dataclass(frozen=True)
class TokenEncoder(TextEncoder):
    """Texts as the tokens of a tokenizer."""

    tokenizer: Tokenizer
    frame: Frame = field(default_factory=Frame)
    kind: ClassVar[str] = "tokens"

    def facts(self) -> Tree:
        """Besides the tokenizer, the ids around each text where there are any."""
        return self.frame.to_tree()

    def make_split(self, inputs: Sequence[str], labels: Sequence[Numbers], hiding: Hiding | None = None) -> Split:
        """A text without a token is one unknown token."""
        unknown = self.tokenizer.role("unknown") or 0
        framed = [self.frame.put(ids) or [unknown] for ids in self.tokenizer.encode_many(inputs)]
        rows = [np.array(ids, dtype=np.int64) for ids in framed]
        counts = np.bincount(np.concatenate(rows), minlength=self.tokenizer.vocabulary)
        forms = Forms(np.arange(len(counts)), (hiding or Hiding()).chances(counts.astype(np.float64)), unknown)
        return Sentences(forms, tuple(rows), tuple(labels), tuple(inputs), tagged=False, tail=len(self.frame.after))

    def fit_spec(self, spec: EncoderSpec, classes: int) -> EncoderSpec:
        """Tokens in, one answer out."""
        segments = spec.input.segments if isinstance(spec.input, TokensSpec) else None
        tokens = TokensSpec(vocabulary=self.tokenizer.vocabulary, segments=segments)
        return spec.replace(input=tokens, output=pooled_answer(spec, classes))

    def module_interface(self, classes: int) -> ModuleInterface:
        """Tokens [B, T] in, logits [B, C] out."""
        return ModuleInterface.of_texts(self.tokenizer.vocabulary, classes, LONGEST_TEXT)


def pooled_answer(spec: EncoderSpec, classes: int) -> PooledSpec:
    """One answer per text, by the spec's own pool; of an encoder with one per token, by the mean."""
    # A masked language model has learned to begin a text with a token of its own, as BERT's classifiers read.
    other = PooledSpec(pool="first" if isinstance(spec.output, MaskedLanguageSpec) else "mean")
    pooled = spec.output if isinstance(spec.output, PooledSpec) else other
    return pooled.replace(classes=classes)


def learn_encoder(kind: str, texts: Sequence[str], vocabulary: int) -> TextEncoder:
    """The encoder asked for, learned from texts: `auto` takes words with their characters, or characters alone where
    texts are one long word each (proteins)."""
    if kind == "auto":
        kind = "characters" if _are_long_words(texts) else kind
    if kind in ("auto", "sets"):
        lexicon = Lexicon.learn((split_words(text) for text in texts), vocabulary)
        return SetEncoder(lexicon) if kind == "sets" else WordEncoder(lexicon)
    if kind in TOKENIZER_KINDS:
        return TokenEncoder(train_tokenizer(kind, texts, vocabulary))
    return TokenEncoder(load_tokenizer(kind))


def _are_long_words(texts: Sequence[str]) -> bool:
    """Whether nearly all texts have no space and are longer than words are."""
    long = sum(len(text.split()) == 1 and len(text) > LONG_WORD for text in texts)
    return long >= 0.9 * len(texts)
