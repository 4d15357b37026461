"""All training options in one frozen spec: `--set training.rate=0.001` changes one."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from weft.foundation.numerics import bf16_is_fast
from weft.foundation.spec import Spec
from weft.models.part_specs import Share
from weft.training.schedules import Cosine, InverseRoot, Schedule, Trapezoid


class TrainingSpec(Spec):
    """How a model is trained. The plan chooses steps, batch, evaluations and checkpoints where they are not set.

    A training for a number of minutes takes `least_steps` even if it ends late: on a slow machine it still learns.
    `batch` is the number of tokens per step, over all `accumulate` micro-batches. `rate` is the learning rate of AdamW,
    `matrix_rate` that of Muon. `warmup` and `decay` are shares of the steps. `clip` is the largest gradient norm (0: no
    limit). `smoothing` is label smoothing. `ema` is the decay of a moving average of the weights, which is then
    evaluated and kept (0: none). `weights`: keep the weights of the best validation loss, or the last ones, and then
    validation data choose nothing else either. `patience` is the number of evaluations without a better validation loss
    after which training stops. `lora` is the rank of adapters that are trained beside the frozen weights of the blocks;
    `lora_alpha` is twice the rank if left out.
    `evaluate_every` and `checkpoint_every` count steps, `evaluate_tokens` validation tokens. `keep` is the number of
    training states on disk. `recompute` saves memory by gradient checkpointing. `precision`: auto is bf16 where that is
    fast, else float32; float64 is for proofs. `guard` stops a model that looks ahead.
    `threads` 0 means all. `race`: with two minutes or more, the most promising sizes race for a share of the time.
    `head`: what a training of minutes does with a trained model that gets new classes. auto fits its last layer, and
    then trains all weights if that is seen to be better; linear leaves it at that; start trains all weights from there;
    none begins with a random last layer.
    """

    steps: PositiveInt | None = None
    least_steps: PositiveInt = 1
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
    precision: Literal["auto", "float64", "float32", "bf16"] = "auto"
    guard: bool = True
    threads: NonNegativeInt = 0
    race: bool = True
    head: Literal["auto", "linear", "start", "none"] = "auto"

    def uses_bf16(self, device: torch.device) -> bool:
        """Whether steps compute in bf16 on this device: as asked for, or where that is fast."""
        return self.precision == "bf16" or (self.precision == "auto" and bf16_is_fast(device))

    def build_schedule(self, total: int) -> Schedule:
        warmup = min(total, max(1, round(self.warmup * total)))
        if self.schedule == "cosine":
            return Cosine(total, warmup)
        if self.schedule == "inverse-root":
            return InverseRoot(total, warmup)
        return Trapezoid(total, warmup, self.decay)
