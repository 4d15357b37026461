"""Readers of labeled sequences of vectors: .ts, .npz, .csv, folders of .wav, and skeletons in motion.

Axes here: N sequences, T steps (each sequence has its own number), C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.archives import is_archive
from weft.data.readers.classes import label_names, number_labels, read_arrays
from weft.data.readers.files import DataError, find_files, name_suffix, read_lines, read_table
from weft.data.readers.headers import is_number
from weft.data.readers.skeletons import SKELETON_FILE, read_skeletons
from weft.data.readers.sounds import log_mel, read_sound
from weft.foundation.files.json_text import as_whole_number

Values = NDArray[np.float32]
NamedSequence = tuple[str, str, Values]  # name, label, values [T, C]
FILE_SUFFIXES = (".ts", ".npz", ".csv", ".tsv")
ID_NAMES = ("id", "sequence", "sequence_id", "series", "case")
TIME_NAMES = ("time", "t", "step", "frame", "timestamp", "date")
LABEL_NAMES = ("label", "class", "target", "y")
LAYOUT = "a row is one step, with the id of its sequence, its time, its values and the label, as id,time,x,y,label"


@dataclass(frozen=True)
class LabeledSequences:
    """Values, a list of N arrays [T, C], with one class number and one name (file, id or row) per sequence."""

    values: list[Values]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    names: list[str]

    @property
    def channels(self) -> int:
        return int(self.values[0].shape[1])


def read_sequences(paths: Sequence[str | Path], learn: bool = True, labeled: bool = True) -> LabeledSequences:
    """Sequences of .ts, .npz and .csv files, of a folder per class of .wav, or of a folder or tar of skeletons.

    `learn=False`, for evaluation, allows classes with one example; `labeled=False`, for prediction, allows files
    without labels, which then are "".
    """
    examples: list[NamedSequence] = []
    for given in map(Path, paths):
        examples += _read_path(given, labeled)
    if not examples:
        raise DataError(
            f"{', '.join(str(path) for path in paths) or 'no path'} holds no sequence: give a file that does"
        )
    first, _, values = examples[0]
    for name, _, other in examples:
        if other.shape[1] != values.shape[1]:
            raise DataError(
                f"sequence {name} has {other.shape[1]} channels, but {first} has {values.shape[1]}: "
                "all need the same channels"
            )
        if len(other) == 0:
            raise DataError(f"sequence {name} has no steps: remove it")
        if not np.isfinite(other).all():
            step, channel = np.argwhere(~np.isfinite(other))[0] + 1
            raise DataError(
                f"sequence {name}: step {step}, channel {channel} is not a finite number: fill it or remove it"
            )
    labels, classes = number_labels([label for _, label, _ in examples], learn and labeled)
    return LabeledSequences([values for _, _, values in examples], labels, classes, [name for name, _, _ in examples])


def read_channel_names(path: str | Path) -> tuple[str, ...]:
    """The names of the channels in the header of a table, or in `channels` of an .npz file; none where it has none."""
    path = Path(path)
    if name_suffix(path) in (".csv", ".tsv"):
        rows = list(read_table(path))
        *others, has_header = _table_places(path, rows, labeled=False)
        return tuple(cell.strip() for n, cell in enumerate(rows[0][1]) if n not in others) if has_header else ()
    if name_suffix(path) == ".npz":
        names = read_arrays(path, ("channels",), channels=("channels", "channel_names")).get("channels")
        return () if names is None else tuple(map(str, names.ravel()))
    return ()


def _read_path(given: Path, labeled: bool) -> list[NamedSequence]:
    if given.is_dir():
        inside = [path for path in sorted(given.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        sounds = [path for path in inside if path.suffix.lower() == ".wav"]
        if sounds:
            return list(_from_sounds(sounds))
        if any(SKELETON_FILE.match(path.name) for path in inside):
            return list(read_skeletons(given))
    if is_archive(given) or (given.is_file() and SKELETON_FILE.match(given.name)):
        return list(read_skeletons(given))
    if given.is_file() and given.suffix.lower() == ".wav" and not labeled:
        return list(_from_sounds([given]))
    readers = {".ts": _from_ts, ".npz": _from_npz, ".csv": _from_table, ".tsv": _from_table}
    examples: list[NamedSequence] = []
    for path in find_files([given], (*FILE_SUFFIXES, ".wav")):
        reader = readers.get(name_suffix(path))
        if reader is None:
            raise DataError(f"{path.name} is not a .ts, .npz or .csv file: give one, or a folder per class of .wav")
        examples += reader(path, labeled)
    return examples


def _from_sounds(paths: Sequence[Path]) -> Iterator[NamedSequence]:
    """Log-mel frames; a file's parent folder names its class."""
    first = 0
    for path in paths:
        rate, samples = read_sound(path)
        first = first or rate
        if rate != first:
            raise DataError(f"{path} has {rate} samples per second, but {paths[0]} has {first}: resample to one rate")
        yield str(path), path.parent.name, log_mel(samples, rate)


def _from_ts(path: Path, labeled: bool) -> Iterator[NamedSequence]:
    """UEA's format: @ lines describe the data; one case per line, its channels and last its class between colons."""
    classes: list[str] | None = None
    head: dict[str, str] = {}
    started, named = False, True
    for number, line in read_lines(path):
        line = line.strip()
        if not line or line.startswith(("#", "%")):
            continue
        if not started and line.startswith("@"):
            key, _, value = line[1:].partition(" ")
            head[key.lower()] = value.strip()
            started = key.lower() == "data"
            if started:
                named = labeled or head.get("classlabel", "").lower().startswith("true")
                classes = _ts_classes(path, head) if named else []
            continue
        if classes is None:
            raise DataError(f"{path.name}, line {number}: data before the line @data: is this a .ts file?")
        *channels, label = (part.strip() for part in [*line.split(":"), *([] if named else [""])])
        if classes and label not in classes:
            raise DataError(
                f"{path.name}, line {number}: class {label[:40]!r} is none of @classLabel {' '.join(classes)}"
            )
        yield f"{path.name}, line {number}", label, _ts_values(path, number, channels, head)
    if not started:
        raise DataError(f"{path.name} has no line @data: is this a .ts file?")


def _ts_classes(path: Path, head: dict[str, str]) -> list[str]:
    has, *classes = head.get("classlabel", "false").split() or ["false"]
    if has.lower() != "true":
        raise DataError(f"{path.name} has no @classLabel true: sequences need one label each")
    if as_whole_number(head.get("dimensions", "0")) is None:
        raise DataError(f"{path.name}: @dimensions {head['dimensions']:.60} is not a number of channels")
    if head.get("timestamps", "false").lower() == "true":
        raise DataError(f"{path.name} has time stamps: write the values alone, with @timeStamps false")
    return classes


def _ts_values(path: Path, number: int, channels: Sequence[str], head: dict[str, str]) -> Values:
    """[T, C]; missing values (?) are interpolated linearly; steps that are all missing at the end are cut."""
    wanted = 1 if head.get("univariate", "").lower() == "true" else as_whole_number(head.get("dimensions", "0"))
    if not channels or (wanted and len(channels) != wanted):
        raise DataError(
            f"{path.name}, line {number}: {len(channels)} channels, but its header says {wanted or 'one or more'}"
        )
    try:
        rows = [[np.nan if cell.strip() == "?" else float(cell) for cell in part.split(",")] for part in channels]
    except ValueError as error:
        raise DataError(f"{path.name}, line {number}: {error}") from None
    lengths = [len(row) for row in rows]
    if len(set(lengths)) > 1:
        other = next(place for place, length in enumerate(lengths) if length != lengths[0])
        raise DataError(
            f"{path.name}, line {number}: channel {other + 1} has {lengths[other]} values, but channel 1 has "
            f"{lengths[0]}: mark missing ones with ?"
        )
    values = np.array(rows, dtype=np.float64).T
    known = ~np.isnan(values)
    values = values[: int(np.flatnonzero(known.any(axis=1))[-1]) + 1] if known.any() else values
    for channel in range(values.shape[1]):
        here = ~np.isnan(values[:, channel])
        if not here.any():
            raise DataError(f"{path.name}, line {number}: channel {channel + 1} has no value at all: remove the line")
        values[:, channel] = np.interp(np.arange(len(values)), np.flatnonzero(here), values[here, channel])
    return values.astype(np.float32)


def _from_npz(path: Path, labeled: bool) -> Iterator[NamedSequence]:
    """x [N, T, C] or [N, T], with `lengths` if padded; or all steps concatenated [sum of lengths, C]."""
    arrays = read_arrays(
        path,
        ("lengths",) if labeled else ("lengths", "y"),
        x=("x", "data", "sequences", "values"),
        y=("y", "labels", "targets"),
        lengths=("lengths", "length"),
    )
    labels, x = label_names(path, arrays["y"]) if "y" in arrays else None, arrays["x"]
    if x.dtype.kind not in "biuf" or x.ndim not in (2, 3):
        shape = "x".join(map(str, x.shape))
        raise DataError(f"{path.name}: x of shape {shape} and type {x.dtype}, but numbers [N, T, C] are needed")
    lengths = arrays.get("lengths")
    if lengths is not None and lengths.dtype.kind not in "iu":
        raise DataError(f"{path.name}: lengths of type {lengths.dtype}, but whole numbers are needed")
    sizes: list[int] = [] if lengths is None else [int(size) for size in lengths.ravel().tolist()]
    if min(sizes, default=0) < 0:
        raise DataError(f"{path.name}: a length is {min(sizes)}, but lengths must be 1 or more")
    if x.ndim == 2 and sizes and len(x) != len(sizes):
        if sum(sizes) != len(x):
            raise DataError(f"{path.name}: lengths add up to {sum(sizes)}, but x has {len(x)} steps")
        parts = np.split(x, np.cumsum(sizes)[:-1])
    else:
        padded = x[..., None] if x.ndim == 2 else x
        if lengths is not None and (len(sizes) != len(x) or max(sizes, default=0) > padded.shape[1]):
            raise DataError(
                f"{path.name}: {len(sizes)} lengths up to {max(sizes, default=0)}, but x has {len(x)} sequences of "
                f"{padded.shape[1]} steps"
            )
        parts = [padded[row, : sizes[row] if sizes else None] for row in range(len(padded))]
    labels = [""] * len(parts) if labels is None else labels
    if len(parts) != len(labels):
        raise DataError(f"{path.name} has {len(parts)} sequences and {len(labels)} labels: one each is needed")
    for row, (values, label) in enumerate(zip(parts, labels, strict=True)):
        yield f"{row + 1} of {path.name}", label, values.astype(np.float32)


def _from_table(path: Path, labeled: bool) -> Iterator[NamedSequence]:
    """Rows of sequence id, time, values and label; with a header, columns in any order, and time is optional."""
    rows = list(read_table(path))
    place_id, place_time, place_label, has_header = _table_places(path, rows, labeled)
    places = [p for p in range(len(rows[0][1])) if p not in (place_id, place_time, place_label)]
    steps: dict[str, list[tuple[str, list[float]]]] = {}
    labels: dict[str, str] = {}
    for number, cells in rows[has_header:]:
        name, label = cells[place_id].strip(), "" if place_label is None else cells[place_label].strip()
        if labels.setdefault(name, label) != label:
            raise DataError(
                f"{path.name}, line {number}: sequence {name!r} is labeled {label!r}, but {labels[name]!r} before: "
                "a sequence has one label"
            )
        try:
            values = [float(cells[place]) for place in places]
        except ValueError as error:
            raise DataError(f"{path.name}, line {number}: {error}; the values must be numbers: {LAYOUT}") from None
        steps.setdefault(name, []).append(("" if place_time is None else cells[place_time].strip(), values))
    if len(steps) > 1 and len(steps) == len(rows) - has_header:
        raise DataError(f"{path.name}: no two of its {len(steps)} rows belong to one sequence: {LAYOUT}")
    for name, found in steps.items():
        times = [time for time, _ in found]
        if place_time is not None and len(set(times)) < len(times):
            twice = next(time for time in times if times.count(time) > 1)
            raise DataError(f"{path.name}: sequence {name!r} has time {twice} twice: give each sequence its own id")
        ordered = found if place_time is None else sorted(found, key=lambda step: _moment(step[0]))
        yield f"{name!r} of {path.name}", labels[name], np.array([values for _, values in ordered], dtype=np.float32)


def _table_places(
    path: Path, rows: Sequence[tuple[int, list[str]]], labeled: bool
) -> tuple[int, int | None, int | None, bool]:
    """Columns of id, time and label, and whether the first row is a header: by name, else first, second and last."""
    names = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    named = [next((names.index(n) for n in known if n in names), None) for known in (ID_NAMES, TIME_NAMES, LABEL_NAMES)]
    if named[0] is not None and named[2] is not None and len(names) > 3 - (named[1] is None):
        return named[0], named[1], named[2], True
    if not labeled and named[0] is not None and named[2] is None and len(names) > 2 - (named[1] is None):
        return named[0], named[1], None, True
    if len(names) < 4:
        raise DataError(f"{path.name} has {len(names)} columns, but four or more are needed: {LAYOUT}")
    worded = not any(is_number(name) for name in names[2:-1])
    return 0, 1, len(names) - 1, worded


def _moment(time: str) -> tuple[float, str]:
    try:
        return float(time), ""
    except ValueError:
        return 0.0, time
