"""Optimizers: AdamW from torch, and Muon, whose matrix updates are made orthogonal; each for the weights it suits.

Muon: momentum M, update O ~ U V^T for M = U S V^T, W <- W - lr s O, s = sqrt(max(1, rows / columns)) (Jordan et al.
2024). torch's own computes in bf16, which is very slow on CPUs without bf16 units; here the iteration runs in float32
unless bf16 is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.foundation.numerics import bf16_is_fast, wide
from weft.parts.experts import Experts
from weft.training.native import OneCallAdamW
from weft.training.parallel.local_tensors import local, own_part, whole

# (a, b, c) of each step x <- a x + b x^3 + c x^5 on singular values. A step is the odd polynomial nearest to 1 on the
# interval that the steps before leave, beginning with [0.003, 1] (Polar Express, Amsel et al. 2025): after four steps
# every singular value of at least 0.003 of the bound is within 0.2 of 1.
COEFFICIENTS = (
    (8.3836736153, -24.7659058638, 18.3570818963),
    (4.0434204495, -3.0114050035, 0.5695121518),
    (3.5055706174, -2.6266538381, 0.5257194056),
    (2.4901159363, -1.8342750797, 0.4368347065),
)
# Beyond its interval a polynomial soon grows, and bf16 rounds values beyond it: there each step takes x / BF16_SLACK.
BF16_SLACK = 1.01
BF16_STEPS = tuple((a / BF16_SLACK, b / BF16_SLACK**3, c / BF16_SLACK**5) for a, b, c in COEFFICIENTS)
TINY = 1e-30


def orthogonalize(matrices: Tensor) -> Tensor:
    """U V^T, nearly, of each X = U S V^T [..., R, C]: X <- P X, P = a I + b A + c A^2, A = X X^T, a few times.

    A^2 has the trace sum s^4 over singular values s, so |A|^(1/2) bounds the largest; X is divided by it first.
    """
    half = matrices.dtype != torch.float64 and bf16_is_fast(matrices.device)
    X = matrices.to(wide(matrices.dtype)).reshape(-1, *matrices.shape[-2:])
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=TINY)
    X = X.bfloat16() if half else X
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    X = _large_side(X) if half else _small_side(X)
    X = X.mT if tall else X
    return X.reshape(matrices.shape).to(matrices.dtype)


def _large_side(X: Tensor) -> Tensor:
    """As it is written."""
    A = X @ X.mT
    bound = A.norm(dim=(-2, -1), keepdim=True).clamp(min=TINY)
    X, A = X / bound.sqrt(), A / bound
    for number, (a, b, c) in enumerate(BF16_STEPS if X.dtype == torch.bfloat16 else COEFFICIENTS):
        A = A if number == 0 else X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X


def _small_side(X: Tensor) -> Tensor:
    """All P are polynomials of the first A, so they commute, and only R x R products are needed until the end:
    Q <- P Q, A <- P A P, then Q X. In bf16 an eigenvalue of A near 0 could turn negative and grow.
    """
    A = X @ X.mT
    bound = A.norm(dim=(-2, -1), keepdim=True).clamp(min=TINY)
    A, Q = A / bound, None
    for number, (a, b, c) in enumerate(COEFFICIENTS):
        P = torch.baddbmm(A, A, A, beta=b, alpha=c)
        P.diagonal(dim1=-2, dim2=-1).add_(a)
        Q = P if Q is None else P @ Q
        A = P @ A @ P if number + 1 < len(COEFFICIENTS) else A
    assert Q is not None
    return (Q / bound.sqrt()) @ X


class Muon(Optimizer):
    """Momentum with orthogonal updates for weight matrices [R, C] or stacks of them [E, R, C] (experts)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; matrices of one shape are orthogonalized together, gathered where processes hold parts."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for same in _by_shape(group["params"]):
                updates = torch.stack([whole(self._momentum(weight, group["momentum"])) for weight in same])
                scale = max(1.0, same[0].shape[-2] / same[0].shape[-1]) ** 0.5
                for weight, update in zip(same, orthogonalize(updates).unbind(0), strict=True):
                    here = local(weight)
                    here.mul_(1 - group["lr"] * group["weight_decay"])
                    here.add_(own_part(update, weight), alpha=-group["lr"] * scale)
        return loss

    def _momentum(self, weight: Tensor, momentum: float) -> Tensor:
        """Nesterov's: m <- u m + (1 - u) g, then (1 - u) g + u m, for a gradient g and u = `momentum`."""
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(state["momentum"], momentum)


def _by_shape(weights: list[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.Size, list[Tensor]] = {}
    for weight in weights:
        if weight.grad is not None:
            groups.setdefault(weight.shape, []).append(weight)
    return list(groups.values())


def split_weights(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """(matrices inside blocks, other tables, vectors): Muon's, AdamW's with decay, AdamW's without.

    Embeddings, heads, positions and routers are tables that are looked up or read out; gains and biases are vectors.
    """
    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    routers = {id(part._parameters["router"]) for part in model.modules() if isinstance(part, Experts)}
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        if weight.dim() < 2:
            vectors.append(weight)
        elif ".blocks." in f".{name}" and weight.dim() <= 3 and id(weight) not in routers and "taps" not in name:
            matrices.append(weight)
        else:
            tables.append(weight)
    return matrices, tables, vectors


def build_optimizers(
    model: nn.Module, kind: str = "muon", lr: float = 3e-3, matrix_lr: float = 0.02, weight_decay: float = 0.1
) -> list[Optimizer]:
    """AdamW alone, or Muon for the matrices inside blocks and AdamW for the rest."""
    matrices, tables, vectors = split_weights(model)
    shared = matrices if kind == "adamw" else []
    groups = [
        {"params": tables + shared, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizers: list[Optimizer] = []
    if groups:
        optimizers.append(OneCallAdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-10, fused=True))
    if kind == "muon" and matrices:
        optimizers.append(Muon(matrices, lr=matrix_lr, weight_decay=weight_decay * 0.1))
    return optimizers
