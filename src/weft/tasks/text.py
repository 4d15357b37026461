"""Task text: a language model over documents, its windows and batches. p(x_1 .. x_N) = prod_t p(x_t | x_1 .. x_(t-1)).

Loss: - log p of each next token, in nats; perplexity exp(loss); bits per byte, which does not depend on the tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import PositiveInt
from torch import nn

from weft.data.batching import places_in_documents, shuffled_order
from weft.data.readers.files import DataError
from weft.data.readers.texts import CHAT_TOKENS
from weft.data.stores.text_chunks import distinct_characters, has_chats, read_chunks, sample_texts
from weft.data.stores.token_store import TokenStore, open_token_store
from weft.data.tokenizers.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from weft.foreign.user_module import ModuleInterface
from weft.foundation.atomic_files import write_text
from weft.foundation.errors import WeftError
from weft.foundation.seeds import generator
from weft.foundation.spec import Tree
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generate import stream
from weft.inference.decoding.request import GenerationRequest
from weft.models.build import AnySpec
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import LayerNormSpec
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.parts.masks import Documents
from weft.tasks.support.conversation import Conversation
from weft.tasks.support.few_shot import FewShot
from weft.tasks.support.generation import TEMPERATURE, generate_texts, name_probabilities
from weft.tasks.support.losses import language_loss, mean_loss
from weft.tasks.support.prompt_format import PromptFormat
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

SMALL_TEXT = 8_000_000  # bytes; below, letters are the better tokens: there is too little text for longer ones
ALPHABET = 512
LEARNED_FROM = 50_000_000  # characters that words and bpe are learned from, at most
WINDOW = 512  # tokens per window when a model is trained on: those from elsewhere read more than memory holds
PROMPT, PREVIEW = 24, 60
CONTINUATION = 120


class TextOptions(DataSpec):
    """`tokenizer`: auto, characters, bytes, words, bpe, or a file to load; `vocabulary` bounds words and bpe.

    `isolate`: documents in one window do not see each other; by default where there are several. `context`: tokens per
    window in training, at most the model's length, which stays; without it that length, or 512 for a model that is
    trained on if it is longer.
    """

    tokenizer: str = "auto"
    vocabulary: PositiveInt = 8192
    isolate: bool | None = None
    context: PositiveInt | None = None


@dataclass(frozen=True)
class TextSplit(Split):
    """Windows of `context` tokens over a stream; in training they begin elsewhere in every epoch.

    `most`: what a window holds however long the model is. `prefix`: number of first tokens that the model sees in both
    directions; what it sees it is not asked, so answers begin after them.
    """

    store: TokenStore
    context: int = 256
    isolate: bool = False
    most: int | None = None
    prefix: int = 0

    def __len__(self) -> int:
        return max(1, -(-(len(self.store) - 1) // self.context))

    @property
    def tokens(self) -> int:
        """Tokens of the stream."""
        return len(self.store)

    def cut(self, length: int) -> TextSplit:
        """Windows of at most `length`; a short text is one window."""
        length = length if self.most is None else min(length, self.most)
        return replace(self, context=max(1, min(length, len(self.store) - 1)))

    def fit(self, spec: AnySpec) -> Split:
        """Windows for this model, whose prefix is given and not asked for."""
        split = replace(cast(TextSplit, super().fit(spec)), prefix=spec.declares().text_prefix or 0)
        if split.context < split.prefix:
            raise DataError(
                f"windows of {split.context} tokens lie in the prefix of {split.prefix}: shorten mixer.mask.length"
            )
        return split

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Windows in random order, or one after the other."""
        order = list(range(len(self))) if seed is None else shuffled_order(self._whole(), seed, epoch)
        rows = max(1, size // self.context)
        found = [order[first : first + rows] for first in range(0, len(order), rows)]
        return found[:-1] if seed is not None and len(found) > 1 and len(found[-1]) < rows else found

    @property
    def least(self) -> int:
        """One window."""
        return self.context

    def _whole(self) -> int:
        """Windows that are whole wherever the first begins."""
        return max(1, (len(self.store) - self.context) // self.context)

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Tokens x_1 .. x_T and labels x_2 .. x_(T+1); a last window that is short is filled up."""
        T = self.context
        shift = 0
        if seed is not None:
            room = len(self.store) - 1 - self._whole() * T
            shift = int(torch.randint(max(1, min(T, room + 1)), (1,), generator=generator(seed, "shift", epoch)))
        starts = [shift + number * T for number in examples]
        rows = [self.store.window(first, min(T + 1, len(self.store) - first)) for first in starts]
        tokens = np.zeros((len(rows), T), dtype=np.int64)
        labels = np.full((len(rows), T), IGNORED, dtype=np.int64)
        documents = np.full((len(rows), T), -1, dtype=np.int64)
        for row, window in enumerate(rows):
            n = len(window.tokens) - 1
            tokens[row, :n], labels[row, :n] = window.tokens[:-1], window.tokens[1:]
            if window.answers is not None:
                labels[row, :n][~window.answers[1:]] = IGNORED
            if self.isolate:
                documents[row, :n] = window.documents[:-1]
                labels[row, :n][window.documents[1:] != window.documents[:-1]] = IGNORED
            if self.prefix:
                labels[row, :n][
                    places_in_documents(window.documents[:-1] if self.isolate else None, n) + 1 < self.prefix
                ] = IGNORED
        inputs: dict[str, Any] = {"tokens": torch.from_numpy(tokens)}
        if self.isolate:
            inputs["documents"] = torch.from_numpy(documents)
        count = int((labels != IGNORED).sum())
        return Batch(inputs, torch.from_numpy(labels), count, tokens.size)


class TextTask(FewShot, Task):
    """A decoder learns to continue texts."""

    name = "text"
    families = ("decoder",)
    metric = "loss"
    picture = "text"
    example = '"Once upon a time" --max-tokens 80'
    Options = TextOptions
    auto = "a decoder of attention alone, with rotary positions and squared ReLU"
    generates = continues_input = takes_module = True

    tokenizer: Tokenizer

    def __init__(
        self, options: TextOptions, tokenizer: Tokenizer, prompt_format: PromptFormat = PromptFormat()
    ) -> None:
        self.options, self.tokenizer, self.prompt_format = options, tokenizer, prompt_format

    @classmethod
    def prepare(
        cls, paths: Sequence[str], options: TextOptions, seed: int, cache: Path, known: TextTask | None = None
    ) -> PreparedData:
        """Read texts, learn a tokenizer from what is not held out, and store tokens in mapped files."""
        prompt_format = None if known is None else known.prompt_format
        most = options.context or (None if known is None else WINDOW)
        found = find_sample(cls.name, paths, seed)
        if found is not None:
            texts = (("train", found.train), ("validation", found.validation))
            files = [_written(cache, f"{found.name}-{seed}-{name}", text) for name, text in texts]
            task = cls._begin(options, files[:1], known)
            stores = [open_token_store([file], task.tokenizer, cache, prompt_format=prompt_format) for file in files]
            train, validation = (task._split(store, most) for store in stores)
            return PreparedData(task, train, validation, found.best)
        task = cls._begin(options, paths, known)
        store = open_token_store(paths, task.tokenizer, cache, prompt_format=prompt_format)
        if options.validation:
            held = open_token_store(options.validation, task.tokenizer, cache, prompt_format=prompt_format)
        else:
            # A window needs a token and the one after it.
            store, held = store.split(max(options.held_out, min(0.5, 2 / max(1, len(store)))))
        for some, what in ((store, "to learn from"), (held, "held out")):
            if len(some) < 2:
                raise DataError(f"only {len(some)} tokens {what}: give more text, or other --set data.validation files")
        return PreparedData(task, task._split(store, most), task._split(held, most))

    @classmethod
    def _begin(cls, options: TextOptions, paths: Sequence[str | Path], known: TextTask | None) -> TextTask:
        if known is not None:
            return cls(options, known.tokenizer, known.prompt_format)
        return cls(options, _tokenizer(options, paths))

    def _split(self, store: TokenStore, most: int | None = None) -> TextSplit:
        several = self.options.isolate if self.options.isolate is not None else store.documents > 1
        return TextSplit(store, isolate=several, most=most)

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> TextTask:
        if tokenizer is None:
            raise WeftError("this run has no tokenizer.json: restore the file or train again")
        return cls(options, tokenizer, PromptFormat.of(facts))

    def facts(self) -> Tree:
        """Besides the tokenizer, the prompt format of an imported model."""
        return self.prompt_format.to_tree()

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        found = find_sample(self.name, paths, 0)
        files: Sequence[str | Path] = paths
        if found is not None:
            files = [_written(cache, f"{found.name}-0-validation", found.validation)]
        return self._split(open_token_store(files, self.tokenizer, cache, prompt_format=self.prompt_format))

    def default_model(self, size: Size) -> DecoderSpec:
        """Rotary positions, norms on queries and keys, squared ReLU, zero-initialized output projections.

        Layer norms without bias: they learn as well as RMS norms, and their fused kernel takes a fraction of the time.
        """
        return self.fit(
            preset("nano-gpt").replace(
                width=size.width,
                layers=size.layers,
                length=self._length(size),
                dropout=size.dropout,
                norm=LayerNormSpec(bias=False),
                **{"mixer.heads": size.heads, "mixer.query_key_norm": LayerNormSpec(bias=False)},
            )
        )

    def fit(self, spec: AnySpec) -> DecoderSpec:
        """The vocabulary of this data."""
        assert isinstance(spec, DecoderSpec)
        return spec.replace(vocabulary=self.tokenizer.vocabulary)

    def fit_plain(self, name: str, size: Size) -> AnySpec:
        """As long as the windows that are asked for."""
        return super().fit_plain(name, replace(size, context=self._length(size)))

    def module_interface(self) -> ModuleInterface:
        """Tokens [B, T] in, logits of the next token [B, T, C] out."""
        if self.options.isolate:
            raise WeftError("a module of your own is not told where documents begin: leave data.isolate out")
        return ModuleInterface.of_language(self.tokenizer.vocabulary, self.options.context or Size.context)

    def _length(self, size: Size) -> int:
        """The length of a new model."""
        return max(size.context, self.options.context or 0)

    def recipe(self, size: Size, epochs: float) -> Recipe:
        """Text that is read many times is regularized by dropout."""
        return Recipe(dropout=0.0 if epochs < 4 else 0.1 if epochs < 12 else 0.2)

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- log p of each next token."""
        documents = batch.inputs.get("documents")
        mask = None if documents is None else Documents(documents)
        output = module(batch.inputs["tokens"], mask=mask)
        return language_loss(module, output, batch.labels, batch.count, smoothing)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Loss in nats per token, perplexity, and bits per byte; over windows side by side, each begun anew."""
        assert isinstance(split, TextSplit)
        loss = mean_loss(self, module, split, size)
        tokens_per_byte = split.store.counted / max(1, split.store.bytes)
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) * tokens_per_byte,
            "tokens": len(split.store),
            "context": split.context,
        }

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """Continuations; with each, the likeliest tokens and their probabilities if `top` and `steps` ask for them."""
        texts = [str(text) for text in inputs]
        request = self._request(texts, generation)
        speculative = generation.speculative and self._fits(module, request)
        answers = []
        found = generate_texts(module, request, generation, speculative=speculative)
        for text, prompt, own in zip(texts, request.prompts, found, strict=True):
            for one in own:
                more: Tree = {
                    "tokens": self.tokenizer.pieces(one.tokens),
                    "log_probabilities": [round(value, 6) for value in one.log_probabilities],
                }
                more |= name_probabilities(one, self.tokenizer)
                more["finish_reason"] = one.finish_reason
                if generation.overflow == "slide" and len(prompt) + len(one.tokens) > self._longest(module):
                    more["slid"] = True
                answers.append(Answer(text, one.text, more))
        return answers

    def _request(self, texts: Sequence[str], generation: GenerationOptions) -> GenerationRequest:
        """What continues these texts; each of them has the same seeds, one per sample."""
        return GenerationRequest(
            [self._prompt(text, generation) for text in texts],
            generation.sampling(TEMPERATURE),
            max_tokens=generation.max_tokens or CONTINUATION,
            stop=self.prompt_format.stopping(self.tokenizer),
            seeds=[generation.seed + n for _ in texts for n in range(generation.samples)],
            samples=generation.samples,
            overflow=generation.overflow,
            detokenizer=Detokenizer(self.tokenizer, tuple(generation.stop)),
        )

    def _fits(self, module: nn.Module, request: GenerationRequest) -> bool:
        """Whether no text slides, which speculative decoding cannot."""
        return max(map(len, request.prompts)) + request.max_tokens <= self._longest(module)

    def stream(self, module: nn.Module, given: Any, generation: GenerationOptions) -> Iterator[str]:
        """A continuation as it is generated."""
        steps = stream(module, self._request([str(given)], replace(generation, samples=1)))
        return (step.text for step in steps if step.text)

    def chat(
        self, module: nn.Module, generation: GenerationOptions, system: str | None = None, template: str | None = None
    ) -> Conversation:
        return Conversation(module, self.tokenizer, self.prompt_format, generation, system, template)

    def _prompt(self, text: str, generation: GenerationOptions) -> list[int]:
        if generation.chat:
            return self.prompt_format.chat_ids([{"role": "user", "content": text}], self.tokenizer)
        return self.prompt_ids(text)

    def prompt_ids(self, text: str) -> list[int]:
        """A text as the model reads it, with what stands before each text."""
        ids = [*self.prompt_format.before, *self.tokenizer.encode(text)]
        first = self.tokenizer.start if self.tokenizer.start is not None else self.tokenizer.stop
        return ids or [first if first is not None else 0]

    def _longest(self, module: nn.Module) -> int:
        return cast(DecoderSpec, module.spec).length

    def preview(self, module: nn.Module, split: Split) -> str:
        """A continuation of the held-out text's beginning."""
        assert isinstance(split, TextSplit)
        if len(split.store) < split.prefix:
            return ""
        shown = split.store.window(0, min(max(PROMPT, split.prefix + 1), len(split.store)))
        prompt = self.tokenizer.decode(shown.tokens.tolist())
        answer = self.predict(module, [prompt], GenerationOptions(max_tokens=PREVIEW, top=0))[0]
        return f"{prompt!r} -> {answer.output!r}"


def _tokenizer(options: TextOptions, paths: Sequence[str | Path]) -> Tokenizer:
    """The one asked for; `auto` takes letters for small texts and pairs of bytes (BPE) for large ones."""
    kind = options.tokenizer
    if kind == "auto":
        kind = _suitable(paths)
    if kind not in ("characters", "bytes", "words", "bpe"):
        return load_tokenizer(kind)
    texts = distinct_characters(paths) if kind == "characters" else sample_texts(paths, LEARNED_FROM)
    return train_tokenizer(
        cast(Literal["characters", "bytes", "words", "bpe"], kind),
        texts,
        options.vocabulary,
        special_tokens=CHAT_TOKENS if has_chats(paths) else (),
    )


def _suitable(paths: Sequence[str | Path]) -> str:
    letters: set[str] = set()
    size = 0
    for piece in read_chunks(paths):
        size += len(piece.text.encode())
        letters |= set(piece.text)
        if size > SMALL_TEXT:
            return "bpe"
    return "characters" if len(letters) <= ALPHABET else "bpe"


def _written(cache: Path, name: str, text: str) -> Path:
    """A sample as a file, so that it goes the way of all texts."""
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"sample-{name}.txt"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)
    return file
