"""Task fill-mask: which tokens fit where a text is masked. Models (BERT, RoBERTa) are imported, not trained.

p(s_t | all other tokens) = softmax(logits_t) at a mask token (Devlin et al. 2019). Measured on a text whose tokens are
masked one at a time: pseudo-perplexity exp(-1/n sum_t log p(s_t | others)) (Salazar et al. 2020), and how often the
likeliest token is the right one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from weft.data.readers.files import DataError
from weft.data.readers.texts import Chat, read_documents
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.foundation.spec import Tree
from weft.tasks.support.language.imported_text import ImportedTextTask, expect_tokenizer, padded_inputs
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.task import Answer, Batch, DataSpec, GenerationOptions, Loss, Split

MASK = "[MASK]"  # a name for the mask that every run understands, whatever its own mask token is
LIKELIEST = 8  # fillings that are told with their probabilities
CONTINUES = "##"  # what WordPiece puts before pieces that continue a word


class FillMaskOptions(DataSpec):
    """`masked`: how many tokens of a text are masked at most, evenly spread; each costs one forward pass."""

    masked: PositiveInt = 2048


@dataclass(frozen=True)
class MaskedSplit(Split):
    """Windows of tokens, and which token of which window each example masks."""

    windows: tuple[list[int], ...]
    places: tuple[tuple[int, int], ...]
    mask: int
    pad: int

    def __len__(self) -> int:
        return len(self.places)

    @property
    def tokens(self) -> int:
        """Tokens of all windows, each as often as one of it is masked."""
        return sum(len(self.windows[window]) for window, _ in self.places)

    def pick(self, numbers: Sequence[int]) -> MaskedSplit:
        """The same with these masks alone."""
        return replace(self, places=tuple(self.places[number] for number in numbers))

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Rows with one mask each; labels are the tokens that were there."""
        rows, places, labels = [], [], []
        for window, place in (self.places[example] for example in examples):
            row = list(self.windows[window])
            labels.append(row[place])
            row[place] = self.mask
            rows.append(row)
            places.append(place)
        inputs = padded_inputs(rows, self.pad)
        return Batch({**inputs, "places": torch.tensor(places)}, torch.tensor(labels), len(rows), sum(map(len, rows)))


class FillMaskTask(ImportedTextTask):
    """A masked language model fills in what is missing."""

    name = "fill-mask"
    metric = "pseudo_perplexity"
    picture = "fill_mask"
    example = f'"a text with a {MASK} in it"'
    Options = FillMaskOptions
    ranks_tokens = True

    def __init__(self, options: FillMaskOptions, tokenizer: Tokenizer, frame: Frame, length: int, mask: int) -> None:
        super().__init__(options, tokenizer, frame, length)
        self.mask = mask

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> FillMaskTask:
        frame, length = Frame.of(facts), int(facts["length"])
        return cls(options, expect_tokenizer(tokenizer), frame, length, int(facts["mask"]))

    def facts(self) -> Tree:
        """The id of the mask, the ids around each text, and how many tokens are read."""
        return {"mask": self.mask, "length": self.length, **self.frame.to_tree()}

    @property
    def mask_token(self) -> str:
        """The mask as the tokenizer writes it: [MASK], <mask>."""
        return str(self.tokenizer.engine.id_to_token(self.mask))

    def read(self, paths: Sequence[str], cache: Path) -> MaskedSplit:
        """Texts in windows that the model reads at once, and which of their tokens are masked."""
        texts = [document for document in read_documents(paths) if not isinstance(document, Chat)]
        rows = [ids for ids in self.tokenizer.encode_many(texts) if ids]
        if not rows:
            raise DataError(f"{', '.join(map(str, paths))}: no text to mask; give a file with text")
        parts = [ids[first : first + self._room] for ids in rows for first in range(0, len(ids), self._room)]
        start = len(self.frame.before)
        places = [(number, start + place) for number, ids in enumerate(parts) for place in range(len(ids))]
        spread = np.linspace(0, len(places) - 1, min(len(places), self.options.masked)).round().astype(int)
        windows = tuple(self.frame.put(ids) for ids in parts)
        return MaskedSplit(windows, tuple(places[n] for n in np.unique(spread)), self.mask, self.tokenizer.pad)

    @property
    def _room(self) -> int:
        """How many tokens of a text are read at once."""
        return max(1, self.length - len(self.frame.before) - len(self.frame.after))

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """- sum log p of the tokens that were masked."""
        logits = _masked_logits(module, batch.inputs)
        return Loss(F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing), batch.count)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Pseudo-perplexity, and the share of masked tokens whose likeliest filling is right."""
        device, total, right = next(module.parameters()).device, 0.0, 0
        with torch.inference_mode():
            for examples in split.batches(size, None):
                batch = split.batch(examples).to(device)
                logits = _masked_logits(module, batch.inputs)
                total += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
                right += int((logits.argmax(-1) == batch.labels).sum())
        loss = total / len(split)
        return {
            "pseudo_perplexity": math.exp(min(loss, 700.0)),
            "accuracy": right / len(split),
            "loss": loss,
            "masked_tokens": len(split),
        }

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """Each text with its masks filled in by the likeliest tokens, and the probabilities of the likeliest few."""
        device, answers = next(module.parameters()).device, []
        for given in inputs:
            text = self._with_own_mask(str(given))
            row = self._row(text)
            places = [place for place, index in enumerate(row) if index == self.mask]
            if len(places) != text.count(self.mask_token):
                raise WeftError(f"the tokenizer does not read {self.mask_token} as its mask: import the run again")
            batch = {name: x.to(device) for name, x in padded_inputs([row], self.tokenizer.pad).items()}
            with torch.inference_mode():
                output = module(**batch)
                shares = widen(output.head(output.hidden[:, places])[0]).softmax(-1).cpu()
            top = LIKELIEST if generation.top is None else generation.top
            answers.append(self._answer(str(given), text, shares, top))
        return answers

    def _with_own_mask(self, text: str) -> str:
        """`[MASK]` in a text stands for the tokenizer's own mask; a text without any is refused."""
        own = self.mask_token
        text = text if own in text else text.replace(MASK, own)
        if own not in text:
            raise WeftError(f"there is nothing to fill in in {text!r:.60}: write {MASK} where a word is missing")
        return text

    def _row(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        if self.mask in ids[self._room :]:
            raise WeftError(
                f"a mask is at token {ids.index(self.mask, self._room) + 1} of the text, but this model reads "
                f"{self._room}: give a shorter text"
            )
        return self.frame.put(ids, self.length)

    def _answer(self, given: str, text: str, shares: Tensor, top: int) -> Answer:
        """`shares` [masks, C] -> the filled text; one table of probabilities per mask, alone where there is one."""
        found = []
        for row in shares:
            best = row.topk(min(max(top, 1), len(row)))
            names = self._names(best.indices.tolist())
            found.append({name: round(float(p), 6) for name, p in zip(names, best.values, strict=True)})
        filled = fill(text.split(self.mask_token), [next(iter(table)) for table in found])
        more: Tree = {"probabilities": found[0] if len(found) == 1 else found} if top else {}
        return Answer(given, filled, more)

    def _names(self, ids: Sequence[int]) -> list[str]:
        """What tokens are written as; those that look alike (parts of characters) go by their name or number."""
        pieces, token = self.tokenizer.pieces(ids), self.tokenizer.engine.id_to_token
        return [
            piece if piece and pieces.count(piece) == 1 else token(index) or f"token {index}"
            for index, piece in zip(ids, pieces, strict=True)
        ]


def _masked_logits(module: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """[B, C] at the masks: only there the head is asked."""
    places = inputs["places"]
    output = module(**{name: x for name, x in inputs.items() if name != "places"})
    rows = torch.arange(len(places), device=places.device)
    return widen(output.head(output.hidden[rows, places][:, None])[:, 0])


def fill(parts: Sequence[str], pieces: Sequence[str]) -> str:
    """A text around its masks with pieces put there: `##s` joins the word before it, ` word` brings its own space."""
    text = parts[0]
    for piece, after in zip(pieces, parts[1:], strict=True):
        if piece.startswith(CONTINUES) or (piece.startswith(" ") and text.endswith(" ")):
            text = text.rstrip(" ")
        text += piece.removeprefix(CONTINUES) + after
    return text
