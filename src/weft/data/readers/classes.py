"""Classes: label names in a fixed order, and the class number of each example; arrays of .npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.files import DataError, expect_plausible
from weft.data.readers.texts import expect_classes
from weft.foundation.files.json_text import as_whole_number


def number_labels(labels: Sequence[str], learn: bool = True) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(class number per label, class names): names sorted, whole numbers by size ("2" before "10").

    With `learn`, at least two classes with at least two examples each are required.
    """
    if learn:
        expect_classes(labels)
    names = sorted(set(labels), key=_by_size)
    index = {name: number for number, name in enumerate(names)}
    return np.array([index[label] for label in labels], dtype=np.int64), tuple(names)


def _by_size(name: str) -> tuple[bool, int, str]:
    size = as_whole_number(name.removeprefix("-"))
    return size is None, -(size or 0) if name.startswith("-") else size or 0, name


def label_names(path: Path, labels: NDArray[np.generic]) -> list[str]:
    """The labels of an array as names: 3 and 3.0 become "3", texts stay as they are."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufUS":
        shape = "x".join(map(str, labels.shape))
        raise DataError(f"{path.name}: labels of shape {shape} and type {labels.dtype}, but one per row is needed")
    if labels.dtype.kind == "f":
        if not (np.abs(labels) < 1 << 53).all() or not np.array_equal(np.rint(labels), labels):
            raise DataError(f"{path.name}: labels are fractions or no numbers, but classes need whole ones or names")
        labels = labels.astype(np.int64)
    try:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in labels.tolist()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: the label {error.object!r:.60} is not UTF-8: save labels as texts") from None


def read_arrays(
    path: Path, optional: Sequence[str] = ("lengths",), /, **fields: Sequence[str]
) -> dict[str, NDArray[np.generic]]:
    """Arrays of an .npz file by field, each under the first of its names that exists; never a pickle."""
    found: dict[str, NDArray[np.generic]] = {}
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path.name} is not a readable .npz file: write it with numpy.savez")
    try:
        with zipfile.ZipFile(path) as members:
            for member in members.infolist():
                expect_plausible(path, member.file_size, member.compress_size)
                members.open(member).close()  # which compares its name with the one before its contents
        with np.load(path, allow_pickle=False) as arrays:
            for field, names in fields.items():
                name = next((name for name in names if name in arrays.files), None)
                if name is not None:
                    found[field] = arrays[name]
            kept = ", ".join(arrays.files)[:200]
    except DataError:
        raise
    except Exception as error:  # a damaged .npz fails as an error of zipfile, zlib, struct or numpy
        if "allow_pickle" not in str(error):
            raise DataError(f"{path.name} is not a readable .npz file: {str(error)[:200]}") from None
        raise DataError(
            f"{path.name} holds Python objects, which are never unpickled: "
            "save plain arrays, padded and with `lengths` if need be"
        ) from None
    for field, names in fields.items():
        if field not in found and field not in optional:
            raise DataError(f"{path.name} has no array {' or '.join(names)}: it has {kept or 'none'}")
    return found
