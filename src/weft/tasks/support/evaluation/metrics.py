"""Metrics: pure functions of plain lists and arrays.

Accuracy, F1, ROUGE, exact match and coverage are shares from 0 to 1; BLEU and chrF go from 0 to 100, as sacrebleu's do.
Error rates of characters and words begin at 0 and may exceed 1.
Predictions come first, the truth second.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.foundation.errors import WeftError

Labels = Sequence[Hashable] | NDArray[Any]
References = Sequence[str] | Sequence[Sequence[str]]  # one text per example, or several
SPAN_TAG = re.compile(r"O|[BIESLU](-.+)?")
LENGTH_EDGES = (8, 12, 16, 20)


def accuracy(predicted: Labels, truth: Labels) -> float:
    """The share of labels that are right."""
    pairs = _label_pairs(predicted, truth)
    return sum(one == other for one, other in pairs) / len(pairs)


def macro_f1(predicted: Labels, truth: Labels) -> float:
    """The mean over classes of F1 = 2 tp / (2 tp + fp + fn); classes are those predicted or true at least once."""
    pairs = _label_pairs(predicted, truth)
    right = Counter(one for one, other in pairs if one == other)
    ours, theirs = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    classes = ours.keys() | theirs.keys()
    return sum(sorted(2 * right[name] / (ours[name] + theirs[name]) for name in classes)) / len(classes)


def token_accuracy(predicted: Sequence[Labels], truth: Sequence[Labels]) -> float:
    """The share of tokens with the right tag, over all sentences."""
    _expect_as_many(predicted, truth, "tagged sentences")
    ours: list[Hashable] = []
    theirs: list[Hashable] = []
    for number, (one, other) in enumerate(zip(predicted, truth, strict=True), 1):
        _expect_tags(number, one, other)
        ours += _plain(one)
        theirs += _plain(other)
    return accuracy(ours, theirs)


def has_spans(tags: Iterable[str]) -> bool:
    """Whether these tags mark spans (B-, I-, E-, S- and O; also BILOU's L- and U-), so that `entity_f1` applies."""
    kinds = set(tags)
    return bool(kinds - {"O"}) and all(SPAN_TAG.fullmatch(tag) for tag in kinds)


def entity_spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first token, end, type) of each span, read as conlleval does: I- after O or another type begins a span too."""
    spans: list[tuple[int, int, str]] = []
    start, before, kind_before = -1, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        if not SPAN_TAG.fullmatch(tag):
            raise WeftError(
                f"tag {tag!r} is no BIO or BIOES tag such as B-PER, I-PER or O: use token accuracy for others"
            )
        mark, _, kind = tag.partition("-")
        starts = mark in "BSU" or before in "OESLU" or kind != kind_before
        if start >= 0 and (mark == "O" or starts):
            spans.append((start, place, kind_before))
            start = -1
        if mark != "O" and starts:
            start = place
        before, kind_before = mark, kind
    return spans


def entity_f1(predicted: Sequence[Sequence[str]], truth: Sequence[Sequence[str]]) -> float:
    """Micro F1 over spans that match exactly in place and type (Tjong Kim Sang & De Meulder 2003); 0 if none match."""
    _expect_as_many(predicted, truth, "tagged sentences")
    right = ours = theirs = 0
    for number, (one, other) in enumerate(zip(predicted, truth, strict=True), 1):
        _expect_tags(number, one, other)
        found, wanted = set(entity_spans(one)), set(entity_spans(other))
        right, ours, theirs = right + len(found & wanted), ours + len(found), theirs + len(wanted)
    return 2 * right / (ours + theirs) if right else 0.0


def bleu(hypotheses: Sequence[str], references: References) -> float:
    """Corpus BLEU of sacrebleu with its defaults (13a tokens, n-grams to 4, exponential smoothing)."""
    import sacrebleu

    streams = _streams(hypotheses, references)
    return float(sacrebleu.corpus_bleu(list(hypotheses), streams, force=True).score)


def chrf(hypotheses: Sequence[str], references: References) -> float:
    """Corpus chrF2 of sacrebleu with its defaults (character n-grams to 6)."""
    import sacrebleu

    streams = _streams(hypotheses, references)
    return float(sacrebleu.corpus_chrf(list(hypotheses), streams).score)


class LengthRow(NamedTuple):
    """BLEU of the sentences whose sources have so many words; `words` reads "9-12" or "21+"."""

    words: str
    sentences: int
    bleu: float


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    edges: Sequence[int] = LENGTH_EDGES,
) -> list[LengthRow]:
    """BLEU by the source's length in words; `edges` are the last lengths of all ranges but the open one at the end.

    Ranges without sentences are left out; an empty source counts as one word.
    """
    if not edges or edges[0] < 1 or any(low >= high for low, high in pairwise(edges)):
        raise WeftError(f"length edges {list(edges)} must be whole numbers from 1 that grow, such as 8, 12, 16, 20")
    _expect_texts(hypotheses, references)
    _expect_as_many(sources, hypotheses, "sources and hypotheses")
    buckets: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for number, source in enumerate(sources):
        buckets[int(np.searchsorted(edges, len(source.split())))].append(number)
    rows = []
    for place, numbers in enumerate(buckets):
        if numbers:
            first = edges[place - 1] + 1 if place else 1
            words = f"{first}-{edges[place]}" if place < len(edges) else f"{first}+"
            score = bleu([hypotheses[n] for n in numbers], [several_references(references[n]) for n in numbers])
            rows.append(LengthRow(words, len(numbers), score))
    return rows


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """The share of texts equal to a reference, blanks at the ends and repeated ones aside."""
    _expect_texts(hypotheses, references)
    right = sum(
        any(text.split() == reference.split() for reference in several_references(given))
        for text, given in zip(hypotheses, references, strict=True)
    )
    return right / len(hypotheses)


def rouge(hypotheses: Sequence[str], references: References) -> dict[str, float]:
    """Mean F of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): words and word pairs in common, longest common subsequence.

    Words are runs of letters and digits in lower case, unstemmed; of several references the best counts.
    """
    _expect_texts(hypotheses, references)
    sums = {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    for text, given in zip(hypotheses, references, strict=True):
        words = _words(text)
        others = [_words(reference) for reference in several_references(given)]
        sums["rouge1"] += max(_overlap_f(words, other, 1) for other in others)
        sums["rouge2"] += max(_overlap_f(words, other, 2) for other in others)
        sums["rougeL"] += max(_f(common_length(words, other), len(words), len(other)) for other in others)
    return {name: total / len(hypotheses) for name, total in sums.items()}


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence; a row of the usual table is the bits of one integer (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(one)) - 1
    row = full
    for word in other:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(one) - row.bit_count()


def edit_distance(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn one into the other (Levenshtein 1966).

    A column of the usual table is kept as the bits of two integers, its steps up and down (Myers 1999).
    """
    if not one:
        return len(other)
    places: dict[Hashable, int] = {}
    for place, item in enumerate(one):
        places[item] = places.get(item, 0) | 1 << place
    full, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    up, down, distance = full, 0, len(one)
    for item in other:
        same = places.get(item, 0)
        across = (((same & up) + up) ^ up) | same
        more, less = down | (full & ~(across | up)), up & across
        distance += bool(more & last) - bool(less & last)
        more, less = (more << 1 | 1) & full, less << 1 & full
        up, down = less | (full & ~(same | down | more)), more & (same | down)
    return distance


def character_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """CER: edits between characters / characters of the references, over all texts; repeated blanks count once."""
    return _error_rate(hypotheses, references, lambda text: " ".join(text.split()))


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """WER: edits between words / words of the references, over all texts."""
    return _error_rate(hypotheses, references, str.split)


def _error_rate(
    hypotheses: Sequence[str], references: Sequence[str], items: Callable[[str], Sequence[Hashable]]
) -> float:
    _expect_as_many(hypotheses, references, "hypotheses and references")
    pairs = [(items(text), items(reference)) for text, reference in zip(hypotheses, references, strict=True)]
    total = sum(len(truth) for _, truth in pairs)
    if not total:
        raise WeftError("all references are empty, and an error rate of nothing has no value: give texts")
    return sum(edit_distance(said, truth) for said, truth in pairs) / total


def mse(predicted: ArrayLike, truth: ArrayLike) -> float:
    """The mean of squared errors over all numbers."""
    ours, theirs = _numbers(predicted=predicted, truth=truth)
    return float(np.mean((ours - theirs) ** 2))


def mae(predicted: ArrayLike, truth: ArrayLike) -> float:
    """The mean of absolute errors over all numbers."""
    ours, theirs = _numbers(predicted=predicted, truth=truth)
    return float(np.mean(np.abs(ours - theirs)))


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """The correlation cov(a, b) / (sd a sd b); 0 where one never changes."""
    a, b = (values - values.mean() for values in _numbers(one=one, other=other))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """The correlation of ranks; equal values share the mean of their ranks."""
    return pearson(*(_ranks(values) for values in _numbers(one=one, other=other)))


def most_spearman(values: ArrayLike) -> float:
    """The largest rank correlation that numbers without ties can have with these: sqrt(1 - sum (t^3 - t) / (n^3 - n))
    over groups of t equal values; 0 where all are equal."""
    [numbers] = _numbers(values=values)
    count = len(numbers)
    times = np.unique(numbers, return_counts=True)[1].astype(np.float64)
    return float(np.sqrt(max(0.0, 1 - (times**3 - times).sum() / (count**3 - count)))) if count > 1 else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1, 2, ... from the smallest on."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = np.cumsum(count) - (count - 1) / 2
    return means[place]


def coverage(low: ArrayLike, high: ArrayLike, truth: ArrayLike) -> float:
    """The share of true numbers within their intervals, ends included."""
    lows, highs, theirs = _numbers(low=low, high=high, truth=truth)
    if bool(np.any(lows > highs)):
        raise WeftError("an interval's low end lies above its high end: give the low ends first")
    return float(np.mean((lows <= theirs) & (theirs <= highs)))


def _plain(labels: Labels) -> list[Hashable]:
    return labels.tolist() if hasattr(labels, "tolist") else list(labels)


def _label_pairs(predicted: Labels, truth: Labels) -> list[tuple[Hashable, Hashable]]:
    _expect_as_many(predicted, truth, "labels")
    return list(zip(_plain(predicted), _plain(truth), strict=True))


def _expect_as_many(one: Labels | Sequence[Labels], other: Labels | Sequence[Labels], what: str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        raise WeftError(f"{what} came as one text, but a metric needs a list: put the text into a list")
    if len(one) != len(other):
        raise WeftError(f"{what}: {len(one)} against {len(other)}, but a metric needs pairs: give as many of both")
    if not len(one):
        raise WeftError(f"{what}: none were given, and a metric of nothing has no value: give at least one pair")


def _expect_tags(number: int, predicted: Labels, truth: Labels) -> None:
    if len(predicted) != len(truth):
        raise WeftError(
            f"sentence {number} has {len(predicted)} predicted tags and {len(truth)} true ones: give one per token"
        )


def several_references(references: str | Sequence[str]) -> Sequence[str]:
    """The references of one example, of which there may be one or more."""
    return [references] if isinstance(references, str) else references


def _expect_texts(hypotheses: Sequence[str], references: References) -> None:
    _expect_as_many(hypotheses, references, "hypotheses and references")
    for number, given in enumerate(references, 1):
        if not several_references(given):
            raise WeftError(f"text {number} has no reference: give at least one")


def _streams(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """References as sacrebleu takes them: a list of first ones, of second ones, ...; None where a text has fewer."""
    _expect_texts(hypotheses, references)
    several = [several_references(given) for given in references]
    most = max(map(len, several))
    streams: list[list[Any]] = [[given[n] if n < len(given) else None for given in several] for n in range(most)]
    return streams


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _overlap_f(one: Sequence[str], other: Sequence[str], size: int) -> float:
    ours, theirs = (Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (one, other))
    return _f((ours & theirs).total(), ours.total(), theirs.total())


def _f(common: int, ours: int, theirs: int) -> float:
    return 2 * common / (ours + theirs) if common else 0.0


def _numbers(**named: ArrayLike) -> list[NDArray[np.float64]]:
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in named.items()}
    shapes = {name: "x".join(map(str, array.shape)) or "one number" for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        said = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise WeftError(f"shapes differ ({said}): give arrays of one shape")
    if any(array.size == 0 for array in arrays.values()):
        raise WeftError(f"{', '.join(arrays)}: no numbers were given, and an error of nothing has no value: give some")
    return list(arrays.values())
