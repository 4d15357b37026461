"""Attention maps by layer and head, kept small: dense where they fit into a page, else the top weights of each row.

A map of N x N numbers is never built for long inputs: rows are computed in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.figures.panels.panel import as_array, expect_shape
from weft.figures.web.array_encoding import encode_array
from weft.foundation.arrays import Array
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree

# weights [H, last - first, S] of rows first .. last - 1 of one layer
MapRows = Callable[[int, int, int], Array]

DENSE_MAPS_LIMIT = 6_000_000  # numbers of all dense maps in a page (12 MB)
TOP_WEIGHTS_LIMIT = 3_000_000  # top weights of all maps in a page (12 MB with their columns)
FEWEST_PER_ROW, MOST_PER_ROW = 8, 64  # top weights per row
MAP_ROWS_AT_ONCE = 128  # rows computed at once
PICTURE_SIDE = 160  # side of the picture of a map
MEAN = "mean"


@dataclass(frozen=True)
class DenseMaps:
    """All weights, [layers, heads, T, S]."""

    values: Array

    @property
    def size(self) -> tuple[int, int]:
        return self.values.shape[2], self.values.shape[3]

    def row(self, layer: int, head: int, row: int) -> Array:
        """The weights of one query over all keys, [S]."""
        return self.values[layer, head, row]

    def picture(self, layer: int, head: int) -> Array:
        """[T, S], or block means of it."""
        return block_means(self.values[layer, head], PICTURE_SIDE * 4)

    def payload(self) -> Tree:
        return {"whole": encode_array(self.values)}


@dataclass(frozen=True)
class TopWeightMaps:
    """The top weights of each row [layers, heads, T, k] with their columns, and small pictures of the whole maps.

    `kept` is the share of all attention in these weights.
    """

    places: NDArray[np.uint16]
    weights: Array
    pictures: Array
    columns: int
    kept: float

    @property
    def size(self) -> tuple[int, int]:
        return self.weights.shape[2], self.columns

    def row(self, layer: int, head: int, row: int) -> Array:
        """[S], with 0 where a weight is not among the largest."""
        found = np.zeros(self.columns, dtype=np.float32)
        found[self.places[layer, head, row]] = self.weights[layer, head, row]
        return found

    def picture(self, layer: int, head: int) -> Array:
        """Block means of the whole map."""
        return self.pictures[layer, head]

    def payload(self) -> Tree:
        """Pictures are stored as shares of their largest value, in 8 bits."""
        top = self.pictures.max(axis=(2, 3), keepdims=True)
        levels = np.rint(255 * self.pictures / np.where(top > 0, top, 1))
        return {
            "places": encode_array(self.places, "u2"),
            "weights": encode_array(self.weights, "f2"),
            "pictures": encode_array(levels, "u1"),
            "columns": self.columns,
            "kept": round(self.kept, 4),
        }


AttentionMaps = DenseMaps | TopWeightMaps


def collect_maps(
    layers: int, heads: Sequence[str], size: tuple[int, int], rows: MapRows, room: int = 1
) -> AttentionMaps:
    """Maps of all layers; `heads` may begin with "mean", which is computed from the others.

    `room` is the number of such sets of maps that share one page.
    """
    T, S = size
    count = layers * len(heads)
    if not (T and S and count):
        raise WeftError(f"{layers} layers of {len(heads)} heads, {T} x {S} tokens: there is nothing to draw")
    if count * T * S <= DENSE_MAPS_LIMIT // room:
        values = np.empty((layers, len(heads), T, S), dtype=np.float32)
        for layer in range(layers):
            for first in range(0, T, MAP_ROWS_AT_ONCE):
                last = min(T, first + MAP_ROWS_AT_ONCE)
                values[layer, :, first:last] = _with_mean(rows(layer, first, last), heads, (last - first, S))
        return DenseMaps(values)
    return _largest(
        layers, heads, size, rows, min(S, MOST_PER_ROW, max(FEWEST_PER_ROW, TOP_WEIGHTS_LIMIT // room // (count * T)))
    )


def all_heads_fit(layers: int, heads: int, tokens: int, room: int = 1) -> bool:
    """Whether a page can hold the maps of every head of a model; else show the mean of each layer."""
    return layers * (heads + 1) * tokens * FEWEST_PER_ROW <= 2 * TOP_WEIGHTS_LIMIT // room


def block_means(values: Array, most: int) -> Array:
    """Means over blocks, at most `most` per side."""
    for axis, length in enumerate(values.shape):
        if length > most:
            edges = np.linspace(0, length, most + 1).astype(int)
            sums = np.add.reduceat(values, edges[:-1], axis=axis)
            counts = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
            values = sums / counts
    return values


def _with_mean(block: Array, heads: Sequence[str], size: tuple[int, int]) -> Array:
    found = as_array(block)
    mean = bool(heads) and heads[0] == MEAN
    expect_shape("a block of maps", found, len(heads) - mean if len(heads) > 1 or not mean else None, *size)
    if not mean:
        return found
    average = found.mean(0, keepdims=True)
    return average if len(heads) == 1 else np.concatenate([average, found])


def _largest(layers: int, heads: Sequence[str], size: tuple[int, int], rows: MapRows, k: int) -> TopWeightMaps:
    T, S = size
    if S > 1 << 16:
        raise WeftError(f"{S:,} tokens, but a page shows at most {1 << 16:,}: look at a part of the input")
    places = np.empty((layers, len(heads), T, k), dtype=np.uint16)
    weights = np.empty(places.shape, dtype=np.float32)
    tiles = (min(T, PICTURE_SIDE), min(S, PICTURE_SIDE))
    pictures = np.zeros((layers, len(heads), *tiles), dtype=np.float64)
    row_of = np.arange(T) * tiles[0] // T
    edges = np.linspace(0, S, tiles[1] + 1).astype(int)
    total = 0.0
    for layer in range(layers):
        for first in range(0, T, MAP_ROWS_AT_ONCE):
            last = min(T, first + MAP_ROWS_AT_ONCE)
            block = _with_mean(rows(layer, first, last), heads, (last - first, S))
            found = np.argpartition(block, S - k, axis=-1)[..., S - k :]
            places[layer, :, first:last] = found
            weights[layer, :, first:last] = np.take_along_axis(block, found, -1)
            total += float(block.sum(dtype=np.float64))
            tiled, starts = np.unique(row_of[first:last], return_index=True)
            sums = np.add.reduceat(np.add.reduceat(block, edges[:-1], axis=-1), starts, axis=1)
            pictures[layer][:, tiled] += sums
    areas = np.bincount(row_of)[:, None] * np.diff(edges)
    kept = float(weights.sum(dtype=np.float64)) / total if total else 1.0
    return TopWeightMaps(places, weights, (pictures / areas).astype(np.float32), S, kept)
