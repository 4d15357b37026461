"""Tagging: a small grammar with many ambiguous words, and what *it* refers to."""

from __future__ import annotations

import itertools
import random
from functools import cache

from weft.data.samples.sample_definition import (
    ReferenceScore,
    Sample,
    draw_distinct,
    python_generator,
    validation_size,
    word_list,
)

TaggedSentence = tuple[tuple[str, ...], tuple[str, ...]]

# Many words are in two rows (watch, light, can, ...): only the sentence tells which is meant.
LEXICON: dict[str, tuple[str, ...]] = {
    "PRON": ("we", "they", "you", "i"),
    "DET": ("the", "this", "every", "my", "your"),
    "ADJ": ("old", "quiet", "happy", "famous", "light", "cold", "open", "clean", "warm", "slow", "long", "secret"),
    "NOUN": (
        *("garden", "teacher", "violin", "letter", "child", "kitchen", "watch", "play", "plan", "answer", "cook"),
        *("book", "light", "cold", "dance", "can", "will", "secret", "paint", "dream", "walk"),
    ),
    "VERB": (
        *("like", "remember", "see", "describe", "watch", "play", "plan", "answer", "cook", "book", "light"),
        *("open", "clean", "warm", "paint", "slow"),
    ),
    "AUX": ("can", "will", "must", "should"),
    "ADP": ("near", "with", "after", "before", "without"),
    "ADV": ("slowly", "often", "together", "tomorrow", "again"),
    "PUNCT": (".",),
}
# The grammar: expansions of each symbol with their probabilities; a symbol without expansions is a tag of the lexicon.
GRAMMAR: dict[str, tuple[tuple[float, tuple[str, ...]], ...]] = {
    "Sentence": ((0.45, ("PRON", "Deed", "PUNCT")), (0.55, ("Thing", "AUX", "Deed", "PUNCT"))),
    "Deed": (
        (0.35, ("Does", "Thing")),
        (0.3, ("Does", "Thing", "Where")),
        (0.2, ("Does", "Thing", "ADV")),
        (0.15, ("Does", "Thing", "Where", "ADV")),
    ),
    "Does": ((1.0, ("VERB",)),),
    "Thing": ((0.55, ("DET", "NOUN")), (0.45, ("DET", "ADJ", "NOUN"))),
    "Where": ((1.0, ("ADP", "Thing")),),
}

CREATURES = word_list("animal dog cat horse donkey fox hedgehog duck goat sheep cow tortoise camel puppy")
PLACES = word_list("street road river field valley canal stream highway path meadow lane trail square bridge")
OF_CREATURES = word_list("tired hungry thirsty frightened sleepy shy lazy nervous weary ill stubborn young")
OF_PLACES = word_list("wide narrow flooded icy steep bumpy crowded winding muddy broad rocky dusty")
# {a} is mentioned first, {b} second. Creatures first, places first, and both ways round.
CREATURE_FIRST = (
    "the {a} didn't cross the {b} because it was too {c}",
    "the {a} never crossed the {b} because it was too {c}",
    "the {a} stopped before the {b} since it was so {c}",
    "the {a} turned away from the {b} as it was too {c}",
)
PLACE_FIRST = (
    "the {a} stopped the {b} because it was too {c}",
    "the {a} was no way for the {b} because it was too {c}",
    "the {a} held up the {b} since it was so {c}",
    "the {a} seemed endless to the {b} as it was too {c}",
)
EITHER_FIRST = (
    "we photographed the {a} beside the {b} because it was so {c}",
    "i remember the {a} by the {b} because it was so {c}",
    "nobody liked the {a} near the {b} since it was too {c}",
    "she drew the {a} and the {b} though it was very {c}",
)


def grammar(seed: int, size: int) -> Sample[tuple[TaggedSentence, ...]]:
    """Sentences of a small probabilistic grammar: (words, tags); only sentences that the grammar disambiguates."""
    choose = python_generator(seed, "grammar")

    def draw() -> TaggedSentence:
        while True:
            tags = _expand("Sentence", choose)
            sentence = tuple(choose.choice(LEXICON[tag]) for tag in tags)
            if readings(sentence) == [tags]:
                return sentence, tags

    rows = draw_distinct("grammar", size + validation_size(size), draw)
    train, validation = tuple(rows[:size]), tuple(rows[size:])
    best = ReferenceScore("accuracy", 1.0, "by construction: sentences with two readings in the grammar are left out")
    return Sample("grammar", "tagging", train, validation, best, _word_alone(validation), tuple(LEXICON))


def _expand(symbol: str, choose: random.Random) -> tuple[str, ...]:
    if symbol not in GRAMMAR:
        return (symbol,)
    ways = GRAMMAR[symbol]
    way = choose.choices([parts for _, parts in ways], weights=[chance for chance, _ in ways])[0]
    return tuple(tag for part in way for tag in _expand(part, choose))


@cache
def tag_sequences(symbol: str = "Sentence") -> frozenset[tuple[str, ...]]:
    """Every sequence of tags that the grammar makes from a symbol; it is finite."""
    if symbol not in GRAMMAR:
        return frozenset([(symbol,)])
    made = set()
    for _, way in GRAMMAR[symbol]:
        for parts in itertools.product(*(tag_sequences(part) for part in way)):
            made.add(tuple(tag for part in parts for tag in part))
    return frozenset(made)


def readings(sentence: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The tag sequences that the grammar allows for these words."""
    faces = [{tag for tag, members in LEXICON.items() if word in members} for word in sentence]
    fitting = (tags for tags in tag_sequences() if len(tags) == len(sentence))
    return [tags for tags in fitting if all(tag in face for tag, face in zip(tags, faces, strict=True))]


def _word_alone(rows: tuple[TaggedSentence, ...]) -> ReferenceScore:
    """The accuracy of the best table from word to tag on these sentences."""
    counts: dict[str, dict[str, int]] = {}
    for sentence, tags in rows:
        for word, tag in zip(sentence, tags, strict=True):
            of_word = counts.setdefault(word, {})
            of_word[tag] = of_word.get(tag, 0) + 1
    right = sum(max(of_word.values()) for of_word in counts.values())
    total = sum(len(tags) for _, tags in rows)
    return ReferenceScore(
        "accuracy", right / total, "a word alone, by its commonest tag (counted on this validation part)"
    )


def pronouns(seed: int, size: int) -> Sample[tuple[TaggedSentence, ...]]:
    """What *it* refers to: the word "it" is tagged with its referent, all others with O, so attention must find it.

    "the animal didn't cross the street because it was too tired": animal; "... too wide": street.
    """
    choose = python_generator(seed, "pronouns")
    rows = draw_distinct("pronouns", size + validation_size(size), lambda: _with_pronoun(choose))
    best = ReferenceScore("accuracy", 1.0, "by construction: the adjective fits creatures only or places only")
    shortcut = ReferenceScore(
        "accuracy on it",
        0.5,
        "without the adjective: either of the two things is drawn, whatever their order",
    )
    classes = ("O", *CREATURES, *PLACES)
    return Sample("pronouns", "tagging", tuple(rows[:size]), tuple(rows[size:]), best, shortcut, classes)


def _with_pronoun(choose: random.Random) -> TaggedSentence:
    creature_first, is_creature = choose.random() < 0.5, choose.random() < 0.5
    frames = choose.choice((CREATURE_FIRST if creature_first else PLACE_FIRST, EITHER_FIRST))
    creature, place = choose.choice(CREATURES), choose.choice(PLACES)
    first, second = (creature, place) if creature_first else (place, creature)
    adjective = choose.choice(OF_CREATURES if is_creature else OF_PLACES)
    sentence = tuple(choose.choice(frames).format(a=first, b=second, c=adjective).split())
    meant = creature if is_creature else place
    return sentence, tuple(meant if word == "it" else "O" for word in sentence)
