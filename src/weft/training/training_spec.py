"""Options of training, all in one frozen spec: `--set training.rate=0.001` changes one."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from weft.foundation.spec import Spec
from weft.models.part_specs import Share
from weft.training.schedules import Cosine, InverseRoot, Schedule, Trapezoid


class TrainingSpec(Spec):
    """How a model is trained; what is None is chosen by the plan.

    `batch` counts tokens a step over all `accumulate` pieces. `rate` is AdamW's, `matrix_rate` Muon's. `warmup` and
    `decay` are shares of the steps. `clip` bounds the gradient's norm (0: not). `smoothing` is of labels. `ema` is the
    decay of an average of the weights that is judged and kept (0: none). `weights`: the best on held-out data are kept,
    or the last, which were not chosen by it. `patience` stops after so many evaluations without a better loss.
    `lora`: adapters of this rank learn beside the weights of the blocks, which stay; `lora_alpha` is twice the rank.
    `keep`: so many states of training stay. `recompute` saves memory: blocks are computed again on the way back.
    `threads` 0: all.
    """

    steps: PositiveInt | None = None
    batch: PositiveInt | None = None
    accumulate: PositiveInt = 1
    optimizer: Literal["muon", "adamw"] = "muon"
    rate: PositiveFloat = 3e-3
    matrix_rate: PositiveFloat = 0.02
    weight_decay: NonNegativeFloat = 0.1
    schedule: Literal["trapezoid", "cosine", "inverse-root"] = "trapezoid"
    warmup: Share = 0.02
    decay: Share = 0.5
    clip: NonNegativeFloat = 1.0
    smoothing: Share = 0.0
    ema: Share = 0.0
    weights: Literal["best", "last"] = "best"
    patience: PositiveInt | None = None
    lora: PositiveInt | None = None
    lora_alpha: PositiveFloat | None = None
    evaluate_every: PositiveInt | None = None
    evaluate_tokens: PositiveInt | None = None
    checkpoint_every: PositiveInt | None = None
    keep: PositiveInt = 1
    recompute: bool = False
    precision: Literal["auto", "float32", "bf16"] = "auto"
    guard: bool = True
    threads: NonNegativeInt = 0

    def build_schedule(self, total: int) -> Schedule:
        """The share of the learning rate over `total` steps."""
        warmup = min(total, max(1, round(self.warmup * total)))
        if self.schedule == "cosine":
            return Cosine(total, warmup)
        if self.schedule == "inverse-root":
            return InverseRoot(total, warmup)
        return Trapezoid(total, warmup, self.decay)
