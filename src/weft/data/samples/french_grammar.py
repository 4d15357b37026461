"""Grammar of sample french: phrases in both languages, and how French words agree, follow each other and merge.

French needs what English does not say: articles, adjectives, participles and verbs agree in gender, number and person;
most adjectives follow their noun, so that phrases turn round (the European Economic Area: la zone économique
européenne); le, la, de, ne, je and que lose their vowel before another (l' accord), and de le, de les, à le, à les
become du, des, au, aux.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from weft.data.samples import french_words as words
from weft.data.samples.french_words import Adjective, Gender, Noun, Verb, begins_with_vowel, english_article
from weft.data.samples.translation import AlignedPair

ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'", "que": "qu'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
# French forms: masculine, feminine, plural.
DETERMINERS = {
    "the": ("le", "la", "les"),
    "a": ("un", "une", "des"),
    "this": ("ce", "cette", "ces"),
    "our": ("notre", "notre", "nos"),
    "their": ("leur", "leur", "leurs"),
    "its": ("son", "sa", "ses"),
}
BEFORE_VOWEL = {"ce": "cet", "sa": "son"}
HAVE, BE, WERE = ("ai", "a", "avons", "avez", "ont"), ("est", "sont"), ("était", "étaient")
FUTURE = ("ai", "a", "ons", "ez", "ont")
SINGULAR, PLURAL = 1, 4  # persons: he or she, they


@dataclass(frozen=True)
class Phrase:
    """English words, and French ones each with the numbers of the English words that it comes from.

    `gender`, `plural` and `person` are what French words agree with; `verb_plural` is what the English verb does.
    """

    english: tuple[str, ...] = ()
    french: tuple[tuple[str, frozenset[int]], ...] = ()
    gender: Gender = "m"
    plural: bool = False
    person: int = SINGULAR
    verb_plural: bool = False

    def __add__(self, other: Phrase) -> Phrase:
        """One after the other; agreement stays that of the first."""
        shift = len(self.english)
        moved = tuple([(word, frozenset([place + shift for place in places])) for word, places in other.french])
        return Phrase(
            self.english + other.english,
            self.french + moved,
            self.gender,
            self.plural,
            self.person,
            self.verb_plural,
        )

    def agree(self, forms: tuple[str, str]) -> str:
        """The singular or the plural of two forms."""
        return forms[self.plural]


@cache
def phrase(english: str, french: str, places: str) -> Phrase:
    """A phrase from its words; `places` gives for each French word its English ones, such as "0 2+3 1"."""
    numbers = [frozenset(map(int, place.split("+"))) for place in places.split()]
    return Phrase(tuple(english.split()), tuple(zip(french.split(), numbers, strict=True)))


def write_pair(sentence: Phrase) -> AlignedPair:
    """The two sentences as texts, with the words' alignment as one of characters.

    A blank comes from none, nor does an apostrophe and what follows, told by the letters before: qu', aujourd'hui.
    """
    spans, end = [], 0  # of each English word
    for word in sentence.english:
        spans.append((end, end + len(word)))
        end += len(word) + 1
    written = euphony(sentence.french)
    comes_from: list[frozenset[int]] = []
    for word, places in written:
        own = len(word.partition("'")[0])
        comes_from += [_characters(*[spans[place] for place in sorted(places)])] * own
        comes_from += [_characters()] * (len(word) - own + 1)
    return AlignedPair(" ".join(sentence.english), " ".join(word for word, _ in written), tuple(comes_from[:-1]))


@cache
def _characters(*spans: tuple[int, int]) -> frozenset[int]:
    """All characters of some spans; the same few sets serve all sentences."""
    return frozenset(place for first, last in spans for place in range(first, last))


def euphony(french: Sequence[tuple[str, frozenset[int]]]) -> list[tuple[str, frozenset[int]]]:
    """Elide before vowels (la économie: l' économie), then contract (de le conseil: du conseil)."""
    following = [word for word, _ in french[1:]] + [""]
    elided = [
        (ELIDED[word] if word in ELIDED and begins_with_vowel(after) else word, places)
        for (word, places), after in zip(french, following, strict=True)
    ]
    found: list[tuple[str, frozenset[int]]] = []
    for word, places in elided:
        if found and (found[-1][0], word) in CONTRACTED:
            before, more = found.pop()
            found.append((CONTRACTED[before, word], more | places))
        else:
            found.append((word, places))
    return found


def noun_phrase(
    noun: Noun,
    determiner: str = "the",
    plural: bool = False,
    before: Adjective | None = None,
    origin: Adjective | None = None,
    kind: Adjective | None = None,
) -> Phrase:
    """Determiner, adjectives and noun; `determiner` is a word of DETERMINERS, every, a number, or "" for a field."""
    english_words = [adjective.english for adjective in (before, origin, kind) if adjective is not None]
    english_words.append(noun.english[plural])
    own = noun.french[plural]
    adjective = None if before is None else before.form(noun.gender, plural, own)
    said = _english_determiner(determiner, plural, english_words[0])
    first = 1 if said else 0
    last = first + len(english_words) - 1
    places = {name: first + n for n, name in enumerate(english_words)}
    # What English leaves unsaid comes from the noun.
    origin_of_determiner = frozenset([0 if said else last])
    french_words = [(_french_determiner(determiner, noun.gender, plural, adjective, own), origin_of_determiner)]
    if before is not None and adjective is not None:
        french_words.append((adjective, frozenset([places[before.english]])))
    french_words.append((own, frozenset([last])))
    for after in (kind, origin):
        if after is not None:
            french_words.append((after.form(noun.gender, plural), frozenset([places[after.english]])))
    return Phrase(
        (*([said] if said else []), *english_words),
        tuple(french_words),
        noun.gender,
        plural,
        PLURAL if plural else SINGULAR,
        plural,
    )


def _english_determiner(determiner: str, plural: bool, following: str) -> str:
    if determiner == "a":
        return "" if plural else english_article(following)
    return "these" if determiner == "this" and plural else determiner


def _french_determiner(determiner: str, gender: Gender, plural: bool, adjective: str | None, own: str) -> str:
    following = own if adjective is None else adjective
    if determiner == "a" and plural and adjective is not None:
        return "de"
    if determiner not in DETERMINERS and determiner:
        return "chaque" if determiner == "every" else dict(words.NUMBERS)[determiner][0]
    masculine, feminine, many = DETERMINERS[determiner or "the"]
    found = many if plural else masculine if gender == "m" else feminine
    return BEFORE_VOWEL.get(found, found) if begins_with_vowel(following) else found


def active(subject: Phrase, verb: Verb, tense: str, negated: bool = False) -> Phrase:
    """Subject and verb; tenses are present, past, future, must, can, want to."""
    base, third, past, _ = verb.english
    person = subject.person
    if tense == "past":
        if negated:
            return subject + phrase(f"did not {base}", f"ne {HAVE[person]} pas {verb.participle}", "1 0 1 2")
        return subject + phrase(past, f"{HAVE[person]} {verb.participle}", "0 0")
    if tense == "future":
        form = verb.future + FUTURE[person]
        if negated:
            return subject + phrase(f"will not {base}", f"ne {form} pas", "1 0+2 1")
        return subject + phrase(f"will {base}", form, "0+1")
    if tense == "present":
        form = verb.present[person]
        if negated:
            auxiliary = "do" if subject.verb_plural else "does"
            return subject + phrase(f"{auxiliary} not {base}", f"ne {form} pas", "1 2 1")
        return subject + phrase(base if subject.verb_plural else third, form, "0")
    _, singular, forms = next(modal for modal in words.MODALS if modal[0] == tense)
    said = tense if subject.verb_plural else singular
    places = "0 1" if said.count(" ") == 0 else "0 1+2"
    return subject + phrase(f"{said} {base}", f"{forms.split()[person]} {verb.infinitive}", places)


def passive(subject: Phrase, verb: Verb, tense: str, negated: bool = False) -> Phrase:
    """Subject, auxiliaries and a participle that agrees: a été signée; tenses are past and future."""
    participle = verb.participle + ("e" if subject.gender == "f" else "") + ("s" if subject.plural else "")
    if tense == "future":
        be, said = subject.agree(("sera", "seront")), verb.english[3]
        return subject + phrase(f"will be {said}", f"{be} {participle}", "0+1 2")
    was, have = "were" if subject.verb_plural else "was", HAVE[subject.person]
    if negated:
        english, french = f"{was} not {verb.english[3]}", f"ne {have} pas été {participle}"
        return subject + phrase(english, french, "1 0 1 0+2 2")
    return subject + phrase(f"{was} {verb.english[3]}", f"{have} été {participle}", "0+1 0+1 1")


def copula(subject: Phrase, adjective: Adjective, tense: str, negated: bool = False) -> Phrase:
    """Subject, to be, and an adjective that agrees; tenses are present, past and future."""
    said = adjective.form(subject.gender, subject.plural)
    if tense == "future":
        return subject + phrase(f"will be {adjective.english}", f"{subject.agree(('sera', 'seront'))} {said}", "0+1 2")
    english = ("is", "are") if tense == "present" else ("was", "were")
    be, french = english[subject.verb_plural], subject.agree(BE if tense == "present" else WERE)
    if negated:
        return subject + phrase(f"{be} not {adjective.english}", f"ne {french} pas {said}", "1 0 1 2")
    return subject + phrase(f"{be} {adjective.english}", f"{french} {said}", "0 1")
