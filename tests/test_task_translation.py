from __future__ import annotations

import gzip
import json
import random

import pytest
import torch

import weft
from weft.data.readers.files import DataError
from weft.foundation.errors import LengthError, WeftError
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.runs.run import load
from weft.tasks.support.losses import mean_loss
from weft.tasks.support.splits.text_pairs import Ends, PairsSplit, hold_out, learn_tokenizer
from weft.tasks.task import GenerationOptions, Size
from weft.tasks.translation import TranslationOptions, TranslationTask

WORDS = ("red", "blue", "green", "small", "old", "cat", "dog", "bird", "house", "tree", "river", "sings", "runs")
TINY = {"width": 32, "layers": 1, "mixer.heads": 2, "training.batch": 256, "training.guard": False}


def some_pairs(count: int = 60) -> list[tuple[str, str]]:
    chosen = random.Random(3)
    sources = [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 7))) for _ in range(count)]
    return [(source, " ".join(reversed(source.split()))) for source in sources]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in some_pairs()))
    return file


def prepared(paths, cache, **options):
    return TranslationTask.prepare([str(path) for path in paths], TranslationOptions(**options), 0, cache)


def test_trains_predicts_evaluates_and_reloads(table, tmp_path, cache):
    run = weft.train("translation", table, out=tmp_path / "run", steps=6, set={**TINY, "data.tokenizer": "words"})
    again = load(tmp_path / "run")
    for how in ({}, {"beam": 3}, {"temperature": 1.0, "seed": 4}):
        assert run.predict("red cat sings", max_tokens=8, **how) == again.predict("red cat sings", max_tokens=8, **how)
    metrics = again.evaluate(table)
    wanted = {"bleu", "chrf", "exact_match", "rouge_l", "loss", "bleu_by_length", "sentences"}
    assert wanted <= metrics.keys() and metrics["sentences"] == 60
    assert sum(row["sentences"] for row in metrics["bleu_by_length"]) == 60
    assert metrics == run.evaluate(table) and json.dumps(metrics)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parallel", "gz"])
def test_every_format(form, tmp_path, cache):
    pairs = some_pairs(30)
    files = [tmp_path / f"pairs.{form}"]
    options: dict[str, object] = {}
    if form == "csv":
        files[0].write_text("id,question,answer\n" + "".join(f'{n},"{a}","{b}"\n' for n, (a, b) in enumerate(pairs)))
        options["columns"] = "question,answer"
    elif form == "jsonl":
        files[0].write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in pairs))
        options["columns"] = "source,target"
    else:
        files = [tmp_path / f"texts.{side}{'.gz' if form == 'gz' else ''}" for side in ("en", "de")]
        for side, file in enumerate(files):
            with gzip.open(file, "wt") if form == "gz" else file.open("w") as out:
                out.write("".join(pair[side] + "\n" for pair in pairs))
        options["validation"] = ",".join(map(str, files))
    found = prepared(files, cache, **options)
    if "validation" in options:
        assert list(found.train.pairs) == list(found.validation.pairs) == pairs
    else:
        assert sorted([*found.train.pairs, *found.validation.pairs]) == sorted(pairs)


@pytest.mark.parametrize("name", ["nano-gru-additive", "nano-gru-bilinear", "nano-gru-dot", "nano-gru-plain"])
def test_recurrent_presets(name, table, tmp_path, cache):
    small = {"width": 12, "hidden": 16, "training.batch": 256, "training.rate": 1e-5, "training.guard": False}
    small["data.tokenizer"] = "words"
    run = weft.train("translation", table, out=tmp_path / "run", preset=name, steps=3, set=small)
    texts = ["red cat sings", "old house"]
    answers = run.answer(texts, max_tokens=6)
    assert any(answer.output for answer in answers)
    for text, answer in zip(texts, answers, strict=True):
        if name == "nano-gru-plain":
            assert "alignment" not in answer.more
            continue
        looks = answer.more["alignment"]
        assert len(looks) == len(answer.more["tokens"])
        assert all(len(look) == len(text.split()) + 1 and abs(sum(look) - 1) < 1e-4 for look in looks)


def test_transformer_learns_to_copy(tmp_path, cache):
    chosen = random.Random(1)
    rows = ["".join(chosen.choices("abcdef", k=3)) for _ in range(400)]
    file = tmp_path / "copy.tsv"
    file.write_text("".join(f"{row}\t{row.upper()}\n" for row in rows))
    small = {**TINY, "width": 48, "training.batch": 512, "dropout": 0.0}
    run = weft.train("translation", file, out=tmp_path / "run", steps=120, set=small)
    assert run.evaluate(file)["exact_match"] > 0.9
    assert run.predict(["fab", "dad"], beam=2) == ["FAB", "DAD"]


def test_batches_hold_every_pair_once_and_follow_from_seed_and_epoch(table, cache):
    part = prepared([table], cache).train.cut(64)
    for size in (1, 40, 200, 100_000):
        plans = [part.batches(size, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (5, 0))]
        assert part.batches(size, 0, 1) == plans[1]
        assert len({len(plan) for plan in plans}) == 1
        for plan in (*plans, part.batches(size, None)):
            assert sorted(n for batch in plan for n in batch) == list(range(len(part)))
            assert all(plan)
    assert part.batches(40, 0, 0) != part.batches(40, 0, 1)
    costs = [part.batch(batch).tokens for batch in part.batches(200, 0)]
    assert max(costs) < 2 * 200


def test_a_batch_teaches_the_target_and_hides_padding(table, cache):
    task = prepared([table], cache, tokenizer="words").task
    part = task._split([("red cat", "cat red"), ("old blue bird", "bird blue old")])
    batch = part.batch([0, 1])
    ids = task.tokenizer.encode
    stop, start = task.ends.stop, task.ends.start
    assert batch.inputs["source"][1].tolist() == [*ids("old blue bird"), stop]
    assert batch.inputs["source_real"].tolist() == [[True, True, True, False], [True] * 4]
    assert batch.inputs["target"][1].tolist() == [start, *ids("bird blue old")]
    assert batch.labels[1].tolist() == [*ids("bird blue old"), stop]
    assert batch.labels[0].tolist() == [*ids("cat red"), stop, IGNORED]
    assert batch.count == 7 and batch.tokens == 16


def test_what_is_too_long_is_cut_without_a_false_stop():
    part = PairsSplit([("a", "b")], [[5, 6, 7, 8]], [[9, 10, 11, 12]], Ends(1, 2, 0)).cut(3)
    batch = part.batch([0])
    assert batch.inputs["source"].tolist() == [[5, 6, 2]]
    assert batch.inputs["target"].tolist() == [[1, 9, 10]] and batch.labels.tolist() == [[9, 10, 11]]
    assert part.too_long == 1 and part.cut(5).too_long == 0


@pytest.mark.parametrize("name", ["auto", "nano-gru-additive", "nano-gru-plain"])
def test_padding_and_company_change_nothing(name, table, cache):
    found = prepared([table], cache, tokenizer="words")
    task = found.task
    spec = task.default_model(Size(24, 2)) if name == "auto" else task.fit(preset(name)).replace(width=8, hidden=8)
    if name == "auto":
        spec = spec.replace(**{"initialization.zero_residual": False})
    module = weft.build(spec).double()
    part = found.train.cut(spec.length)
    with torch.inference_mode():
        alone = sum(float(task.loss(module.eval(), part.batch([n])).total) for n in range(9))
        together = float(task.loss(module, part.batch(range(9))).total)
    assert abs(alone - together) < 1e-9
    texts = [pair[0] for pair in part.pairs[:9]]
    many = task.predict(module, texts, GenerationOptions(max_tokens=6, batch=4))
    assert [one.output for one in many] == [
        task.predict(module, [text], GenerationOptions(max_tokens=6))[0].output for text in texts
    ]


def test_held_out_sources_are_not_learned_from():
    pairs = [(f"source {n % 20}", f"target {n}") for n in range(60)]
    train, held = hold_out(pairs, 0.1, 0)
    assert len(held) == 6 and len(train) == 54
    assert not {source for source, _ in train} & {source for source, _ in held}
    assert hold_out(pairs, 0.1, 0) == (train, held) != hold_out(pairs, 0.1, 1)


def test_tokenizers(table, tmp_path, cache):
    dates = ["3 May 1999", "1999-05-03"] * 20
    long = [" ".join(WORDS * 3)] * 30
    assert learn_tokenizer("auto", dates, None).encode("May") != learn_tokenizer("bpe", dates, None).encode("May")
    assert len(learn_tokenizer("auto", dates, None).encode("1999")) == 4
    assert len(learn_tokenizer("auto", long, None).encode("red blue green")) == 3
    assert learn_tokenizer("bpe", long, 300).vocabulary == 300
    found = prepared([table], cache, tokenizer="words").task.tokenizer
    found.save(tmp_path / "tokenizer.json")
    loaded = prepared([table], cache, tokenizer=str(tmp_path / "tokenizer.json")).task.tokenizer
    assert loaded.encode("red cat") == found.encode("red cat")


def test_measure_at_the_end_of_a_timed_training_takes_fewer_sentences(table, cache):
    found = prepared([table], cache, tokenizer="words")
    spec = found.task.default_model(Size(16, 1))
    module, part = weft.build(spec), found.train.cut(spec.length)
    few = found.task.evaluation_subset(module, part, 1e-9)
    metrics = found.task.measure(module, few, 512)
    assert metrics["sentences"] == 32 < len(part)
    assert metrics["loss"] == mean_loss(found.task, module, part, 512)
    assert found.task.evaluation_subset(module, part, 1e9) is part


def test_sample_has_its_known_best(cache):
    found = prepared(["sample:dates"], cache)
    assert found.best is not None and found.best.metric == "exact_match" and found.best.value == 1.0
    assert found.task.tokenizer.vocabulary < 128
    assert not {a for a, _ in found.train.pairs} & {a for a, _ in found.validation.pairs}
    assert found.task.read(["sample:dates"], cache).pairs == found.validation.pairs
    assert found.best.metric in found.task.measure(
        weft.build(found.task.default_model(Size(16, 1))), found.task._split(found.validation.pairs[:4]), 512
    )


def test_predict_gives_samples_and_beams(table, tmp_path, cache):
    run = weft.train("translation", table, out=tmp_path / "run", steps=2, set=TINY)
    assert len(run.predict("red cat", samples=3, temperature=1.0, max_tokens=5)) == 3
    best = run.answer(["red cat"], samples=2, beam=3, max_tokens=5)
    assert len(best) == 2 and best[0].output != best[1].output
    answer = run.answer(["red cat"], max_tokens=5)[0]
    assert answer.to_tree().keys() >= {"input", "output", "tokens", "source_tokens"}


def test_errors(table, tmp_path, cache):
    empty, uneven = tmp_path / "empty.tsv", tmp_path / "uneven.en"
    empty.write_text("")
    uneven.write_text("one\ntwo\n")
    (tmp_path / "uneven.de").write_text("eins\n")
    wide = tmp_path / "wide.tsv"
    wide.write_text("a\tb\tc\nd\te\tf\n")
    one = tmp_path / "one.tsv"
    one.write_text("a\tb\na\tc\n")
    for paths, options in (
        ([empty], {}),
        ([uneven, tmp_path / "uneven.de"], {}),
        ([wide], {}),
        ([wide], {"columns": "x,y"}),
        ([one], {}),
        ([table], {"held_out": 0.0}),
    ):
        with pytest.raises(DataError):
            prepared(paths, cache, **options)
    with pytest.raises(WeftError, match="no stop token"):
        Ends.of(type("Without", (), {"stop": None})())
    with pytest.raises(WeftError, match="sample"):
        prepared(["sample:shapes"], cache)
    with pytest.raises(WeftError, match="family"):
        weft.train("translation", table, out=tmp_path / "run", preset="nano-gpt", steps=1)
    with pytest.raises(WeftError, match="reads tokens, but this model's source is patches"):
        weft.train("translation", table, out=tmp_path / "run", preset="nano-image-seq2seq", steps=1)
    found = prepared([table], cache)
    module = weft.build(found.task.default_model(Size(16, 1)))
    with pytest.raises(LengthError, match="shorten"):
        found.task.predict(module, ["red " * 500], GenerationOptions())
