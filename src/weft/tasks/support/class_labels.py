"""What tasks with one class per example share: holding out, names of classes, metrics, answers, a simple method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.data.readers.files import DataError
from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.foundation.seeds import generator
from weft.tasks.support.evaluation.class_scores import evaluate_classes
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report
from weft.tasks.task import Answer, Split

Labels = NDArray[np.int64]
CLASSES_SHOWN = 10  # classes whose probability is told
COMPARED, ASKED = 4000, 1000  # examples that the nearest neighbor is looked for among, and those that ask


def hold_out(labels: Labels, share: float, seed: int) -> tuple[Labels, Labels]:
    """(examples to learn from, held out): of each class the same share, one at least, drawn by the seed."""
    if not 0 < share < 1:
        raise WeftError(f"held_out {share:g} is no share: choose a number between 0 and 1, such as 0.1")
    order = torch.randperm(len(labels), generator=generator(seed, "hold out")).numpy()
    held = []
    for number in np.unique(labels):
        mine = order[labels[order] == number]
        held.append(mine[: min(len(mine) - 1, max(1, round(share * len(mine))))])
    out = np.sort(np.concatenate(held))
    kept = np.setdiff1d(np.arange(len(labels)), out)
    if not len(out) or not len(kept):
        raise DataError(f"{len(labels)} examples cannot be split: give more, or --set data.validation=FILE")
    return kept, out


def mixed(count: int) -> Labels:
    """All examples in a fixed random order: so that some of the batches tell about all classes."""
    found: Labels = torch.randperm(count, generator=generator(0, "mixed")).numpy()
    return found


def in_terms_of(classes: Sequence[str], labels: Labels, names: Sequence[str]) -> Labels:
    """Labels that number `names` as labels that number `classes`; one that training never saw is an error."""
    place = {name: number for number, name in enumerate(classes)}
    used = np.unique(labels)
    unknown = next((names[number] for number in used if names[number] not in place), None)
    if unknown is not None:
        shown = ", ".join(classes[:CLASSES_SHOWN]) + (", ..." if len(classes) > CLASSES_SHOWN else "")
        raise DataError(f"label {unknown!r} was not seen in training, where classes are {shown}: rename or remove it")
    table = np.array([place.get(name, -1) for name in names], dtype=np.int64)
    return table[labels]


def classes_after(found: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """The classes of a model that is trained on: those that it knew if they cover the data's, else the data's own."""
    return known if set(found) <= set(known) else found


def class_probabilities(module: nn.Module, inputs: dict[str, Any], temperature: float = 1.0) -> Tensor:
    """softmax(logits / temperature) [B, C], in evaluation mode."""
    training = module.training
    module.eval()
    with torch.inference_mode():
        found = (widen(module(**inputs).logits) / temperature).softmax(-1)
    module.train(training)
    return found


def measure_classes(module: nn.Module, split: Split, size: int, temperature: float = 1.0) -> dict[str, Any]:
    """Accuracy, macro F1, loss in nats per example, and calibration error."""
    return {**evaluate_classes(module, split, size, temperature=temperature).metrics(), "examples": len(split)}


def score_classes(
    module: nn.Module,
    split: Split,
    size: int,
    classes: Sequence[str],
    numbers: Sequence[int],
    report: Report | None,
    temperature: float = 1.0,
) -> ExampleScores:
    """The same, example by example, which are known by their `numbers` in the data."""
    evaluation = evaluate_classes(module, split, size, report=report, temperature=temperature)
    metrics = {**evaluation.metrics(), "examples": len(split)}
    return evaluation.scores(metrics, classes, lambda example: f"#{numbers[example]}")


def class_answers(
    names: Sequence[str], probabilities: Tensor, classes: Sequence[str], shown: int = CLASSES_SHOWN
) -> list[Answer]:
    """The likeliest class of each, with the probabilities of the likeliest `shown`."""
    answers = []
    for name, row in zip(names, probabilities, strict=True):
        best = row.argsort(descending=True, stable=True)[:shown].tolist()
        shares = {classes[number]: round(float(row[number]), 6) for number in best}
        answers.append(Answer(name, classes[best[0]], {"probabilities": shares}))
    return answers


def class_preview(module: nn.Module, split: Split, classes: Sequence[str], count: int = 6) -> str:
    """A few held-out examples: what is true, and what the model says."""
    device = next(module.parameters()).device
    spread = [place * len(split) // count for place in range(count)] if len(split) >= count else list(range(len(split)))
    batch = split.batch(spread).to(device)
    found = class_probabilities(module, batch.inputs)
    words = []
    for truth, row in zip(batch.labels.tolist(), found, strict=True):
        said = int(row.argmax())
        words.append(f"{classes[truth]} {'=' if said == truth else '≠'} {classes[said]} {float(row[said]):.0%}")
    return "true, said: " + ", ".join(words)


def nearest_neighbor(train: NDArray[np.float32], labels: Labels, asked: NDArray[np.float32]) -> Labels:
    """The label of the nearest training example (Euclidean), for features [n, F] and [m, F]."""
    left, right = torch.from_numpy(train).float(), torch.from_numpy(asked).float()
    found: Labels = labels[torch.cdist(right, left).argmin(1).numpy()]
    return found


def evenly(count: int, most: int) -> Labels:
    """At most `most` of `count` places, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
