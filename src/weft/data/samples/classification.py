"""Classification: opinions with negated words, and nodes of graphs by their neighbors."""

from __future__ import annotations

import math
import random

import numpy as np
from numpy.typing import NDArray

from weft.data.readers.graphs import LabeledGraph
from weft.data.samples.sample_definition import (
    ReferenceScore,
    Sample,
    draw_distinct,
    numpy_generator,
    python_generator,
    validation_size,
    word_list,
)

GOOD = word_list(
    "good great lovely funny clever charming wonderful moving brilliant delightful exciting beautiful superb fresh "
    "touching witty"
)
BAD = word_list(
    "bad terrible awful boring dull silly clumsy dreadful tedious ugly weak horrible stale pointless lifeless messy"
)
NEGATIONS = ("not {}", "not {} at all", "never {}", "anything but {}", "far from {}", "hardly {}")
PLAIN = ("{}", "really {}", "so {}", "quite {}", "truly {}", "{} from start to end")
THINGS = word_list("film book play concert novel show series album opera story")
# Whose opinion does not count, and whose does; both end alike, so that the next word gives nothing away.
OTHERS = (
    "the critics wrote that {} was",
    "my brother said that {} was",
    "people told me {} was",
    "the papers claimed that {} was",
    "my neighbour swore that {} was",
    "everyone expected that {} was",
    "the poster promised that {} was",
    "her friends thought {} was",
)
MINE = (
    "i found that {} was",
    "i thought {} was",
    "to me {} was",
    "for me {} was",
    "in my eyes {} was",
    "i must say {} was",
    "in my opinion {} was",
    "i felt that {} was",
)
# None of them tells whether the two opinions agree.
CONJUNCTIONS = (", while", ";", ", and")
NODE_COUNT, NEIGHBOR_COUNT = 12, 3
NODE_COLORS = ("blue", "red")


def sentiment(seed: int, size: int) -> Sample[tuple[tuple[str, str], ...]]:
    """Opinions with negations, and somebody else's opinion beside the writer's: (text, label).

    The label is the writer's: "the critics wrote that the film was dull, while to me it was not terrible" is positive.
    """
    choose = python_generator(seed, "sentiment")
    rows = draw_distinct("sentiment", size + validation_size(size), lambda: _opinion(choose))
    best = ReferenceScore("accuracy", 1.0, "by construction: the writer's own word, turned around if it is negated")
    shortcut = ReferenceScore(
        "accuracy",
        5 / 8,
        "a bag of words does not know which word is the writer's nor which is negated: with one negation (half of the "
        "texts) it guesses, else it guesses when the two words disagree: 1/2 x 1/2 + 1/2 x 3/4",
    )
    classes = ("negative", "positive")
    return Sample("sentiment", "classification", tuple(rows[:size]), tuple(rows[size:]), best, shortcut, classes)


def _opinion(choose: random.Random) -> tuple[str, str]:
    theirs, mine = _verdict(choose), _verdict(choose)
    while theirs[2] == mine[2]:  # two different words, or a text would equal its mirror image
        theirs = _verdict(choose, theirs[1])
    clauses = [(choose.choice(OTHERS), theirs[0]), (choose.choice(MINE), mine[0])]
    choose.shuffle(clauses)
    (first, said), (second, added) = clauses
    text = f"{first.format('the ' + choose.choice(THINGS))} {said}"
    text += f"{choose.choice(CONJUNCTIONS)} {second.format('it')} {added}"
    return text, "positive" if mine[1][0] != mine[1][1] else "negative"


def _verdict(choose: random.Random, kind: tuple[bool, bool] | None = None) -> tuple[str, tuple[bool, bool], str]:
    """(phrase, (is the word good, is it negated), word); both are drawn with probability 1/2 unless given."""
    good, negated = kind or (choose.random() < 0.5, choose.random() < 0.5)
    word = choose.choice(GOOD if good else BAD)
    return choose.choice(NEGATIONS if negated else PLAIN).format(word), (good, negated), word


def nodes(seed: int, size: int) -> Sample[tuple[LabeledGraph, ...]]:
    """Graphs of 12 nodes, half red and half blue, 3 neighbors each; a node's label is its neighbors' majority."""
    random = numpy_generator(seed, "nodes")
    drawn = draw_distinct("nodes", size + validation_size(size), lambda: _colored(random))
    graphs = tuple(_graph(colors, edges) for colors, edges in drawn)
    half, ways = NODE_COUNT // 2, math.comb(NODE_COUNT - 1, NEIGHBOR_COUNT)
    unlike = (
        sum(math.comb(half, k) * math.comb(half - 1, NEIGHBOR_COUNT - k) for k in range(2, NEIGHBOR_COUNT + 1)) / ways
    )
    best = ReferenceScore("accuracy", 1.0, "by construction: three neighbors of two colors always have a majority")
    shortcut = ReferenceScore(
        "accuracy", unlike, "without the graph: the other color, of which one more node is left (counting)"
    )
    return Sample("nodes", "classification", graphs[:size], graphs[size:], best, shortcut, NODE_COLORS)


def _colored(random: np.random.Generator) -> tuple[bytes, bytes]:
    colors = random.permutation(np.arange(NODE_COUNT) % 2).astype(np.uint8)
    return colors.tobytes(), _regular(random).tobytes()


def _regular(random: np.random.Generator) -> NDArray[np.bool_]:
    """A random regular graph: edge ends are paired at random until none collide."""
    while True:
        ends = random.permutation(np.repeat(np.arange(NODE_COUNT), NEIGHBOR_COUNT)).reshape(-1, 2)
        adjacency = np.zeros((NODE_COUNT, NODE_COUNT), dtype=np.bool_)
        adjacency[ends[:, 0], ends[:, 1]] = True
        adjacency |= adjacency.T
        if not adjacency.diagonal().any() and (adjacency.sum(0) == NEIGHBOR_COUNT).all():
            return adjacency


def _graph(color_bytes: bytes, edge_bytes: bytes) -> LabeledGraph:
    colors = np.frombuffer(color_bytes, dtype=np.uint8)
    adjacency = np.frombuffer(edge_bytes, dtype=np.bool_).reshape(NODE_COUNT, NODE_COUNT).copy()
    majority = (adjacency @ colors.astype(np.int64)) * 2 > NEIGHBOR_COUNT
    return LabeledGraph(tuple(NODE_COLORS[c] for c in colors), adjacency, tuple(NODE_COLORS[int(m)] for m in majority))
