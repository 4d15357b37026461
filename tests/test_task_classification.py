"""Task classification: every format from files to predictions, texts and graphs, what must not matter, errors."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

import weft
from weft.data import samples
from weft.data.readers.files import DataError
from weft.data.readers.graphs import parse_graph, read_graphs
from weft.data.tokenizers.lexicon import Lexicon, shorten_word, split_words
from weft.foundation.errors import WeftError
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.tasks import classification
from weft.tasks.classification import ClassificationOptions, ClassificationTask
from weft.tasks.support.inputs.input_encoders import READ_AT_ONCE, WordEncoder, learn_encoder
from weft.tasks.support.inputs.node_encoder import NodeEncoder
from weft.tasks.support.splits.sentences import probabilities
from weft.tasks.task import Size
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

SMALL = {"width": 16, "layers": 1, "training.batch": 64, "training.threads": 1, "training.guard": False}
GOOD, BAD = ("fine", "lovely", "superb"), ("dull", "awful", "weak")
ROWS = [
    (f"the {thing} was {how} {word}", "good" if word in GOOD else "bad")
    for thing in ("film", "play", "book") for how in ("so", "really") for word in (*GOOD, *BAD)
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def write(path, rows=ROWS):
    """A table of texts and labels in the format that the name says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"label": label, "text": text}) + "\n" for text, label in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *((label, text) for text, label in rows)])
    else:
        path.write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    return path


def prepared(path, seed=0, **options):
    return ClassificationTask.prepare([str(path)], ClassificationOptions(**options), seed, path.parent / "cache")


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_from_a_file_to_a_prediction(tmp_path, name):
    file, out = write(tmp_path / name), tmp_path / "run"
    run = weft.train("classification", file, out, steps=90, set={**SMALL, "data.held_out": 0.2, "data.hidden": 0.1})
    found = run.evaluate(file)
    assert found["accuracy"] > 0.9 and 0 < found["loss"] < 0.6 and found["examples"] == len(ROWS)
    assert found["macro_f1"] == pytest.approx(found["accuracy"], abs=0.05)
    assert run.predict("the opera was so superb") == "good"
    (answer,) = run.answer(["the opera was so awful"])
    assert answer.output == "bad" and set(answer.more["probabilities"]) == {"bad", "good"}
    assert sum(answer.more["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    again = weft.load(out)
    texts = ["so dull", "", "the Opera, 42!", "unheard-of " * 400]
    assert [a.to_tree() for a in again.answer(texts)] == [a.to_tree() for a in run.answer(texts)]
    assert again.answer([]) == [] and again.evaluate(file) == found


@pytest.mark.parametrize("kind", ["characters", "words", "bpe", "file"])
def test_tokenizers_of_every_kind(tmp_path, kind):
    file = write(tmp_path / "a.tsv")
    if kind == "file":
        first = weft.train("classification", file, tmp_path / "b", steps=1, set={**SMALL, "data.tokenizer": "bpe"})
        kind = str(first.folder / "tokenizer.json")
    run = weft.train(
        "classification", file, tmp_path / "run", steps=3, set={**SMALL, "data.tokenizer": kind, "data.vocabulary": 300}
    )
    assert run.module.spec.input.kind == "tokens" and (tmp_path / "run" / "tokenizer.json").exists()
    again = weft.load(tmp_path / "run")
    assert again.answer(["so dull", ""]) == run.answer(["so dull", ""])


def test_columns_and_files_of_validation(tmp_path):
    table = tmp_path / "a.csv"
    rows = [("id", "review", "stars")] + [(number, text, label) for number, (text, label) in enumerate(ROWS)]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    held = write(tmp_path / "held.tsv", ROWS[:1])
    found = prepared(table, columns="review,stars")
    assert len(found.train) + len(found.validation) == len(ROWS)
    labels = [found.task.classes[label[0]] for label in found.validation.labels]
    assert sorted(labels) == ["bad", "bad", "good", "good"]
    two = prepared(write(tmp_path / "b.tsv"), validation=str(held))
    assert len(two.train) == len(ROWS) and len(two.validation) == 1
    assert prepared(write(tmp_path / "b.tsv"), seed=1).validation.texts != prepared(tmp_path / "b.tsv").validation.texts


def test_batches_are_pure_and_as_many_in_every_epoch(tmp_path):
    train = prepared(write(tmp_path / "a.tsv", [*ROWS, ("a much longer text than all others here", "good")])).train
    for size in (1, 7, 40):
        found = [train.batches(size, 3, epoch) for epoch in range(3)]
        assert len({len(batches) for batches in found}) == 1 and found[0] == train.batches(size, 3, 0)
        assert found[0] != found[1]
        assert all(sorted(n for batch in batches for n in batch) == list(range(len(train))) for batches in found)
    examples = found[0][0]
    one, same, other, judged = (train.batch(examples, *how) for how in ((3, 0), (3, 0), (3, 1), ()))
    assert torch.equal(one.inputs["tokens"], same.inputs["tokens"])
    assert not torch.equal(one.inputs["tokens"], other.inputs["tokens"])
    hidden = one.inputs["tokens"][..., 0] != judged.inputs["tokens"][..., 0]
    assert hidden.any() and (one.inputs["tokens"][hidden] == 0).all(), "a hidden word shows no characters either"
    assert one.tokens == one.inputs["mask"].numel() and one.count == len(examples)


def test_padding_and_company_change_nothing(tmp_path):
    texts = ["so dull", "the film was really superb and much else besides that is long", "incomprehensibilities", ""]
    for tokenizer in ("auto", "words"):
        task = prepared(write(tmp_path / "a.tsv"), tokenizer=tokenizer).task
        module = weft.build(task.default_model(Size(16, 2, 64)), dtype=torch.float64).eval()
        with torch.no_grad():
            for weight in module.parameters():
                weight.normal_(0, 0.3)
        labels = [np.zeros(1, dtype=np.int64)] * len(texts)
        together = probabilities(module, task.encoder.make_split(texts, labels), READ_AT_ONCE)
        alone = [probabilities(module, task.encoder.make_split([text], labels[:1]), 1)[0] for text in texts]
        assert max(float((a - b).abs().max()) for a, b in zip(together, alone, strict=True)) < 1e-10


def test_presets_are_fitted_to_the_data(tmp_path):
    file = write(tmp_path / "a.tsv")
    words, tokens = prepared(file).task, prepared(file, tokenizer="words").task
    bert = tokens.fit(preset("bert-base"))
    assert bert.input.segments == 2 and bert.input.vocabulary == tokens.tokenizer.vocabulary
    assert bert.output.classes == 2 and bert.output.hidden == 768
    fitted = words.fit(preset("nano-encoder"))
    assert fitted.input.vocabulary == words.encoder.lexicon.vocabulary and fitted.output.pool == "first"
    run = weft.train(
        "classification", file, tmp_path / "run", preset="nano-encoder", steps=2, set={**SMALL, "length": 4}
    )
    assert run.predict("the film was so very long " * 9) in ("good", "bad")
    assert run.evaluate(file)["examples"] == len(ROWS)


def test_sample_sentiment_and_simple_methods(tmp_path, monkeypatch):
    small = samples.sample("sentiment", size=300)
    monkeypatch.setattr(classification, "find_sample", lambda *_: small)
    changes = {**SMALL, "width": 32, "training.batch": 512}
    request = TrainRequest("classification", ("sample:",), tmp_path / "run", steps=8, changes=changes)
    found = run_training(request, Reporter())
    assert found.leak is None and found.metrics["accuracy"] <= small.best.value
    assert 0.4 < found.references["bag of bigrams"] < 1
    assert found.run.evaluate("sample:sentiment")["examples"] == len(small.validation)


def test_nodes_of_graphs(tmp_path):
    many = {"training.guard": False, "training.threads": 1, "width": 32, "training.batch": 1024}
    request = TrainRequest("classification", ("sample:nodes",), tmp_path / "run", steps=70, changes=many)
    done = run_training(request, Reporter())
    shortcut = samples.sample("nodes").shortcut.value
    assert done.leak is None and shortcut + 0.05 < done.metrics["accuracy"] <= 1
    assert set(done.references) == {"always red"}
    tree = {"nodes": ["red", "blue", "red", "blue", "green"], "edges": [[0, 1], [1, 2], [3, 0], [0, 2]]}
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(tree))
    answers = done.run.answer([tree, str(file)])
    assert answers[0].output == answers[1].output and answers[1].input == str(file)
    assert len(answers[0].output) == 5 and answers[0].more["tokens"] == tree["nodes"]
    assert all(sum(row.values()) == pytest.approx(1, abs=1e-5) for row in answers[0].more["probabilities"])
    assert weft.load(tmp_path / "run").answer([tree]) == answers[:1]
    assert done.run.evaluate("sample:nodes")["loss"] > 0


def test_graphs_in_files(tmp_path):
    random = np.random.default_rng(0)
    graphs = samples.sample("nodes", size=30).train
    trees = [
        {"nodes": g.nodes[:n], "edges": np.argwhere(np.triu(g.adjacency[:n, :n])).tolist(), "labels": g.labels[:n]}
        for g, n in zip(graphs, random.integers(3, 13, 30), strict=True)
    ]
    lines, whole = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    whole.write_text(json.dumps(trees))
    for one, other in zip(read_graphs([lines]), read_graphs([whole]), strict=True):
        assert one.nodes == other.nodes and np.array_equal(one.adjacency, other.adjacency)
        assert np.array_equal(one.adjacency, one.adjacency.T)
    run = weft.train("classification", lines, tmp_path / "run", steps=3, set={**SMALL, "mixer.heads": 2, "length": 9})
    assert run.evaluate(whole)["examples"] == sum(len(tree["nodes"]) <= 9 for tree in trees)
    with pytest.raises(DataError, match=r"a graph of 12 nodes, but the model takes 9"):
        run.predict([{"nodes": ["red"] * 12, "edges": []}])


def test_a_node_sees_its_neighbors_alone():
    graphs = samples.sample("nodes", size=9).train
    encoder = NodeEncoder.learn(graphs)
    spec = encoder.fit_spec(encoder.model(Size(16, 1, 64)), 2)
    module = weft.build(spec, dtype=torch.float64)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0, 0.5)
    graph = graphs[0]
    labels = [np.zeros(len(graph.nodes), dtype=np.int64)]
    (before,) = probabilities(module, encoder.make_split([graph], labels), 99)
    other = "red" if graph.nodes[0] == "blue" else "blue"
    changed = type(graph)((other, *graph.nodes[1:]), graph.adjacency, graph.labels)
    (after,) = probabilities(module, encoder.make_split([changed], labels), 99)
    moved = (before - after).abs().amax(-1) > 0
    assert moved.tolist() == [n == 0 or bool(graph.adjacency[0, n]) for n in range(len(graph.nodes))]
    batch = encoder.make_split(graphs, [np.ones(12, dtype=np.int64)] * 9).batch([0, 1])
    assert batch.inputs["edges"].shape == (2, 12, 12) and (batch.labels != IGNORED).all()
    larger = parse_graph({"nodes": ["red"] * 20}, "a graph", labeled=False)
    (pair, _) = probabilities(
        module, encoder.make_split([graph, larger], [labels[0], np.zeros(20, dtype=np.int64)]), 99
    )
    assert float((pair - before).abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "", "is empty"),
        ("a.tsv", "one\ttwo\tthree\n", r"3 columns \(1, 2, 3\), but text and label are two"),
        ("a.tsv", "good film\tx\nbad film\tx\n", "there is only one label"),
        ("a.tsv", "good\tx\nbad\tx\nodd\ty\n", "label 'y' has one example"),
        ("a.tsv", "good\t \n", "the label is empty"),
        ("a.jsonl", '{"nodes": ["a"], "edges": [[0, 1]], "labels": ["x"]}\n', "is not a pair of nodes from 0 to 0"),
        ("a.jsonl", '{"nodes": ["a"], "edges": []}\n', "1 nodes and no labels"),
        ("a.json", "[]", "holds no graph"),
        ("a.json", '{"nodes": []}', 'a graph has "nodes"'),
        ("a.json", "{", "not JSON"),
    ],
)
def test_wrong_files(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        prepared(path)


def test_other_errors(tmp_path):
    file = write(tmp_path / "a.tsv")
    with pytest.raises(DataError, match="no column 'review'"):
        prepared(file, columns="review,label")
    with pytest.raises(WeftError, match="no tokenizer at nowhere"):
        prepared(file, tokenizer="nowhere")
    run = weft.train("classification", file, tmp_path / "run", steps=1, set=SMALL)
    with pytest.raises(DataError, match="label 'neutral' was not seen in training"):
        run.evaluate(write(tmp_path / "b.tsv", [("so so", "neutral")]))
    assert run.evaluate(write(tmp_path / "c.tsv", [("so dull", "bad")]))["examples"] == 1
    with pytest.raises(WeftError, match="sample:nodes"):
        run.evaluate("sample:digits")


def test_a_lexicon_numbers_words_and_characters():
    lexicon = Lexicon.learn([split_words("The cat, the Cat; a dog isn't a cat")], 3, longest=6)
    assert (
        lexicon.words == ("cat", "a", "the") and lexicon.vocabulary == 4 and "THE" in lexicon and "dog" not in lexicon
    )
    one, other, long = lexicon.encode(["cat", "CAT", "dogcatdog"])
    assert one[0] == other[0] != 0 and (one[1:] != other[1:]).any() and long[0] == 0
    assert (one[1:] > 0).sum() == 5 and (long[1:] > 0).all()
    assert shorten_word("abcdefg", 4) == "abfg" and shorten_word("abc", 4) == "abc"
    assert Lexicon.from_tree(json.loads(json.dumps(lexicon.to_tree()))) == lexicon
    assert split_words("it 's good, isn't it?") == ["it", "'s", "good", ",", "isn't", "it", "?"]
    assert isinstance(learn_encoder("auto", ["a text"], 9), WordEncoder)
    with pytest.raises(DataError, match="no word to learn from"):
        Lexicon.learn([[]], 9)
