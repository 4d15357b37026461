"""Texts: the standard library of the user's Python, and a Markov text of known entropy."""

from __future__ import annotations

import sysconfig
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError
from weft.data.samples.sample_definition import (
    ReferenceScore,
    Sample,
    numpy_generator,
    python_generator,
    validation_size,
)

VOWELS, CONSONANTS, SPACE = "aeiou", "lmnrst", " "
ALPHABET = SPACE + VOWELS + CONSONANTS
# Every letter has at least this weight after every pair, so that the chain forgets its start.
FLOOR = 0.005


def stdlib(seed: int, size: int) -> Sample[str]:
    """Documentation and sources of the installed Python standard library, half each; its best score is unknown."""
    random = python_generator(seed, "stdlib")
    manual, sources = _manual(), _source_files()
    random.shuffle(manual)
    random.shuffle(sources)
    seen: set[str] = set()  # by both kinds: sources quote the manual, and each other
    pages, files = _without_repeats(manual, seen), _without_repeats(map(_read, sources), seen)
    train, validation = (_mixture(pages, files, length) for length in (size, validation_size(size, 100)))
    if not validation:
        raise DataError(f"the standard library here is shorter than {size} characters: ask for a smaller size")
    return Sample("stdlib", "text", train, validation, best=None)


def _mixture(pages: Iterator[str], files: Iterator[str], length: int) -> str:
    """Whole documents of both kinds, half of the length each (sources fill up); the last one is truncated."""
    manual = _up_to(pages, length // 2)
    sources = _up_to(files, length - len(manual))
    if len(manual) + len(sources) < length:
        return ""
    return manual + sources


def _up_to(documents: Iterator[str], length: int) -> str:
    taken, total = [], 0
    while total < length and (document := next(documents, None)) is not None:
        taken.append(document)
        total += len(document)
    return "".join(taken)[:length]


def _manual() -> list[str]:
    """The language reference that `help()` shows, one document per topic."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some systems package Python without it
        return []
    return [topics[name] for name in sorted(topics)]


def _without_repeats(documents: Iterable[str], seen: set[str]) -> Iterator[str]:
    """Documents without paragraphs of earlier ones, which are in `seen`: they quote each other."""
    for document in documents:
        paragraphs = [text for text in document.split("\n\n") if text.strip() and text.strip() not in seen]
        seen.update(text.strip() for text in paragraphs if len(text) > 40)
        if paragraphs:
            yield "\n\n".join(paragraphs).strip() + "\n\n"


def _source_files() -> list[Path]:
    """Modules and packages of the standard library without tests, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "pydoc_data"}
    found = sorted([*root.glob("*.py"), *root.glob("*/*.py")])
    return [path for path in found if not skip & set(path.relative_to(root).parts[:-1]) and path.name[0] != "_"]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() + "\n\n"
    except (OSError, UnicodeDecodeError):  # a few old modules are in other encodings
        return ""


def markov(seed: int, size: int) -> Sample[str]:
    """Text of an invented language, a second-order Markov chain of letters; its entropy rate is exact."""
    next_letter = transition_probabilities(seed)
    visits = stationary_distribution(next_letter)
    rate = float(np.sum(visits[:, :, None] * -_log_times(next_letter)))
    count = validation_size(size, 1000)
    letters = _walk(seed, next_letter, size + count)
    text = "".join(ALPHABET[letter] for letter in letters)
    cost = -np.log(next_letter[letters[size - 2 : -2], letters[size - 1 : -1], letters[size:]])
    best = ReferenceScore(
        "loss",
        rate,
        "entropy rate in nats per character: sum over letter pairs of probability x entropy of the next letter",
        _spread_of_mean(cost),
    )
    pair = visits.sum(0)[:, None] * _given_one(next_letter, visits)
    one_back = float(np.sum(pair * -np.log(np.where(pair > 0, _given_one(next_letter, visits), 1.0))))
    shortcut = ReferenceScore(
        "loss", one_back, "entropy of the next letter when only one letter back is seen", best.spread
    )
    return Sample("markov", "text", text[:size], text[size:], best, shortcut)


def transition_probabilities(seed: int) -> NDArray[np.float64]:
    """P[a, b, c], the probability of letter c after a and b: uneven, syllable-like, never two spaces together."""
    random = numpy_generator(seed, "markov", "transitions")
    letters = len(ALPHABET)
    chances = random.dirichlet(np.full(letters, 0.4), size=(letters, letters))
    kind = np.array([0 if c == SPACE else 1 if c in VOWELS else 2 for c in ALPHABET])
    # Rows: the kind before; columns: the kind that follows (space, vowel, consonant).
    taste = np.array([[0.0, 1.0, 2.0], [1.2, 0.3, 2.0], [0.6, 3.0, 0.2]])
    chances = (chances + FLOOR) * taste[kind][:, kind]
    return chances / chances.sum(-1, keepdims=True)


def stationary_distribution(next_letter: NDArray[np.float64]) -> NDArray[np.float64]:
    """pi[a, b], the stationary probability of each pair of letters: the fixed point of pi'[b, c] = sum_a pi P."""
    visits = np.full(next_letter.shape[:2], 1.0 / next_letter[..., 0].size)
    for _ in range(10_000):
        after = np.einsum("ab,abc->bc", visits, next_letter)
        if np.abs(after - visits).max() < 1e-15:
            break
        visits = after
    return visits / visits.sum()


def _log_times(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """p log p, with 0 log 0 = 0."""
    return chances * np.log(np.where(chances > 0, chances, 1.0))


def _given_one(next_letter: NDArray[np.float64], visits: NDArray[np.float64]) -> NDArray[np.float64]:
    """P[b, c] of the same chain when only the last letter is known."""
    joint = np.einsum("ab,abc->bc", visits, next_letter)
    return joint / joint.sum(-1, keepdims=True)


def _walk(seed: int, next_letter: NDArray[np.float64], length: int) -> NDArray[np.int64]:
    cumulative = np.cumsum(next_letter, -1)
    cumulative[..., -1] = 1.0
    table = cumulative.tolist()
    draws = numpy_generator(seed, "markov", "walk").random(length + 100).tolist()
    a, b = ALPHABET.index("n"), ALPHABET.index("a")
    letters = []
    for draw in draws:
        a, b = b, bisect_right(table[a][b], draw)
        letters.append(b)
    return np.array(letters[100:], dtype=np.int64)  # the first hundred letters are a burn-in


def _spread_of_mean(values: NDArray[np.float64], blocks: int = 20) -> float:
    """Standard deviation of the mean of correlated values, from the means of blocks."""
    means = [float(block.mean()) for block in np.array_split(values, blocks)]
    return float(np.std(means, ddof=1) / np.sqrt(blocks))
