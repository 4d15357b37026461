"""What plan.json keeps of a race of sizes: who took part, how the held-out losses fell, and who went on."""

from __future__ import annotations

from typing import Self

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from weft.foundation.spec import Spec


class RacePoint(Spec):
    """The held-out loss of an entrant after `seconds` and `tokens` of its own training."""

    seconds: NonNegativeFloat
    tokens: NonNegativeInt
    loss: float


class RaceEntrant(Spec):
    """A size that took part: the formula's `expected` loss before, and the held-out loss `extrapolated` to the end.

    `expected` lies above an entropy that is not known: it ranks sizes, and is no loss in nats. `extrapolated` is None
    for an entrant whose training failed; `uncertain` is its standard error.
    """

    width: PositiveInt
    layers: PositiveInt
    parameters: NonNegativeInt
    batch: PositiveInt
    expected: float
    points: tuple[RacePoint, ...] = ()
    extrapolated: float | None = None
    uncertain: NonNegativeFloat | None = None

    @property
    def name(self) -> str:
        """Width and layers: `128x4`."""
        return f"{self.width}x{self.layers}"

    @property
    def at_the_end(self) -> str:
        """The extrapolated loss with its error, in words."""
        if self.extrapolated is None:
            return "failed"
        return f"{self.extrapolated:.4g}" + ("" if self.uncertain is None else f" ± {self.uncertain:.2g}")


class RaceRecord(Spec):
    """A race that is decided: its entrants in the formula's order, the number of the winner, and the time it took.

    `scale` is what a nat of the formula is in nats of these data, by the falls that were seen.
    """

    entrants: tuple[RaceEntrant, ...]
    winner: NonNegativeInt
    seconds: NonNegativeFloat
    scale: NonNegativeFloat

    @model_validator(mode="after")
    def _expect_winner(self) -> Self:
        if self.winner >= len(self.entrants) or not self.entrants[self.winner].points:
            raise ValueError(f"winner {self.winner} is none of the {len(self.entrants)} entrants that were judged")
        return self

    def describe(self) -> str:
        """The race in one line."""
        first = self.entrants[self.winner]
        others = [one for number, one in enumerate(self.entrants) if number != self.winner]
        others.sort(key=lambda one: float("inf") if one.extrapolated is None else one.extrapolated)
        names = [one.name for one in others]
        behind = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        losses = (one.at_the_end for one in (first, *others))
        return f"{first.name} ahead of {behind} (expected loss {', '.join(losses)}) after {self.seconds:.0f} s"
