"""Translation from English to French: sentences of a grammar written here, word by word, with the gold alignment.

Each English sentence has one translation: they is ils, you is vous, the past is the passé composé, and no word has two
meanings in one place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.data.samples import french_words as words
from weft.data.samples.french_grammar import (
    PLURAL,
    SINGULAR,
    Phrase,
    active,
    copula,
    noun_phrase,
    passive,
    phrase,
    write_pair,
)
from weft.data.samples.french_words import Gender, Noun, begins_with_vowel
from weft.data.samples.sample_definition import ReferenceScore, Sample, draw_distinct, python_generator, validation_size
from weft.data.samples.translation import AlignedPair

PRONOUNS = (("I", "je"), ("he", "il"), ("we", "nous"), ("you", "vous"), ("they", "ils"), ("she", "elle"))
SAY = ("dis", "dit", "disons", "dites", "disent")
NEGATED = 0.15
PAST_YEARS, FUTURE_YEARS = range(1985, 2005), range(2030, 2040)


def french(seed: int, size: int) -> Sample[tuple[AlignedPair, ...]]:
    """English sentences on politics and trade -> French, with an alignment of characters."""
    choose = python_generator(seed, "french")
    first = write_pair(lecture_sentence())
    pairs = {first.source: first}

    def draw() -> str:
        pair = write_pair(_sentence(choose))
        return pairs.setdefault(pair.source, pair).source

    # The lecture's sentence is the first held-out example, whatever the seed.
    count = size + validation_size(size)
    sources = [source for source in draw_distinct("french", count, draw) if source != first.source][: count - 1]
    train, held = sources[:size], sources[size:]
    why = "by construction: the grammar has one French sentence for each English one"
    best = ReferenceScore("exact_match", 1.0, why)
    parts = tuple(pairs[source] for source in train), tuple(pairs[source] for source in (first.source, *held))
    return Sample("french", "translation", *parts, best)


def _some(choose: random.Random, nouns: Sequence[Noun], definite: bool = False, kinds: bool = True) -> Phrase:
    """A random phrase about one of the nouns: definite where an indefinite one would need another grammar."""
    many = choose.random() < 0.35
    usual = ("the",) * 6 + ("this", "our", "their", "its")
    more = ((words.NUMBERS[choose.randrange(len(words.NUMBERS))][0], "a") if many else ("a", "a", "every")) * 2
    determiner = choose.choice(usual if definite else (*usual, *more))
    chance = choose.random()
    known = determiner in ("the", "our", "its", "their")
    before = choose.choice(words.BEFORE + (words.BEFORE_DEFINITE if known else ())) if chance < 0.25 else None
    origin = choose.choice(words.OF_ORIGIN) if 0.15 < chance < 0.45 else None
    kind = choose.choice(words.OF_KIND) if kinds and 0.35 < chance < 0.65 else None
    return noun_phrase(choose.choice(nouns), determiner, many, before, origin, kind)


def _field(choose: random.Random) -> Phrase:
    """Trade, French agriculture, public health: without an article in English."""
    chance = choose.random()
    origin = choose.choice(words.OF_ORIGIN) if chance < 0.2 else None
    kind = choose.choice(words.OF_KIND) if 0.1 < chance < 0.3 else None
    return noun_phrase(choose.choice(words.FIELDS), "", origin=origin, kind=kind)


def _name(choose: random.Random) -> Phrase:
    english, french, places, gender = choose.choice(words.NAMES)
    many = gender.endswith("s")
    found = phrase(english, french, places)
    return replace(found, gender="f" if gender[0] == "f" else "m", plural=many, person=PLURAL if many else SINGULAR)


def _country(choose: random.Random) -> Phrase:
    english, article, french = choose.choice(words.COUNTRIES)
    parts = tuple(english.split())
    # The article comes from "the", or from the name where English has none.
    own = frozenset(range(len(parts) > 1, len(parts)))
    found = ((article, frozenset([0])), (french, own))
    many = article == "les"
    return Phrase(parts, found, "f" if article == "la" else "m", many, PLURAL if many else SINGULAR)


def _matter(choose: random.Random) -> Phrase:
    """What texts are about."""
    return choose.choice((_field, _field, _name, lambda some: _some(some, words.ISSUES)))(choose)


def _thing(choose: random.Random) -> Phrase:
    """What is signed, adopted or criticized, often with a complement."""
    nouns = choose.choice((words.AGREEMENTS, words.TEXTS, words.PLANS, words.ADDITIONS))
    found, chance = _some(choose, nouns), choose.random()
    if nouns is words.ADDITIONS:
        return found + phrase("to", "à", "0") + _some(choose, words.TEXTS, definite=True)
    if chance < 0.25:
        return found
    if nouns is words.AGREEMENTS and chance < 0.5:
        sides = [_country(choose), _country(choose)]
        while sides[0].english == sides[1].english:
            sides[1] = _country(choose)
        return found + phrase("between", "entre", "0") + sides[0] + phrase("and", "et", "0") + sides[1]
    if chance < 0.5:
        owner = choose.choice((_name, _country, lambda some: _some(some, words.ACTORS, definite=True, kinds=False)))
        return found + phrase("of", "de", "0") + owner(choose)
    link = phrase("for", "pour", "0") if nouns is words.PLANS else phrase("on", "sur", "0")
    return found + link + _matter(choose)


def _actor(choose: random.Random) -> Phrase:
    """Who acts: people and bodies, names, countries, or two of them."""
    chance = choose.random()
    if chance < 0.5:
        found = _some(choose, words.ACTORS, kinds=False)
        return found + phrase("of", "de", "0") + _country(choose) if chance < 0.08 else found
    if chance < 0.85:
        return (_name if chance < 0.68 else _country)(choose)
    one, other = (_some(choose, words.ACTORS, definite=True, kinds=False) for _ in range(2))
    gender: Gender = "f" if one.gender == other.gender == "f" else "m"
    both = one + phrase("and", "et", "0") + other
    return replace(both, gender=gender, plural=True, person=PLURAL, verb_plural=True)


def _pronoun(choose: random.Random) -> Phrase:
    person = choose.randrange(len(PRONOUNS))
    english, french = PRONOUNS[person]
    found = phrase(english, french, "0")
    one = english in ("he", "she")
    return replace(
        found, gender="f" if english == "she" else "m", person=SINGULAR if one else person, verb_plural=not one
    )


def _time(choose: random.Random, tense: str) -> Phrase:
    """Nothing, or a time that fits the tense."""
    chance = choose.random()
    if chance < 0.4:
        return Phrase()
    if tense not in ("past", "future"):
        return phrase(*choose.choice(words.PRESENT_TIMES))
    if chance < 0.55:
        return phrase(*choose.choice(words.PAST_TIMES if tense == "past" else words.FUTURE_TIMES))
    year = choose.choice(PAST_YEARS if tense == "past" else FUTURE_YEARS)
    if chance < 0.65:
        return phrase(f"in {year}", f"en {year}", "0 1")
    english, (french,) = choose.choice(words.MONTHS)
    if chance < 0.85:
        return phrase(f"in {english} {year}", f"en {french} {year}", "0 1 2")
    day = choose.randrange(1, 29)
    ordinal = "1er" if day == 1 else day
    return phrase(f"on {day} {english} {year}", f"le {ordinal} {french} {year}", "0 1 2 3")


def _place(choose: random.Random) -> Phrase:
    """Nothing, or a city or a country: à Paris, en France, au Portugal, aux Pays-Bas."""
    chance = choose.random()
    if chance < 0.6:
        return Phrase()
    if chance < 0.85:
        english, (french,) = choose.choice(words.CITIES)
        return phrase(f"in {english}", f"à {french}", "0 1")
    country = _country(choose)
    (article, _), (name, _) = country.french
    if not country.plural and (article == "la" or begins_with_vowel(name)):
        return phrase(f"in {country.english[0]}", f"en {name}", "0 1")
    return phrase("in", "à", "0") + country


def _object(choose: random.Random, negated: bool) -> Phrase:
    """What is acted on; after a negation it is definite, because un and des would become de."""
    return _some(choose, words.TEXTS + words.PLANS, definite=True) if negated else _thing(choose)


def _active_clause(choose: random.Random) -> Phrase:
    # Pronouns and the future are many, or some of their many forms would never be seen.
    subject = (_pronoun if choose.random() < 0.4 else _actor)(choose)
    tense = choose.choice((*("present", "past", "future") * 2, *(modal[0] for modal in words.MODALS)))
    simple = tense in ("present", "past", "future")
    negated = simple and choose.random() < NEGATED
    if choose.random() < 0.25:
        found = active(subject, choose.choice(words.GIVING), tense, negated) + _object(choose, negated)
        found += phrase("to", "à", "0") + _some(choose, words.ACTORS, definite=True, kinds=False)
    else:
        found = active(subject, choose.choice(words.VERBS), tense, negated) + _object(choose, negated)
    return found + _time(choose, tense)


def _passive_clause(choose: random.Random) -> Phrase:
    tense = "past" if choose.random() < 0.75 else "future"
    verb = choose.choice(words.VERBS + words.GIVING)
    found = passive(_thing(choose), verb, tense, tense == "past" and choose.random() < NEGATED)
    if choose.random() < 0.35:
        found += phrase("by", "par", "0") + _actor(choose)
    return found + _place(choose) + _time(choose, tense)


def _copula_clause(choose: random.Random) -> Phrase:
    tense = choose.choice(("present", "present", "past", "future"))
    negated = tense != "future" and choose.random() < NEGATED
    if choose.random() < 0.5:
        return copula(_actor(choose), choose.choice(words.SAID_OF_ACTORS), tense, negated) + _time(choose, tense)
    return copula(_thing(choose), choose.choice(words.SAID_OF_THINGS), tense, negated)


def _reported_clause(choose: random.Random) -> Phrase:
    """Somebody says that something is so."""
    subject = (_pronoun if choose.random() < 0.4 else _actor)(choose)
    says = phrase("say" if subject.verb_plural else "says", SAY[subject.person], "0")
    return subject + says + phrase("that", "que", "0") + choose.choice((_copula_clause, _active_clause))(choose)


def _sentence(choose: random.Random) -> Phrase:
    clauses: tuple[Callable[[random.Random], Phrase], ...] = (
        _passive_clause,
        _active_clause,
        _copula_clause,
        _reported_clause,
    )
    clause = choose.choices(clauses, weights=(32, 40, 16, 12))[0]
    return clause(choose) + phrase(".", ".", "0")


def lecture_sentence() -> Phrase:
    """The example of the lectures, whose alignment is monotone but for the turned phrase."""
    agreement, sign = words.AGREEMENTS[0], next(verb for verb in words.VERBS if verb.english[0] == "sign")
    english, french, places, _ = words.NAMES[0]
    subject = noun_phrase(agreement) + phrase("on", "sur", "0") + phrase(english, french, places)
    return passive(subject, sign, "past") + phrase("in August 1992", "en août 1992", "0 1 2") + phrase(".", ".", "0")
