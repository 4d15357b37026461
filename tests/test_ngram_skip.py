"""The n-gram skip: its formula, what must not matter, how it is fitted, weighed, saved and taken over."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import weft
from runs_on_disk import write_run
from weft.checkpoints.export.onnx import open_session
from weft.checkpoints.run_folder import RunFolder
from weft.foundation.errors import SpecError
from weft.laws.checker import check
from weft.models.build import read_spec
from weft.models.encoder import EncoderSpec
from weft.parts.masks import Documents, Real
from weft.parts.ngrams import ABSENT, EDGE, KINDS, LETTER, SHORT, NgramSkip
from weft.parts.token_positions import TokenPositions
from weft.tasks.classification import ClassificationOptions, ClassificationTask
from weft.tasks.support.ngram_fit import PENALTIES, NgramRows, best_share, fit_ngrams, fit_rows
from weft.tasks.tagging import TaggingOptions, TaggingTask
from weft.tasks.task import Size
from weft.training.reporting import Reporter

B, T, L, C, G, V = 3, 7, 11, 2, 211, 13
SMALL = {"width": 16, "layers": 1, "training.batch": 64, "training.threads": 1, "training.guard": False}
PAIRED = [
    (f"{start} {pair} {end}", "yes" if pair == "not good" else "no")
    for start in ("a", "the", "one", "this") for end in ("day", "film", "play", "book", "meal")
    for pair in ("not good", "good not", "not that good", "good but not")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def skip_of(each_token, keys=None):
    torch.manual_seed(0)
    skip = NgramSkip(G, C, each_token).double()
    if keys is not None:
        skip.assign(keys)
    skip.weight.normal_()
    skip.bias.normal_()
    skip.share.fill_(0.5)
    return skip


def words(count=B, length=T):
    random = torch.Generator().manual_seed(1)
    spelled = torch.randint(1, V, (count, length, L), generator=random)
    spelled[:, ::2, 2:] = 0
    return torch.cat((torch.randint(0, V, (count, length, 1), generator=random), spelled), 2)


def plain(length=T):
    return TokenPositions.run(0, length, torch.device("cpu"))


def known(skip, key):
    """The row of U that belongs to a key, zeros for others."""
    owned = {int(owner): row for row, owner in enumerate(skip.owner) if owner != ABSENT}
    return skip.weight[owned[key]] if key in owned else torch.zeros(C, dtype=torch.float64)


def key(kind, *ids):
    return sum(one * SHORT**place for place, one in enumerate(ids[::-1])) * KINDS + kind if all(ids) else ABSENT


def spell(letters, size):
    return sum(one * LETTER**place for place, one in enumerate(letters[size - 1 :: -1])) if size <= len(letters) else 0


def test_an_answer_per_text_by_the_formula():
    tokens = words()
    skip = skip_of(False)
    every = skip.keys(tokens, plain())
    skip = skip_of(False, every[every != ABSENT].unique())
    for given, found in zip(tokens.tolist(), skip(torch.zeros((), dtype=torch.float64), tokens, plain()), strict=True):
        row = [word for word, *_ in given]
        keys = [key(0, word) for word in row] + [key(1, *pair) for pair in zip([EDGE, *row[:-1]], row, strict=True)]
        letters = [[one for one in word[1:] if one][1:] for word in given]
        keys += [key(kind, spell(word, size)) for kind, size in enumerate((4, 5, 6), 2) for word in letters]
        parts = [known(skip, key) for key in keys]
        count = sum(bool(part.any()) for part in parts)
        assert 5 < count <= len(keys)
        expected = 0.5 * (skip.bias + sum(parts) / math.sqrt(count))
        assert torch.allclose(found, expected, atol=1e-12, rtol=0)


def test_an_answer_per_token_by_the_formula():
    tokens = words()
    skip = skip_of(True)
    every = skip.keys(tokens, plain())
    assert every.shape == (B, T, 19) and skip.keys(tokens[..., 0], plain()).shape == (B, T, 8)
    skip = skip_of(True, every[every != ABSENT].unique()[::2])
    for row, found in zip(tokens.tolist(), skip(torch.zeros((), dtype=torch.float64), tokens, plain()), strict=True):
        own = [EDGE, EDGE, *(word[0] for word in row), EDGE, EDGE]
        letters = [[one for one in word[1:] if one] for word in row]
        short = [EDGE, *(spell(word[::-1], 3) for word in letters), EDGE]
        for t in range(T):
            first, before, word, after, last = own[t : t + 5]
            singles = [word, before, after, first, last]
            pairs = [(before, word), (word, after), (before, after)]
            parts = [spell(letters[t][1:], size) for size in (1, 2, 3)]
            parts += [spell(letters[t][::-1], size) for size in (2, 3, 4, 5)]
            ids = [*((one,) for one in singles), *pairs, *((one,) for one in (*parts, short[t], short[t + 2]))]
            ids += [(before, short[t + 1]), (after, short[t + 1])]
            expected = 0.5 * (skip.bias + sum(known(skip, key(kind, *one)) for kind, one in enumerate(ids)))
            assert torch.allclose(found[t], expected, atol=1e-12, rtol=0)


def test_rows_belong_to_the_first_that_comes_and_unknown_keys_add_nothing():
    skip = NgramSkip(5, C, False)
    skip.assign(torch.tensor([7, 2, 12, 3]))
    assert skip.owner.tolist() == [ABSENT, ABSENT, 7, 3, ABSENT]
    rows, there = skip.look_up(torch.tensor([2, 7, 3, ABSENT, 4]))
    assert rows.tolist() == [2, 2, 3, 0, 4] and there.tolist() == [False, True, True, False, False]
    skip.weight.fill_(1.0)
    skip.share.fill_(1.0)
    assert skip(torch.zeros(()), torch.tensor([[40, 50]]), plain(2)).tolist() == [[0.0, 0.0]]


def encoder(each_token, kind="words", class_token=False):
    given = {"kind": "words", "vocabulary": V, "characters": V, "longest": L, "character_width": 3}
    given = given if kind == "words" else {"kind": "tokens", "vocabulary": V}
    output = {"kind": "per-token", "classes": C} if each_token else {"kind": "pooled", "pool": "mean", "classes": C}
    spec = EncoderSpec(
        width=8, layers=2, length=64, mixer=[{"kind": "convolution", "kernel": 3}, {"kind": "attention", "heads": 2}],
        input=given, output=output, class_token=class_token, ngrams={"entries": G},
    )  # fmt: skip
    model = weft.build(spec, dtype=torch.float64).eval()
    every = model.ngrams.keys(words() if kind == "words" else words()[..., 0], plain())
    model.ngrams.assign(every[every != ABSENT].unique())
    model.ngrams.weight.normal_()
    model.ngrams.share.fill_(0.7)
    return model


@pytest.mark.parametrize("each_token", [False, True])
@pytest.mark.parametrize("kind", ["words", "tokens"])
@pytest.mark.parametrize("class_token", [False, True])
def test_padding_company_and_documents_change_nothing(each_token, kind, class_token):
    model = encoder(each_token, kind, class_token)
    tokens = words() if kind == "words" else words()[..., 0]
    with torch.no_grad():
        own = model(tokens[:1, :4]).logits
        alone = [model(tokens[:1, :4]).logits, model(tokens[:1, 4:]).logits]
        assert not torch.allclose(own, model(tokens[:1, :4].flip(1)).logits), "order counts"
        for side in (slice(0, 4), slice(3, 7)):
            real = torch.zeros(B, T, dtype=torch.bool)
            real[0, side], real[1:] = True, True
            padded = tokens.clone()
            padded[0, side] = tokens[0, :4]
            found = model(padded, mask=Real(real)).logits[:1]
            assert torch.allclose(found[:, side] if each_token else found, own, atol=1e-10, rtol=0)
        if each_token and not class_token:
            packed = model(tokens[:1], mask=Documents(torch.tensor([[0] * 4 + [1] * 3]))).logits
            assert torch.allclose(packed, torch.cat(alone, 1), atol=1e-10, rtol=0)


@pytest.mark.parametrize("each_token", [False, True])
@pytest.mark.parametrize("kind", ["words", "tokens"])
def test_the_laws_hold(each_token, kind):
    report = check(encoder(each_token, kind).float())
    assert not report.broken, report.broken
    assert not encoder(each_token, kind).declares().order_free


def test_it_is_silent_in_training_and_no_weight():
    model = encoder(False)
    tokens = words()
    with torch.no_grad():
        heard, blocks = model(tokens).logits, model.train()(tokens).logits
    assert torch.allclose(heard, 0.3 * blocks + 0.7 * model.ngrams.score(tokens, plain()), atol=1e-12)
    assert not any(name.startswith("ngrams") for name, _ in model.named_parameters())
    assert {"ngrams.weight", "ngrams.bias", "ngrams.owner", "ngrams.share"} <= set(model.state_dict())


def test_specs_from_before_have_none_and_impossible_ones_are_refused():
    tree = encoder(True).spec.to_tree()
    assert read_spec(tree).ngrams.entries == G
    del tree["ngrams"]
    old = read_spec(tree)
    assert old.ngrams is None and not any(name.startswith("ngrams") for name in weft.build(old).state_dict())
    with pytest.raises(SpecError, match="which class"):
        EncoderSpec(input={"kind": "vectors"}, output={"kind": "pooled", "classes": 2}, ngrams={})
    mixer = {"kind": "attention", "mask": {"kind": "window", "width": 1}}
    with pytest.raises(SpecError, match=r"mixer\.mask"):
        EncoderSpec(mixer=mixer, output={"kind": "per-token", "classes": 2}, ngrams={})


# --- fitted and weighed ----------------------------------------------------------------------------------------------


def table(path, rows=PAIRED):
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    return path


def fitted(tmp_path, seconds=None, **options):
    found = ClassificationTask.prepare([str(table(tmp_path / "a.tsv"))], ClassificationOptions(**options), 0, tmp_path)
    module = weft.build(found.task.default_model(Size(16, 1, 64)))
    found.task.start(module, found.train, seconds)
    return found, module


@pytest.mark.parametrize("tokenizer", ["auto", "words"])
def test_what_only_pairs_of_words_tell_is_fitted(tmp_path, tokenizer):
    found, module = fitted(tmp_path, tokenizer=tokenizer)
    batch = found.validation.batch(range(len(found.validation)))
    scores = module.ngrams.score(batch.inputs["tokens"], TokenPositions.of_real(batch.inputs["mask"]))
    assert (scores.argmax(-1) == batch.labels).all()
    assert float(module.ngrams.share) == 0
    assert found.task.blend(module, found.validation) and float(module.ngrams.share) > 0
    assert not found.task.blend(module, found.validation), "it stays as it was chosen"


def test_few_seconds_fit_a_part_of_the_data(tmp_path):
    _, whole = fitted(tmp_path)
    found, part = fitted(tmp_path, seconds=1e-5)
    assert 0 < int((part.ngrams.owner != ABSENT).sum()) < int((whole.ngrams.owner != ABSENT).sum())
    fit_ngrams(part.ngrams, found.train)
    assert torch.equal(part.ngrams.weight, whole.ngrams.weight), "what was fitted before is forgotten"


def test_the_fit_is_at_the_minimum():
    """The gradient of the loss with one of the penalties is zero, by a dense matrix of n-grams."""
    random = torch.Generator().manual_seed(0)
    N, K = 97, 11
    dense = (torch.rand(N, K, generator=random) < 0.3).double()
    labels = torch.randint(0, 3, (N,), generator=random)
    place = dense.nonzero()
    rows = NgramRows(place[:, 1], dense.sum(1).long(), torch.ones(len(place)), labels)
    weight, bias = (x.double().requires_grad_() for x in fit_rows(rows, K, 3))
    loss = torch.nn.functional.cross_entropy(dense @ weight + bias, labels, reduction="sum")
    by_weight, by_bias = torch.autograd.grad(loss, (weight, bias))
    assert float(by_bias.abs().max()) < 0.05
    weight, scale = weight.detach(), rows.log_ratios(K, 3)
    rests = [(by_weight + penalty * weight / scale**2).abs().max().item() for penalty in PENALTIES]
    assert min(rests) < 0.03 < 0.1 < sorted(rests)[1]


def test_the_share_follows_held_out_data():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 401)
    right, noise = 3 * np.eye(3)[labels] + random.normal(size=(401, 3)), random.normal(size=(401, 3))
    assert best_share(right, noise, labels) == 0
    assert best_share(noise, right, labels) == 1
    assert 0.3 <= best_share(right, 3 * np.eye(3)[labels] + noise, labels) <= 0.7
    assert best_share(right[:7], noise[:7], labels[:7]) == 0.5, "too few to tell"


@pytest.mark.parametrize("steps", [3])
def test_a_run_keeps_it(tmp_path, steps):
    file = table(tmp_path / "a.tsv")
    run = weft.train("classification", file, tmp_path / "run", steps=steps, set=SMALL)
    assert float(run.module.ngrams.share) > 0 and run.evaluate(file)["accuracy"] == 1
    assert run.predict("the soup was not good") == "yes"
    again = weft.load(tmp_path / "run")
    assert again.evaluate(file) == run.evaluate(file)
    stopped = weft.train("classification", file, tmp_path / "run", resume=True)
    for name, tensor in stopped.module.state_dict().items():
        assert torch.equal(tensor, run.module.state_dict()[name]), name
    other = table(tmp_path / "b.tsv", [(text, label + str(n % 3)) for n, (text, label) in enumerate(PAIRED)])
    tuned = weft.train("classification", other, tmp_path / "c", steps=1, base=tmp_path / "run")
    assert tuned.module.ngrams.classes == 6 and tuned.predict("a not good day")[:-1] == "yes"


def test_a_killed_run_resumes_with_the_same_table(tmp_path):
    file = table(tmp_path / "a.tsv")
    whole = weft.train("classification", file, tmp_path / "whole", steps=4, set=SMALL)
    changes = {**SMALL, "training.checkpoint_every": 2, "training.evaluate_every": 3}

    class Stop(Reporter):
        def on_evaluation(self, step, loss, best):
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError, match="plug"):
        weft.train("classification", file, tmp_path / "part", steps=4, set=changes, reporter=Stop())
    resumed = weft.train("classification", file, tmp_path / "part", resume=True)
    for name, tensor in resumed.module.state_dict().items():
        assert torch.equal(tensor, whole.module.state_dict()[name]), name


def test_tags_by_pairs_and_endings(tmp_path):
    """A tag that follows from the neighbor, and one of unknown words that follows from the ending."""
    rows = [([f"ba{a}ing", "saw", f"to{a}ed"], ["I", "V", "E"]) for a in "bcdfghklmn"]
    rows += [(["saw", f"ba{a}ing"], ["N", "I"]) for a in "bcdfghklmn"]
    file = tmp_path / "a.txt"
    file.write_text("".join("".join(f"{w}\t{t}\n" for w, t in zip(*row, strict=True)) + "\n" for row in rows))
    found = TaggingTask.prepare([str(file)], TaggingOptions(held_out=0.2), 0, tmp_path)
    module = weft.build(found.task.default_model(Size(16, 1, 64)))
    found.task.start(module, found.train)
    assert found.task.blend(module, found.validation)
    batch = found.validation.batch(range(len(found.validation)))
    with torch.no_grad():
        said = module.eval()(batch.inputs["tokens"], mask=Real(batch.inputs["mask"])).logits.argmax(-1)
    assert (said == batch.labels)[batch.inputs["mask"]].all()


def test_sets_have_no_neighbors(tmp_path):
    options = ClassificationOptions(tokenizer="sets")
    task = ClassificationTask.prepare([str(table(tmp_path / "a.tsv"))], options, 0, tmp_path).task
    spec = task.default_model(Size(16, 1, 64))
    assert spec.ngrams is None and spec.declares().order_free


@pytest.mark.parametrize("each_token", [False, True])
def test_onnx_gives_the_same(tmp_path, each_token):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = encoder(each_token).float()
    task = "tagging" if each_token else "classification"
    names = {"tags": ["a", "b"]} if each_token else {"classes": ["a", "b"], "reading": "words"}
    folder = RunFolder(write_run(tmp_path / "run", model.spec, task, facts=names))
    folder.write_model(model.state_dict())
    made = weft.export(folder.path, "onnx", tmp_path / "out")
    with torch.no_grad():
        assert (model(words()).logits - model.train()(words()).logits).abs().max() > 0.1
        expected = model.eval()(words()).logits
    found = open_session(made.path / "model.onnx")({"tokens": words()})["logits"]
    assert torch.allclose(found, expected, atol=1e-5)
