"""Sample french: words agree, elide and contract as French does, sentences have one translation, links are right."""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict

import pytest

from weft.data.samples import french_words as words
from weft.data.samples import sample
from weft.data.samples.french_grammar import Phrase, active, copula, euphony, noun_phrase, passive, phrase, write_pair
from weft.data.samples.french_sentences import PRONOUNS, _sentence, lecture_sentence

LECTURE = "the agreement on the European Economic Area was signed in August 1992 ."


def noun(english: str):
    every = (words.ACTORS, words.AGREEMENTS, words.TEXTS, words.ADDITIONS, words.PLANS, words.ISSUES, words.FIELDS)
    return next(one for nouns in every for one in nouns if one.english[0] == english)


def adjective(english: str):
    every = (words.BEFORE, words.BEFORE_DEFINITE, words.OF_KIND, words.OF_ORIGIN, words.SAID_OF_THINGS)
    return next(one for some in every for one in some if one.english == english)


def verb(english: str):
    return next(one for one in words.VERBS + words.GIVING if one.english[0] == english)


def both(found: Phrase) -> tuple[str, str]:
    pair = write_pair(found)
    return pair.source, pair.target


def links(found: Phrase) -> list[tuple[str, set[str]]]:
    """Each French word with the English ones it comes from, read off the alignment of characters."""
    pair = write_pair(found)
    starts = {place: match[0] for match in re.finditer(r"\S+", pair.source) for place in range(*match.span())}
    return [
        (one[0], {starts[place] for place in pair.alignment[one.start()]}) for one in re.finditer(r"\S+", pair.target)
    ]


def test_the_sentence_of_the_lecture_is_held_out_first_and_turned_round():
    for seed in (0, 3):
        found = sample("french", seed, size=30)
        assert found.validation[0].source == LECTURE
        assert LECTURE not in {pair.source for pair in found.train}
        assert (len(found.train), len(found.validation)) == (30, 3)
    assert both(lecture_sentence())[1] == "l' accord sur la zone économique européenne a été signé en août 1992 ."
    assert links(lecture_sentence()) == [
        ("l'", {"the"}),
        ("accord", {"agreement"}),
        ("sur", {"on"}),
        ("la", {"the"}),
        ("zone", {"Area"}),
        ("économique", {"Economic"}),
        ("européenne", {"European"}),
        ("a", {"was", "signed"}),
        ("été", {"was", "signed"}),
        ("signé", {"signed"}),
        ("en", {"in"}),
        ("août", {"August"}),
        ("1992", {"1992"}),
        (".", {"."}),
    ]


@pytest.mark.parametrize(
    ("found", "english", "french"),
    [
        (noun_phrase(noun("law"), "a", False, adjective("new")), "a new law", "une nouvelle loi"),
        (noun_phrase(noun("agreement"), "the", False, adjective("new")), "the new agreement", "le nouvel accord"),
        (noun_phrase(noun("agreement"), "this", False, adjective("old")), "this old agreement", "ce vieil accord"),
        (noun_phrase(noun("agreement"), "this", True, adjective("old")), "these old agreements", "ces vieux accords"),
        (noun_phrase(noun("article"), "this"), "this article", "cet article"),
        (noun_phrase(noun("study"), "its"), "its study", "son étude"),
        (noun_phrase(noun("law"), "its"), "its law", "sa loi"),
        (noun_phrase(noun("law"), "a", True), "laws", "des lois"),
        (noun_phrase(noun("law"), "a", True, adjective("excellent")), "excellent laws", "d' excellentes lois"),
        (noun_phrase(noun("court"), "five", True), "five courts", "cinq tribunaux"),
        (noun_phrase(noun("city"), "every", False, adjective("small")), "every small city", "chaque petite ville"),
        (
            noun_phrase(noun("project"), "a", True, None, adjective("European"), adjective("social")),
            "European social projects",
            "des projets sociaux européens",
        ),
        (
            noun_phrase(noun("project"), "a", False, None, adjective("European")),
            "a European project",
            "un projet européen",
        ),
        (
            noun_phrase(noun("health"), "", False, None, adjective("French"), adjective("public")),
            "French public health",
            "la santé publique française",
        ),
        (phrase("of", "de", "0") + noun_phrase(noun("council")), "of the council", "du conseil"),
        (phrase("of", "de", "0") + noun_phrase(noun("council"), "the", True), "of the councils", "des conseils"),
        (phrase("of", "de", "0") + noun_phrase(noun("state")), "of the state", "de l' État"),
        (phrase("to", "à", "0") + noun_phrase(noun("council")), "to the council", "au conseil"),
        (phrase("to", "à", "0") + noun_phrase(noun("law"), "the", True), "to the laws", "aux lois"),
        (phrase("to", "à", "0") + noun_phrase(noun("law")), "to the law", "à la loi"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_phrases_agree_elide_and_contract(found, english, french):
    assert both(found) == (english, french)


def subject(pronoun: str) -> Phrase:
    person = [english for english, _ in PRONOUNS].index(pronoun)
    one = pronoun in ("he", "she")
    found = phrase(pronoun, PRONOUNS[person][1], "0")
    return Phrase(found.english, found.french, "f" if pronoun == "she" else "m", False, 1 if one else person, not one)


def test_verbs_agree_with_their_subject():
    laws = noun_phrase(noun("law"), "the", True)
    assert both(passive(laws, verb("sign"), "past")) == ("the laws were signed", "les lois ont été signées")
    assert both(passive(laws, verb("choose"), "past", True))[1] == "les lois n' ont pas été choisies"
    assert both(passive(laws, verb("send"), "future")) == ("the laws will be sent", "les lois seront envoyées")
    assert both(copula(laws, adjective("dangerous"), "past")) == (
        "the laws were dangerous",
        "les lois étaient dangereuses",
    )
    assert both(copula(laws, adjective("secret"), "present", True))[1] == "les lois ne sont pas secrètes"
    told = {
        (pronoun, name, tense): both(active(subject(pronoun), verb(name), tense, "not" in tense))
        for pronoun, name, tense in [
            ("I", "adopt", "present"),
            ("we", "finance", "present"),
            ("they", "support", "future"),
        ]
    }
    assert told["I", "adopt", "present"] == ("I adopt", "j' adopte")
    assert told["we", "finance", "present"] == ("we finance", "nous finançons")
    assert told["they", "support", "future"] == ("they will support", "ils soutiendront")
    assert both(active(subject("she"), verb("approve"), "present", True)) == (
        "she does not approve",
        "elle n' approuve pas",
    )
    assert both(active(subject("you"), verb("choose"), "past", True)) == (
        "you did not choose",
        "vous n' avez pas choisi",
    )
    assert both(active(subject("he"), verb("protect"), "want to")) == ("he wants to protect", "il veut protéger")
    assert links(active(subject("he"), verb("reject"), "future", True)) == [
        ("il", {"he"}),
        ("ne", {"not"}),
        ("rejettera", {"will", "reject"}),
        ("pas", {"not"}),
    ]


def test_each_sentence_has_one_translation_and_french_never_leaves_vowels_together():
    choose, translations = random.Random(5), defaultdict(set)
    seen: set[str] = set()
    for _ in range(1500):
        pair = write_pair(_sentence(choose))
        translations[pair.source].add(pair.target)
        assert len(pair.alignment) == len(pair.target)
        before = ["", *pair.target.split()]
        for one, after in itertools.pairwise(before):
            assert not (one in ("le", "la", "de", "ne", "je", "que") and words.begins_with_vowel(after)), pair.target
            assert (one, after) not in {("de", "le"), ("de", "les"), ("à", "le"), ("à", "les"), ("de", "des")}
        for place, character in enumerate(pair.target):
            first = place == 0 or pair.target[place - 1] == " "
            assert pair.alignment[place] if first else True
            assert not (character in " '" and pair.alignment[place])
        seen |= set(before)
    assert all(len(found) == 1 for found in translations.values())
    assert {"du", "des", "au", "aux", "l'", "d'", "n'", "j'", "qu'", "nouvel", "vieil", "cet", "aujourd'hui"} <= seen


def test_contracted_words_come_from_both():
    assert euphony([("de", frozenset([0])), ("le", frozenset([1])), ("conseil", frozenset([2]))]) == [
        ("du", frozenset([0, 1])),
        ("conseil", frozenset([2])),
    ]
