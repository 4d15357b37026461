"""Metrics against sacrebleu itself, brute force and cases computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.foundation.errors import WeftError
from weft.tasks.support.evaluation import metrics

HYPOTHESES = [
    "the cat sat on the mat .",
    "a dog runs through the green grass quickly",
    "two men are talking to each other in front of a very old house",
    "a woman is reading",
    "people walk down a long street with many shops and cars on both of its sides , and a bus waits there",
]
REFERENCES = [
    "the cat sat on a mat .",
    "a brown dog runs through the grass",
    "two men talk to each other in front of an old house",
    "a woman is reading a book",
    "people walk down a long street with many shops and cars on both sides , and a bus is waiting there",
]


def test_accuracy_takes_lists_arrays_and_tensors():
    assert metrics.accuracy(["a", "b", "a", "c", "c"], ["a", "b", "b", "c", "a"]) == 3 / 5
    assert metrics.accuracy(np.array([1, 2, 3]), [1, 2, 5]) == 2 / 3
    assert metrics.accuracy(torch.tensor([1, 2, 3]), torch.tensor([1, 5, 5])) == 1 / 3


def test_macro_f1_by_hand():
    predicted, truth = list("aaabbcc"), list("aabbbca")
    # a: tp 2 of 3 and 3; b: tp 2 of 2 and 3; c: tp 1 of 2 and 1.
    assert metrics.macro_f1(predicted, truth) == pytest.approx((4 / 6 + 4 / 5 + 2 / 3) / 3)
    assert metrics.macro_f1(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1])) == 1.0


def test_macro_f1_counts_a_class_that_is_only_predicted():
    assert metrics.macro_f1(["a", "b", "z"], ["a", "b", "b"]) == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_token_accuracy_weighs_tokens_not_sentences():
    assert metrics.token_accuracy([["N"], ["V", "N", "N"]], [["V"], ["V", "N", "N"]]) == 3 / 4


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("I-PER I-PER O I-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),  # IOB1
        ("B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),
        ("B-PER I-PER E-PER S-LOC S-LOC", [(0, 3, "PER"), (3, 4, "LOC"), (4, 5, "LOC")]),
        ("B-PER E-PER I-PER", [(0, 2, "PER"), (2, 3, "PER")]),
        ("S-PER E-PER O E-PER", [(0, 1, "PER"), (1, 2, "PER"), (3, 4, "PER")]),
        ("B-PER L-PER U-ORG", [(0, 2, "PER"), (2, 3, "ORG")]),
        ("B-work-of-art I-work-of-art", [(0, 2, "work-of-art")]),
        ("B I O B", [(0, 2, ""), (3, 4, "")]),
        ("O O", []),
    ],
)
def test_spans_are_read_as_conlleval_reads_them(tags, spans):
    assert metrics.entity_spans(tags.split()) == spans


def test_entity_f1_by_hand():
    # seqeval's own example: one of two true spans is met exactly, the other begins a token early.
    truth = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert metrics.entity_f1(predicted, truth) == 0.5
    assert metrics.entity_f1([["B-A", "B-A", "O"]], [["B-A", "O", "O"]]) == pytest.approx(2 / 3)
    assert metrics.entity_f1([["O", "O"]], [["B-A", "O"]]) == 0.0
    assert metrics.entity_f1([["B-A", "I-A"]], [["B-B", "I-B"]]) == 0.0


def test_span_tags_are_recognized():
    assert metrics.has_spans(["O", "B-PER", "I-PER"])
    assert not metrics.has_spans(["NOUN", "VERB", "O"])
    assert not metrics.has_spans(["O"])
    with pytest.raises(WeftError, match="'NOUN' is no BIO"):
        metrics.entity_f1([["NOUN"]], [["O"]])


def test_bleu_and_chrf_are_sacrebleus():
    assert metrics.bleu(HYPOTHESES, REFERENCES) == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert metrics.chrf(HYPOTHESES, REFERENCES) == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert metrics.bleu(REFERENCES, REFERENCES) == pytest.approx(100.0)


def test_bleu_of_several_references():
    several = [[one, other] for one, other in zip(REFERENCES, HYPOTHESES, strict=True)]
    assert metrics.bleu(HYPOTHESES, several) == pytest.approx(100.0)
    several[1] = several[1][:1]
    streams = [REFERENCES, [HYPOTHESES[0], None, *HYPOTHESES[2:]]]
    assert metrics.bleu(HYPOTHESES, several) == sacrebleu.corpus_bleu(HYPOTHESES, streams).score < 100
    assert metrics.chrf(HYPOTHESES, several) == sacrebleu.corpus_chrf(HYPOTHESES, streams).score


def test_bleu_by_length_splits_at_the_edges():
    sources = [" ".join(["w"] * words) for words in (8, 9, 13, 3, 21)]
    rows = metrics.bleu_by_length(sources, HYPOTHESES, REFERENCES)
    assert [(row.words, row.sentences) for row in rows] == [("1-8", 2), ("9-12", 1), ("13-16", 1), ("21+", 1)]
    short = sacrebleu.corpus_bleu([HYPOTHESES[0], HYPOTHESES[3]], [[REFERENCES[0], REFERENCES[3]]]).score
    assert rows[0].bleu == short
    assert [row.words for row in metrics.bleu_by_length(sources, HYPOTHESES, REFERENCES, edges=[20])] == ["1-20", "21+"]
    with pytest.raises(WeftError, match="must be whole numbers from 1 that grow"):
        metrics.bleu_by_length(sources, HYPOTHESES, REFERENCES, edges=[9, 5])


def test_exact_match_ignores_blanks_only():
    assert metrics.exact_match([" a  b", "a b", "A b"], ["a b", "a c", "a b"]) == 1 / 3
    assert metrics.exact_match(["a b"], [["x", "a b"]]) == 1.0


def test_rouge_by_hand():
    # 6 words against 7: unigrams in common the, cat, the, mat (4); pairs "the cat", "the mat" (2); subsequence 4.
    scores = metrics.rouge(["The cat lay near the mat."], ["the cat sat down on the mat"])
    assert scores == pytest.approx({"rouge1": 8 / 13, "rouge2": 4 / 11, "rougeL": 8 / 13})
    # Order counts for the subsequence alone: of a, b, c only "b c" or "a" in a row.
    assert metrics.rouge(["a b c"], ["b c a"]) == pytest.approx({"rouge1": 1, "rouge2": 1 / 2, "rougeL": 2 / 3})
    # A word counts as often as both have it.
    assert metrics.rouge(["the the the"], ["the dog"])["rouge1"] == pytest.approx(2 / 5)
    assert metrics.rouge(["", "Straße 7"], ["x", "straße, 7!"]) == {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5}
    assert metrics.rouge(["a b"], [["x", "a b"]])["rougeL"] == 1.0


@given(st.lists(st.sampled_from("abc"), max_size=13), st.lists(st.sampled_from("abcd"), max_size=11))
def test_common_length_is_that_of_the_usual_table(one, other):
    table = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else max(table[i, j + 1], table[i + 1, j])
    assert metrics.common_length(one, other) == table[-1, -1]


def test_errors_of_numbers():
    predicted, truth = np.arange(6.0).reshape(2, 3), np.array([[0, 1, 4], [3, 4, 2.0]])
    assert metrics.mse(predicted, truth) == pytest.approx((4 + 9) / 6)
    assert metrics.mae(torch.tensor(predicted), truth) == pytest.approx(5 / 6)


def test_coverage_includes_the_ends():
    assert metrics.coverage([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0.5, 1.1, -0.1]) == 3 / 5
    with pytest.raises(WeftError, match="low end lies above"):
        metrics.coverage([2.0], [1.0], [1.5])


@pytest.mark.parametrize(
    "name",
    ["accuracy", "macro_f1", "token_accuracy", "entity_f1", "bleu", "chrf", "exact_match", "rouge", "mse", "mae"],
)
def test_nothing_and_unequal_numbers_are_refused(name):
    metric = getattr(metrics, name)
    with pytest.raises(WeftError, match="of nothing has no value"):
        metric([], [])
    one, two = ([1.0], [1.0, 2.0]) if name in ("mse", "mae") else (["a"], ["a", "b"])
    with pytest.raises(WeftError, match=r"against|shapes differ"):
        metric(one, two)


def test_other_refusals():
    with pytest.raises(WeftError, match="none were given"):
        metrics.bleu_by_length([], [], [])
    with pytest.raises(WeftError, match="of nothing has no value"):
        metrics.coverage([], [], [])
    with pytest.raises(WeftError, match="came as one text"):
        metrics.bleu("abc", "abd")
    with pytest.raises(WeftError, match="text 2 has no reference"):
        metrics.rouge(["a", "b"], [["a"], []])
    with pytest.raises(WeftError, match="sentence 1 has 2 predicted tags and 1 true ones"):
        metrics.token_accuracy([["N", "N"]], [["N"]])
