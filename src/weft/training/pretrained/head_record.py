"""What plan.json keeps of the choice between a frozen body with a fitted head and the training of all weights."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from weft.foundation.spec import Spec


class HeadRecord(Spec):
    """The last linear map of a trained model was fitted to new classes, and then `trained` is it alone or all weights.

    `loss` are nats per answer of the map alone, cross-validated with its `penalty` on `answers` answers. `asked`: users
    chose. Else all weights were `tried` for some steps on four fifths of the training examples: on the others their
    loss was lower by `gain`, of standard error `error`. Not tried: examples are so many that this is not in question.
    """

    trained: Literal["head", "all"]
    penalty: NonNegativeFloat
    loss: float
    answers: PositiveInt
    asked: bool = False
    tried: NonNegativeInt = 0
    gain: float | None = None
    error: NonNegativeFloat | None = None
    seconds: NonNegativeFloat = 0.0

    @property
    def frozen(self) -> bool:
        """Whether the body keeps its weights."""
        return self.trained == "head"

    def describe(self) -> str:
        """The choice in one line."""
        what = "a frozen body with a linear head" if self.frozen else "all weights are trained, from a fitted head"
        fitted = f"cross-validated loss {self.loss:.4f} on {self.answers:,} answers"
        if self.asked:
            return f"{what}, as asked ({fitted})"
        if self.gain is None and self.tried:
            return f"{what}: the training of all weights diverged ({fitted})"
        if self.gain is None:
            return f"{what}: there are examples enough ({fitted} with the head alone)"
        change = f"{'lower' if self.gain > 0 else 'higher'} by {abs(self.gain):.3f} ± {self.error or 0.0:.3f}"
        return f"{what}: with all weights trained, the loss on examples held back for this is {change} ({fitted})"
