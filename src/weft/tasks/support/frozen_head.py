"""The last linear map of a trained model whose body stays as it is: logistic regression on what the body gives.

    minimize over V, c    sum_i - log softmax(V z_i + c)_(y_i) + penalty / 2 |V|^2,    z = (x - mean) / deviation,

by L-BFGS in float64; W = V / deviation and b = c - W mean are the weights of the map. The vectors x are computed once.
The penalty is the one of the lowest loss on examples that were not fitted, over all folds (Alain and Bengio 2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.numerics import minimize, widen
from weft.models.output import Output
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.evaluation.class_scores import TemperatureScaled
from weft.tasks.task import Split, Task

PENALTIES = (
    3000.0,
    1000.0,
    300.0,
    100.0,
    30.0,
    10.0,
    3.0,
)  # each fit begins with the one before it
FOLDS = 5
ITERATIONS, HISTORY = 100, 10
READ_AT_ONCE = 8192  # tokens


@dataclass(frozen=True)
class Vectors:
    """What the last map is given [N, D], the labels [N], and the example that each belongs to [N]."""

    x: Tensor
    labels: Tensor
    owners: Tensor

    def part(self, chosen: Tensor) -> Vectors:
        """Those chosen [N]."""
        return Vectors(self.x[chosen], self.labels[chosen], self.owners[chosen])


@dataclass(frozen=True)
class LinearMap:
    """W [C, D] and b [C], with the penalty that they were fitted with."""

    weight: Tensor
    bias: Tensor
    penalty: float

    def losses(self, vectors: Vectors) -> Tensor:
        """Nats of each answer [N]."""
        return F.cross_entropy(vectors.x @ self.weight.T + self.bias, vectors.labels, reduction="none")


def last_map(module: nn.Module) -> nn.Linear | None:
    """The linear map from vectors to classes, if the model ends with one."""
    head = getattr(module, "head", None)
    found = getattr(head, "linear", None)
    return found if isinstance(found, nn.Linear) and not hasattr(head, "distilled") else None


def can_be_fitted(task: Task, module: nn.Module) -> bool:
    """Whether the model ends with a linear map to the task's classes."""
    found = last_map(module)
    own = task.answers is not None and isinstance(task, TemperatureScaled)
    return own and found is not None and found.out_features == len(task.answers or ())


def read_vectors(task: Any, module: nn.Module, split: Split) -> Vectors:
    """The vectors of all answers of a split, in evaluation mode."""
    seen: list[Tensor] = []
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    device, training = next(module.parameters()).device, module.training
    found = last_map(module)
    assert found is not None
    hook = found.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module.eval()
    try:
        for examples in split.batches(READ_AT_ONCE, None):
            batch = split.batch(examples).to(device)
            with torch.inference_mode():
                output: Output = task.call(module, batch)
                widen(output.logits)
            real = batch.labels != IGNORED
            owners = torch.tensor(list(examples)).view(-1, *[1] * (real.dim() - 1)).expand(real.shape)
            parts.append((seen.pop()[real].cpu().double(), batch.labels[real].cpu(), owners[real.cpu()]))
            seen.clear()
    finally:
        hook.remove()
        module.train(training)
    x, labels, owners = (torch.cat(part) for part in zip(*parts, strict=True))
    order = owners.argsort(stable=True)
    return Vectors(x[order], labels[order], owners[order])


def fit_linear(vectors: Vectors, classes: int, penalties: Sequence[float]) -> list[LinearMap]:
    """One map per penalty, largest penalty first; each fit begins with the one before it."""
    mean, deviation = vectors.x.mean(0), vectors.x.std(0, correction=0)
    scale = torch.where(
        deviation > 1e-9 * (1 + mean.abs()), deviation, math.inf
    )  # what is always the same says nothing
    z, count = (vectors.x - mean) / scale, max(1, len(vectors.labels))
    times = torch.bincount(vectors.labels, minlength=classes).double()
    weight = torch.zeros(classes, z.shape[1], dtype=torch.float64, requires_grad=True)
    bias = ((times + 1) / (times.sum() + classes)).log().requires_grad_()
    maps = []
    for penalty in penalties:

        def loss(penalty: float = penalty) -> Tensor:
            return F.cross_entropy(z @ weight.T + bias, vectors.labels) + penalty / count * weight.square().sum() / 2

        minimize(loss, [weight, bias], ITERATIONS, HISTORY)
        own = weight.detach() / scale
        maps.append(LinearMap(own, bias.detach() - own @ mean, penalty))
    return maps


@dataclass(frozen=True)
class CrossValidated:
    """The penalty of the lowest loss on examples that were not fitted, and the nats of each answer with it [N]."""

    penalty: float
    losses: Tensor

    @property
    def loss(self) -> float:
        return float(self.losses.mean())


def cross_validate(vectors: Vectors, classes: int, penalties: Sequence[float] = PENALTIES) -> CrossValidated:
    """Every fifth example is judged by a map that was fitted to the others, five times."""
    folds = min(FOLDS, int(vectors.owners.max()) + 1)
    losses = torch.zeros(len(penalties), len(vectors.labels), dtype=torch.float64)
    if folds < 2:
        return CrossValidated(penalties[0], losses[0] + math.log(classes))
    for fold in range(folds):
        judged = fold_of(vectors, fold)
        for number, found in enumerate(fit_linear(vectors.part(~judged), classes, penalties)):
            losses[number, judged] = found.losses(vectors.part(judged))
    best = int(losses.mean(1).argmin())
    return CrossValidated(penalties[best], losses[best])


def fold_of(vectors: Vectors, fold: int) -> Tensor:
    """Which vectors are of the examples of a fold [N]."""
    return vectors.owners % FOLDS == fold


def set_last_map(module: nn.Module, found: LinearMap) -> None:
    """Give the model the fitted map."""
    own = last_map(module)
    assert own is not None
    with torch.no_grad():
        own.weight.copy_(found.weight)
        if own.bias is not None:
            own.bias.copy_(found.bias)
