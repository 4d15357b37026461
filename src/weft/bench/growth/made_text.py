"""Texts of any size to read: random words with the frequencies of a language (Zipf), in sentences and lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS, BLOCK = 20_000, 100_000  # different words; words per block that is written


def write_text_of_size(path: Path, size: int, seed: int = 0) -> Path:
    """A file of about `size` bytes, written block by block."""
    draw = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    shares = 1.0 / np.arange(1, 27)
    lengths = draw.integers(2, 10, WORDS)
    signs = draw.choice(letters, lengths.sum(), p=shares / shares.sum())
    words = np.array(["".join(part) for part in np.split(signs, np.cumsum(lengths)[:-1])])
    weights = 1.0 / np.arange(2, WORDS + 2)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            chosen = draw.choice(words, min(BLOCK, 1 + (size - written) // 5), p=weights / weights.sum())
            text = "\n".join(" ".join(chosen[at : at + 12]) + "." for at in range(0, len(chosen), 12)) + "\n"
            text = text[: size - written]
            written += file.write(text)
    return path
