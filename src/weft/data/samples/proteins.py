"""Proteins: families of amino-acid sequences, each written by a profile hidden Markov model of its own.

A family has two motifs in a certain order, with background before, between and after them. A motif is a profile (Krogh
et al. 1994): match states that each prefer a letter, letters inserted between them, and matches that are skipped. The
six families are the ordered pairs of three motifs, so it takes the motifs and their order to tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from weft.data.samples.sample_definition import ReferenceScore, Sample, numpy_generator, validation_size
from weft.foundation.arrays import Array

AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"
# Shares of the letters in natural proteins, in percent.
PERCENT = (
    *(8.25, 5.53, 4.06, 5.46, 1.38, 3.93, 6.72, 7.07, 2.27, 5.91),
    *(9.65, 5.80, 2.41, 3.86, 4.74, 6.65, 5.36, 1.10, 2.92, 6.86),
)
BACKGROUND = np.array(PERCENT) / sum(PERCENT)
MOTIFS, WIDTH = 3, 8
CONSERVED = 0.75  # probability of a match state's own letter, beyond the background
STAY, INSERT, SKIP = 0.9, 0.05, 0.05


@dataclass(frozen=True)
class ProfileModel:
    """A hidden Markov model: `start` [S], `steps` [S, S], `ends` [S] are probabilities, `letters` [S, 20] emissions."""

    start: Array
    steps: Array
    ends: Array
    letters: Array

    def write(self, count: int, random: np.random.Generator) -> list[str]:
        """Draw `count` sequences, one letter of each at a time."""
        onward, letters = np.hstack([self.steps, self.ends[:, None]]).cumsum(1), self.letters.cumsum(1)
        states = _draw(np.broadcast_to(self.start.cumsum(), (count, len(self.start))), random)
        said: list[list[str]] = [[] for _ in range(count)]
        going = np.arange(count)
        while len(going):
            for row, letter in zip(going, _draw(letters[states], random), strict=True):
                said[row].append(AMINO_ACIDS[letter])
            states = _draw(onward[states], random)
            going, states = going[states < len(self.start)], states[states < len(self.start)]
        return ["".join(letters) for letters in said]

    def log_likelihoods(self, texts: list[str]) -> Array:
        """log p(text) of each, by the forward algorithm on all of them at once."""
        longest = max(map(len, texts))
        numbers = np.array([[AMINO_ACIDS.index(letter) for letter in text.ljust(longest, "A")] for text in texts])
        lengths, found = np.array([len(text) for text in texts]), np.zeros(len(texts))
        forward, scale = self.start * self.letters[:, numbers[:, 0]].T, np.zeros(len(texts))
        for t in range(longest):
            total = forward.sum(1)
            forward, scale = forward / total[:, None], scale + np.log(total)
            done = lengths == t + 1
            found[done] = scale[done] + np.log(forward[done] @ self.ends)
            if t + 1 < longest:
                # Of texts that have ended, what follows is never read.
                forward = np.maximum((forward @ self.steps) * self.letters[:, numbers[:, t + 1]].T, 1e-300)
        return found


def proteins(seed: int, size: int) -> Sample[tuple[tuple[str, str], ...]]:
    """Sequences of six families: ("MKVL...", "family AB"), where A and B are the motifs in their order."""
    models = family_models(seed)
    random = numpy_generator(seed, "proteins")
    names = tuple(models)
    labels = random.integers(0, len(names), size + validation_size(size))
    written = [iter(model.write(int((labels == n).sum()), random)) for n, model in enumerate(models.values())]
    rows = tuple((next(written[label]), names[label]) for label in labels)
    held = rows[size:]
    posteriors = family_posteriors(models, [text for text, _ in held])
    certain = posteriors.max(1)
    best = ReferenceScore(
        "accuracy",
        float(certain.mean()),
        "Bayes: the mean probability of the likeliest family, by the forward algorithm of the models that wrote them",
        spread=float(np.sqrt((certain * (1 - certain)).sum()) / len(held)),
    )
    pairs = [frozenset(name[-2:]) for name in names]
    without_order = np.stack([posteriors[:, [other == pair for other in pairs]].sum(1) for pair in pairs], 1)
    shortcut = ReferenceScore(
        "accuracy", float(without_order.max(1).mean() / 2), "without order: the right pair of motifs, then a guess"
    )
    return Sample("proteins", "classification", rows[:size], held, best, shortcut, names)


def family_models(seed: int) -> dict[str, ProfileModel]:
    """The model of each family, by its name."""
    random = numpy_generator(seed, "proteins", "motifs")
    own = [random.choice(len(AMINO_ACIDS), WIDTH, replace=False) for _ in range(MOTIFS)]
    letter = np.eye(len(AMINO_ACIDS))
    profiles = {"ABC"[n]: CONSERVED * letter[own[n]] + (1 - CONSERVED) * BACKGROUND for n in range(MOTIFS)}
    return {f"family {a}{b}": _chain((profiles[a], profiles[b])) for a, b in permutations(profiles, 2)}


def family_posteriors(models: dict[str, ProfileModel], texts: list[str]) -> Array:
    """p(family | text), [N, families], where all families are equally frequent."""
    scores = np.stack([model.log_likelihoods(texts) for model in models.values()], 1)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def _chain(profiles: tuple[Array, ...]) -> ProfileModel:
    """Background, then motif after motif, each with background behind it."""
    letters: list[Array] = [BACKGROUND]
    moves: dict[tuple[int, int], float] = {}
    for profile in profiles:
        before, width = len(letters) - 1, len(profile)
        # Match k stands at before + 1 + 2 k, its insertion behind it; behind the last match stands background.
        matches = [before + 1 + 2 * k for k in range(width)] + [before + 2 * width]
        moves |= {(before, before): STAY, (before, matches[0]): 1 - STAY, (matches[-2], matches[-1]): 1.0}
        for here, following, after in zip(matches, matches[1:], matches[2:], strict=False):
            moves |= {(here, here + 1): INSERT, (here, following): 1 - INSERT - SKIP, (here, after): SKIP}
            moves |= {(here + 1, here + 1): INSERT, (here + 1, following): 1 - INSERT}
        letters += [emitted for row in profile for emitted in (row, BACKGROUND)]
    last = len(letters) - 1
    moves[last, last] = STAY
    steps, ends, start = np.zeros((last + 1, last + 1)), np.zeros(last + 1), np.zeros(last + 1)
    for place, chance in moves.items():
        steps[place] = chance
    start[0], ends[last] = 1.0, 1 - STAY
    return ProfileModel(start, steps, ends, np.stack(letters))


def _draw(cumulative: Array, random: np.random.Generator) -> Array:
    """One number of each row of cumulative probabilities [N, K]."""
    return np.asarray((cumulative < random.random((len(cumulative), 1))).sum(1).clip(max=cumulative.shape[1] - 1))
