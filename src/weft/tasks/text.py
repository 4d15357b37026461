"""Task text: a language model over documents, its windows and batches. p(x_1 .. x_N) = prod_t p(x_t | x_1 .. x_(t-1)).

Loss: - log p of each next token, in nats; perplexity exp(loss); bits per byte, which does not depend on the tokenizer.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import nn

from weft.data.readers.files import DataError
from weft.data.readers.texts import CHAT_TOKENS
from weft.data.stores.text_chunks import distinct_characters, has_chats, read_chunks, sample_texts
from weft.data.stores.token_store import TokenStore, open_token_store
from weft.data.tokenizers.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from weft.foreign.user_module import ModuleInterface
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_text
from weft.foundation.spec import Tree
from weft.inference.decoding.detokenizer import Detokenizer
from weft.inference.decoding.generate import stream
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.speculative import speculates_unasked, stream_speculative
from weft.models.build import AnySpec
from weft.models.decoder import DecoderSpec
from weft.models.output import Output
from weft.models.part_specs import LayerNormSpec
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.parts.masks import Documents
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, ratio
from weft.tasks.support.evaluation.ngrams import ORDER, ByteNgrams
from weft.tasks.support.evaluation.resampling import Statistic
from weft.tasks.support.language.conversation import Conversation
from weft.tasks.support.language.few_shot import FewShot
from weft.tasks.support.language.generation import TEMPERATURE, generate_texts, name_probabilities
from weft.tasks.support.language.prompt_format import PromptFormat
from weft.tasks.support.losses import language_loss, mean_loss, token_losses
from weft.tasks.support.splits.text_windows import BLOCK, TextSplit
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
TOKENIZER_CHARACTERS = 50_000_000  # characters that words and bpe are learned from, at most
WINDOW = 512  # tokens per window when a model is trained on: those from elsewhere read more than memory holds
PROMPT, PREVIEW = 24, 60
CONTINUATION = 120
MOST_LEARNED, MOST_SCORED = 2_000_000, 500_000  # bytes that the n-gram model learns from, and is measured on
MOST_COMPRESSED = 8_000_000  # bytes that xz is measured on


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


class TextTask(FewShot, Task):
    """A decoder learns to continue texts."""

    name = "text"
    families = ("decoder",)
    metric = "loss"
    reference_metric = "bits_per_byte"
    picture = "text"
    example = '"Once upon a time" --max-tokens 80'
    Options = TextOptions
    formats = "texts (.txt, .md), .jsonl with a field text or messages, .parquet with a column text, folders of them"
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
        return TextSplit(store, isolate=several, most=most, tokenizer=self.tokenizer)

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
        return language_loss(module, self._read(module, batch), batch.labels, batch.count, smoothing)

    def _read(self, module: nn.Module, batch: Batch) -> Output:
        """The model's states at all tokens of a batch; documents do not see each other where they are isolated."""
        documents = batch.inputs.get("documents")
        return module(batch.inputs["tokens"], mask=None if documents is None else Documents(documents))

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Loss in nats per token, perplexity, and bits per byte; over windows side by side, each begun anew."""
        assert isinstance(split, TextSplit)
        return self._metrics(mean_loss(self, module, split, size), split)

    def _metrics(self, loss: float, split: TextSplit) -> dict[str, Any]:
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss * _bits_per_byte(split),
            "tokens": len(split.store),
            "context": split.context,
        }

    def score_examples(self, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
        """An example is a stretch of BLOCK tokens, however long the windows are that the model reads them in."""
        assert isinstance(split, TextSplit)
        rows = self._block_losses(module, split, size, report)
        bits = _bits_per_byte(split)
        statistics = {
            "loss": Statistic(rows, ratio),
            "perplexity": Statistic(rows, lambda sums: np.exp(np.minimum(ratio(sums), 700.0))),
            "bits_per_byte": Statistic(rows, lambda sums: bits * ratio(sums)),
        }
        means = ratio(rows)

        def show(block: int) -> str:
            return self.tokenizer.decode(split.store.window(block * BLOCK, BLOCK).tokens.tolist())

        metrics = self._metrics(statistics["loss"].point, split)
        answers = [f"{mean:.4f} nats per token" for mean in means]
        return ExampleScores(metrics, statistics, [None] * len(rows), answers, -means, show)

    def _block_losses(
        self, module: nn.Module, split: TextSplit, size: int, report: Report | None
    ) -> NDArray[np.float64]:
        """(nats, tokens that count) of each stretch of BLOCK tokens, [N, 2]."""
        device, training = next(module.parameters()).device, module.training
        module.eval()
        rows = np.zeros((-(-(len(split.store) - 1) // BLOCK), 2))
        with torch.inference_mode():
            for windows in split.batches(size, None):
                batch = split.batch(windows).to(device)
                losses = token_losses(module, self._read(module, batch), batch.labels).double().cpu().numpy()
                place = np.array(windows)[:, None] * split.context + np.arange(split.context)
                counted = batch.labels.cpu().numpy() != IGNORED
                blocks = place[counted] // BLOCK
                np.add.at(rows, (blocks, 0), losses[counted])
                np.add.at(rows, (blocks, 1), 1)
                if report is not None:
                    report((windows[-1] + 1) / len(split))
        module.train(training)
        return rows

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """Continuations; with each, the likeliest tokens and their probabilities if `top` and `steps` ask for them."""
        texts = [str(text) for text in inputs]
        request = self._request(texts, generation)
        speculative = self._speculates(module, request, generation)
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

    def _speculates(self, module: nn.Module, request: GenerationRequest, generation: GenerationOptions) -> bool:
        """Whether texts are written by prompt look-up: as asked for, where no text slides, or where it is free."""
        if generation.speculative is None:
            return generation.beam is None and speculates_unasked(module, request)
        fits = max(map(len, request.prompts)) + request.max_tokens <= self._longest(module)
        return generation.speculative and fits

    def stream(self, module: nn.Module, given: Any, generation: GenerationOptions) -> Iterator[str]:
        """A continuation as it is generated."""
        request = self._request([str(given)], replace(generation, samples=1))
        steps = (stream_speculative if self._speculates(module, request, generation) else stream)(module, request)
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

    def references(self, train: Split, split: Split) -> dict[str, float]:
        """Bits per byte of an n-gram model that learned from the end of the training text."""
        assert isinstance(train, TextSplit) and isinstance(split, TextSplit)
        if split.store.chats:
            return {}
        model = ByteNgrams.fit(self._bytes(train, MOST_LEARNED, from_end=True))
        return {f"byte {ORDER}-gram": model.bits_per_byte(self._bytes(split, MOST_SCORED))}

    def quick_references(self, facts: Tree, split: Split) -> dict[str, float]:
        """Bits per byte of xz, which knows no other text."""
        assert isinstance(split, TextSplit)
        text = b"" if split.store.chats else self._bytes(split, MOST_COMPRESSED)
        return {"xz": 8 * len(lzma.compress(text)) / len(text)} if text else {}

    def _bytes(self, split: TextSplit, most: int, from_end: bool = False) -> bytes:
        """The first, or last, `most` bytes of a split's text."""
        count = min(most, len(split.store))
        tokens = split.store.window(len(split.store) - count if from_end else 0, count).tokens
        text = self.tokenizer.decode(tokens.tolist()).encode()
        return text[-most:] if from_end else text[:most]


def _bits_per_byte(split: TextSplit) -> float:
    """What a nat per token is in bits per byte."""
    return split.store.counted / max(1, split.store.bytes) / math.log(2)


def _tokenizer(options: TextOptions, paths: Sequence[str | Path]) -> Tokenizer:
    """The one asked for; `auto` takes letters for small texts and pairs of bytes (BPE) for large ones."""
    kind = options.tokenizer
    if kind == "auto":
        kind = _suitable(paths)
    if kind not in ("characters", "bytes", "words", "bpe"):
        return load_tokenizer(kind)
    texts = distinct_characters(paths) if kind == "characters" else sample_texts(paths, TOKENIZER_CHARACTERS)
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
