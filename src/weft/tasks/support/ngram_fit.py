"""The n-gram skip of classifiers and taggers: fitted before the first step, and weighed after the last.

Fitted: multinomial logistic regression on the n-grams of the training data, which minimizes

    sum_i - log softmax(b + sum_g x_ig U_g)_(y_i) + penalty / 2 |v|^2,    U_gc = r_gc v_gc,

by L-BFGS. r_gc = |log p(g | c) / p(g | not c)| is what naive Bayes makes of n-gram g (Wang and Manning 2012): what says
nothing is held near 0. The penalty is chosen on every fifth example. Weighed: the share s of the skip in the answer has
the lowest loss on held-out data, where 0 means that the blocks know all that n-grams do. So the model is about as good
as the better of both, and mostly better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.numerics import minimize
from weft.models.encoder import EncoderSpec, NgramsSpec, VectorsSpec
from weft.models.teacher_forcing import IGNORED
from weft.parts.ngrams import ABSENT, NgramSkip
from weft.parts.token_positions import TokenPositions
from weft.tasks.support.evaluation.calibration import LEAST_ANSWERS, calibrated_loss
from weft.tasks.support.splits.sentences import Sentences, ask
from weft.tasks.task import Batch, Split

PENALTIES = (0.3, 0.1, 0.03)  # each fit begins with the one before it
SHARES = tuple(step / 10 for step in range(11))
EVEN = 0.5  # the share where too few answers are held out to tell a better one
GAIN = 1e-4  # nats per answer that a share has to save
ITERATIONS, HISTORY = 50, 6
FOLDS = 5
MOST_TRIED = 20_000  # examples that a penalty is chosen by
READ_TOGETHER = 256  # examples
MOST_NUMBERS = 4_000_000  # of a table
ENTRIES_PER_WORD = 16
RATE = 7e7  # n-grams x classes that are fitted per second, about
MOST_WEIGHED = 5_000_000  # logits that a share is chosen by


def ngram_skip(spec: EncoderSpec) -> EncoderSpec:
    """The spec with a skip whose table suits its vocabulary and classes."""
    assert not isinstance(spec.input, VectorsSpec) and spec.output.classes is not None
    entries = min(ENTRIES_PER_WORD * spec.input.vocabulary, MOST_NUMBERS // spec.output.classes)
    return spec.replace(ngrams=NgramsSpec(entries=max(1, entries)))


class FitsNgrams:
    """What a task inherits whose models may have an n-gram skip."""

    def start(self, module: nn.Module, train: Split, seconds: float | None = None) -> None:
        """Fit the skip to the training data, or where `seconds` are few to a part of them."""
        skip = getattr(module, "ngrams", None)
        if isinstance(skip, NgramSkip) and isinstance(train, Sentences):
            fit_ngrams(skip, train, seconds)

    def blend(self, module: nn.Module, validation: Split) -> bool:
        """Choose the share of the skip in the answer on held-out data; whether it has changed."""
        skip = getattr(module, "ngrams", None)
        if not (isinstance(skip, NgramSkip) and isinstance(validation, Sentences)):
            return False
        before = float(skip.share)
        skip.share.fill_(best_share(*answers_apart(module, skip, validation)))
        return float(skip.share) != before


# --- fitting ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NgramRows:
    """Examples as the n-grams that they have: their numbers [n] one after the other, how many are each example's [N],
    the value x of each [n], and the examples' labels [N]."""

    numbers: Tensor
    counts: Tensor
    values: Tensor
    labels: Tensor

    def part(self, chosen: Tensor) -> NgramRows:
        """The examples chosen [N]."""
        own = torch.repeat_interleave(chosen, self.counts)
        return NgramRows(self.numbers[own], self.counts[chosen], self.values[own], self.labels[chosen])

    def logits(self, weight: Tensor, bias: Tensor) -> Tensor:
        """b + sum_g x_g U_g: U [K, C], b [C] -> [N, C]."""
        starts = self.counts.cumsum(0) - self.counts
        return bias + F.embedding_bag(self.numbers, weight, starts, mode="sum", per_sample_weights=self.values)

    def loss(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Nats of all examples."""
        return F.cross_entropy(self.logits(weight, bias), self.labels, reduction="sum")

    def log_ratios(self, entries: int, classes: int) -> Tensor:
        """r [K, C]; each n-gram is counted once more than it was seen with each class."""
        places = self.numbers * classes + torch.repeat_interleave(self.labels, self.counts)
        times = torch.bincount(places, minlength=entries * classes).view(entries, classes).float() + 1
        others = times.sum(1, keepdim=True) - times - classes + 2
        return (times / times.sum(0) / (others / others.sum(0))).log().abs()


def fit_ngrams(skip: NgramSkip, train: Sentences, seconds: float | None = None) -> None:
    """Fill the table of a skip; its share is 0 until it is weighed."""
    skip.assign(torch.zeros(0, dtype=torch.long, device=skip.owner.device))
    if seconds is not None:
        train = _as_many_as_fit(train, skip, seconds)
    keys, counts, labels = (torch.cat(parts) for parts in zip(*_each_example(skip, train), strict=True))
    found, times = keys.unique(return_counts=True)
    skip.assign(found[times.argsort(descending=True, stable=True)].to(skip.owner.device))
    rows, known = (x.cpu() for x in skip.look_up(keys.to(skip.owner.device)))
    owners = torch.repeat_interleave(torch.arange(len(counts)), counts)[known]
    counts = torch.bincount(owners, minlength=len(counts))
    used, numbers = rows[known].unique(return_inverse=True)
    values = torch.ones(len(numbers)) if skip.each_token else counts[owners].float().rsqrt()
    weight, bias = fit_rows(NgramRows(numbers, counts, values, labels), len(used), skip.classes)
    skip.weight[used.to(skip.weight.device)] = weight.to(skip.weight)
    skip.bias.copy_(bias)


def _as_many_as_fit(train: Sentences, skip: NgramSkip, seconds: float) -> Sentences:
    """Some examples, evenly spread, where all would take too long."""
    kinds = 19 if skip.each_token else 5
    work = train.tokens * kinds * (skip.classes + 4) * ITERATIONS
    limited = train.limit(max(1, int(len(train) * seconds * RATE / work)))
    assert isinstance(limited, Sentences)
    return limited


def _each_example(skip: NgramSkip, train: Sentences) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(keys one after the other, how many are of each example, labels) of some examples at a time; of tagged sentences
    each word with a tag is an example."""
    for first in range(0, len(train), READ_TOGETHER):
        batch = train.batch(range(first, min(first + READ_TOGETHER, len(train)))).to(skip.owner.device)
        keys = skip.keys(batch.inputs["tokens"], _positions(batch))
        keys = keys[batch.labels != IGNORED] if skip.each_token else keys.flatten(1)
        there = keys != ABSENT
        yield keys[there].cpu(), there.sum(1).cpu(), batch.labels[batch.labels != IGNORED].cpu()


def _positions(batch: Batch) -> TokenPositions:
    return TokenPositions.of_real(batch.inputs["mask"])


def fit_rows(rows: NgramRows, entries: int, classes: int) -> tuple[Tensor, Tensor]:
    """U [K, C] and b [C] with the penalty that is best on every fifth of some examples, then fitted to all."""
    stride = -(-len(rows.labels) // MOST_TRIED)
    some = rows.part(torch.arange(len(rows.labels)) % stride == 0)
    held = torch.arange(len(some.labels)) % FOLDS == FOLDS - 1
    if held.sum() < classes:
        return _minimize(rows, entries, classes, PENALTIES[0])
    known, judged = some.part(~held), some.part(held)
    losses = [float(judged.loss(*_minimize(known, entries, classes, penalty))) for penalty in PENALTIES]
    return _minimize(rows, entries, classes, PENALTIES[losses.index(min(losses))])


def _minimize(rows: NgramRows, entries: int, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """U and b by L-BFGS; that it ends after few iterations holds U near 0 too."""
    scale, bias = rows.log_ratios(entries, classes), _log_shares(rows.labels, classes).requires_grad_()
    weight = torch.zeros_like(scale, requires_grad=True)

    def loss() -> Tensor:
        return (rows.loss(scale * weight, bias) + penalty / 2 * weight.square().sum()) / len(rows.labels)

    if len(rows.numbers):
        minimize(loss, [weight, bias], ITERATIONS, HISTORY)
    return scale * weight.detach(), bias.detach()


def _log_shares(labels: Tensor, classes: int) -> Tensor:
    counts = torch.bincount(labels, minlength=classes).float()
    return ((counts + 1) / (counts.sum() + classes)).log()


# --- weighing --------------------------------------------------------------------------------------------------------


def answers_apart(module: nn.Module, skip: NgramSkip, split: Sentences) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(logits of the blocks [N, C], scores of the skip [N, C], labels [N]) of held-out examples, in evaluation mode."""
    before, training = skip.share.clone(), module.training
    skip.share.zero_()
    module.eval()
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode():
        for first in range(0, len(split), READ_TOGETHER):
            batch = split.batch(range(first, min(first + READ_TOGETHER, len(split)))).to(skip.owner.device)
            real = batch.labels != IGNORED
            wide = skip.score(batch.inputs["tokens"], _positions(batch))
            parts.append((ask(module, batch).logits[real].cpu(), wide[real].cpu(), batch.labels[real].cpu()))
            if sum(part[0].numel() for part in parts) > MOST_WEIGHED:
                break
    module.train(training)
    skip.share.copy_(before)
    deep, wide, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return deep.double().numpy(), wide.double().numpy(), labels.numpy()


def best_share(deep: np.ndarray, wide: np.ndarray, labels: np.ndarray) -> float:
    """s of the lowest loss of softmax(((1 - s) deep + s wide) / T), each s with its own best T; 0 where none helps."""
    if len(labels) < LEAST_ANSWERS:
        return EVEN
    losses = [calibrated_loss(deep + share * (wide - deep), labels) for share in SHARES]
    best = int(np.argmin(losses))
    return SHARES[best] if losses[0] - losses[best] > GAIN * len(labels) else 0.0
