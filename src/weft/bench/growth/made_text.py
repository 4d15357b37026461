"""Texts of any size to read: lines of words with the frequencies of a language (Zipf), one word in a hundred new."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS, LINES, PER_LINE, NEW = 20_000, 25_000, 12, 8  # one line in NEW begins with a word that was never there before


def write_text_of_size(path: Path, size: int, seed: int = 0) -> Path:
    """A file of `size` bytes: the same lines in a new order for each block, with new words among them."""
    draw = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    lines = _lines(draw, letters, min(LINES, 1 + size // 30))
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            block = [lines[n] for n in draw.permutation(len(lines)).tolist()]
            fresh = draw.choice(letters, (len(block[::NEW]), 8)).view("U8")[:, 0]
            block[::NEW] = [f"{new} {line}" for new, line in zip(fresh.tolist(), block[::NEW], strict=True)]
            written += file.write("".join(block)[: size - written])
    return path


def _lines(draw: np.random.Generator, letters: np.ndarray, count: int) -> list[str]:
    """`count` lines of 12 words out of 20,000; word n has a frequency of 1 / (n + 1)."""
    shares, weights = 1.0 / np.arange(1, 27), 1.0 / np.arange(2, WORDS + 2)
    lengths = draw.integers(2, 10, WORDS)
    signs = "".join(draw.choice(letters, lengths.sum(), p=shares / shares.sum()).tolist())
    ends = np.cumsum(lengths).tolist()
    words = [signs[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    chosen = draw.choice(WORDS, (count, PER_LINE), p=weights / weights.sum()).tolist()
    return [" ".join(words[n] for n in row) + ".\n" for row in chosen]
