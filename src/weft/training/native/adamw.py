"""AdamW whose update of all weights is one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import AdamW

from weft.parts.native import suits
from weft.training.native.library import pointers, sizes, updates

STATE = ("exp_avg", "exp_avg_sq", "step")


class OneCallAdamW(AdamW):
    """torch's AdamW with the same state, and its own fused step where the native one does not apply."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all weights that have a gradient."""
        with_gradient = [[w for w in group["params"] if w.grad is not None] for group in self.param_groups]
        loss, flat = None, [w for weights in with_gradient for w in weights]
        if closure is None and self._is_native(flat):
            for group, weights in zip(self.param_groups, with_gradient, strict=True):
                self._update(group, weights)
        else:
            loss = super().step(closure)
        # Neither way tells the weights that they changed, and whoever keeps copies of them has to know.
        increment_version([w for group in self.param_groups for w in group["params"]])
        return loss

    def _is_native(self, weights: list[Tensor]) -> bool:
        """After torch's own first step, which makes the state, for float32 on a CPU."""
        if updates() is None or not all(self.state.get(w) for w in weights):
            return False
        gradients = [w.grad for w in weights if w.grad is not None]
        return suits(*weights, *gradients, *(self.state[w]["step"] for w in weights))

    def _update(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        found, states = updates(), [self.state[w] for w in weights]
        assert found is not None
        lists: list[Any] = [weights, [w.grad for w in weights], *([s[name] for s in states] for name in STATE)]
        found.weft_adamw(
            *map(pointers, lists), sizes(weights), len(weights), group["lr"], *group["betas"], group["eps"],
            group["weight_decay"], torch.get_num_threads(),
        )  # fmt: skip
