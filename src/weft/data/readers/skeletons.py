"""Skeletons in motion: MSR-Action3D's text files, in a folder or a tar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.archives import read_members
from weft.data.readers.files import DataError

SKELETON_FILE = re.compile(r"a(\d+)_s(\d+)_e(\d+)_skeleton\w*\.txt$")
JOINT_COUNT = 20


def read_skeletons(path: Path) -> Iterator[tuple[str, str, NDArray[np.float32]]]:
    """(name, action, [T, 60]) of files aAA_sSS_eEE_skeleton.txt: x, y and depth of 20 joints per frame.

    The name gives action, subject and trial (`a01_s03_e02_skeleton.txt`); the fourth column, the confidence, is left
    out.
    """
    count = 0
    for name, text in _texts(path):
        match = SKELETON_FILE.match(name)
        if match is not None:
            count += 1
            yield name, f"a{match[1]}", _frames(name, text)
    if count == 0:
        raise DataError(f"{path.name} holds no skeleton: files named like a01_s01_e01_skeleton.txt are expected")


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    if path.is_dir() or SKELETON_FILE.match(path.name):
        for file in sorted(path.rglob("*.txt")) if path.is_dir() else [path]:
            yield file.name, file.read_text(encoding="latin-1")
    else:
        for name, content in read_members(path, lambda name: SKELETON_FILE.match(name) is not None):
            yield Path(name).name, content.decode("latin-1")


def _frames(name: str, text: str) -> NDArray[np.float32]:
    try:
        numbers = np.array(text.split(), dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{name}: {error}; lines of x, y, depth and confidence are expected") from None
    if len(numbers) == 0 or len(numbers) % (JOINT_COUNT * 4):
        raise DataError(
            f"{name} has {len(numbers)} numbers, but a frame is {JOINT_COUNT} joints of 4: the file is cut off"
        )
    frames = numbers.reshape(-1, JOINT_COUNT, 4)[:, :, :3].reshape(-1, JOINT_COUNT * 3)
    return frames.astype(np.float32)
