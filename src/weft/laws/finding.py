"""What the checker finds: a verdict for each law, with evidence, the submodule to blame and a likely cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.foundation.errors import WeftError

Verdict = Literal["holds", "broken", "caution", "not declared", "not testable"]
VERDICTS: tuple[Verdict, ...] = ("broken", "caution", "holds", "not testable", "not declared")  # by weight
HEADLINE: tuple[Verdict, ...] = ("holds", "broken", "caution", "not declared", "not testable")


class BrokenLawError(WeftError):
    """A model breaks a law that it declares, or none of its laws could be tested."""

    longest = 1 << 20  # it tells all that it found


class LawFailedError(WeftError):
    """A law's own code raised: a bug in the law, not a finding on the model."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one law. `violation` is the largest one, at output `at[0]` because of input `at[1]`.

    "caution": it holds only with an argument that callers often leave out; `cause` says which, and the cure.
    """

    law: str
    verdict: Verdict
    evidence: str
    blame: str | None = None
    cause: str | None = None
    violation: float | None = None
    at: tuple[int, int] | None = None

    def to_tree(self) -> dict[str, Any]:
        return {
            "law": self.law,
            "verdict": self.verdict,
            "evidence": self.evidence,
            "blame": self.blame,
            "cause": self.cause,
            "violation": self.violation,
            "at": None if self.at is None else {"output": self.at[0], "input": self.at[1]},
        }


@dataclass(frozen=True)
class Report:
    """All findings on one model, what was assumed of it, and its dependency matrix beside the declared one."""

    model: str
    findings: tuple[Finding, ...]
    assumed: tuple[str, ...] = ()
    dependence: Sequence[Sequence[float]] | None = None
    declared: Sequence[Sequence[bool]] | None = None
    tolerance: float = 0.0
    precision: str = "float64"
    seconds: float = field(default=0.0, compare=False)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The laws that are declared and do not hold."""
        return tuple(finding for finding in self.findings if finding.verdict == "broken")

    @property
    def cautions(self) -> tuple[Finding, ...]:
        """The laws that hold only with arguments that callers often leave out."""
        return tuple(finding for finding in self.findings if finding.verdict == "caution")

    @property
    def tested(self) -> bool:
        """Whether any law could be tested."""
        return any(finding.verdict in ("holds", "broken", "caution") for finding in self.findings)

    @property
    def by_weight(self) -> list[Finding]:
        """All findings, what is broken first, then cautions, what holds, and what was not tested."""
        return sorted(self.findings, key=lambda finding: VERDICTS.index(finding.verdict))

    @property
    def headline(self) -> str:
        """All verdicts counted; where nothing could be tested it says so, and mostly why."""
        count = Counter(finding.verdict for finding in self.findings)
        words = {"holds": "holds" if count["holds"] == 1 else "hold"}
        if count["caution"] > 1:
            words["caution"] = "cautions"
        shown = [verdict for verdict in HEADLINE if verdict != "caution" or count[verdict]]
        said = ", ".join(f"{count[verdict]} {words.get(verdict, verdict)}" for verdict in shown)
        return said if self.tested else f"{said}: nothing could be tested{self._why_not()}"

    def _why_not(self) -> str:
        """The reason that most laws give for not being testable."""
        reasons = Counter(finding.evidence for finding in self.findings if finding.verdict == "not testable")
        return f" ({reasons.most_common(1)[0][0]})" if reasons else ""

    def __getitem__(self, law: str) -> Finding:
        for finding in self.findings:
            if finding.law == law:
                return finding
        raise WeftError(f"there is no law {law!r}: choose one of {', '.join(f.law for f in self.findings)}")

    def raise_if_broken(self) -> Report:
        """Raise `BrokenLawError` naming every broken law, or saying that none could be tested; else give the report."""
        if self.broken:
            said = "; ".join(
                f"{f.law}: {f.evidence}"
                + (f", first in {f.blame}" if f.blame else "")
                + (f" ({f.cause})" if f.cause else "")
                for f in self.broken
            )
            raise BrokenLawError(f"{self.model} breaks {len(self.broken)} declared law(s): {said}")
        if not self.tested:
            raise BrokenLawError(
                f"no law of {self.model} could be tested{self._why_not()}: give an example that it takes"
            )
        return self

    def to_tree(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "broken": len(self.broken),
            "cautions": len(self.cautions),
            "laws": [finding.to_tree() for finding in self.findings],
            "assumed": list(self.assumed),
            "precision": self.precision,
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        return f"<Report of {self.model}: {self.headline}; print(report) lists them>"

    def _repr_html_(self) -> str:
        """In a notebook: what is broken and cautions, all laws to unfold, and the dependency matrix."""
        from weft.laws.page import notebook_html

        return notebook_html(self)

    def __str__(self) -> str:
        width = max((len(f.law) for f in self.findings), default=0)
        lines = [f"{self.model}: {self.headline}"]
        lines += [f"  assumed: {text}" for text in self.assumed]
        for f in self.by_weight:
            tail = "".join((f"; blame: {f.blame}" if f.blame else "", f"; likely cause: {f.cause}" if f.cause else ""))
            lines.append(f"  {f.law:<{width}}  {f.verdict:<12}  {f.evidence}{tail}")
        return "\n".join(lines)
