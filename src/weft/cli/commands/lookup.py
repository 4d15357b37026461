"""`weft lookup`: hard and soft look-up of a wish in a film catalog, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import AsJson, app
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.inspection.pictures.lookup import FilmLookup


@app.command()
def lookup(
    wishes: Annotated[
        list[str],
        typer.Argument(
            help="Wishes, -1 (not at all) to 1: romance, action, comedy, suspense, music.", metavar="NAME=NUMBER..."
        ),
    ],
    temperature: Annotated[
        float, typer.Option(help="Divides the scores before the softmax: low is nearly hard, high mixes all films.")
    ] = 0.5,
    films: Annotated[int, typer.Option(help="Number of films in the catalog.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed that the catalog is generated from.")] = 0,
    out: Annotated[
        Path, typer.Option(help="File to write: a page (.html) or an image (.png, .svg).", metavar="FILE")
    ] = Path("lookup.html"),
    as_json: AsJson = False,
) -> None:
    """Look a wish up in a film catalog: hard (the best film alone) and soft (attention: all films, by softmax weights).

    The wish is the query, a film's attributes are its key, its minutes, rating and awards are its value. In the page
    the temperature can be chosen. To train an attention that learns such a look-up, see the last example.

    \b
    Examples:
      weft lookup romance=0.9 action=-0.5
      weft lookup comedy=1 music=0.5 --temperature 0.1 --out lookup.png
      weft train sequences sample:films --preset lookup --steps 200 --out runs/films
    """
    run_lookup(parse_wishes(wishes), temperature, films, seed, out, as_json)


def parse_wishes(wishes: Sequence[str]) -> dict[str, float]:
    """The numbers by name of `romance=0.9 action=-0.5`."""
    found = {}
    for wish in wishes:
        name, _, number = wish.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise WeftError(f"{wish!r} is no wish: write a name and a number, such as romance=0.9") from None
    return found


def run_lookup(wish: dict[str, float], temperature: float, films: int, seed: int, out: Path, as_json: bool) -> None:
    """Look up, draw, and print the steps and where the picture is."""
    from weft.cli.terminal import console, print_json
    from weft.data.samples import film_catalog
    from weft.inspection.pictures.lookup import look_up

    found = look_up(film_catalog(films, seed), wish, temperature)
    written = found.picture().write(out)
    if as_json:
        print_json(_tree(found, written))
        return
    console().print(f"{found}\n\npicture: {written}", markup=False, soft_wrap=True)


def _tree(found: FilmLookup, written: Path) -> dict[str, object]:
    catalog = found.catalog
    rows = zip(catalog.names, found.scores, found.hard[1], found.soft[1], strict=True)
    return {
        "path": str(written),
        "wish": dict(zip(catalog.attributes, found.wish.tolist(), strict=True)),
        "temperature": found.temperature,
        "films": [
            {"film": name, "score": float(score), "hard": float(hard), "soft": float(soft)}
            for name, score, hard, soft in rows
        ],
        "hard": dict(zip(catalog.facts, found.hard[0].tolist(), strict=True)),
        "soft": dict(zip(catalog.facts, found.soft[0].tolist(), strict=True)),
        "best": found.best,
    }
