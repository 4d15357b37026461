"""Models that choose among classes, one per example or one per token: evaluated example by example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from weft.foundation.numerics import widen
from weft.models.output import Output
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, macro_f1_statistic, mean_statistic
from weft.tasks.support.evaluation.metrics import accuracy, macro_f1
from weft.tasks.task import Batch, Split

Numbers = NDArray[np.int64]
Ask = Callable[[nn.Module, Batch], Output]


def call(module: nn.Module, batch: Batch) -> Output:
    """The model with the inputs of a batch, by name."""
    return module(**batch.inputs)


@dataclass(frozen=True)
class ClassEvaluation:
    """What a model says of each example, what is true (one number, or one per token), and the nats of each example."""

    said: tuple[Numbers, ...]
    truth: tuple[Numbers, ...]
    losses: NDArray[np.float64]

    @property
    def counts(self) -> Numbers:
        """Answers per example."""
        return np.array([len(row) for row in self.truth], dtype=np.int64)

    @property
    def loss(self) -> float:
        """Nats per answer."""
        return float(self.losses.sum() / max(1, self.counts.sum()))

    def flat(self) -> tuple[Numbers, Numbers]:
        """All answers one after the other: (said, truth)."""
        return np.concatenate(self.said), np.concatenate(self.truth)

    def metrics(self) -> dict[str, Any]:
        """Accuracy, macro F1, and loss in nats per answer."""
        said, truth = self.flat()
        return {"accuracy": accuracy(said, truth), "macro_f1": macro_f1(said, truth), "loss": self.loss}

    def scores(self, metrics: dict[str, Any], classes: Sequence[str], show: Callable[[int], Any]) -> ExampleScores:
        """The given metrics with what each example adds to accuracy, macro F1 and loss; answers by name."""
        # Models that number the same classes differently are compared class by class.
        rank = np.argsort(np.argsort(np.array(classes)))
        counts = self.counts
        right = np.array([int((a == b).sum()) for a, b in zip(self.said, self.truth, strict=True)])
        statistics = {"accuracy": mean_statistic(right, counts), "loss": mean_statistic(self.losses, counts)}
        f1 = macro_f1_statistic([rank[row] for row in self.said], [rank[row] for row in self.truth], len(classes))
        if f1 is not None:
            statistics["macro_f1"] = f1
        answers, truth = ([_named(row, classes) for row in rows] for rows in (self.said, self.truth))
        return ExampleScores(metrics, statistics, truth, answers, right / np.maximum(counts, 1), show)


def _named(numbers: Numbers, classes: Sequence[str]) -> str | list[str]:
    names = [classes[number] for number in numbers]
    return names[0] if len(names) == 1 else names


def evaluate_classes(
    module: nn.Module, split: Split, size: int, ask: Ask = call, report: Report | None = None
) -> ClassEvaluation:
    """Run a model on all of a split, in evaluation mode."""
    device = next(module.parameters()).device
    training = module.training
    module.eval()
    found: dict[int, tuple[Numbers, Numbers, float]] = {}
    with torch.inference_mode():
        for examples in split.batches(size, None):
            batch = split.batch(examples).to(device)
            logits = widen(ask(module, batch).logits)
            flat = F.cross_entropy(
                logits.flatten(0, -2), batch.labels.flatten(), reduction="none", ignore_index=IGNORED
            )
            losses = flat.view_as(batch.labels).flatten(1).sum(1) if batch.labels.dim() > 1 else flat
            said, truth = logits.argmax(-1).cpu().numpy(), batch.labels.cpu().numpy()
            for row, (example, loss) in enumerate(zip(examples, losses.double().tolist(), strict=True)):
                real = np.atleast_1d(truth[row]) != IGNORED
                found[example] = np.atleast_1d(said[row])[real], np.atleast_1d(truth[row])[real], loss
            if report is not None:
                report(len(found) / len(split))
    module.train(training)
    ordered = [found[example] for example in sorted(found)]
    nats = np.array([loss for _, _, loss in ordered])
    return ClassEvaluation(tuple(said for said, _, _ in ordered), tuple(truth for _, truth, _ in ordered), nats)


def commonest(labels: Sequence[Numbers] | Numbers, classes: Sequence[str]) -> dict[str, Any]:
    """The fact that the simplest method needs: which answer is the most frequent in training."""
    numbers = np.concatenate([np.atleast_1d(row) for row in labels])
    return {"commonest": classes[int(np.bincount(numbers[numbers != IGNORED]).argmax())]}


def always_commonest(
    facts: dict[str, Any], labels: Sequence[Numbers] | Numbers, classes: Sequence[str]
) -> dict[str, float]:
    """The accuracy of giving training's most frequent answer to everything."""
    if facts.get("commonest") not in classes:
        return {}
    numbers = np.concatenate([np.atleast_1d(row) for row in labels])
    right = numbers[numbers != IGNORED] == classes.index(facts["commonest"])
    return {f"always {facts['commonest']}": float(right.mean())}
