"""What the data are like: sizes of the parts, lengths, classes, and examples that both parts have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from weft.figures.panels.bars import BarsPanel
from weft.figures.panels.panel import Axis, Panel
from weft.figures.panels.records import RecordsPanel
from weft.tasks.support.evaluation.data_statistics import DataStatistics, Lengths

SHOWN = 200  # letters of a duplicate


def data_panels(data: DataStatistics) -> list[Panel]:
    """Sizes and duplicates, classes, and the lengths of examples."""
    panels: list[Panel] = [_sizes(data)]
    if data.train.classes:
        panels.append(_classes(data))
    if data.train.lengths is not None and data.held_out.lengths is not None:
        panels.append(_lengths(data.train.lengths, data.held_out.lengths))
    return panels


def _sizes(data: DataStatistics) -> RecordsPanel:
    parts = (data.train, data.held_out)
    rows = [
        ("examples", *(f"{part.examples:,}" for part in parts)),
        ("tokens", *(f"{part.tokens:,}" for part in parts)),
    ]
    if data.train.lengths is not None:
        ends = [_ends(part.lengths) for part in parts]
        rows.append((f"{data.train.lengths.unit}: least, median, 95 %, most", *ends))
    found = data.duplicates
    marked = (len(rows),) if found.flagged else ()
    rows.append((f"{found.what} in both parts", "", f"{found.found:,} of {found.held:,} ({found.share:.1%})"))
    rows += [(f"such as example {number}", "", text[:SHOWN]) for number, text in enumerate(found.examples, 1)]
    words = found.describe()
    note = f"{words[:1].upper()}{words[1:]}. Texts are compared whatever their case and blanks."
    return RecordsPanel("Data", ("", "training", "held out"), tuple(rows), marked, note)


def _ends(lengths: Lengths | None) -> str:
    if lengths is None:
        return ""
    return f"{lengths.least:,}, {lengths.median:g}, {lengths.most_usual:g}, {lengths.most:,}"


def _classes(data: DataStatistics) -> RecordsPanel:
    parts = [part.classes for part in (data.train, data.held_out)]
    names = [*parts[0], *(name for name in parts[1] if name not in parts[0])]
    rows = tuple((name, *(_share(part, name) for part in parts)) for name in names)
    return RecordsPanel("Classes", ("", "training", "held out"), rows)


def _share(counts: dict[str, int], name: str) -> str:
    count = counts.get(name, 0)
    return f"{count:,} ({count / max(1, sum(counts.values())):.1%})"


def _lengths(train: Lengths, held_out: Lengths) -> BarsPanel:
    labels = tuple(f"{int(low):,} to {int(high) - 1:,}" for low, high in pairwise(train.edges))
    counts = np.array([one.counts for one in (train, held_out)], dtype=np.float32)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    parts = Axis("part", ("training", "held out"))
    return BarsPanel(f"Lengths of examples in {train.unit}", parts, (labels, labels), shares, unit="share of examples")
