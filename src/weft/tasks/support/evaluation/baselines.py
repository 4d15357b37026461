"""Baselines that a trained model has to beat: small, deterministic, fitted in seconds.

Forecast: the last value, and ridge regression. Classification: logistic regression on words and pairs of words.
Tagging: the most frequent tag of each word. N rows of a series, C columns or classes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn import functional as F

from weft.foundation.errors import WeftError
from weft.foundation.numerics import minimize

Doubles = NDArray[np.float64]
RIDGE_PENALTIES = tuple(10.0**power for power in range(-5, 2))
MOST_WINDOWS = 200_000
ROWS_AT_ONCE = 4096
LOGISTIC_PENALTIES = (0.1, 0.3, 1.0)
MOST_PIECES = 200_000
SUFFIX_LETTERS = 4


def naive_forecast(history: ArrayLike, horizon: int) -> Doubles:
    """The last value repeated: history [n, context, C] -> [n, horizon, C]."""
    values = _windows_of(history)
    return np.repeat(values[:, -1:], horizon, axis=1)


@dataclass(frozen=True)
class RidgeForecast:
    """y = last + W (x - last) with one W [horizon, context] for all columns, each column by itself.

    W minimizes the squared error plus a penalty |W|^2 (ridge regression), in closed form.
    """

    weights: Doubles
    penalty: float

    @classmethod
    def fit(cls, train: ArrayLike, context: int, horizon: int) -> RidgeForecast:
        """From a series [N, C]; the penalty is chosen on the last fifth of its windows, then all are used.

        Columns count alike, whatever their scale; of very many windows an even choice is used.
        """
        series = np.asarray(train, dtype=np.float64)
        windows = len(series) - context - horizon + 1 if series.ndim == 2 else 0
        if windows < 1 or min(context, horizon) < 1:
            shape = "x".join(map(str, series.shape))
            raise WeftError(
                f"a series of shape {shape} has no window of context {context} and horizon {horizon}: "
                f"give {max(context, 1) + max(horizon, 1)} rows or more as [N, C], or shorten them"
            )
        spread = series.std(axis=0)
        scaled = (series / np.where(spread > 0, spread, 1.0)).T
        # Windows of the first part whose targets reach into the last one would make small penalties look good.
        last = windows - windows // 5
        first = max(0, last - horizon)
        fitted, between, held = (
            _Moments.of(scaled, context, horizon, range(*part)) for part in ((0, first), (first, last), (last, windows))
        )
        penalty = RIDGE_PENALTIES[-1]
        if fitted.rows and held.rows:
            penalty = min(RIDGE_PENALTIES, key=dict(zip(RIDGE_PENALTIES, fitted.errors(held), strict=True)).__getitem__)
        weights = next((fitted + between + held).solutions([penalty]))
        return cls(weights.T.copy(), penalty)

    def predict(self, history: ArrayLike) -> Doubles:
        """History [n, context, C] -> forecast [n, horizon, C]."""
        values = _windows_of(history)
        if values.shape[1] != self.weights.shape[1]:
            raise WeftError(
                f"a history of {values.shape[1]} rows, but the regression was fitted on {self.weights.shape[1]}: "
                "give as many"
            )
        last = values[:, -1:]
        return np.einsum("hs,nsc->nhc", self.weights, values - last, optimize=True) + last


@dataclass(frozen=True)
class _Moments:
    """Sums over windows: X^T X [context, context], X^T Y [context, horizon] and the sum of Y^2."""

    rows: int
    xx: Doubles
    xy: Doubles
    yy: float

    @classmethod
    def of(cls, columns: Doubles, context: int, horizon: int, windows: range) -> _Moments:
        """Columns [C, N]; some thousand windows are held at a time."""
        xx, xy, yy, rows = np.zeros((context, context)), np.zeros((context, horizon)), 0.0, 0
        stride = max(1, -(-len(columns) * len(columns.T) // MOST_WINDOWS))
        for column in columns:
            slid = np.lib.stride_tricks.sliding_window_view(column, context + horizon)
            for start in range(windows.start, windows.stop, ROWS_AT_ONCE * stride):
                part = slid[start : min(start + ROWS_AT_ONCE * stride, windows.stop) : stride]
                part = part - part[:, context - 1 : context]
                x, y = part[:, :context], part[:, context:]
                xx, xy, yy, rows = xx + x.T @ x, xy + x.T @ y, yy + float((y * y).sum()), rows + len(x)
        return cls(rows, xx, xy, yy)

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(self.rows + other.rows, self.xx + other.xx, self.xy + other.xy, self.yy + other.yy)

    def solutions(self, penalties: Sequence[float]) -> Iterator[Doubles]:
        """W^T [context, horizon] for each penalty, in units of the mean square of the inputs."""
        values, vectors = np.linalg.eigh(self.xx)
        turned = vectors.T @ self.xy
        unit = max(float(np.trace(self.xx)) / len(self.xx), np.finfo(np.float64).tiny)
        for penalty in penalties:
            yield vectors @ (turned / (np.maximum(values, 0) + penalty * unit)[:, None])

    def errors(self, held: _Moments) -> list[float]:
        """The squared error on held-out windows for each penalty: |XW - Y|^2 from the sums alone."""
        return [
            float((w * (held.xx @ w)).sum() - 2 * (w * held.xy).sum() + held.yy)
            for w in self.solutions(RIDGE_PENALTIES)
        ]


def _windows_of(history: ArrayLike) -> Doubles:
    values = np.asarray(history, dtype=np.float64)
    if values.ndim != 3 or values.shape[1] < 1:
        raise WeftError(f"a history of shape {'x'.join(map(str, values.shape))}, but [n, context, C] is needed")
    return values


@dataclass(frozen=True)
class BagOfBigrams:
    """Multinomial logistic regression on which words and pairs of neighboring words a text has.

    p(class | text) = softmax(W x + b), x of length 1; rare words weigh more (tf-idf with presence for tf).
    """

    classes: tuple[str, ...]
    vocabulary: Mapping[str, int]
    rarity: torch.Tensor
    weights: torch.Tensor
    bias: torch.Tensor
    prior: torch.Tensor
    penalty: float

    @classmethod
    def fit(cls, texts: Sequence[str], labels: Sequence[str]) -> BagOfBigrams:
        """From texts and their labels; the penalty is chosen on every fifth text, then all are used."""
        if not texts or len(texts) != len(labels):
            raise WeftError(
                f"{len(texts)} texts and {len(labels)} labels: give one label per text, and at least one text"
            )
        classes = tuple(sorted(set(labels)))
        numbers = torch.tensor([classes.index(label) for label in labels])
        penalty = LOGISTIC_PENALTIES[-1]
        if len(texts) >= 5 * len(classes):
            held = torch.arange(len(texts)) % 5 == 4
            known = [text for number, text in enumerate(texts) if number % 5 != 4]
            tried = [cls._fitted(known, numbers[~held], classes, penalty) for penalty in LOGISTIC_PENALTIES]
            losses = [float(F.nll_loss(model.probabilities(texts[4::5]).log(), numbers[held])) for model in tried]
            penalty = LOGISTIC_PENALTIES[losses.index(min(losses))]
        return cls._fitted(texts, numbers, classes, penalty)

    @classmethod
    def _fitted(
        cls, texts: Sequence[str], numbers: torch.Tensor, classes: tuple[str, ...], penalty: float
    ) -> BagOfBigrams:
        """L-BFGS on the mean loss plus penalty / n |W|^2 / 2, in float64."""
        found = [_pieces(text) for text in texts]
        counts = Counter(piece for pieces in found for piece in pieces)
        vocabulary = {piece: number for number, piece in enumerate(sorted(dict(counts.most_common(MOST_PIECES))))}
        times = torch.tensor([counts[piece] for piece in vocabulary], dtype=torch.float64)
        rarity = torch.log((1 + len(texts)) / (1 + times)) + 1
        prior = torch.bincount(numbers, minlength=len(classes)).double() / len(texts)
        weights = torch.zeros(len(vocabulary), len(classes), dtype=torch.float64, requires_grad=True)
        bias = prior.clamp(min=1e-9).log().requires_grad_()
        model = cls(classes, vocabulary, rarity, weights, bias, prior, penalty)
        rows = model._rows(found)

        def loss() -> torch.Tensor:
            return F.cross_entropy(model._logits(rows), numbers) + penalty / len(texts) * weights.square().sum() / 2

        if vocabulary:
            minimize(loss, [weights, bias], iterations=100, history=10)
        return cls(classes, vocabulary, rarity, weights.detach(), bias.detach(), prior, penalty)

    def _rows(self, found: Sequence[Sequence[str]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Numbers of the known pieces of all texts one after the other, where each text starts, and their weights."""
        known = [[self.vocabulary[piece] for piece in pieces if piece in self.vocabulary] for pieces in found]
        lengths = torch.tensor([len(row) for row in known])
        pieces = torch.tensor([number for row in known for number in row], dtype=torch.long)
        values = self.rarity[pieces]
        owner = torch.repeat_interleave(torch.arange(len(known)), lengths)
        norms = torch.zeros(len(known), dtype=torch.float64).index_add_(0, owner, values.square()).sqrt()
        return pieces, lengths.cumsum(0) - lengths, values / norms[owner]

    def _logits(self, rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        pieces, starts, values = rows
        return F.embedding_bag(pieces, self.weights, starts, mode="sum", per_sample_weights=values) + self.bias

    def probabilities(self, texts: Sequence[str]) -> torch.Tensor:
        """Of each class for each text [n, C]; the classes' shares where a text has no known word."""
        if not texts:
            return torch.zeros(0, len(self.classes), dtype=torch.float64)
        found = [_pieces(text) for text in texts]
        if not self.vocabulary:
            return self.prior.expand(len(texts), -1)
        known = torch.tensor([any(piece in self.vocabulary for piece in pieces) for pieces in found])
        return torch.where(known[:, None], self._logits(self._rows(found)).detach().softmax(1), self.prior)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The most probable class of each text."""
        return [self.classes[number] for number in self.probabilities(texts).argmax(1).tolist()]


def _pieces(text: str) -> list[str]:
    """Words in lower case and pairs of neighboring ones, each once, in the order of their first place."""
    words = re.findall(r"\w+(?:'\w+)*|[^\w\s]", text.lower())
    return list(dict.fromkeys([*words, *(" ".join(pair) for pair in pairwise(words))]))


@dataclass(frozen=True)
class FrequentTag:
    """Each word's most frequent tag; of an unknown word, that of its longest known ending; else of all words."""

    words: Mapping[str, str]
    endings: Mapping[str, str]
    overall: str

    @classmethod
    def fit(cls, sentences: Sequence[tuple[Sequence[str], Sequence[str]]]) -> FrequentTag:
        """From pairs of words and tags; among equally frequent tags the first by name is taken."""
        words: defaultdict[str, Counter[str]] = defaultdict(Counter)
        endings: defaultdict[str, Counter[str]] = defaultdict(Counter)
        overall: Counter[str] = Counter()
        for number, (names, tags) in enumerate(sentences, 1):
            if len(names) != len(tags):
                raise WeftError(f"sentence {number} has {len(names)} words and {len(tags)} tags: give one tag per word")
            overall.update(tags)
            for word, tag in zip(names, tags, strict=True):
                words[word][tag] += 1
                for ending in _endings(word):
                    endings[ending][tag] += 1
        if not overall:
            raise WeftError("no tagged word was given: give at least one sentence")
        best = {word: _most(tags) for word, tags in words.items()}
        return cls(best, {ending: _most(tags) for ending, tags in endings.items()}, _most(overall))

    def predict(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """One tag per word."""
        return [[self._tag(word) for word in words] for words in sentences]

    def _tag(self, word: str) -> str:
        if word in self.words:
            return self.words[word]
        return next((self.endings[ending] for ending in _endings(word) if ending in self.endings), self.overall)


def _endings(word: str) -> list[str]:
    """The last letters, the longest first."""
    return [word[-size:] for size in range(min(SUFFIX_LETTERS, len(word)), 0, -1)]


def _most(tags: Counter[str]) -> str:
    return min(tags, key=lambda tag: (-tags[tag], tag))
