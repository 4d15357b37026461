"""Mixture of experts: E feed-forwards of which A are active for a token; parameters x E, compute x A.

p = softmax(x W_r) over E experts; the A best run; y = sum over them of g_e expert_e(x). The gates g are
- "renormalized": g_e = p_e / sum of the A best p (Shazeer et al. 2017, Jiang et al. 2024); at A = 1 always 1, so that
  the output gives the router no gradient;
- "probability": g_e = p_e (Fedus et al. 2021), whose gradient reaches the router at any A.
No token is ever dropped.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.foundation.numerics import widen
from weft.parts import observer
from weft.parts.auxiliary import Auxiliary, batch_sum
from weft.parts.expert_products import run_experts
from weft.parts.feedforward import activation
from weft.parts.parameters import normal_parameter

GateName = Literal["renormalized", "probability"]


def usual_gates(active: int) -> GateName:
    """The rule by which the router learns: one active expert keeps its probability, several are renormalized."""
    return "probability" if active == 1 else "renormalized"


def route(logits: Tensor, active: int, gates: GateName) -> tuple[Tensor, Tensor, Tensor]:
    """(gates [N, A], chosen [N, A], probabilities [N, E]) from router logits [N, E], in float32 or wider."""
    probabilities = widen(logits).softmax(-1)
    best, chosen = probabilities.topk(active, dim=-1)
    if gates == "renormalized":
        best = best / best.sum(-1, keepdim=True)
    return best, chosen, probabilities


def balance_loss(probabilities: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
    """E sum_e f_e P_e: share of choices times mean probability; A when balanced. `weight` [N] is 0 for padding."""
    E = probabilities.shape[-1]
    total = batch_sum(weight.sum()).clamp(min=1)
    share = batch_sum((F.one_hot(chosen, E).sum(1).to(weight.dtype) * weight[:, None]).sum(0)) / total
    mean = batch_sum((probabilities * weight[:, None]).sum(0)) / total
    return E * (share * mean).sum()


def z_loss(logits: Tensor, weight: Tensor) -> Tensor:
    """mean of (log sum_e exp logit_e)^2: keeps router logits small (Zoph et al. 2022)."""
    total = batch_sum(weight.sum()).clamp(min=1)
    return batch_sum((widen(logits).logsumexp(-1).square() * weight).sum()) / total


def grouped_linear(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Rows of x, sorted by expert and ending at `ends`, each times its expert's matrix: [N, D] x [E, F, D] -> [N, F].

    torch's grouped_mm: the fast way on CUDA in bf16, where nobody waits for counts.
    """
    return F.grouped_mm(x, weights.transpose(-2, -1), offs=ends)


class Experts(nn.Module):
    """E gated or classic feed-forwards with a router; see the head of this file for `gates`, the usual ones if None.

    `shared`: one more feed-forward that every token passes. Auxiliary: `balance loss`, `z loss`, and `routing`, each
    expert's share of the choices.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        active: int,
        activation_name: str = "silu",
        gated: bool = True,
        shared: nn.Module | None = None,
        gates: GateName | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= active <= experts:
            raise ShapeError(f"{active} active of {experts} experts: choose 1 <= active <= experts")
        self.width, self.hidden, self.experts, self.active = width, hidden, experts, active
        self.activation_name, self.gated = activation_name, gated
        self.gates: GateName = gates or usual_gates(active)
        self.activation = activation(activation_name)
        self.router = normal_parameter(experts, width, std=width**-0.5)
        self.up = normal_parameter(experts, (2 if gated else 1) * hidden, width, std=width**-0.5)
        self.down = normal_parameter(experts, width, hidden, std=hidden**-0.5)
        self.shared = shared
        self.first = 0  # the first expert whose weights are here: not 0 where processes hold some experts each

    def forward(self, x: Tensor, auxiliary: Auxiliary | None = None) -> Tensor:
        """[..., D] -> [..., D]."""
        tokens = x.reshape(-1, self.width)
        logits = F.linear(widen(tokens), widen(self.router))
        gates, chosen, probabilities = route(logits, self.active, self.gates)
        for one in observer.active:
            one.on_experts(self, x, gates, chosen)
        if auxiliary is not None:
            self._report(auxiliary, x, logits, probabilities, chosen)
        y = self.mix(tokens, gates, chosen).view_as(x)
        return y if self.shared is None else y + self.shared(x)

    def mix(self, tokens: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        """y_n = sum_a g_na expert_(chosen_na)(x_n): sort by expert, run each on its rows, put back and add.

        Only over experts whose weights are here.
        """
        order = chosen.flatten().argsort(stable=True)
        sizes = torch.bincount(chosen.flatten(), minlength=self.experts)
        up, down = self.up, self.down
        if len(up) < self.experts:
            before = int(sizes[: self.first].sum())
            sizes = sizes[self.first : self.first + len(up)]
            order = order[before : before + int(sizes.sum())]
        rows = order // self.active
        ends = sizes.cumsum(0).to(torch.int32)
        if tokens.device.type == "cuda" and tokens.dtype == torch.bfloat16:
            hidden = grouped_linear(tokens[rows], up, ends)
            out = grouped_linear(self._activate(hidden), down, ends)
        else:
            out = run_experts(tokens[rows], up, down, sizes.tolist(), self._activate)
        out = out * gates.flatten()[order, None].to(out.dtype)
        return torch.zeros_like(tokens).index_add(0, rows, out.to(tokens.dtype))

    def _activate(self, hidden: Tensor) -> Tensor:
        if not self.gated:
            return self.activation(hidden)
        gate, up = hidden.chunk(2, dim=-1)
        return self.activation(gate) * up

    def _report(self, auxiliary: Auxiliary, x: Tensor, logits: Tensor, probabilities: Tensor, chosen: Tensor) -> None:
        if auxiliary.real is None:
            weight = probabilities.new_ones(len(logits))
        else:
            weight = auxiliary.real.expand(x.shape[:-1]).reshape(-1).to(probabilities.dtype)
        auxiliary.add("balance loss", balance_loss(probabilities, chosen, weight))
        auxiliary.add("z loss", z_loss(logits, weight))
        share = (F.one_hot(chosen, self.experts).sum(1) * weight[:, None]).sum(0)
        auxiliary.add("routing", (share / share.sum().clamp(min=1)).detach())
