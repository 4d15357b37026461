"""Task images: every format from files to predictions, what is learned from data, augmentation, errors."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import weft
from weft.data import samples
from weft.data.readers import images as readers
from weft.data.readers.files import DataError
from weft.foundation.errors import WeftError
from weft.models.presets import preset
from weft.tasks.images import ImagesOptions, ImagesTask, _stem
from weft.tasks.support.class_labels import hold_out, in_terms_of
from weft.tasks.support.splits.augmentation import change_images
from weft.tasks.support.splits.images_split import ImagesSplit, Scale
from weft.tasks.task import Size
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

SIDE = 10
CLASSES = ("bars", "blank", "disc")
SMALL = {
    "width": 16, "layers": 1, "mixer": {"kind": "attention", "heads": 2}, "stem": [8, 8], "patch": 1,
    "training.batch": 99, "training.threads": 1, "training.guard": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def draw(count=24, color=False, seed=0, side=SIDE):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    pixels = random.integers(0, 50, (count, side, side, 3 if color else 1)).astype(np.uint8)
    y, x = np.mgrid[0:side, 0:side]
    for picture, label in zip(pixels, labels, strict=True):
        shape = (x % 3 == 0) if label == 0 else (x < 0) if label == 1 else np.hypot(x - 4, y - 4) < 3.5
        picture[shape] = 220
    return pixels, labels


def write_folder(folder, color=False, **more):
    pixels, labels = draw(color=color, **more)
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        place = folder / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture if color else picture[..., 0]).save(place / f"{number:02d}.png")
    return [folder]


def write_npz(folder, **more):
    pixels, labels = draw(**more)
    folder.mkdir()
    np.savez(folder / "a.npz", images=pixels, labels=np.array(CLASSES)[labels])
    return [folder / "a.npz"]


def write_idx(folder, **more):
    pixels, labels = draw(**more)
    folder.mkdir()
    heads = (struct.pack(">IIII", 0x803, len(pixels), SIDE, SIDE), struct.pack(">II", 0x801, len(labels)))
    paths = [folder / "images-idx3-ubyte.gz", folder / "labels-idx1-ubyte.gz"]
    for path, head, body in zip(paths, heads, (pixels, labels.astype(np.uint8)), strict=True):
        with gzip.open(path, "wb") as file:
            file.write(head + body.tobytes())
    return paths


def write_tar(folder, **more):
    pixels, labels = draw(color=True, **more)
    folder.mkdir()
    with tarfile.open(folder / "a.tar.xz", "w:xz") as archive:
        for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
            body = io.BytesIO()
            Image.fromarray(picture).save(body, "png")
            member = tarfile.TarInfo(f"train/{CLASSES[label]}/{number}.png")
            member.size = body.tell()
            body.seek(0)
            archive.addfile(member, body)
    return [folder / "a.tar.xz"]


WRITERS = {"folder": write_folder, "npz": write_npz, "idx": write_idx, "tar": write_tar}


def train(data, out, steps=12, **changes):
    return weft.train("images", data, out, steps=steps, set=SMALL | changes)


def prepare(paths, cache, **options):
    return ImagesTask.prepare([str(path) for path in paths], ImagesOptions(**options), 0, cache)


@pytest.mark.parametrize("kind", WRITERS)
def test_from_files_to_predictions(tmp_path, kind):
    data, held = WRITERS[kind](tmp_path / "train"), WRITERS[kind](tmp_path / "held", seed=1)
    changes = {"data.validation": ",".join(map(str, held)), "training.rate": 0.01}
    run = train(data, tmp_path / "run", steps=30, **changes)
    found = run.evaluate(held)
    assert found["accuracy"] == 1.0 and found["macro_f1"] == 1.0 and found["examples"] == 24 and found["loss"] < 0.7
    names = ("0", "1", "2") if kind == "idx" else CLASSES
    write_folder(tmp_path / "asked", seed=2)
    paths = [tmp_path / "asked" / name / f"0{number}.png" for number, name in enumerate(CLASSES)]
    answers = run.answer(paths)
    assert [answer.output for answer in answers] == list(names)
    assert run.predict(paths[1]) == names[1] and len(run.predict(tmp_path / "asked")) == 24
    for answer in answers:
        shares = answer.more["probabilities"]
        assert set(shares) == set(names) and sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert next(iter(shares)) == answer.output == max(shares, key=shares.get)
    again = weft.load(tmp_path / "run")
    assert again.answer(paths) == answers and again.evaluate(held) == found
    assert again.task.facts() == run.task.facts() and again.task.channels == (3 if kind == "tar" else 1)


def test_statistics_come_from_training_pictures_alone(tmp_path):
    data, held = write_npz(tmp_path / "a"), write_npz(tmp_path / "b", count=6, seed=3)
    prepared = prepare(data, tmp_path, validation=str(held[0]), augmentation="none")
    x = torch.cat([prepared.train.batch([n], 0, 0).inputs["images"] for n in range(24)])
    assert x.shape == (24, 1, SIDE, SIDE) and x.mean().abs() < 1e-4 and (x.std() - 1).abs() < 1e-3
    other = prepare(data, tmp_path, held_out=0.25)
    assert len(other.train) == 18 and len(other.validation) == 6
    assert other.task.scale != prepared.task.scale
    seen = {picture.tobytes() for picture in other.train.pixels[other.train.rows]}
    assert not seen & {picture.tobytes() for picture in other.validation.pixels[other.validation.rows]}
    assert sorted(other.validation.labels) == [0, 0, 1, 1, 2, 2]


def test_pictures_that_stay_in_files_give_the_same(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "a", color=True)
    here = prepare(folder, tmp_path)
    monkeypatch.setattr(readers, "IN_MEMORY_BYTES", 0)
    there = prepare(folder, tmp_path)
    assert isinstance(there.train.pixels, readers.PixelFiles) and not isinstance(here.train.pixels, readers.PixelFiles)
    one, two = (p.train.batch([3, 1, 8], 5, 2) for p in (here, there))
    assert torch.equal(one.inputs["images"], two.inputs["images"]) and torch.equal(one.labels, two.labels)


def part(count=23, changes=()):
    pixels, labels = draw(count)
    return ImagesSplit(pixels, np.arange(count), labels, Scale.of(pixels), 7, changes)


def test_batches_are_functions_of_seed_and_epoch():
    one = part(changes=("shift", "flip", "erase"))
    assert one.tokens == 23 * 7
    for size, rows in ((35, 5), (3, 1), (9999, 23)):
        epochs = [one.batches(size, 4, epoch) for epoch in range(3)]
        assert len({len(found) for found in epochs}) == 1 and epochs[0] == one.batches(size, 4, 0)
        assert all(len(batch) == min(rows, 23) for found in epochs for batch in found)
        assert len({n for batch in epochs[0] for n in batch}) == sum(map(len, epochs[0]))
        assert [n for batch in one.batches(size, None) for n in batch] == list(range(23))
    assert one.batches(35, 4, 0) != one.batches(35, 4, 1) and one.batches(35, 4, 0) != one.batches(35, 5, 0)
    first, again = one.batch([3, 5], 1, 2), one.batch([3, 5], 1, 2)
    assert torch.equal(first.inputs["images"], again.inputs["images"]) and first.tokens == 14 and first.count == 2
    assert not torch.equal(first.inputs["images"], one.batch([3, 5], 1, 3).inputs["images"])
    assert torch.equal(first.inputs["images"][1:], one.batch([5, 9, 2], 1, 2).inputs["images"][:1])
    plain = one.batch([3, 5])
    assert torch.equal(plain.inputs["images"], part().batch([3, 5], 1, 2).inputs["images"])


def test_shift_moves_and_flip_mirrors():
    pixels = np.zeros((40, 14, 14, 1), dtype=np.uint8)
    pixels[:, 6, 3] = 9
    every = np.arange(40)
    moved, erased = change_images(pixels, every, 40, ("shift",), 0, 0)
    places = {(int(y), int(x)) for picture in moved for y, x in np.argwhere(picture[..., 0])}
    assert places == {(y, x) for y in (5, 6, 7) for x in (2, 3, 4)} and not erased.any()
    mirrored, _ = change_images(pixels, every, 40, ("flip",), 0, 0)
    columns = [int(np.argwhere(picture[..., 0])[0, 1]) for picture in mirrored]
    assert set(columns) == {3, 10} and 10 < columns.count(10) < 30
    same, erased = change_images(pixels, every, 40, ("erase",), 0, 0)
    assert np.array_equal(same, pixels) and 8 < erased.any((1, 2)).sum() < 32
    assert all(erased[n].sum() == erased[n].any(1).sum() * erased[n].any(0).sum() <= 6 * 6 for n in every)
    x = Scale((0.5,), (0.25,)).tensors(pixels, erased)
    assert torch.equal(x[:, 0] == 0, torch.from_numpy(erased))


def test_auto_flips_only_what_looks_alike_in_a_mirror(tmp_path, monkeypatch):
    monkeypatch.setitem(samples.SAMPLES["images"], "digits", (samples.digits, 300))
    monkeypatch.setitem(samples.SAMPLES["images"], "shapes", (samples.shapes, 300))
    assert prepare(["sample:digits"], tmp_path).task.changes == ("shift",)
    assert prepare(["sample:shapes"], tmp_path).task.changes == ("shift", "flip")
    assert prepare(["sample:"], tmp_path, augmentation="erase,flip").task.changes == ("flip", "erase")
    assert prepare(["sample:"], tmp_path, augmentation="none").task.changes == ()


def test_a_sample_knows_its_best_score(tmp_path, monkeypatch):
    monkeypatch.setitem(samples.SAMPLES["images"], "digits", (samples.digits, 60))
    request = TrainRequest("images", ("sample:digits",), tmp_path / "run", changes=SMALL, steps=3)
    done = run_training(request, Reporter())
    assert done.leak is None and done.metrics["accuracy"] <= 1.0
    assert set(done.references) == {"nearest neighbor accuracy", "always 0"}
    assert done.run.evaluate("sample:digits")["examples"] == 10
    assert prepare(["sample:digits"], tmp_path).best.value == 1.0


def test_company_changes_nothing(tmp_path, double):
    task = prepare(write_npz(tmp_path / "a"), tmp_path)
    module = weft.build(task.task.default_model(Size(32, 2)), seed=1).double().eval()
    for weight in module.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    images = task.train.batch(range(7)).inputs["images"].double()
    whole = module(images).logits
    for row in range(7):
        assert torch.allclose(module(images[row : row + 1]).logits[0], whole[row], atol=1e-10)


def test_measure_is_what_a_hand_counts(tmp_path):
    prepared = prepare(write_npz(tmp_path / "a"), tmp_path)
    module = weft.build(prepared.task.default_model(Size(32, 1)), seed=1).eval()
    found = prepared.task.measure(module, prepared.train, 99)
    batch = prepared.train.batch(range(len(prepared.train)))
    with torch.no_grad():
        logits = module(batch.inputs["images"]).logits
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == batch.labels).double().mean()))
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, batch.labels)), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "side", "patch"), [("nano-vit", 28, 4), ("nano-vit", 10, 2), ("vit-b16", 28, 14), ("vit-b16", 13, 13)]
)
def test_presets_fit(name, side, patch):
    task = ImagesTask(ImagesOptions(), ["a", "b", "c"], side, Scale((0.1,) * 3, (1.0,) * 3), ())
    spec = task.fit(preset(name))
    assert (spec.image, spec.patch, spec.channels, spec.classes) == (side, patch, 3, 3)


@pytest.mark.parametrize("side", [1, 2, 5, 8, 28, 32, 33, 64, 96, 224, 251])
def test_the_default_suits_any_size(side):
    task = ImagesTask(ImagesOptions(), ["a", "b"], side, Scale((0.1,), (1.0,)), ())
    spec = task.default_model(Size(64, 2))
    assert 1 <= spec.side <= 8 or side == 251
    assert len(_stem(side, 64)) <= 3


def test_color_and_size_of_pictures_to_judge_on_are_made_to_fit(tmp_path):
    gray, color = write_npz(tmp_path / "gray"), write_folder(tmp_path / "color", color=True)
    large = write_folder(tmp_path / "large", side=20)
    task = prepare(gray, tmp_path).task
    for paths in (color, large):
        assert task.read([str(path) for path in paths], tmp_path).batch([0, 1]).inputs["images"].shape == (2, 1, 10, 10)
    colored = prepare(color, tmp_path).task
    assert colored.read([str(path) for path in gray], tmp_path).batch([0]).inputs["images"].shape == (1, 3, 10, 10)
    assert prepare(large, tmp_path, size="12").task.side == 12


def test_pictures_of_other_shapes_become_squares_and_users_are_told(tmp_path):
    np.savez(tmp_path / "wide.npz", images=np.zeros((4, 10, 12), np.uint8), labels=np.array([0, 1, 0, 1]))
    found = prepare([tmp_path / "wide.npz"], tmp_path)
    assert found.task.side == 8 and found.notes == (
        "the pictures were scaled to 8 x 8; --set data.size=N takes another size",
    )
    assert prepare([tmp_path / "wide.npz"], tmp_path, size=9).task.side == 9
    for number, shape in enumerate([(31, 40), (23, 90), (23, 17), (300, 29)] * 2):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*shape, 3), 30 * number, np.uint8)).save(file)
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(tmp_path / "photos", "photos")
    for source in ("photos", "photos.tar"):
        found = prepare([tmp_path / source], tmp_path)
        assert found.task.side == 24 and found.notes and found.train.batch([0]).inputs["images"].shape[-2:] == (24, 24)
    assert readers.choose_side([(500, 900), (700, 400)]) == 64 and readers.choose_side([(28, 28)] * 3) is None


def test_errors_say_what_to_do(tmp_path):
    folder = write_folder(tmp_path / "a")
    task = prepare(folder, tmp_path).task
    np.savez(tmp_path / "odd.npz", images=draw(6)[0], labels=np.array(["bars", "cat"] * 3))
    with pytest.raises(DataError, match="label 'cat' was not seen in training, where classes are bars, blank, disc"):
        task.read([str(tmp_path / "odd.npz")], tmp_path)
    with pytest.raises(DataError, match="label 'cat'"):
        prepare(folder, tmp_path, validation=str(tmp_path / "odd.npz"))
    with pytest.raises(WeftError, match=r"no augmentation 'twist': choose auto, none, or some of shift,flip,erase"):
        prepare(folder, tmp_path, augmentation="twist")
    with pytest.raises(WeftError, match="held_out 2 is no share"):
        prepare(folder, tmp_path, held_out=2)
    with pytest.raises(WeftError, match="no sample 'cats': choose one of sample:digits, sample:shapes"):
        prepare(["sample:cats"], tmp_path)
    with pytest.raises(DataError, match="there is no file"):
        task.predict(weft.build(task.default_model(Size(32, 1))), ["none.png"], None)


def test_options_come_from_the_command_line(tmp_path):
    folder = write_folder(tmp_path / "a")
    run = train(folder, tmp_path / "run", steps=2, **{"data.size": "8", "data.augmentation": "shift,erase"})
    assert run.task.side == 8 and run.task.facts()["augmentation"] == ["shift", "erase"]
    assert run.module.spec.image == 8 and weft.load(tmp_path / "run").task.options == run.task.options


def test_the_part_held_out_has_all_classes():
    labels = np.array([0] * 50 + [1] * 9 + [2] * 2)
    kept, held = hold_out(labels, 0.1, 3)
    assert sorted(np.concatenate((kept, held))) == list(range(61))
    assert np.bincount(labels[held]).tolist() == [5, 1, 1]
    assert not np.array_equal(held, hold_out(labels, 0.1, 4)[1])
    assert in_terms_of(("b", "c", "a"), np.array([0, 1, 1]), ("a", "b", "unused")).tolist() == [2, 0, 0]


def test_augmented_training_is_resumed_to_the_same_bits(tmp_path):
    class Pulled(Reporter):
        def on_evaluation(self, step, loss, best):
            if step == 4:
                raise RuntimeError("pulled the plug")

    data = write_npz(tmp_path / "a")
    changes = {"data.augmentation": "shift,flip,erase", "training.evaluate_every": 2}
    whole = train(data, tmp_path / "whole", steps=7, **changes)
    with pytest.raises(RuntimeError, match="plug"):
        weft.train("images", data, tmp_path / "cut", steps=7, set=SMALL | changes, reporter=Pulled())
    again = weft.train("images", data, tmp_path / "cut", resume=True)
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(weight, again.module.state_dict()[name])


def test_rows_of_a_part_can_be_chosen():
    one = part()
    some = replace(one, rows=one.rows[5:8], labels=one.labels[5:8])
    assert torch.equal(some.batch([0, 2]).inputs["images"], one.batch([5, 7]).inputs["images"])
