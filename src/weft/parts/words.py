"""Words as tokens that show their letters too: rare and new words are known by how they are written.

A word is a row of whole numbers (w, c_1 .. c_L): its place in the vocabulary, then its characters, 0 where it has no more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts.embeddings import TokenEmbedding

NO_CHARACTER = 0


def strongest(features: Tensor, real: Tensor) -> Tensor:
    """The largest of each feature over real places: [N, F, L] and [N, L] -> [N, F]; zeros where none is real."""
    lowest = torch.finfo(features.dtype).min
    found = features.masked_fill(~real[:, None], lowest).amax(-1)
    return found.masked_fill(~real.any(-1, keepdim=True), 0.0)


class WordEmbedding(nn.Module):
    """x = E_w + max_l (sum_o W_o c_(l+o) + b): the word's own vector, and what its characters look like.

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
            raise ShapeError(f"a centred convolution over characters needs an odd kernel, not {kernel}")
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
        real = spelled != NO_CHARACTER
        letters = self.characters(spelled) * real[:, :, None]
        looks = strongest(self.taps(letters.transpose(1, 2)), real)
        return self.words(tokens[..., 0]) + looks.unflatten(0, tokens.shape[:2])
