"""What the checker finds: a verdict for each law, with evidence, the submodule to blame and a likely cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.foundation.errors import WeftError

Verdict = Literal["holds", "broken", "caution", "not declared", "not testable"]


class BrokenLawError(WeftError):
    """A model breaks a law that it declares."""


class LawFailedError(WeftError):
    """A law's own code raised: a bug in the law, not a finding on the model."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one law. `violation` is the largest one, at output `at[0]` because of input `at[1]`."""

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
    seconds: float = field(default=0.0, compare=False)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The laws that are declared and do not hold."""
        return tuple(finding for finding in self.findings if finding.verdict == "broken")

    @property
    def headline(self) -> str:
        """All verdicts counted; where nothing could be tested it says so, and mostly why."""
        count = Counter(finding.verdict for finding in self.findings)
        hold = "holds" if count["holds"] == 1 else "hold"
        others = ", ".join(f"{count[verdict]} {verdict}" for verdict in ("broken", "not declared", "not testable"))
        said = f"{count['holds']} {hold}, {others}"
        if count["holds"] or count["broken"]:
            return said
        reasons = Counter(finding.evidence for finding in self.findings if finding.verdict == "not testable")
        why = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
        return f"{said}: nothing could be tested{why}"

    def __getitem__(self, law: str) -> Finding:
        for finding in self.findings:
            if finding.law == law:
                return finding
        raise WeftError(f"there is no law {law!r}: choose one of {', '.join(f.law for f in self.findings)}")

    def raise_if_broken(self) -> Report:
        """Raise `BrokenLawError` naming every broken law; give the report itself if none is."""
        if self.broken:
            said = "; ".join(
                f"{f.law}: {f.evidence}"
                + (f", first in {f.blame}" if f.blame else "")
                + (f" ({f.cause})" if f.cause else "")
                for f in self.broken
            )
            raise BrokenLawError(f"{self.model} breaks {len(self.broken)} declared law(s): {said}")
        return self

    def to_tree(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "broken": len(self.broken),
            "laws": [finding.to_tree() for finding in self.findings],
            "assumed": list(self.assumed),
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        return f"<Report of {self.model}: {self.headline}>"

    def __str__(self) -> str:
        width = max(len(f.law) for f in self.findings)
        lines = [f"{self.model}: {self.headline}"]
        lines += [f"  assumed: {text}" for text in self.assumed]
        for f in self.findings:
            tail = "".join((f"; blame: {f.blame}" if f.blame else "", f"; likely cause: {f.cause}" if f.cause else ""))
            lines.append(f"  {f.law:<{width}}  {f.verdict:<12}  {f.evidence}{tail}")
        return "\n".join(lines)
