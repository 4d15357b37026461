"""N-gram skip: what single n-grams say about the answer, blended into it ("wide and deep", Cheng et al. 2016).

    logits   <- (1 - s) logits   + s (b + sum_g U_g / sqrt(n))    over the n known n-grams g of a text
    logits_t <- (1 - s) logits_t + s (b + sum_g U_g)              over those around token t

N-grams of a text are words, pairs and beginnings of words; around a token, words, pairs, beginnings and endings.
U [G, C] and b [C] are a linear classifier of its own: fitted by itself (`weft.tasks.support.ngram_fit`), not by steps
along a gradient, and silent in training, so that the blocks learn as if they were alone. s is its share in the answer.

An n-gram is a whole number, its key: a kind and the ids of its words or characters. Key k stands in row
k mod p mod G, p a prime, if that row belongs to k. All other keys are unknown and add nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.parts.token_positions import TokenPositions

UNKNOWN = 0  # a word that is in no n-gram
ABSENT = -1  # in place of a key
WORD, LETTER = 2**22, 2**9  # so many ids are told apart
EDGE = WORD - 1  # the word before the first and after the last
KINDS = 32  # of n-grams
PRIME = 1_000_000_007  # no power of two is small modulo it: keys of like ids are spread over the rows
STEMS, BEGINNINGS, ENDINGS = (4, 5, 6), (1, 2, 3), (2, 3, 4, 5)  # characters; of endings one is the mark of the end
SHORT = LETTER**3  # endings of three characters, which are paired with the words beside


def text_keys(words: Tensor, token_positions: TokenPositions, spelled: Tensor | None = None) -> Tensor:
    """Keys of each word and of each pair with the one before it; of words that show their characters also beginnings,
    which forms of a word share: [B, T], [B, T, L] -> [B, T, F]."""
    words = _real_words(words, token_positions)
    found: list[tuple[Tensor, ...]] = [(words,), (neighbor(words, token_positions, -1), words)]
    if spelled is not None:
        first, _ = _outer_letters(_real_letters(spelled, token_positions))
        found += [(_spell(first[..., :size]),) for size in STEMS]
    return torch.stack([_key(kind, *parts) for kind, parts in enumerate(found)], -1)


def token_keys(words: Tensor, token_positions: TokenPositions, spelled: Tensor | None = None) -> Tensor:
    """Keys of what is around each word: it and two words on each side, pairs of them; of words that show their
    characters also beginnings and endings, its own and its neighbors': [B, T], [B, T, L] -> [B, T, F]."""
    words = _real_words(words, token_positions)
    before, after = neighbor(words, token_positions, -1), neighbor(words, token_positions, 1)
    far = (neighbor(words, token_positions, step) for step in (-2, 2))
    found: list[tuple[Tensor, ...]] = [(words,), (before,), (after,), *((word,) for word in far)]
    found += [(before, words), (words, after), (before, after)]
    if spelled is not None:
        first, last = _outer_letters(_real_letters(spelled, token_positions))
        short = _spell(last[..., :3])
        found += [(_spell(first[..., :size]),) for size in BEGINNINGS]
        found += [(_spell(last[..., :size]),) for size in ENDINGS]
        found += [(neighbor(short, token_positions, step),) for step in (-1, 1)]
        found += [(before, short), (after, short)]
    return torch.stack([_key(kind, *parts) for kind, parts in enumerate(found)], -1)


def neighbor(words: Tensor, token_positions: TokenPositions, step: int) -> Tensor:
    """The word `step` places after each, before it if negative; EDGE beyond the text or its document: [B, T]."""
    shifted = _shift(words, step, EDGE)
    if token_positions.plain:
        return shifted
    own = torch.zeros_like(words) if token_positions.documents is None else token_positions.documents.expand_as(words)
    if token_positions.real is not None:
        own = own.masked_fill(~token_positions.real, ABSENT)
    return torch.where(_shift(own, step, ABSENT) == own, shifted, EDGE)


def _shift(x: Tensor, step: int, fill: int) -> Tensor:
    padded = F.pad(x, (max(0, -step), max(0, step)), value=fill)
    return padded[:, max(0, step) : max(0, step) + x.shape[1]]


def _real_words(words: Tensor, token_positions: TokenPositions) -> Tensor:
    """Padding is an unknown word."""
    return words if token_positions.real is None else words.masked_fill(~token_positions.real, UNKNOWN)


def _real_letters(spelled: Tensor, token_positions: TokenPositions) -> Tensor:
    real = token_positions.real
    return spelled.long() if real is None else spelled.long().masked_fill(~real[..., None], 0)


def _key(kind: int, first: Tensor, second: Tensor | None = None) -> Tensor:
    """Of one or two ids; ABSENT where one of them is 0."""
    there = first > UNKNOWN
    if second is not None:
        first, there = first * SHORT + second, there & (second > UNKNOWN)
    return torch.where(there, first * KINDS + kind, ABSENT)


def _spell(letters: Tensor) -> Tensor:
    """Characters as one id, 0 where one is missing: [..., n] -> [...]."""
    number = torch.zeros_like(letters[..., 0])
    for letter in letters.unbind(-1):
        number = number * LETTER + letter % LETTER
    return number * (letters > 0).all(-1)


def _outer_letters(spelled: Tensor) -> tuple[Tensor, Tensor]:
    """The first characters after the start mark, and the last ones backward: [B, T, L] -> [B, T, 6], [B, T, 5].

    0 where there are no more.
    """
    first, last = 1 + max(STEMS), max(ENDINGS)
    spelled = F.pad(spelled, (last, max(0, first - spelled.shape[-1])))  # so that places before a word are 0
    end = (spelled > 0).sum(-1, keepdim=True) + last - 1
    back = torch.arange(last, device=spelled.device)
    return spelled[..., last + 1 : last + first], spelled.gather(-1, end - back)


class NgramSkip(nn.Module):
    """The table U [G, C] of n-grams, whose row belongs to which, the bias b and the share s; see the file's head.

    All are buffers: they are fitted, saved and loaded, but no optimizer takes them for weights.
    """

    weight: Tensor
    bias: Tensor
    owner: Tensor
    share: Tensor

    def __init__(self, entries: int, classes: int, each_token: bool) -> None:
        super().__init__()
        self.entries, self.classes, self.each_token = entries, classes, each_token
        self.register_buffer("weight", torch.zeros(entries, classes))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("owner", torch.full((entries,), ABSENT))
        self.register_buffer("share", torch.zeros(()))

    def keys(self, tokens: Tensor, token_positions: TokenPositions) -> Tensor:
        """Of tokens [B, T], or words with their characters [B, T, 1 + L] -> [B, T, F]; ABSENT where there is none."""
        if tokens.is_floating_point():
            raise ShapeError(f"n-grams are of tokens or words, but these are numbers ({tokens.dtype})")
        spelled = tokens[..., 1:] if tokens.dim() == 3 else None
        words = tokens.long() + 1 if spelled is None else tokens[..., 0].long()  # of tokens, each is known
        return (token_keys if self.each_token else text_keys)(words, token_positions, spelled)

    def look_up(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(rows of the table, whether they belong to the keys): [...] -> [...], [...]."""
        rows = keys.clamp(min=0) % PRIME % self.entries
        return rows, (self.owner[rows] == keys) & (keys != ABSENT)

    @torch.no_grad()
    def assign(self, keys: Tensor) -> None:
        """Give rows to different keys [K], the first come first; forget what was fitted before."""
        rows, order = (keys % PRIME % self.entries).sort(stable=True)
        first = torch.ones_like(rows, dtype=torch.bool)
        first[1:] = rows[1:] != rows[:-1]
        self.owner.fill_(ABSENT)
        self.owner[rows[first]] = keys[order[first]]
        for one in (self.weight, self.bias, self.share):
            one.zero_()

    def score(self, tokens: Tensor, token_positions: TokenPositions) -> Tensor:
        """b + sum_g U_g, per text divided by sqrt(n): -> [B, C] or [B, T, C]."""
        rows, known = self.look_up(self.keys(tokens, token_positions))
        if not self.each_token:
            rows, known = rows.flatten(1), known.flatten(1)
        weights = known.to(self.weight.dtype)
        if not self.each_token:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1).sqrt()
        return self.bias + (F.embedding(rows, self.weight) * weights[..., None]).sum(-2)

    def forward(self, logits: Tensor, tokens: Tensor, token_positions: TokenPositions) -> Tensor:
        """(1 - s) logits + s score."""
        score = self.score(tokens, token_positions).to(logits.dtype)
        return logits + self.share.to(logits.dtype) * (score - logits)
