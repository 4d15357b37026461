"""Two runs on the same data: metrics side by side, a paired test of each, and examples where their answers differ.

print(weft.compare("runs/a", "runs/b", "test.csv"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.runs.run import EVALUATION_BATCH, Run, load
from weft.tasks.support.evaluation.example_scores import ExampleScores
from weft.tasks.support.evaluation.references import better
from weft.tasks.support.evaluation.resampling import PairedTest, paired_test

SHOWN = 5
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Difference:
    """An example that two runs answer differently; `truth` is None where there is no single right answer."""

    input: Any
    truth: Any
    a: Any
    b: Any


@dataclass(frozen=True)
class RunComparison:
    """Two runs of one task on the same data.

    `tests`: by metric, the difference b - a with its 95 % interval (paired bootstrap) and p-value (permutation test).
    `examples` were scored, `differing` of them answered differently; `differences` are those where one run is most
    ahead of the other.
    """

    runs: tuple[str, str]
    metric: str
    metrics: tuple[dict[str, Any], dict[str, Any]]
    tests: dict[str, PairedTest]
    examples: int
    differing: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """In a sentence, which run is better in the task's metric, or that these data do not tell."""
        name = self.metric if self.metric in self.tests else next(iter(self.tests), None)
        if name is None:
            return "no metric of these runs could be tested in pairs"
        test, title = self.tests[name], name.replace("_", " ")
        if test.p_value >= SIGNIFICANT:
            return f"{test.examples:,} examples do not tell the two apart in {title} (p = {test.p_value:.3f})"
        first, second = (metrics.get(name, 0.0) for metrics in self.metrics)
        ahead = self.runs[1] if better(name, second, first) else self.runs[0]
        return f"{ahead} is better in {title} (p = {test.p_value:.3f}, {test.examples:,} examples)"

    def to_tree(self) -> Tree:
        """As `--json` prints it."""
        return {
            "runs": list(self.runs),
            "metric": self.metric,
            "metrics": list(self.metrics),
            "tests": {name: asdict(test) for name, test in self.tests.items()},
            "verdict": self.verdict,
            "examples": self.examples,
            "differing": self.differing,
            "differences": [asdict(one) for one in self.differences],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.verdict]
        for name, test in self.tests.items():
            first, second = (metrics.get(name, float("nan")) for metrics in self.metrics)
            ends = f"{test.low:+.4f} to {test.high:+.4f}"
            lines.append(
                f"  {name}: {first:.4f}, {second:.4f}: {test.difference:+.4f} ({ends}), p = {test.p_value:.3f}"
            )
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def compare(
    run_a: Run | str | Path,
    run_b: Run | str | Path,
    data: str | Path | Sequence[str | Path],
    *,
    options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    shown: int = SHOWN,
    seed: int = 0,
    report: Callable[[float], None] | None = None,
) -> RunComparison:
    """Score two runs of one task on the same data, and test in pairs of examples whether they differ.

    `options` and `limit` are those of `Run.evaluate`; at most `shown` differing examples are given; `seed` is that of
    the resamples.
    """
    a, b = (run if isinstance(run, Run) else load(run) for run in (run_a, run_b))
    _expect_comparable(a, b)
    scores = []
    for number, run in enumerate((a, b)):

        def tell(share: float, done: int = number) -> None:
            if report is not None:
                report((done + share) / 2)

        split = run.read(data, options, limit)
        scores.append(run.task.score_examples(run.module, split, EVALUATION_BATCH, tell))
    first, second = scores
    notes: tuple[str, ...] = ()
    tests: dict[str, PairedTest] = {}
    differing: list[int] = []
    if _same_examples(first, second):
        for name in sorted(first.statistics.keys() & second.statistics.keys(), key=lambda name: name != a.task.metric):
            tests[name] = paired_test(first.statistics[name], second.statistics[name], seed)
        differing = [n for n, (x, y) in enumerate(zip(first.answers, second.answers, strict=True)) if x != y]
    else:
        notes = (_not_paired(first, second),)
    ranked = _most_apart(first.quality - second.quality, differing)[: max(0, shown)] if differing else []
    return RunComparison(
        (str(a.folder), str(b.folder)),
        a.task.metric,
        (first.metrics, second.metrics),
        tests,
        len(first.answers),
        len(differing),
        tuple(Difference(first.show(n), first.truth[n], first.answers[n], second.answers[n]) for n in ranked),
        notes,
    )


def _expect_comparable(a: Run, b: Run) -> None:
    if a.task.name != b.task.name:
        raise WeftError(
            f"{a.folder} is a run of task {a.task.name}, {b.folder} of {b.task.name}: compare runs of one task"
        )
    classes = [set(run.task.answers or ()) for run in (a, b)]
    if classes[0] != classes[1]:
        odd = sorted(classes[0] ^ classes[1])
        raise WeftError(
            f"the classes of the runs differ, such as {odd[0]!r:.40}, which only one of them knows: compare runs that "
            "were trained on the same classes"
        )


def _same_examples(a: ExampleScores, b: ExampleScores) -> bool:
    """Whether both runs were scored on the same examples, as far as these show."""
    if len(a.answers) != len(b.answers) or list(a.truth) != list(b.truth):
        return False
    return all(a.show(place) == b.show(place) for place in {0, len(a.answers) // 2, len(a.answers) - 1})


def _most_apart(ahead: NDArray[np.float64], differing: Sequence[int]) -> list[int]:
    """Examples by how far one run is ahead, in turn those where a is and those where b is."""
    order = sorted(differing, key=lambda n: -abs(ahead[n]))
    sides = ([n for n in order if ahead[n] >= 0], [n for n in order if ahead[n] < 0])
    return [n for pair in zip_longest(*sides) for n in pair if n is not None]


def _not_paired(a: ExampleScores, b: ExampleScores) -> str:
    sentence = (
        f"the runs read these data as different examples ({len(a.answers):,} and {len(b.answers):,}), as runs of "
        "different tokenizers or lengths do: their metrics stand side by side, but there is no paired test"
    )
    if "bits_per_byte" in a.metrics:
        sentence += "; compare bits per byte, for losses per token depend on the tokens"
    return sentence
