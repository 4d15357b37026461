"""Task regression: one number per text, or per pair of texts: sentence scorers, cross-encoders that rerank.

y = f(w . x + b) for the pooled state x of an encoder that reads the text, or both texts one after the other (Nogueira
and Cho 2019); f is the sigmoid where the model was trained for scores from 0 to 1. Models are imported, not trained.
Measured by the rank correlation of scores with those in a table (Spearman).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.batching import READ_AT_ONCE, groups_of_like_length
from weft.data.readers.files import DataError, find_files
from weft.data.readers.tables import TABLE_SUFFIXES, open_table
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.foundation.spec import Tree
from weft.tasks.support.evaluation.metrics import mse, pearson, spearman
from weft.tasks.support.inputs.table_data import TableDataSpec
from weft.tasks.support.language.imported_text import ImportedTextTask, PairFrame, expect_tokenizer, padded_inputs
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.task import Answer, Batch, GenerationOptions, Loss, Split

ScoreActivation = Literal["identity", "sigmoid"]
Texts = tuple[str, ...]  # one text, or a pair
BETWEEN = "\t"  # what separates the texts of a pair in one line


class RegressionOptions(TableDataSpec):
    """`columns`: one or two texts and their score, by name or number from 1; `header`: yes, no or auto."""


@dataclass(frozen=True)
class ScoredSplit(Split):
    """Texts or pairs in tokens with their segments, and their scores."""

    rows: tuple[tuple[list[int], list[int]], ...]
    scores: NDArray[np.float64]
    pad: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(ids) for ids, _ in self.rows)

    def pick(self, numbers: Sequence[int]) -> ScoredSplit:
        """The same with these rows alone."""
        return replace(self, rows=tuple(self.rows[n] for n in numbers), scores=self.scores[list(numbers)])

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Examples in their own order, about `size` tokens per batch."""
        count = max(1, size // max(len(ids) for ids, _ in self.rows))
        return [range(first, min(first + count, len(self))) for first in range(0, len(self), count)]

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """Rows with padding on the right; labels are the scores."""
        ids, segments = zip(*(self.rows[example] for example in examples), strict=True)
        scores = torch.from_numpy(self.scores[list(examples)])
        return Batch(dict(padded_inputs(ids, self.pad, segments)), scores, len(scores), sum(map(len, ids)))


class RegressionTask(ImportedTextTask):
    """An encoder gives each text, or each pair of texts, a score."""

    name = "regression"
    metric = "spearman"
    picture = "regression"
    example = '"a text"'
    Options = RegressionOptions

    def __init__(
        self,
        options: RegressionOptions,
        tokenizer: Tokenizer,
        frame: Frame,
        length: int,
        pair: PairFrame | None = None,
        activation: ScoreActivation = "identity",
    ) -> None:
        super().__init__(options, tokenizer, frame, length)
        self.pair, self.activation = pair, activation

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> RegressionTask:
        activation, length = cast(ScoreActivation, str(facts["activation"])), int(facts["length"])
        return cls(options, expect_tokenizer(tokenizer), Frame.of(facts), length, PairFrame.of(facts), activation)

    def facts(self) -> Tree:
        """What makes a score of the logit, the ids around and between texts, and how many tokens are read."""
        pair = {} if self.pair is None else self.pair.to_tree()
        return {"activation": self.activation, "length": self.length, **self.frame.to_tree(), **pair}

    def read(self, paths: Sequence[str], cache: Path) -> ScoredSplit:
        """Rows of one or two texts and a score."""
        texts: list[Texts] = []
        scores: list[float] = []
        for path in find_files(paths, TABLE_SUFFIXES):
            table = open_table(path, self.options.table_options())
            for number, cells in table.read(table.places(self.options.columns or table.column_names)):
                try:
                    score = float(cells[-1])
                except (ValueError, IndexError):
                    raise _not_scored(path, number) from None
                if len(cells) not in (2, 3):
                    raise _not_scored(path, number)
                texts.append(tuple(cells[:-1]))
                scores.append(score)
        if len(texts) < 2:
            raise DataError(f"{len(texts)} scored texts: a correlation needs two or more rows of text and score")
        return ScoredSplit(tuple(map(self._row, texts)), np.array(scores), self.tokenizer.pad)

    def _row(self, texts: Texts) -> tuple[list[int], list[int]]:
        """(ids, segments) of a text or a pair."""
        if len(texts) > 1 and self.pair is None:
            raise WeftError("this model reads one text, but two are given: its tokenizer has no form for pairs")
        ids = self.tokenizer.encode_many(texts)
        if len(texts) == 2 and self.pair is not None:
            return self.pair.put(self.frame, ids[0], ids[1], self.length)
        row = self.frame.put(ids[0], self.length) or [self.tokenizer.role("unknown") or 0]
        return row, [0] * len(row)

    def scores(self, module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """One score per text, [B]."""
        logits = widen(module(**inputs).logits)[:, 0]
        return logits.sigmoid() if self.activation == "sigmoid" else logits

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The squared differences of scores."""
        scores = self.scores(module, batch.inputs)
        return Loss((scores - batch.labels.to(scores)).square().sum(), batch.count)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Correlations with the scores of the table, of ranks (Spearman) and of values (Pearson); squared error."""
        assert isinstance(split, ScoredSplit)
        device = next(module.parameters()).device
        with torch.inference_mode():
            batches = (split.batch(examples).to(device) for examples in split.batches(size, None))
            found = [self.scores(module, batch.inputs).double().cpu().numpy() for batch in batches]
        scores = np.concatenate(found)
        return {
            "spearman": spearman(scores, split.scores),
            "pearson": pearson(scores, split.scores),
            "mse": mse(scores, split.scores),
            "examples": len(split),
        }

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """The score of each text; a pair is two texts with a tab between, or a tuple of two."""
        if not inputs:
            return []
        given = [_texts_of(one) for one in inputs]
        rows = tuple(map(self._row, given))
        split = ScoredSplit(rows, np.zeros(len(rows)), self.tokenizer.pad)
        device, found = next(module.parameters()).device, [0.0] * len(rows)
        lengths = [len(ids) for ids, _ in rows]
        with torch.inference_mode():
            for places in groups_of_like_length(lengths, READ_AT_ONCE, device, generation.batch):
                scores = self.scores(module, split.batch(places).to(device).inputs)
                for place, score in zip(places, scores.tolist(), strict=True):
                    found[place] = score
        return [Answer(BETWEEN.join(texts), score) for texts, score in zip(given, found, strict=True)]


def _not_scored(path: Path, number: int) -> DataError:
    return DataError(
        f"{path.name}, line {number}: one or two texts and a number are needed, such as a<tab>b<tab>0.8: choose "
        "columns with --set data.columns=a,b,score"
    )


def _texts_of(given: Any) -> Texts:
    texts = tuple(map(str, given)) if isinstance(given, (list, tuple)) else tuple(str(given).split(BETWEEN))
    if len(texts) > 2:
        raise WeftError(f"{len(texts)} texts in one input: give one, or two with a tab between")
    return texts
