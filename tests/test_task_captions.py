from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import weft
from weft.data.readers.files import DataError
from weft.foundation.errors import WeftError
from weft.inspection.pictures.look import kinds_of, observe, picture_of
from weft.inspection.pictures.look_options import LookOptions
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.parts.masks import Documents
from weft.runs.run import load
from weft.tasks.captions import CaptionsOptions, CaptionsTask, hold_images_out, suitable_patch, suitable_stem
from weft.tasks.support.losses import mean_loss
from weft.tasks.support.splits.captioned_images import Gallery, as_images, open_gallery
from weft.tasks.task import GenerationOptions, Size

COLORS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (250, 250, 250)}
TINY = {"width": 32, "layers": 1, "mixer.heads": 2, "stem": (8,), "training.batch": 600, "training.guard": False}
IMAGES = 24


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path):
    """Plain colors, two captions each; the folder, and (name, text) of all captions."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = []
    for number in range(IMAGES):
        name = list(COLORS)[number % len(COLORS)]
        picture = np.full((20, 26, 3), COLORS[name], dtype=np.uint8)
        Image.fromarray(picture).save(folder / f"{number}.png")
        rows += [(f"{number}.png", f"All is {name} ."), (f"{number}.png", f"a {name} wall")]
    return folder, rows


@pytest.fixture
def lines(photos):
    folder, rows = photos
    file = folder / "captions.txt"
    file.write_text("image,caption\n" + "".join(f"{image},{text}\n" for image, text in rows))
    return file


def prepared(paths, cache, **options):
    return CaptionsTask.prepare([str(path) for path in paths], CaptionsOptions(**options), 0, cache)


def small(found) -> torch.nn.Module:
    spec = found.task.default_model(Size(24, 2)).replace(**{"initialization.zero_residual": False})
    return weft.build(spec).eval()


def test_trains_predicts_evaluates_and_reloads(lines, photos, tmp_path, cache):
    changes = {**TINY, "data.size": 16, "data.held_out": 0.25, "data.augment": "none", "patch": 2}
    run = weft.train("captions", lines, out=tmp_path / "run", steps=60, set=changes)
    paths = [photos[0] / f"{number}.png" for number in range(4)]
    answers = run.predict(paths)
    assert [name in answer for name, answer in zip(COLORS, answers, strict=True)] == [True] * 4
    again = load(tmp_path / "run")
    for how in ({}, {"beam": 2}, {"temperature": 1.0, "seed": 3}):
        assert run.predict(paths, **how) == again.predict(paths, **how)
    metrics = again.evaluate(lines)
    assert metrics == run.evaluate(lines) and json.dumps(metrics)
    assert metrics.keys() >= {"loss", "bleu", "exact_match", "images"} and metrics["images"] == IMAGES
    assert metrics["exact_match"] == 1.0  # BLEU is 0 where the shorter captions, of three words, are learned


def test_the_image_is_what_it_learns_from(lines, tmp_path, cache):
    changes = {**TINY, "data.size": 16, "data.augment": "none", "patch": 2}
    seeing, blind = (
        weft.train("captions", lines, out=tmp_path / str(blind), steps=40, set={**changes, "data.blind": blind})
        for blind in (False, True)
    )
    assert seeing.evaluate(lines)["loss"] < blind.evaluate(lines)["loss"] - 0.1
    answers = blind.predict([lines.parent / "0.png", lines.parent / "1.png"])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("form", ["jsonl", "csv", "elsewhere"])
def test_every_format(form, photos, tmp_path, cache):
    folder, rows = photos
    options: dict[str, object] = {"size": 16}
    file = folder / f"captions.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps({"image": image, "text": text}) + "\n" for image, text in rows))
    elif form == "csv":
        file.write_text("".join(f'{image},"{text}"\n' for image, text in rows))
    else:
        file = tmp_path / "captions.txt"
        file.write_text("image,caption\n" + "".join(f"{image},{text}\n" for image, text in rows))
        options["images"] = str(folder)
    found = prepared([file], cache, validation=str(file), **options)
    assert len(found.train) == len(found.validation) == len(rows)
    assert found.train.gallery.pixels.shape == (IMAGES, 16, 16, 3)
    assert found.train.gallery.answers_to((1, "")) == ["All is green .", "a green wall"]


def test_each_image_is_decoded_once(photos, lines, monkeypatch):
    from weft.data.readers import images

    read = []
    real = images.read_image
    monkeypatch.setattr(images, "read_image", lambda path, *more: read.append(path) or real(path, *more))
    gallery = open_gallery([(photos[0] / name, text) for name, text in photos[1]], 16)
    gallery.only([3, 5])
    assert len(read) == IMAGES < len(gallery.captions)


def test_held_out_by_image(lines, cache):
    found = prepared([lines], cache, size=16, held_out=0.25)
    assert len(found.validation.gallery.pixels) == 6 and len(found.train.gallery.pixels) == 18
    assert len(found.validation) == 12 and len(found.train) == 36
    gallery = Gallery(np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1), [(n % 10, str(n % 10)) for n in range(30)])
    for part in hold_images_out(gallery, 0.3, 1):
        assert all(int(part.pixels[image, 0, 0, 0]) == int(text) for image, text in part.captions)
    train, held = hold_images_out(gallery, 0.3, 1)
    assert not set(train.pixels.ravel().tolist()) & set(held.pixels.ravel().tolist())


def test_batches(lines, cache):
    part = replace(prepared([lines], cache, size=16).train, packed=False).cut(12)
    for size in (1, 200, 10_000):
        plans = [part.batches(size, 0, epoch) for epoch in (0, 1)]
        assert len(plans[0]) == len(plans[1]) and part.batches(size, 0, 1) == plans[1]
        for plan in (*plans, part.batches(size, None)):
            assert sorted(n for batch in plan for n in batch) == list(range(len(part))) and all(plan)
    one, same, other = (part.batch([2, 3], 0, epoch).inputs["images"] for epoch in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    plain = part.batch([2, 3])
    assert torch.equal(plain.inputs["images"], as_images(part.gallery.pixels[part._images[[2, 3]]]))
    assert plain.inputs["images"].min() >= -1 and plain.inputs["images"].max() <= 1
    assert plain.tokens == plain.inputs["tokens"].numel() + 2 * part.patches


def test_a_batch_teaches_the_caption(lines, cache):
    found = prepared([lines], cache, size=16)
    task, part = found.task, replace(found.train, packed=False)
    batch = part.batch([0, 1])
    ids = [task.tokenizer.encode(text.lower()) for _, text in part.gallery.captions[:2]]
    assert batch.inputs["tokens"][0].tolist() == [task.ends.start, *ids[0]]
    assert batch.labels[0].tolist() == [*ids[0], task.ends.stop]
    assert batch.labels[1].tolist() == [*ids[1], task.ends.stop, IGNORED]
    short = part.cut(2).batch([0])
    assert short.labels.tolist() == [ids[0][:2]] and short.inputs["tokens"].tolist() == [[task.ends.start, ids[0][0]]]


def test_padding_and_company_change_nothing(lines, cache):
    found = prepared([lines], cache, size=16)
    task, part, module = found.task, found.train.cut(20), small(found).double()
    batches = [part.batch([n]) for n in range(6)] + [part.batch(range(6))]
    for batch in batches:
        batch.inputs["images"] = batch.inputs["images"].double()
    with torch.inference_mode():
        losses = [float(task.loss(module, batch).total) for batch in batches]
    assert abs(sum(losses[:6]) - losses[6]) < 1e-9
    paths = [lines.parent / f"{number}.png" for number in range(5)]
    module = module.float()
    many = [one.output for one in task.predict(module, paths, GenerationOptions(max_tokens=6, batch=3))]
    assert many == [task.predict(module, [path], GenerationOptions(max_tokens=6))[0].output for path in paths]


def test_measure_at_the_end_of_a_timed_training_takes_fewer_images(cache):
    found = prepared(["sample:scenes"], cache)
    module, part = small(found), found.task._split(found.validation.gallery.only(range(40))).cut(20)
    few = found.task.evaluation_subset(module, part, 1e-9)
    metrics = found.task.measure(module, few, 2000)
    assert metrics["images"] == 16 and metrics["loss"] == mean_loss(found.task, module, part, 2000)
    assert found.task.evaluation_subset(module, part, 1e9) is part
    assert found.best is not None and found.best.metric in metrics and found.best.value == 1.0
    assert found.task.default_model(Size()).prefix == 36


def test_rare_words_are_unknown_and_presets_fit(lines, cache):
    found = prepared([lines], cache, size=16, least=15)
    words = found.task.tokenizer
    assert words.id_of("a") is not None and words.id_of("red") is None
    assert prepared([lines], cache, size=16, lower=False).task.tokenizer.id_of("All") is not None
    assert prepared([lines], cache, size=16, tokenizer="bpe").task.tokenizer.encode("wall")
    spec = found.task.fit(preset("nano-image-text"))
    assert spec.image == 16 and spec.vocabulary == words.vocabulary
    assert suitable_stem(96) == (16, 32, 64) and suitable_patch(96, 3) == 2
    assert suitable_stem(48) == (16, 32) and suitable_patch(48, 2) == 2


def test_errors(lines, photos, tmp_path, cache):
    folder, _ = photos
    empty, lost, lonely = folder / "empty.jsonl", folder / "lost.jsonl", folder / "lonely.jsonl"
    empty.write_text("")
    lost.write_text('{"image": "nowhere.png", "text": "a wall"}\n')
    lonely.write_text('{"image": "1.png", "text": "a wall"}\n{"image": "1.png", "text": "green"}\n')
    broken = folder / "broken.png"
    broken.write_bytes(b"no image")
    (folder / "broken.jsonl").write_text('{"image": "broken.png", "text": "a wall"}\n')
    for file, options in (
        (empty, {}),
        (lost, {}),
        (lonely, {}),
        (folder / "broken.jsonl", {}),
        (lines, {"held_out": 1.5}),
        (lines, {"size": 4}),
    ):
        with pytest.raises(DataError):
            prepared([file], cache, **{"size": 16, **options})
    with pytest.raises(WeftError, match="augmentation"):
        prepared([lines], cache, size=16, augment="twist")
    found = prepared([lines], cache, size=16)
    with pytest.raises(DataError, match="no image"):
        found.task.predict(small(found), [tmp_path / "none.png"], GenerationOptions())
    with pytest.raises(DataError, match="pixels"):
        found.task.read(["sample:scenes"], cache)


# --- by cross-attention -----------------------------------------------------------------------------------------------

CROSS = {
    "width": 32, "layers": 1, "decoder_layers": 1, "mixer.heads": 2, "source.patch": 4,
    "training.batch": 300, "training.guard": False, "training.rate": 0.01,
    "data.size": 16, "data.held_out": 0.25, "data.augment": "none",
}  # fmt: skip


def test_words_look_at_the_image_by_cross_attention(lines, photos, tmp_path, cache):
    how = {"preset": "nano-image-seq2seq", "steps": 80, "set": CROSS}
    run = weft.train("captions", lines, out=tmp_path / "run", **how)
    assert run.module.spec.family == "encoder-decoder" and run.module.spec.source.kind == "patches"
    paths = [photos[0] / f"{number}.png" for number in range(4)]
    answers = run.predict(paths)
    assert [name in answer for name, answer in zip(COLORS, answers, strict=True)] == [True] * 4
    again = load(tmp_path / "run")
    for ways in ({"beam": 2}, {"temperature": 1.0, "seed": 3}):
        assert run.predict(paths, **ways) == again.predict(paths, **ways)
    assert again.evaluate(lines) == run.evaluate(lines) and run.evaluate(lines)["bleu"] > 80
    seen = observe(run, str(paths[1]))
    assert set(seen.kinds) == {"encoder", "self", "cross"}
    (panel,) = picture_of(seen).panels
    words, layers, heads, *grid = panel.maps.shape
    assert (words, layers, heads, grid) == (len(seen.written), 1, 3, [4, 4])
    assert np.allclose(panel.maps.sum((-2, -1)), 1, atol=1e-5)
    for kind in kinds_of(seen):
        assert picture_of(seen, LookOptions(kind=kind)).panels


def test_models_that_cannot_read_these_images_are_refused(lines, tmp_path, cache):
    with pytest.raises(WeftError, match="reads images, but this model's source is tokens"):
        weft.train("captions", lines, out=tmp_path / "a", preset="nano-t5", steps=1)
    with pytest.raises(WeftError, match="reads images, but this model's source is series"):
        weft.train("captions", lines, out=tmp_path / "b", preset="nano-speech-seq2seq", steps=1)
    blind = {"data.blind": True}
    with pytest.raises(WeftError, match="cannot be blind"):
        weft.train("captions", lines, out=tmp_path / "c", preset="nano-image-seq2seq", steps=1, set=blind)


def test_captions_that_share_an_image_cost_it_once_and_lose_the_same(lines, cache):
    """Image tokens once, several captions behind them: losses and gradients are those of single rows, in float64."""
    found = prepared([lines], cache, size=16, held_out=0.25, augment="none")
    packed = found.train.fit(found.task.default_model(Size(24, 2)))
    single = replace(packed, packed=False)
    assert packed.packed and packed.tokens == single.tokens - 18 * packed.patches
    module = small(found).double().train()
    sums = []
    for split in (packed, single):
        module.zero_grad()
        total = torch.zeros(())
        for examples in split.batches(211, None):
            loss = found.task.loss(module, split.batch(examples))
            loss.total.backward()
            total = total + loss.total.detach()
        sums.append((total, [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]))
    assert float(sums[0][0]) == pytest.approx(float(sums[1][0]), rel=1e-12)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-9) for one, other in zip(sums[0][1], sums[1][1], strict=True))
    batch = packed.batch(packed.batches(10_000, None)[0])
    assert len(batch.inputs["images"]) == 18 and int(batch.inputs["documents"].max()) == 1
    other = batch.inputs["tokens"].clone()
    second = batch.inputs["documents"] == 1
    other[second] = (other[second] + 1) % found.task.tokenizer.vocabulary
    mask, images = Documents(batch.inputs["documents"]), batch.inputs["images"].double()
    one, two = (module.eval()(tokens, mask=mask, images=images).logits for tokens in (batch.inputs["tokens"], other))
    first = batch.inputs["documents"] == 0
    assert torch.equal(one[first], two[first]) and not torch.equal(one[second], two[second])


def test_who_reads_the_image_otherwise_does_not_share_it(lines, cache):
    found = prepared([lines], cache, size=16, augment="none")
    assert found.train.packed and not found.train.fit(preset("nano-image-seq2seq")).packed
    assert not prepared([lines], cache, size=16, blind=True).train.packed
