"""Scores of single examples: what intervals, paired tests and lists of differences are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from weft.foundation.arrays import Pixels
from weft.tasks.support.evaluation.calibration import Calibration, describe_correlation, describe_coverage
from weft.tasks.support.evaluation.metrics import References, several_references
from weft.tasks.support.evaluation.resampling import Doubles, Statistic, interval
from weft.tasks.support.splits.text_pairs import evenly
from weft.tasks.task import Split, Task

Report = Callable[[float], None]  # is told the share that is done
MOST_LOSSES = 1000  # examples whose losses a task is asked for one by one
MOST_NUMBERS = 20_000_000  # of a table of examples and classes
ORDERS = 4  # n-grams of BLEU


@dataclass(frozen=True)
class ExampleScores:
    """The metrics of a split, and what they are made of.

    `statistics`: by metric, what each example adds. `truth` and `answers` of each example, and `quality`, higher is
    better, by which two models' answers are compared; `show` gives the input of an example as users know it.
    `confidence`: how sure the model is of each example, where it says so; `calibration`: of all its answers.
    `picture`: the pixels [H, W, 1 or 3] of an example that is an image.
    """

    metrics: dict[str, Any]
    statistics: dict[str, Statistic]
    truth: Sequence[Any]
    answers: Sequence[Any]
    quality: Doubles
    show: Callable[[int], Any]
    confidence: Doubles | None = None
    calibration: Calibration | None = None
    picture: Callable[[int], Pixels] | None = None

    def intervals(self) -> dict[str, list[float]]:
        """95 % intervals by bootstrap over examples, of those metrics that have one."""
        found = {name: interval(self.statistics[name]) for name in self.metrics if name in self.statistics}
        return {name: list(ends) for name, ends in found.items() if ends is not None}

    def describe_trust(self) -> str | None:
        """In a sentence, whether the model's probabilities, bands or confidences are to be trusted, if it has any."""
        if self.calibration is not None:
            return self.calibration.describe()
        from weft.tasks.support.evaluation.metrics import most_spearman

        coverage, correlation = self.metrics.get("coverage"), self.metrics.get("confidence_correlation")
        if coverage is not None:
            return describe_coverage(coverage, self.metrics["nominal_coverage"], interval(self.statistics["coverage"]))
        return None if correlation is None else describe_correlation(correlation, most_spearman(self.quality))


def ratio(sums: Doubles) -> Doubles:
    """The first of two sums over the second: a mean."""
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1e-300))


def mean_statistic(totals: ArrayLike, counts: ArrayLike = 1.0) -> Statistic:
    """The mean of what examples add, each over so many answers."""
    values = np.asarray(totals, dtype=np.float64)
    return Statistic(np.stack((values, np.broadcast_to(np.asarray(counts, np.float64), values.shape)), -1), ratio)


def f1(sums: Doubles) -> Doubles:
    """2 tp / (predicted + true), 0 where there is neither; sums [..., 3]."""
    both = sums[..., 1] + sums[..., 2]
    return np.where(both > 0, 2 * sums[..., 0] / np.maximum(both, 1e-300), 0.0)


def macro_f1_statistic(
    said: Sequence[NDArray[np.int64]], truth: Sequence[NDArray[np.int64]], classes: int
) -> Statistic | None:
    """The mean F1 of the classes that are predicted or true; None where the table would be too large."""
    if 3 * classes * len(said) > MOST_NUMBERS:
        return None
    rows = np.zeros((len(said), classes, 3))
    for row, ours, theirs in zip(rows, said, truth, strict=True):
        for place, numbers in enumerate((ours[ours == theirs], ours, theirs)):
            row[:, place] = np.bincount(numbers, minlength=classes)

    def mean_f1(sums: Doubles) -> Doubles:
        each = sums.reshape(*sums.shape[:-1], classes, 3)
        used = (each[..., 1] + each[..., 2] > 0).sum(-1)
        return np.asarray(f1(each).sum(-1) / np.maximum(used, 1))

    return Statistic(rows.reshape(len(said), -1), mean_f1)


def bleu_statistic(hypotheses: Sequence[str], references: References) -> Statistic:
    """Corpus BLEU: each sentence adds n-grams that match, all n-grams, its length and its reference's, [N, 10]."""
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(force=True)
    rows = np.empty((len(hypotheses), 2 * ORDERS + 2))
    for row, text, given in zip(rows, hypotheses, references, strict=True):
        score: Any = scorer.corpus_score([text], [[reference] for reference in several_references(given)])
        row[:] = (*score.counts, *score.totals, score.sys_len, score.ref_len)
    return Statistic(rows, bleu_of_sums)


def bleu_of_sums(sums: Doubles) -> Doubles:
    """100 BP (p_1 p_2 p_3 p_4)^(1/4), BP = min(1, exp(1 - r / c)); the k-th p without a match is 1 / (2^k n-grams)."""
    right, total = sums[..., :ORDERS], sums[..., ORDERS : 2 * ORDERS]
    written, wanted = sums[..., -2], sums[..., -1]
    halvings = np.cumsum((right == 0) & (total > 0), axis=-1)
    smooth = np.where(right > 0, right, 0.5**halvings)
    # Sums without any n-gram of an order have no BLEU.
    logs = np.log(np.where(total > 0, smooth / np.maximum(total, 1), 1.0)).mean(-1)
    penalty = np.where(written < wanted, np.exp(1 - wanted / np.maximum(written, 1e-9)), 1.0)
    scored = (total > 0).all(-1) & (right > 0).any(-1)
    return np.where(scored, 100 * penalty * np.exp(logs), 0.0)


def text_scores(
    metrics: dict[str, Any],
    texts: Sequence[str],
    references: References,
    show: Callable[[int], Any],
    confidence: Sequence[float] | None = None,
) -> ExampleScores:
    """Scores of written texts: BLEU, exact match and ROUGE-L over sentences; the quality of each is its chrF.

    Where the model says how sure it is, `confidence_correlation` is Spearman's between that and the quality.
    """
    import sacrebleu

    from weft.tasks.support.evaluation.metrics import exact_match, rouge, spearman

    pairs = [([text], [several_references(given)]) for text, given in zip(texts, references, strict=True)]
    statistics = {
        "bleu": bleu_statistic(texts, references),
        "exact_match": mean_statistic([exact_match(*pair) for pair in pairs]),
        "rouge_l": mean_statistic([rouge(*pair)["rougeL"] for pair in pairs]),
    }
    quality = [float(sacrebleu.sentence_chrf(text, list(given)).score) for (text,), (given,) in pairs]
    if confidence is not None:
        metrics = {**metrics, "confidence_correlation": spearman(confidence, quality)}
    sure = None if confidence is None else np.array(confidence)
    return ExampleScores(metrics, statistics, list(references), list(texts), np.array(quality), show, sure)


def error_rate_statistics(texts: Sequence[str], references: Sequence[str]) -> dict[str, Statistic]:
    """Character and word error rates: each text adds its edits, and the length of its reference."""
    from weft.tasks.support.evaluation.metrics import edit_distance

    found = {}
    for name, items in (("cer", lambda text: " ".join(text.split())), ("wer", str.split)):
        pairs = [(items(text), items(truth)) for text, truth in zip(texts, references, strict=True)]
        found[name] = mean_statistic([edit_distance(*pair) for pair in pairs], [len(truth) for _, truth in pairs])
    return found


def loss_scores(task: Task, module: nn.Module, split: Split, size: int, report: Report | None = None) -> ExampleScores:
    """`measure`, and the loss of each of at most MOST_LOSSES examples, asked for one by one."""
    metrics = task.measure(module, split, size)
    device, training = next(module.parameters()).device, module.training
    module.eval()
    chosen = evenly(len(split), MOST_LOSSES)
    rows = np.empty((len(chosen), 2))
    with torch.inference_mode():
        for row, example in enumerate(chosen):
            loss = task.loss(module, split.batch([example]).to(device))
            rows[row] = float(loss.total), loss.count
            if report is not None:
                report((row + 1) / len(chosen))
    module.train(training)
    means = ratio(rows)
    answers = [round(value, 4) for value in means.tolist()]
    return ExampleScores(
        metrics, {"loss": Statistic(rows, ratio)}, [None] * len(rows), answers, -means, lambda row: f"#{chosen[row]}"
    )
