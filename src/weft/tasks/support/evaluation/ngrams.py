"""An n-gram model of bytes, the simplest language model: what a trained one has to beat.

p_k(x | c) = (n(c x) + t(c) p_(k-1)(x | c')) / (n(c) + t(c)) for a context c of k bytes, c' without its first byte, n
how often something was seen and t(c) how many different bytes followed c (Witten and Bell 1991, interpolated); where c
was never seen, p_(k-1). Below all is p = 1 / 256. Counts are sorted arrays: memory is bounded by the length of the
text, about 16 bytes per byte of text and order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
ORDER = 6  # bytes of an n-gram: five of context and the one predicted; up to 7 fit into a number of 64 bits


@dataclass(frozen=True)
class _Counts:
    """Of one order: n-grams as numbers and how often each was seen, contexts with their times and followers."""

    grams: Codes
    times: Codes
    contexts: Codes
    context_times: Codes
    followers: Codes


@dataclass(frozen=True)
class ByteNgrams:
    """The counts of each order, from single bytes on."""

    orders: tuple[_Counts, ...]

    @classmethod
    def fit(cls, text: bytes, order: int = ORDER) -> ByteNgrams:
        """Count all n-grams of a text, of 1 to `order` bytes."""
        found = []
        for size in range(1, order + 1):
            grams, times = np.unique(_codes(text, size), return_counts=True)
            contexts, starts, followers = np.unique(grams >> 8, return_index=True, return_counts=True)
            totals = np.add.reduceat(times, starts) if len(starts) else times
            found.append(_Counts(grams, times, contexts, totals, followers))
        return cls(tuple(found))

    def probabilities(self, text: bytes) -> NDArray[np.float64]:
        """p of each byte after those before it in the text."""
        found = np.full(len(text), 1 / 256)
        for size, counts in enumerate(self.orders, 1):
            codes = _codes(text, size)
            if not len(codes) or not len(counts.grams):
                continue
            seen = _look_up(counts.grams, counts.times, codes)
            total = _look_up(counts.contexts, counts.context_times, codes >> 8)
            followers = _look_up(counts.contexts, counts.followers, codes >> 8)
            lower = found[size - 1 :]
            found[size - 1 :] = np.where(
                total > 0, (seen + followers * lower) / np.maximum(total + followers, 1), lower
            )
        return found

    def bits_per_byte(self, text: bytes) -> float:
        """- mean log2 p."""
        return float(-np.log2(self.probabilities(text)).mean()) if text else 0.0


def _codes(text: bytes, size: int) -> Codes:
    """The n-gram that ends at each byte, as a number: the last byte is the lowest 8 bits."""
    values = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    count = max(0, len(values) - size + 1)
    codes = np.zeros(count, dtype=np.int64)
    for place in range(size):
        codes = (codes << 8) | values[place : place + count]
    return codes


def _look_up(keys: Codes, values: Codes, wanted: Codes) -> Codes:
    """The value of each wanted key; 0 where it is not among the sorted keys."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
