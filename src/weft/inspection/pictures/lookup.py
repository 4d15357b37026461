"""Look-up in a film catalog, hard against soft, in numbers and as a picture: scores -> softmax -> weighted value.

found = look_up(film_catalog(), {"romance": 0.9, "action": -0.5}, temperature=0.5)
print(found); found.picture().write("lookup.html")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.data.samples.films import FilmCatalog
from weft.figures.panels.attention_steps import AttentionStep, AttentionStepsPanel, steps_text
from weft.figures.panels.bars import BarsPanel
from weft.figures.panels.panel import Axis
from weft.figures.picture import Picture
from weft.foundation.errors import WeftError
from weft.parts.lookup import hard_lookup, soft_lookup

Numbers = NDArray[np.float64]
TEMPERATURES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # beside the one asked for, to choose from in the page
HARD = "hard"


@dataclass(frozen=True)
class FilmLookup:
    """One wish [D], its scores [N], weights [N] and values [V], hard and soft; prints as its steps."""

    catalog: FilmCatalog
    wish: Numbers
    temperature: float
    scores: Numbers
    hard: tuple[Numbers, Numbers]
    soft: tuple[Numbers, Numbers]

    @property
    def best(self) -> str:
        """The film that hard look-up gives."""
        return self.catalog.names[int(self.scores.argmax())]

    def __str__(self) -> str:
        return steps_text(self.steps())

    def steps(self) -> tuple[AttentionStep, ...]:
        """From the wish to the values, each step with its formula and numbers."""
        names, catalog, tau = self.catalog.names, self.catalog, f"{self.temperature:g}"
        (hard, hard_weights), (soft, soft_weights) = self.hard, self.soft
        weights = np.stack([self.scores, hard_weights, soft_weights], 1)
        return (
            AttentionStep(
                "query",
                "q: the wish, 0 where it names nothing",
                "look_up",
                self.wish[None],
                ("wish",),
                catalog.attributes,
            ),
            AttentionStep(
                "keys", "k_j: the attributes of film j", "film_catalog", catalog.keys, names, catalog.attributes
            ),
            AttentionStep(
                "values", "v_j: what the catalog says of film j", "film_catalog", catalog.values, names, catalog.facts
            ),
            AttentionStep(
                "scores and weights",
                f"e_j = q.k_j;  hard: 1 for the largest e_j;  soft: a_j = softmax(e_j / tau), tau = {tau}",
                "hard_lookup, soft_lookup",
                weights,
                names,
                ("e", "hard", "soft"),
            ),
            AttentionStep(
                "weighted values",
                "a_j v_j, a_j of the soft look-up",
                "soft_lookup",
                soft_weights[:, None] * catalog.values,
                names,
                catalog.facts,
            ),
            AttentionStep(
                "answers",
                "hard: y = v of the best film;  soft: y = sum_j a_j v_j",
                "hard_lookup, soft_lookup",
                np.stack([hard, soft]),
                ("hard", "soft"),
                catalog.facts,
                f"Hard look-up gives {self.best} alone; soft look-up mixes all films by their weights.",
            ),
        )

    def picture(self) -> Picture:
        """Weights at several temperatures as bars, then all steps in numbers."""
        names = self.catalog.names
        temperatures = sorted({*TEMPERATURES, self.temperature})
        options = (HARD, *(f"{tau:g}" for tau in temperatures))
        rows = [self.hard[1], *(_soft(self.catalog, self.wish, tau)[1] for tau in temperatures)]
        order = np.argsort(-self.scores, kind="stable")
        labels = tuple(names[place] for place in order)
        bars = BarsPanel(
            "How much each film counts, by temperature",
            Axis("temperature", options, options.index(f"{self.temperature:g}")),
            (labels,) * len(options),
            np.stack(rows)[:, order].astype(np.float32),
            (self.best,) * len(options),
            "weight",
            "At low temperatures soft look-up becomes the hard one; at high ones all films count alike.",
        )
        wish = ", ".join(f"{name} {value:g}" for name, value in zip(self.catalog.attributes, self.wish, strict=True))
        steps = AttentionStepsPanel("Scores, softmax, weighted values", self.steps())
        return Picture("Hard and soft look-up in a film catalog", (bars, steps), f"wish: {wish}")


def look_up(catalog: FilmCatalog, wish: Mapping[str, float], temperature: float = 0.5) -> FilmLookup:
    """Look a wish up by attributes; those that it does not name count 0."""
    unknown = [name for name in wish if name not in catalog.attributes]
    if unknown:
        raise WeftError(f"films have no attribute {unknown[0]!r}: wish for {', '.join(catalog.attributes)}")
    query = np.array([float(wish.get(name, 0.0)) for name in catalog.attributes])
    if not np.isfinite(query).all():
        raise WeftError(f"a wish of {', '.join(f'{name}={n:g}' for name, n in wish.items())}: give finite numbers")
    value, weights = hard_lookup(*_store(catalog, query))
    return FilmLookup(
        catalog,
        query,
        temperature,
        catalog.keys @ query,
        (value[0].numpy(), weights[0].numpy()),
        _soft(catalog, query, temperature),
    )


def _soft(catalog: FilmCatalog, query: Numbers, temperature: float) -> tuple[Numbers, Numbers]:
    value, weights = soft_lookup(*_store(catalog, query), temperature)
    return value[0].numpy(), weights[0].numpy()


def _store(catalog: FilmCatalog, query: Numbers) -> tuple[Tensor, Tensor, Tensor]:
    """The query [1, D], keys [N, D] and values [N, V]."""
    return torch.from_numpy(query[None]), torch.from_numpy(catalog.keys), torch.from_numpy(catalog.values)
