"""What the loss of a language model takes beside the activations: its logits, or a piece of them, and early gradients.

Logits Z = H W^T [N, C] of N tokens, H [N, D] and W [C, D]. Up to `LOGITS_AT_ONCE` of them are made at once, in float32;
more are made in chunks, by a loss that computes the gradients of H and W with them and keeps both
(`weft.parts.linear_cross_entropy`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from weft.parts.outputs import LOGITS_AT_ONCE, CappedHead, LanguageHead, TiedHead

LOGIT = 4  # bytes: logits and their softmax are float32 whatever the weights are


@dataclass(frozen=True)
class OutputProfile:
    """W [C, D] for `tokens` N of one sequence; C is 0 where the output is no vocabulary, whose logits are few.

    `tied`: W is the embedding too.
    """

    tokens: int
    vocabulary: int = 0
    width: int = 0
    tied: bool = False

    @property
    def weights(self) -> int:
        """C D: the numbers of the head's matrix, for C tokens and width D."""
        return self.vocabulary * self.width

    def loss_bytes(self, sequences: int, number: int) -> int:
        """At its most, where the backward pass begins; `number` bytes per gradient.

        Whole logits: log softmax, its slope and that of Z, 3 N C; after them the slope of Z and the gradient of W.
        Chunks: the gradients of W and H, made in the forward pass, and twice the logits of a chunk.
        """
        N, C, D = sequences * self.tokens, self.vocabulary, self.width
        if N * C <= LOGITS_AT_ONCE:
            logits = LOGIT * N * C
            return max(3 * logits, logits + number * C * D)
        return LOGIT * C * D + number * N * D + 2 * LOGIT * max(C, LOGITS_AT_ONCE // C * C)

    def waiting_bytes(self, number: int) -> int:
        """The gradient of a tied W as output, which waits for the one as embedding until the backward pass ends."""
        return number * self.weights if self.tied else 0

    def more_gradient_bytes(self, number: int) -> int:
        """Then both are there beside their sum."""
        return 2 * self.waiting_bytes(number)


def output_profile(model: nn.Module, tokens: int) -> OutputProfile:
    """The output of this model, `tokens` of which have a label."""
    head = getattr(model, "head", None)
    if not isinstance(head, (LanguageHead, TiedHead, CappedHead)):
        return OutputProfile(tokens)
    inner = head.head if isinstance(head, CappedHead) else head
    assert isinstance(inner, (LanguageHead, TiedHead))
    return OutputProfile(tokens, head.vocabulary, inner.width, isinstance(inner, TiedHead))
