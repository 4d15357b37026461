"""How the loss falls with parameters N and tokens D, well enough to compare sizes (Hoffmann et al. 2022):

    loss = E + A / N^0.34 + B / D^0.28

Text that is read again teaches less: U tokens read 1 + R times count as D = U + U R* (1 - exp(-R / R*)), R* = 15.4
(Muennighoff et al. 2023).
"""

from __future__ import annotations

import math

A, ALPHA, B, BETA, R_STAR = 406.4, 0.34, 410.7, 0.28, 15.4


def worth(tokens: float, unique: float) -> float:
    """The number of new tokens that teach as much as `tokens`, of which `unique` are different."""
    again = max(0.0, tokens / unique - 1)
    return min(tokens, unique) + unique * R_STAR * (1 - math.exp(-again / R_STAR))


def data_loss(tokens: float, unique: float) -> float:
    """B / D^0.28: the part of the loss that falls with the tokens."""
    return B / max(worth(tokens, unique), 1) ** BETA


def expected_loss(parameters: float, tokens: float, unique: float) -> float:
    """The part of the loss above the entropy E, for comparing sizes; see the formula above."""
    return A / max(parameters, 1) ** ALPHA + data_loss(tokens, unique)
