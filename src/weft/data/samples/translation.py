"""Translation: dates as people write them, in English and Italian, to the ISO form, with the gold alignment.

In numeric dates the day comes before the month (as in Britain and Italy), and two-digit years are in 1950-2049, so
every source has exactly one right target.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft.data.samples.sample_definition import (
    ReferenceScore,
    Sample,
    draw_distinct,
    python_generator,
    validation_size,
    word_list,
)

FIRST_DAY, LAST_DAY = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)

ENGLISH_MONTHS = word_list("January February March April May June July August September October November December")
ITALIAN_MONTHS = word_list(
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"
)
ENGLISH_WEEKDAYS = word_list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
ITALIAN_WEEKDAYS = word_list("lunedì martedì mercoledì giovedì venerdì sabato domenica")
ENGLISH_DAYS = word_list(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third "
    "twenty-fourth twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first"
)
ITALIAN_DAYS = word_list(
    "primo due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove venti ventuno ventidue ventitré ventiquattro venticinque ventisei ventisette "
    "ventotto ventinove trenta trentuno"
)

# A name in braces is a way to write a part of the date (see `_written`); the rest is literal.
ENGLISH = (
    "{day} {month} {year}",
    "{ordinal} {month} {year}",
    "{ordinal} of {month} {year}",
    "the {ordinal} of {month}, {year}",
    "the {spelled} of {month} {year}",
    "{month} {day}, {year}",
    "{month} {ordinal}, {year}",
    "{month} the {spelled}, {year}",
    "{weekday}, {day} {month} {year}",
    "{weekday} the {ordinal} of {month} {year}",
    "{weekday}, {month} {day}, {year}",
    "{day} {short} {year}",
    "{day} {short} '{years}",
    "{short} {day}, {year}",
    "{day}-{short}-{years}",
    "on {weekday} {ordinal} {month}, {year}",
    "London, {day} {month} {year}",
    "in {year}, on {month} {ordinal}",
)
ITALIAN = (
    "{giorno} {mese} {year}",
    "il {giorno} {mese} {year}",
    "il {scritto} {mese} {year}",
    "{settimana} {giorno} {mese} {year}",
    "{settimana}, {giorno} {mese} {year}",
    "addì {giorno} {mese} {year}",
    "Roma, {giorno} {mese} {year}",
    "Torino, il {scritto} {mese} {year}",
    "{giorno} {breve} {year}",
    "{giorno} {breve}. '{years}",
    "nel {year}, il {giorno} di {mese}",
    "il giorno {scritto} del mese di {mese} del {year}",
    "{giorno} {mese} '{years}",
)
FIGURES = (
    "{day}/{number}/{year}",
    "{day}.{number}.{year}",
    "{two}/{twos}/{year}",
    "{two}-{twos}-{year}",
    "{two}.{twos}.{years}",
    "{day}/{number}/{years}",
    "{year}/{twos}/{two}",
    "{day} {number} {year}",
)
MONTH, DAY = (5, 6), (8, 9)
# A link: one character of the target, and the characters of the written part that determine it.
Link = tuple[int, range]


@dataclass(frozen=True)
class AlignedPair:
    """A source, its target, and per target character the source characters that determine it (a dash: none)."""

    source: str
    target: str
    alignment: tuple[frozenset[int], ...]


def dates(seed: int, size: int) -> Sample[tuple[AlignedPair, ...]]:
    """Dates in English and Italian -> ISO form, with an alignment of characters."""
    choose = python_generator(seed, "dates")
    pairs: dict[str, AlignedPair] = {}

    def draw() -> str:
        pair = write_date(_some_day(choose), choose)
        return pairs.setdefault(pair.source, pair).source

    rows = tuple(pairs[source] for source in draw_distinct("dates", size + validation_size(size), draw))
    why = "by construction: day before month in figures, years of two figures in 1950-2049, so one reading each"
    best = ReferenceScore("exact_match", 1.0, why)
    return Sample("dates", "translation", rows[:size], rows[size:], best)


def _some_day(choose: random.Random) -> datetime.date:
    return FIRST_DAY + datetime.timedelta(days=choose.randrange((LAST_DAY - FIRST_DAY).days + 1))


def write_date(date: datetime.date, choose: random.Random) -> AlignedPair:
    """One date in a random way of writing, with its alignment."""
    template = choose.choice(choose.choices((ENGLISH, ITALIAN, FIGURES), weights=(4, 4, 2))[0])
    source = ""
    comes_from: list[set[int]] = [set() for _ in range(10)]
    for piece in re.split(r"(\{\w+\})", template):
        text, links = _written(piece[1:-1], date) if piece.startswith("{") else (piece, [])
        for target, places in links:
            comes_from[target] |= {len(source) + place for place in places}
        source += text
    change = choose.choices((str, str.lower, str.upper), weights=(6, 3, 1))[0]
    return AlignedPair(change(source), date.isoformat(), tuple(frozenset(places) for places in comes_from))


def _written(way: str, date: datetime.date) -> tuple[str, list[Link]]:
    """A part of the date in one way of writing, with its links to the target."""
    day, month, year = date.day, date.month, str(date.year)
    if way == "year":
        # All years are in 1950-2049, so each of the first three digits tells the century.
        return year, [(0, range(3)), (1, range(3)), (2, range(2, 3)), (3, range(3, 4))]
    if way == "years":
        return year[2:], _century(year)
    if way in ("day", "number"):
        return _figures(str(day if way == "day" else month), DAY if way == "day" else MONTH)
    if way in ("two", "twos"):
        return _figures(f"{day if way == 'two' else month:02d}", DAY if way == "two" else MONTH)
    if way == "ordinal":
        ending = "th" if 10 <= day % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        return str(day) + ending, _figures(str(day), DAY)[1]
    if way == "giorno":
        text, links = _figures(str(day), DAY)
        return (text + "º" if day == 1 else text), links
    if way in ("spelled", "scritto"):
        return _spelled((ENGLISH_DAYS if way == "spelled" else ITALIAN_DAYS)[day - 1])
    if way in ("weekday", "settimana"):
        return (ENGLISH_WEEKDAYS if way == "weekday" else ITALIAN_WEEKDAYS)[date.weekday()], []
    names: Sequence[str] = ENGLISH_MONTHS if way in ("month", "short") else ITALIAN_MONTHS
    name = names[month - 1] if way in ("month", "mese") else names[month - 1][:3]
    return name, [(target, range(len(name))) for target in MONTH]


def _century(year: str) -> list[Link]:
    """Two-digit years: the first digit also tells the century."""
    tens, ones = range(1), range(1, 2)
    return [(0, tens), (1, tens), (2, tens), (3, ones)]


def _figures(text: str, targets: tuple[int, int]) -> tuple[str, list[Link]]:
    """Digit by digit; a single digit also tells that the one before it is 0."""
    ones = range(len(text) - 1, len(text))
    return text, [(targets[0], range(1)), (targets[1], ones)]


def _spelled(word: str) -> tuple[str, list[Link]]:
    """A whole word tells both digits, but in twenty-first each half tells its own."""
    dash = word.find("-")
    halves = (range(dash), range(dash + 1, len(word))) if dash > 0 else (range(len(word)),) * 2
    return word, list(zip(DAY, halves, strict=True))
