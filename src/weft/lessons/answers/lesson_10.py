"""Lesson 10: the block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.lessons.checking import Question, expect_choice, expect_number
from weft.parts.attention import SelfAttention
from weft.parts.block import PostNorm, PreNorm
from weft.parts.feedforward import FeedForward
from weft.parts.norms import LayerNorm

Layer = Callable[[Tensor], Tensor]
BlockFunction = Callable[[Tensor, Layer, Layer, Layer], Tensor]
KINDS = {"pre-norm": PreNorm, "post-norm": PostNorm}


def weights_of_a_block() -> float:
    """Numbers in the matrices of a block of width 512."""
    block = PreNorm(SelfAttention(512, 8), FeedForward(512), lambda: LayerNorm(512))
    return float(sum(weight.numel() for weight in block.parameters() if weight.dim() == 2))


def possible_identity() -> str:
    """The arrangement that does nothing once what its branches add is zero."""
    x, found = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0)), []
    for name, kind in KINDS.items():
        mixer, feedforward = SelfAttention(8, 2), FeedForward(8)
        for part in (mixer.output, feedforward.down):
            for weight in part.parameters():
                nn.init.zeros_(weight)
        if torch.equal(kind(mixer, feedforward, lambda: LayerNorm(8))(x), x):
            found.append(name)
    return found[0] if len(found) == 1 else ""


def judge_block(answer: BlockFunction) -> str:
    """Compare a reader's function with the part's order of steps."""
    z = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixer, feedforward = SelfAttention(8, 2).double(), FeedForward(8).double()
    right = PreNorm(mixer, feedforward, lambda: LayerNorm(8).double())(z)
    found = torch.as_tensor(answer(z, mixer, feedforward, LayerNorm(8).double()))
    if torch.allclose(found, PostNorm(mixer, feedforward, lambda: LayerNorm(8).double())(z)):
        return "This is post-norm: in pre-norm the norm stands before each branch, and nothing after the sum."
    return (
        "" if torch.allclose(found, right) else "Two residual steps: z' = msa(ln(z)) + z, then the same with the MLP."
    )


def pre_norm(z: Tensor, msa: Layer, mlp: Layer, ln: Layer) -> Tensor:
    """z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z'."""
    z = msa(ln(z)) + z
    return mlp(ln(z)) + z


def post_norm(z: Tensor, msa: Layer, mlp: Layer, ln: Layer) -> Tensor:
    """LN after each sum."""
    z = ln(msa(z) + z)
    return ln(mlp(z) + z)


def without_residuals(z: Tensor, msa: Layer, mlp: Layer, ln: Layer) -> Tensor:
    """No path past the branches."""
    return mlp(ln(msa(ln(z))))


QUESTIONS = {
    "10.1": Question(
        judge=expect_number(weights_of_a_block, "W_Q, W_K, W_V, W_O are D x D; the MLP has D x 4D and 4D x D."),
        solution=12 * 512**2,
        wrong=(6 * 512**2, 8 * 512**2, 12 * 512),
    ),
    "10.2": Question(
        judge=expect_choice(possible_identity, "What is left if both branches add zero: is there still a norm?"),
        solution="pre-norm",
        wrong=("post-norm",),
    ),
    "10.3": Question(judge=judge_block, solution=pre_norm, wrong=(post_norm, without_residuals)),
}
