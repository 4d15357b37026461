"""Task embedding: one vector per text, so that texts of like meaning lie close. Models are imported, not trained.

v = pool(h_1 .. h_T) of an encoder's last states: their mean, or the first's; |v| = 1 where it is normalized. Measured
on pairs of texts with a score of how alike they are: the rank correlation of cosines with scores (Spearman).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.batching import READ_AT_ONCE, groups_of_like_length, pad_rows
from weft.data.readers.files import DataError, find_files
from weft.data.readers.tables import TABLE_SUFFIXES, open_table
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.spec import Tree
from weft.models.encoder import EncoderSpec
from weft.parts.masks import Real
from weft.parts.outputs import Pool, pool_tokens
from weft.parts.token_positions import TokenPositions
from weft.tasks.support.evaluation.metrics import pearson, spearman
from weft.tasks.support.inputs.table_data import TableDataSpec
from weft.tasks.support.language.imported_text import ImportedTextTask, expect_tokenizer
from weft.tasks.support.language.prompt_format import Frame
from weft.tasks.task import Answer, Batch, GenerationOptions, Loss, Split


class EmbeddingOptions(TableDataSpec):
    """`columns`: the two texts and the score, by name or number from 1; `header`: yes, no or auto."""


@dataclass(frozen=True)
class SimilaritySplit(Split):
    """Pairs of texts in tokens, and how alike each is."""

    rows: tuple[tuple[list[int], list[int]], ...]
    scores: NDArray[np.float64]
    pad: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """Tokens of both texts."""
        return sum(len(first) + len(second) for first, second in self.rows)

    def pick(self, numbers: Sequence[int]) -> SimilaritySplit:
        """The same with these pairs alone."""
        return replace(self, rows=tuple(self.rows[n] for n in numbers), scores=self.scores[list(numbers)])

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """Pairs in their own order, about `size` tokens per batch."""
        longest = max(max(map(len, pair)) for pair in self.rows)
        count = max(1, size // (2 * longest))
        return [range(first, min(first + count, len(self))) for first in range(0, len(self), count)]

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """The first texts of all pairs, then the second ones, with padding on the right; labels are the scores."""
        rows = [self.rows[example][side] for side in (0, 1) for example in examples]
        padded = pad_rows(rows, self.pad)
        scores = torch.from_numpy(self.scores[list(examples)])
        inputs = {"tokens": padded.tokens, "lengths": padded.lengths}
        return Batch(inputs, scores, len(scores), padded.tokens.numel())


class EmbeddingTask(ImportedTextTask):
    """An encoder gives each text a vector."""

    name = "embedding"
    metric = "spearman"
    picture = "embedding"
    example = '"a text" --json'
    Options = EmbeddingOptions

    def __init__(
        self, options: EmbeddingOptions, tokenizer: Tokenizer, frame: Frame, pool: Pool, normalize: bool, length: int
    ) -> None:
        super().__init__(options, tokenizer, frame, length)
        self.pool, self.normalize = pool, normalize

    @classmethod
    def restore(cls, options: Any, facts: Tree, tokenizer: Tokenizer | None) -> EmbeddingTask:
        tokenizer = expect_tokenizer(tokenizer)
        pool, normalize = cast(Pool, str(facts["pool"])), bool(facts["normalize"])
        return cls(options, tokenizer, Frame.of(facts), pool, normalize, int(facts["length"]))

    def facts(self) -> Tree:
        """How tokens become one vector, the ids around each text, and how many tokens are read."""
        how = {"pool": self.pool, "normalize": self.normalize, "length": self.length}
        return {**how, **self.frame.to_tree()}

    def read(self, paths: Sequence[str], cache: Path) -> Split:
        """Rows of two texts and a score."""
        pairs: list[tuple[str, str]] = []
        scores: list[float] = []
        for path in find_files(paths, TABLE_SUFFIXES):
            table = open_table(path, self.options.table_options())
            columns = self.options.columns or table.column_names
            for number, cells in table.read(table.places(columns)):
                try:
                    first, second, score = cells
                    scores.append(float(score))
                except ValueError:
                    raise DataError(
                        f"{path.name}, line {number}: two texts and a number are needed, such as a<tab>b<tab>0.8: "
                        "choose columns with --set data.columns=a,b,score"
                    ) from None
                pairs.append((first, second))
        if len(pairs) < 2:
            raise DataError(f"{len(pairs)} pairs: a correlation needs two or more rows of two texts and a score")
        ids = [self._rows([pair[side] for pair in pairs]) for side in (0, 1)]
        return SimilaritySplit(tuple(zip(*ids, strict=True)), np.array(scores), self.tokenizer.pad)

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = self.tokenizer.role("unknown") or 0
        return [self.frame.put(ids, self.length) or [unknown] for ids in self.tokenizer.encode_many(texts)]

    def loss(self, module: nn.Module, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The squared differences of cosines and scores; scores count from 0 to 1."""
        first, second = self._vectors(module, batch.inputs["tokens"], batch.inputs["lengths"]).chunk(2)
        cosines = nn.functional.cosine_similarity(first, second)
        return Loss((cosines - batch.labels.to(cosines)).square().sum(), batch.count)

    def measure(self, module: nn.Module, split: Split, size: int) -> dict[str, Any]:
        """Correlations of cosines with scores: of their ranks (Spearman), and of themselves (Pearson)."""
        assert isinstance(split, SimilaritySplit)
        vectors = self.embed_rows(module, [pair[side] for side in (0, 1) for pair in split.rows], size)
        first, second = vectors.chunk(2)
        cosines = nn.functional.cosine_similarity(first, second).double().numpy()
        return {
            "spearman": spearman(cosines, split.scores),
            "pearson": pearson(cosines, split.scores),
            "pairs": len(split),
        }

    def predict(self, module: nn.Module, inputs: Sequence[Any], generation: GenerationOptions) -> list[Answer]:
        """The vector of each text."""
        texts = [str(given) for given in inputs]
        vectors = self.embed(module, texts, generation.batch)
        return [Answer(text, vector.tolist()) for text, vector in zip(texts, vectors, strict=True)]

    def embed(self, module: nn.Module, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Vectors [N, D] of texts."""
        return self.embed_rows(module, self._rows(texts), batch=batch)

    def embed_rows(
        self, module: nn.Module, rows: Sequence[Sequence[int]], size: int = READ_AT_ONCE, batch: int | None = None
    ) -> Tensor:
        """Vectors [N, D] of texts in tokens; those of like length are read together, up to `size` tokens at once."""
        device = next(module.parameters()).device
        vectors = torch.zeros(len(rows), cast(EncoderSpec, module.spec).width)
        with torch.inference_mode():
            for places in groups_of_like_length([len(row) for row in rows], size, device, batch):
                padded = pad_rows([rows[place] for place in places], self.tokenizer.pad)
                found = self._vectors(module, padded.tokens.to(device), padded.lengths.to(device))
                vectors = vectors.to(found.dtype).index_copy(0, torch.tensor(places), found.cpu())
        return vectors

    def _vectors(self, module: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        hidden = module(tokens, mask=Real(real)).hidden
        vectors = pool_tokens(hidden, TokenPositions.of_lengths(lengths, tokens.shape[1]), self.pool)
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors
