"""Words as tokens that show their letters too: rare and new words are known by how they are written.

A word is a row of whole numbers (w, c_1 .. c_L): its place in the vocabulary, its characters, 0 where it has no more.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts import observer
from weft.parts.embeddings import TokenEmbedding

NO_CHARACTER = 0


def convolve_characters(spelled: Tensor, table: Tensor, taps: Tensor) -> Tensor:
    """y = max_l sum_o W_o E_(c_(l+o)) over real places l: c [N, L], E [C, K], W [F, K, k] -> [N, F]; zeros without any.

    The products W_o E_c are made once for each character and then looked up: no product grows with the text, and no
    work is done where there is no character.
    """
    F_, _, k = taps.shape
    products = torch.einsum("ck,fko->ocf", table, taps)
    products = torch.cat((torch.zeros_like(products[:, :1]), products[:, 1:]), 1)  # NO_CHARACTER adds nothing
    real = spelled != NO_CHARACTER
    around = F.pad(spelled, (k // 2, k // 2)).unfold(1, k, 1)[real]
    around = around + torch.arange(k, device=spelled.device) * len(table)
    found = F.embedding_bag(around, products.reshape(-1, F_), mode="sum")
    lengths = real.sum(1)
    strongest = torch.segment_reduce(found, "max", lengths=lengths, unsafe=True, initial=torch.finfo(found.dtype).min)
    return strongest.masked_fill((lengths == 0)[:, None], 0.0)


class WordEmbedding(nn.Module):
    """x = E_w + max_l sum_o W_o c_(l+o) + b: the word's own vector, and what its characters look like.

    A convolution of `kernel` characters finds endings and beginnings wherever they stand; the maximum over the word
    keeps the strongest of each (Santos and Zadrozny 2014). Places without a character change nothing.
    """

    def __init__(
        self,
        vocabulary: int,
        characters: int,
        width: int,
        character_width: int = 32,
        kernel: int = 3,
        longest: int = 16,
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ShapeError(f"a centered convolution over characters needs an odd kernel, not {kernel}")
        self.longest = longest
        self.words = TokenEmbedding(vocabulary, width)
        self.characters = TokenEmbedding(characters, character_width)
        self.taps = nn.Conv1d(character_width, width, kernel, padding=kernel // 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T, 1 + L] -> [B, T, D]."""
        if tokens.dim() != 3 or tokens.shape[-1] < 2:
            raise ShapeError(
                f"words are [B, T, 1 + L], a word and its L characters, but these are {tuple(tokens.shape)}"
            )
        if tokens.shape[-1] - 1 > self.longest:
            raise ShapeError(
                f"words of {tokens.shape[-1] - 1} characters, but the model sees {self.longest}: shorten them"
            )
        spelled = tokens[..., 1:].flatten(0, 1)
        self.characters.expect_known(spelled)
        looks = convolve_characters(spelled, self.characters.weight, self.taps.weight)
        if self.taps.bias is not None:
            looks = looks + self.taps.bias
        x: Tensor = self.words(tokens[..., 0]) + looks.unflatten(0, tokens.shape[:2])
        for one in observer.active:
            x = one.on_embedding(self, tokens, x)
        return x
