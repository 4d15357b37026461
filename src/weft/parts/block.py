"""The block: a mixer between tokens and a feed-forward within each, both with a norm and a residual.

pre-norm       z' = MSA(LN(z)) + z,      z = MLP(LN(z')) + z'      (stable; can be the identity)
post-norm      Z = LN(Y(X) + X),         X' = LN(MLP(Z) + Z)       (the original; cannot be the identity)
sandwich-norm  z' = LN(MSA(LN(z))) + z,  z = LN(MLP(LN(z'))) + z'  (bounds what a branch adds)
parallel       z' = MSA(LN(z)) + MLP(LN(z)) + z                    (both branches at once)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.parts import observer
from weft.parts.attention import CrossAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.auxiliary import Auxiliary
from weft.parts.norms import Norm
from weft.parts.state import LayerState, TensorState


def stochastic_depth(branch: Tensor, share: float, training: bool) -> Tensor:
    """Leave a row's whole branch out with probability `share`, and make up for it in the others (Huang et al. 2016)."""
    if share == 0.0 or not training:
        return branch
    kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= share
    return branch * kept / (1 - share)


class CrossAttentionSource:
    """What cross-attention looks at: hidden states, what is seen of them, and their projected keys and values."""

    def __init__(self, hidden: Tensor, context: AttentionContext, state: TensorState | None = None) -> None:
        self.hidden, self.context, self.state = hidden, context, state


class Block(nn.Module):
    """The parts of a block; its kinds arrange them. Any of mixer, cross, feed-forward may be left out.

    `norm` makes a new norm for each branch; `dropout` acts on what a branch adds, `drop_path` drops whole branches.
    """

    def __init__(
        self,
        mixer: nn.Module | None,
        feedforward: nn.Module | None,
        norm: Callable[[], Norm],
        cross: CrossAttention | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.mixer, self.cross, self.feedforward = mixer, cross, feedforward
        self.mixer_norm = norm() if mixer is not None else None
        self.cross_norm = norm() if cross is not None else None
        self.feedforward_norm = norm() if feedforward is not None else None
        self.dropout, self.drop_path = dropout, drop_path

    def branch(self, part: nn.Module, output: Tensor) -> Tensor:
        """What a part adds: its output, with residual dropout and stochastic depth in training."""
        for one in observer.active:
            output = one.on_branch(part, output)
        if not self.training:
            return output
        return stochastic_depth(F.dropout(output, self.dropout), self.drop_path, True)


class PreNorm(Block):
    """z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z'."""

    def forward(
        self,
        z: Tensor,
        context: AttentionContext | None = None,
        state: LayerState | None = None,
        source: CrossAttentionSource | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        if self.mixer is not None and self.mixer_norm is not None:
            z = z + self.branch(self.mixer, self.mixer(self.mixer_norm(z), context, state))
        if self.cross is not None and self.cross_norm is not None and source is not None:
            z = z + self.branch(self.cross, self.cross(self.cross_norm(z), source.hidden, source.context, source.state))
        if self.feedforward is not None and self.feedforward_norm is not None:
            z = z + self.branch(self.feedforward, self.feedforward(self.feedforward_norm(z), auxiliary))
        return z


class PostNorm(Block):
    """Z = LN(Y(X) + X), X' = LN(MLP(Z) + Z)."""

    def forward(
        self,
        x: Tensor,
        context: AttentionContext | None = None,
        state: LayerState | None = None,
        source: CrossAttentionSource | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        if self.mixer is not None and self.mixer_norm is not None:
            x = self.mixer_norm(self.branch(self.mixer, self.mixer(x, context, state)) + x)
        if self.cross is not None and self.cross_norm is not None and source is not None:
            x = self.cross_norm(self.branch(self.cross, self.cross(x, source.hidden, source.context, source.state)) + x)
        if self.feedforward is not None and self.feedforward_norm is not None:
            x = self.feedforward_norm(self.branch(self.feedforward, self.feedforward(x, auxiliary)) + x)
        return x


class SandwichNorm(PreNorm):
    """z' = LN(MSA(LN(z))) + z, z = LN(MLP(LN(z'))) + z': norms before and after each branch (Ding et al. 2021)."""

    def __init__(
        self,
        mixer: nn.Module | None,
        feedforward: nn.Module | None,
        norm: Callable[[], Norm],
        cross: CrossAttention | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__(mixer, feedforward, norm, cross, dropout, drop_path)
        self.mixer_output_norm = norm() if mixer is not None else None
        self.cross_output_norm = norm() if cross is not None else None
        self.feedforward_output_norm = norm() if feedforward is not None else None

    def branch(self, part: nn.Module, output: Tensor) -> Tensor:
        """What a part adds: its output, normalized."""
        norm = self.mixer_output_norm if part is self.mixer else self.cross_output_norm
        norm = self.feedforward_output_norm if part is self.feedforward else norm
        return super().branch(part, output if norm is None else norm(output))


class Parallel(Block):
    """z' = MSA(LN(z)) + MLP(LN(z)) + z, each branch with a norm of its own (Wang and Komatsuzaki 2021, GPT-NeoX)."""

    def forward(
        self,
        z: Tensor,
        context: AttentionContext | None = None,
        state: LayerState | None = None,
        source: CrossAttentionSource | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = z
        if self.mixer is not None and self.mixer_norm is not None:
            x = x + self.branch(self.mixer, self.mixer(self.mixer_norm(z), context, state))
        if self.cross is not None and self.cross_norm is not None and source is not None:
            x = x + self.branch(self.cross, self.cross(self.cross_norm(z), source.hidden, source.context, source.state))
        if self.feedforward is not None and self.feedforward_norm is not None:
            x = x + self.branch(self.feedforward, self.feedforward(self.feedforward_norm(z), auxiliary))
        return x
