"""Inputs of tasks as `Run.answer` takes them: texts, words, graphs, numbers; images and sounds as files of a moment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.serving.requests.fields import expect_text
from weft.serving.requests.uploads import depth_of, write_image, write_sound
from weft.serving.web.errors import invalid_request

PARAM = "input"
MOST_NODES = 2048  # of a graph: its attention mask has as many squared
MOST_NUMBERS = 4_000_000


def as_list(given: Any) -> list[Any]:
    """One input or several, as several; not none."""
    found = given if isinstance(given, list) else [given]
    if not found:
        raise invalid_request("the list of inputs is empty: give one or more", PARAM)
    return found


def text_input(given: Any, folder: Path) -> str:
    """A text of valid Unicode, as it was sent; `folder` is not needed."""
    if not isinstance(given, str):
        raise invalid_request("an input is a text", PARAM)
    try:
        return expect_text(given)
    except ValueError as error:
        raise invalid_request(str(error), PARAM) from None


def graph_input(given: Any, folder: Path) -> Any:
    """A graph with nodes and edges; never a text, which would be read as a file's name."""
    nodes = given.get("nodes") if isinstance(given, Mapping) else None
    if not isinstance(nodes, list) or not 0 < len(nodes) <= MOST_NODES:
        raise invalid_request(f"an input is a graph with a list of 1 to {MOST_NODES} nodes, and edges", PARAM)
    return dict(given)


def words_input(given: Any, folder: Path) -> Any:
    """A sentence as a text, or as its words."""
    return [text_input(word, folder) for word in given] if isinstance(given, list) else text_input(given, folder)


def pair_input(given: Any, folder: Path) -> Any:
    """A text, or two."""
    if isinstance(given, list):
        if len(given) != 2:
            raise invalid_request(f"a list of {len(given)} texts: a pair has two", PARAM)
        return tuple(text_input(text, folder) for text in given)
    return text_input(given, folder)


def image_input(given: Any, folder: Path) -> str:
    """An image in base64, as a file."""
    return str(write_image(text_input(given, folder), folder, PARAM))


def series_input(given: Any, folder: Path) -> Any:
    """Numbers [N] or rows of numbers [N, C]."""
    return numbers(given, (1, 2))


def sequence_input(given: Any, folder: Path) -> str:
    """A sound in base64, or a sequence of vectors [T, C], as a file."""
    if isinstance(given, str):
        return str(write_sound(given, folder, PARAM))
    values, path = numbers(given, (2,)), folder / "sequence.npz"
    np.savez(path, x=values[None].astype(np.float32), lengths=np.array([len(values)]))
    return str(path)


def numbers(given: Any, depths: tuple[int, ...]) -> Any:
    """Nested lists as an array of finite numbers."""
    try:
        found = np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise invalid_request("an input is numbers, in rows of equal length", PARAM) from None
    if found.ndim not in depths or not found.size:
        shape = "x".join(map(str, found.shape))
        raise invalid_request(f"an input of shape {shape}: give {' or '.join(map(str, depths))} levels of lists", PARAM)
    if not np.isfinite(found).all() or found.size > MOST_NUMBERS:
        raise invalid_request(f"an input holds at most {MOST_NUMBERS:,} numbers, all of them finite", PARAM)
    return found


def several(given: Any, depth: int) -> list[Any]:
    """Inputs that are lists themselves: one of at most `depth` levels, or a list of such."""
    return as_list(given) if depth_of(given) > depth else [given]
