"""Models that choose among classes, one per example or one per token: evaluated example by example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from weft.foundation.numerics import widen
from weft.foundation.spec import Tree
from weft.models.output import Output
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.evaluation.calibration import Calibration, fit_temperature
from weft.tasks.support.evaluation.example_scores import ExampleScores, Report, macro_f1_statistic, mean_statistic
from weft.tasks.support.evaluation.metrics import accuracy, macro_f1
from weft.tasks.task import Batch, Split

Numbers = NDArray[np.int64]
Ask = Callable[[nn.Module, Batch], Output]
MOST_LOGITS = 5_000_000  # numbers that a temperature is fitted to
FITTED_AT_ONCE = 8192  # tokens per batch of them


def call(module: nn.Module, batch: Batch) -> Output:
    """The model with the inputs of a batch, by name."""
    return module(**batch.inputs)


@dataclass(frozen=True)
class ClassEvaluation:
    """What a model says of each example, what is true (one number, or one per token), and the nats of each example.

    `confidence`: the probability of what it says, as many per example.
    """

    said: tuple[Numbers, ...]
    truth: tuple[Numbers, ...]
    losses: NDArray[np.float64]
    confidence: tuple[NDArray[np.float64], ...]

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

    def calibration(self) -> Calibration:
        """The probabilities of all answers, and which are right."""
        said, truth = self.flat()
        return Calibration(np.concatenate(self.confidence), said == truth)

    def metrics(self) -> dict[str, Any]:
        """Accuracy, macro F1, loss in nats per answer, and expected calibration error."""
        said, truth = self.flat()
        found = {"accuracy": accuracy(said, truth), "macro_f1": macro_f1(said, truth), "loss": self.loss}
        return {**found, "ece": self.calibration().error()}

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
        sure = np.array([row.mean() if len(row) else 1.0 for row in self.confidence])
        quality = right / np.maximum(counts, 1)
        return ExampleScores(metrics, statistics, truth, answers, quality, show, sure, self.calibration())


def _named(numbers: Numbers, classes: Sequence[str]) -> str | list[str]:
    names = [classes[number] for number in numbers]
    return names[0] if len(names) == 1 else names


def evaluate_classes(
    module: nn.Module,
    split: Split,
    size: int,
    ask: Ask = call,
    report: Report | None = None,
    temperature: float = 1.0,
) -> ClassEvaluation:
    """Run a model on all of a split, in evaluation mode; p(class) = softmax(logits / temperature)."""
    found: dict[int, tuple[Numbers, Numbers, float, NDArray[np.float64]]] = {}
    for examples, logits, labels in _each_batch(module, split, size, ask):
        best = logits.argmax(-1)
        logits = logits / temperature
        flat = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=IGNORED)
        losses = flat.view_as(labels).flatten(1).sum(1) if labels.dim() > 1 else flat
        shares = logits.softmax(-1).gather(-1, best[..., None])[..., 0]
        # Not every device has 64 bits.
        sure, said, truth = shares.cpu().double().numpy(), best.cpu().numpy(), labels.cpu().numpy()
        for row, (example, loss) in enumerate(zip(examples, losses.cpu().double().tolist(), strict=True)):
            real = np.atleast_1d(truth[row]) != IGNORED
            mine, true, probability = (np.atleast_1d(each[row])[real] for each in (said, truth, sure))
            found[example] = mine, true, loss, probability
        if report is not None:
            report(len(found) / len(split))
    rows = [found[example] for example in sorted(found)]
    return ClassEvaluation(
        tuple(mine for mine, *_ in rows),
        tuple(true for _, true, *_ in rows),
        np.array([loss for _, _, loss, _ in rows]),
        tuple(probability for *_, probability in rows),
    )


def _each_batch(module: nn.Module, split: Split, size: int, ask: Ask) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
    """(examples, logits, labels) of each batch of a split, in evaluation mode."""
    device = next(module.parameters()).device
    training = module.training
    module.eval()
    try:
        for examples in split.batches(size, None):
            batch = split.batch(examples).to(device)
            with torch.inference_mode():
                logits = widen(ask(module, batch).logits)
            yield examples, logits, batch.labels
    finally:
        module.train(training)


class TemperatureScaled:
    """A task whose probabilities are softmax(logits / `temperature`), fitted on held-out data when training ends."""

    temperature: float = 1.0
    examined: ClassVar[tuple[str, ...]] = ("temperature",)

    def call(self, module: nn.Module, batch: Batch) -> Output:
        """The model with a batch of this task."""
        return call(module, batch)

    def examine(self, module: nn.Module, validation: Split) -> bool:
        """Fit the temperature; 1 where it does not lower the loss."""
        rows: list[NDArray[np.float64]] = []
        truth: list[Numbers] = []
        numbers = 0
        for _, logits, labels in _each_batch(module, validation, FITTED_AT_ONCE, self.call):
            real = (labels != IGNORED).flatten()
            rows.append(logits.flatten(0, -2)[real].cpu().double().numpy())
            truth.append(labels.flatten()[real].cpu().numpy())
            numbers += rows[-1].size
            if numbers > MOST_LOGITS:
                break
        before, self.temperature = self.temperature, fit_temperature(np.concatenate(rows), np.concatenate(truth))
        return self.temperature != before

    def temperature_facts(self) -> Tree:
        """What `facts` stores of it; nothing where probabilities are those of the model itself."""
        return {} if self.temperature == 1.0 else {"temperature": self.temperature}

    def with_temperature(self, facts: Tree) -> Any:
        """The same task with the temperature of a run's facts, 1 in runs that have none."""
        self.temperature = float(facts.get("temperature", 1.0))
        return self


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
