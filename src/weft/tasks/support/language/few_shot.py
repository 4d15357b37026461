"""Labels from a language model without training: a few labeled examples stand in its prompt (Brown et al. 2020).

score(c | text) = log p(word of c | examples, text), the sum over the word's tokens; the highest wins. A model likes
some words whatever the text, the last example's above all; p(c | text) / mean over texts of p(c | .) is calibrated,
without a look at any label (Zhou et al. 2024).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.data.readers.files import DataError
from weft.data.readers.tables import TableOptions
from weft.data.readers.texts import read_labeled
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import LengthError, WeftError
from weft.foundation.numerics import widen
from weft.foundation.seeds import generator
from weft.parts.masks import Padding
from weft.tasks.support.evaluation.metrics import accuracy, macro_f1
from weft.tasks.support.inputs.input_rows import TextInputs

Labeled = Sequence[tuple[str, str]]
PATTERN = "Text: {text}\nLabel: {label}"
METRIC = "accuracy"  # the one that users quote
READ_AT_ONCE = 4096  # tokens per batch, those of the examples counted for each row


@dataclass(frozen=True)
class FewShotOptions:
    """`shots`: number of labeled examples in the prompt.

    `labels` are words for the labels, in their order; `examples` is the file that examples are drawn from, else the
    data itself, less what was drawn; `prompt` says how each is written; `columns` are those of text and label.
    """

    shots: int = 0
    labels: Sequence[str] | None = None
    examples: str | Path | None = None
    prompt: str | None = None
    seed: int = 0
    columns: Sequence[str] = ()


class FewShot(TextInputs):
    """What a task of language models inherits: its inputs are texts, and it labels texts after examples in a prompt."""

    tokenizer: Tokenizer

    @abstractmethod
    def prompt_ids(self, text: str) -> list[int]:
        """A text as the model reads it."""

    def few_shot(self, module: nn.Module, data: Sequence[str | Path], options: FewShotOptions) -> dict[str, Any]:
        """Accuracy and more of the labels that the model gives, see `evaluate_few_shot`."""
        columns = options.columns.split(",") if isinstance(options.columns, str) else options.columns
        table = TableOptions(tuple(columns))
        rows = read_labeled(data, table, learn=False).rows
        source = rows if options.examples is None else read_labeled([options.examples], table, learn=False).rows
        drawn = draw_examples(source, options.shots, options.seed)
        words = name_labels([*source, *rows], options.labels)
        question = Question(tuple(source[place] for place in drawn), words, options.prompt or PATTERN)
        if options.examples is None:
            rows = [row for place, row in enumerate(rows) if place not in set(drawn)]
        return evaluate_few_shot(module, self, rows, question)


@dataclass(frozen=True)
class Question:
    """How a text is put before the model: examples with the words of their labels, then the text itself.

    `pattern` says how each is written; it ends with the label, after a space.
    """

    examples: tuple[tuple[str, str], ...]
    words: Mapping[str, str]
    pattern: str = PATTERN

    def __post_init__(self) -> None:
        if not self.pattern.endswith(" {label}") or self.pattern.count("{text}") != 1:
            raise WeftError(f"the prompt {self.pattern!r} must hold {{text}} once and end with a space and {{label}}")

    def prompt(self, text: str) -> str:
        """The prompt, up to where the word of the label follows after a space."""
        shown = "".join(f"{self._fill(given)} {self.words[label]}\n\n" for given, label in self.examples)
        return shown + self._fill(text)

    def _fill(self, text: str) -> str:
        return self.pattern.removesuffix(" {label}").replace("{text}", text.strip())


def name_labels(rows: Labeled, words: Sequence[str] | None = None) -> dict[str, str]:
    """Each label, in order, with the word that stands for it in a prompt; itself if no words are given."""
    labels = sorted({label for _, label in rows}, key=lambda label: (not label.isdigit(), len(label), label))
    if words is None:
        return {label: label for label in labels}
    if len(words) != len(labels) or len(set(words)) != len(words):
        raise WeftError(
            f"{len(words)} words for {len(labels)} labels ({', '.join(labels)[:80]}): give each its own, in this order"
        )
    return dict(zip(labels, words, strict=True))


def draw_examples(rows: Labeled, count: int, seed: int = 0) -> list[int]:
    """Which rows are shown: labels in turn, as many of each as can be."""
    if count < 0 or count > len(rows):
        raise WeftError(f"{count} examples of {len(rows)} rows: give --shots from 0 to what is there")
    order = torch.randperm(len(rows), generator=generator(seed, "shots")).tolist()
    by_label: dict[str, list[int]] = {}
    for place in order:
        by_label.setdefault(rows[place][1], []).append(place)
    turns = [(turn, label, place) for label, places in by_label.items() for turn, place in enumerate(places)]
    return [place for _, _, place in sorted(turns)[:count]]


def evaluate_few_shot(module: nn.Module, task: FewShot, rows: Labeled, question: Question) -> dict[str, Any]:
    """Accuracy, macro F1 and loss in nats over the labels, plain and calibrated, beside the most frequent label's."""
    if not rows:
        raise DataError("all rows are shown as examples, none is left to evaluate on: give more data or fewer --shots")
    labels = list(question.words)
    unknown = next((label for _, label in rows if label not in question.words), None)
    if unknown is not None:
        raise DataError(f"label {unknown!r} is not among those of the examples: {', '.join(labels)[:80]}")
    chances = score_labels(module, task, question, [text for text, _ in rows]).double().log_softmax(1)
    truth = [labels.index(label) for _, label in rows]
    calibrated = chances - chances.logsumexp(0)
    said, better = (found.argmax(1).tolist() for found in (chances, calibrated))
    frequent = max(truth.count(number) for number in range(len(labels))) / len(truth)
    return {
        "accuracy": accuracy(said, truth),
        "macro_f1": macro_f1(said, truth),
        "loss": -float(chances[torch.arange(len(truth)), torch.tensor(truth)].mean()),
        "calibrated_accuracy": accuracy(better, truth),
        "most_frequent_label": frequent,
        "shots": len(question.examples),
        "examples": len(rows),
    }


def score_labels(module: nn.Module, task: FewShot, question: Question, texts: Sequence[str]) -> Tensor:
    """log p of each label's word after each text, [N, labels]; what all prompts begin with is read once."""
    prompts = [task.prompt_ids(question.prompt(text)) for text in texts]
    words = _word_ids(task, question, texts[0], prompts[0])
    shared = _shared(prompts)
    _expect_room(module, max(map(len, prompts)) + max(map(len, words)), len(question.examples))
    device = next(module.parameters()).device
    state = module.make_state(1)  # type: ignore[operator]
    found: dict[int, Tensor] = {}
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    with torch.inference_mode():
        if shared:
            module(torch.tensor([prompts[0][:shared]], device=device), state=state)
        while order:
            count = max(1, READ_AT_ONCE // len(prompts[order[-1]]))
            places, order = order[-count:], order[:-count]
            scores = _score(module, state, [prompts[place][shared:] for place in places], words).cpu()
            found |= dict(zip(places, scores, strict=True))
    return torch.stack([found[place] for place in range(len(texts))])


def _score(module: nn.Module, state: Any, rows: list[list[int]], words: list[list[int]]) -> Tensor:
    """Scores [B, labels] of rows that go on from a state of one row."""
    device = next(module.parameters()).device
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    own = state.copy()
    own.reorder(torch.zeros(len(rows), dtype=torch.long))
    output = module(tokens.to(device), mask=Padding(lengths.to(device)), state=own)
    last = output.hidden[torch.arange(len(rows)), lengths - 1]
    first = widen(output.head(last)).log_softmax(-1)
    scores = []
    for word in words:
        score = first[:, word[0]]
        if len(word) > 1:
            more = torch.tensor(word, device=device).expand(len(rows), -1)
            rest = widen(module(more[:, :-1], state=own.copy()).logits).log_softmax(-1)
            score = score + rest.gather(2, more[:, 1:, None]).sum((1, 2))
        scores.append(score)
    return torch.stack(scores, 1)


def _word_ids(task: FewShot, question: Question, text: str, prompt: list[int]) -> list[list[int]]:
    """The tokens of each label's word where it stands after a prompt."""
    found = []
    for word in question.words.values():
        whole = task.prompt_ids(f"{question.prompt(text)} {word}")
        ids = whole[len(prompt) :] if whole[: len(prompt)] == prompt else task.tokenizer.encode(word)
        if not ids:
            raise WeftError(f"the tokenizer has no token for the label {word!r}: give other words with --labels")
        found.append(ids)
    if len({tuple(ids) for ids in found}) < len(found):
        raise WeftError("two labels have the same tokens: give words that the tokenizer knows with --labels")
    return found


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with; each keeps one of its own."""
    least = min(map(len, prompts)) - 1
    first = prompts[0]
    return next((n for n in range(least) if any(prompt[n] != first[n] for prompt in prompts)), max(0, least))


def _expect_room(module: nn.Module, longest: int, shots: int) -> None:
    length = getattr(module.spec, "length", None)
    if length is not None and longest > length:
        raise LengthError(
            f"a prompt with {shots} examples takes up to {longest} tokens, but this model reads {length}: fewer --shots"
        )
