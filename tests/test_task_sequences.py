"""Task sequences: every format from files to predictions, preparation, augmentation, splits by name, errors."""

from __future__ import annotations

import csv
import wave

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.data import samples
from weft.data.readers.files import DataError
from weft.foundation.errors import SpecError, WeftError
from weft.models.presets import preset
from weft.tasks.sequences import SequencesOptions, SequencesTask
from weft.tasks.support.splits.augmentation import own_random, resample, shake, turn_joints, warp_time
from weft.tasks.support.splits.vector_sequences import (
    Preparation,
    VectorSequencesSplit,
    averaged,
    fill_gaps,
    middle,
    padded,
    step_changes,
)
from weft.tasks.task import Size
from weft.training.planning.planner import Planner
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

CLASSES = ("fall", "rise", "wave")
SMALL = {
    "width": 32, "layers": 2, "mixer": [{"kind": "convolution", "kernel": 5}, {"kind": "attention", "heads": 2}],
    "dropout": 0.0, "training.batch": 96, "training.threads": 1, "training.guard": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def draw(count=18, seed=0, channels=3):
    """Sequences of 7 to 13 steps whose first channel falls, rises or waves."""
    random = np.random.default_rng(seed)
    labels = [CLASSES[number % 3] for number in range(count)]
    values = []
    for label in labels:
        t = np.linspace(-1, 1, int(random.integers(7, 14)))
        shape = {"fall": -t, "rise": t, "wave": np.cos(6 * t)}[label]
        noise = 0.1 * random.standard_normal((len(t), channels))
        noise[:, 0] += shape
        values.append((5 + 3 * noise).astype(np.float32))
    return values, labels


def write_ts(folder, **more):
    values, labels = draw(**more)
    lines = ["@problemName x", "@univariate false", "@dimensions 3", f"@classLabel true {' '.join(CLASSES)}", "@data"]
    for one, label in zip(values, labels, strict=True):
        lines.append(":".join([*(",".join(f"{x:.5f}" for x in column) for column in one.T), label]))
    (folder / "a.ts").write_text("\n".join(lines) + "\n")
    return folder / "a.ts"


def write_npz(folder, labeled=True, **more):
    values, labels = draw(**more)
    arrays = {"x": np.concatenate(values), "lengths": np.array([len(one) for one in values])}
    np.savez(folder / "a.npz", **arrays, **({"y": np.array(labels)} if labeled else {}))
    return folder / "a.npz"


def write_csv(folder, labeled=True, **more):
    values, labels = draw(**more)
    with (folder / "a.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "time", "a", "b", "c", *(["label"] if labeled else [])])
        for number, (one, label) in enumerate(zip(values, labels, strict=True)):
            for time, step in enumerate(one):
                rows.writerow([f"q{number}", time, *map(float, step), *([label] if labeled else [])])
    return folder / "a.csv"


WRITERS = {"ts": write_ts, "npz": write_npz, "csv": write_csv}


def write_skeletons(folder, subjects=(1, 2, 3), actions=(1, 2)):
    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for action in actions:
        for subject in subjects:
            for attempt in (1, 2):
                frames = int(random.integers(9, 15))
                joints = np.cumsum(random.normal(0, 1, (frames, 20, 4)), 0) + 100
                joints[:, 0, 1] += (-1) ** action * 5 * np.arange(frames)
                name = f"a{action:02d}_s{subject:02d}_e{attempt:02d}_skeleton.txt"
                np.savetxt(folder / name, joints.reshape(-1, 4), "%.3f")
    return folder


def train(data, out, steps=12, **changes):
    return weft.train("sequences", data, out, steps=steps, set=SMALL | changes)


def prepare(path, cache, **options):
    return SequencesTask.prepare([str(path)], SequencesOptions(**options), 0, cache)


@pytest.mark.parametrize("kind", WRITERS)
def test_from_files_to_predictions(tmp_path, kind):
    for name in ("train", "held"):
        (tmp_path / name).mkdir()
    data, held = WRITERS[kind](tmp_path / "train", count=36), WRITERS[kind](tmp_path / "held", seed=1)
    run = train(data, tmp_path / "run", steps=40, **{"data.validation": str(held), "training.rate": 0.01})
    found = run.evaluate(held)
    assert found["accuracy"] == 1.0 and found["macro_f1"] == 1.0 and found["examples"] == 18 and found["loss"] < 0.8
    answers = run.answer([held])
    assert [answer.output for answer in answers] == draw(seed=1)[1]
    assert len({answer.input for answer in answers}) == 18
    for answer in answers:
        shares = answer.more["probabilities"]
        assert set(shares) == set(CLASSES) and max(shares, key=shares.get) == answer.output
    again = weft.load(tmp_path / "run")
    assert again.answer([held]) == answers and again.evaluate(held) == found
    assert again.task.facts() == run.task.facts() and len(run.predict([data, held])) == 36 + 18


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_files_to_predict_need_no_labels(tmp_path, kind):
    task = prepare(write_ts(tmp_path), tmp_path).task
    module = weft.build(task.default_model(Size(32, 2)), seed=1)
    named, plain = (task.predict(module, [WRITERS[kind](tmp_path, labeled=flag)], how()) for flag in (True, False))
    assert named == plain and len(plain) == 18
    with pytest.raises(DataError):
        task.read([str(WRITERS[kind](tmp_path, labeled=False))], tmp_path)
    text = write_ts(tmp_path).read_text()
    bare = [":".join(line.split(":")[:-1]) for line in text.splitlines() if not line.startswith("@")]
    (tmp_path / "bare.ts").write_text("@dimensions 3\n@classLabel false\n@data\n" + "\n".join(bare) + "\n")
    answers = task.predict(module, [tmp_path / "bare.ts"], how())
    assert [answer.output for answer in answers] == [
        answer.output for answer in task.predict(module, [tmp_path / "a.ts"], how())
    ]


def how():
    from weft.tasks.task import GenerationOptions

    return GenerationOptions(batch=5)


def test_a_folder_of_sounds(tmp_path):
    for number in range(8):
        pitch = 300 if number % 2 else 1200
        place = tmp_path / "sounds" / ("low" if number % 2 else "high")
        place.mkdir(parents=True, exist_ok=True)
        t = np.arange(1600 + 80 * number) / 8000
        with wave.open(str(place / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes((9000 * np.sin(2 * np.pi * pitch * t)).astype("<i2").tobytes())
    run = train(tmp_path / "sounds", tmp_path / "run", steps=25, **{"data.held_out": 0.3})
    assert run.predict(tmp_path / "sounds" / "low" / "1.wav") == "low"
    assert run.predict([tmp_path / "sounds" / "high" / "0.wav", tmp_path / "sounds" / "low" / "3.wav"]) == [
        "high",
        "low",
    ]
    assert run.module.spec.input.channels == 40 and run.task.preparation.vertical is None


def test_skeletons_are_split_by_subject(tmp_path):
    folder = write_skeletons(tmp_path / "bodies")
    run = train(folder, tmp_path / "run", steps=3, **{"data.train_names": "_s0[13]_"})
    task = run.task
    assert task.preparation.vertical == "y" and task.preparation.differences and run.module.spec.input.channels == 120
    prepared = prepare(folder, tmp_path, train_names="_s0[13]_")
    assert len(prepared.train) == 8 and len(prepared.validation) == 4
    assert prepared.train.changes == ("warp", "noise", "turn") and prepared.validation.changes == ()
    assert run.predict(folder / "a01_s02_e01_skeleton.txt") in ("a01", "a02")
    assert len(run.predict(folder)) == 12 and run.evaluate(folder)["examples"] == 12
    plain = prepare(folder, tmp_path, vertical="none")
    assert plain.task.preparation.axes == (1.0, 1.0, 1.0) and plain.train.changes == ("warp", "noise")
    for pattern, words in (("_s09_", "matches 0 of 12"), ("a0", "matches 12 of 12"), ("a01", "class 'a02'")):
        with pytest.raises(DataError, match=words):
            prepare(folder, tmp_path, train_names=pattern)
    with pytest.raises(DataError, match="no regular expression"):
        prepare(folder, tmp_path, train_names="(")


@pytest.mark.parametrize("name", ["skeletons", "tones"])
def test_samples_know_their_best_score(tmp_path, monkeypatch, name):
    make = getattr(samples, name)
    monkeypatch.setitem(samples.SAMPLES["sequences"], name, (make, 24))
    request = TrainRequest("sequences", (f"sample:{name}",), tmp_path / "run", changes=SMALL, steps=2)
    done = run_training(request, Reporter())
    assert done.leak is None and "nearest neighbor accuracy" in done.references
    prepared = prepare(f"sample:{name}", tmp_path)
    assert prepared.best.metric == "accuracy" and prepared.best.value == 1.0
    assert prepared.task.raw == (54 if name == "skeletons" else 40)
    assert done.run.evaluate(f"sample:{name}")["examples"] == len(prepared.validation)


def a_part(changes=(), count=17, **more):
    values, labels = draw(count)
    ready = Preparation.learn(values, **{"stride": 1, "vertical": None, "differences": False, "scaled": True} | more)
    numbers = np.array([CLASSES.index(label) for label in labels])
    return VectorSequencesSplit([ready.begin(one) for one in values], numbers, ready, changes)


def test_batches_are_functions_of_seed_and_epoch():
    part = a_part(("warp", "noise"))
    assert part.tokens == sum(len(one) for one in part.values)
    for size in (1, 40, 100, 9999):
        epochs = [part.batches(size, 4, epoch) for epoch in range(4)]
        assert len({len(found) for found in epochs}) == 1 and epochs[0] == part.batches(size, 4, 0)
        assert len({len(batch) for found in epochs for batch in found}) == 1
        assert len({n for batch in epochs[0] for n in batch}) == sum(map(len, epochs[0]))
        assert [n for batch in part.batches(size, None) for n in batch] == list(range(17))
    assert part.batches(40, 4, 0) != part.batches(40, 4, 1)
    one, again, other = part.batch([3, 5], 1, 2), part.batch([3, 5], 1, 2), part.batch([3, 5], 1, 3)
    assert torch.equal(one.inputs["tokens"], again.inputs["tokens"])
    assert one.inputs["tokens"].shape != other.inputs["tokens"].shape or not torch.equal(
        one.inputs["tokens"], other.inputs["tokens"]
    )
    company = part.batch([9, 5, 11], 1, 2)
    n = len(part.row(5, 1, 2))
    assert torch.equal(one.inputs["tokens"][1, :n], company.inputs["tokens"][1, :n])
    assert torch.equal(part.batch([3]).inputs["tokens"], a_part().batch([3], 1, 2).inputs["tokens"])


def test_masks_mark_what_is_real():
    part = a_part()
    batch = part.batch([0, 1, 2, 3])
    lengths = [len(part.values[n]) for n in range(4)]
    assert batch.inputs["mask"].sum(1).tolist() == lengths and batch.tokens == 4 * max(lengths) and batch.count == 4
    for row, length in enumerate(lengths):
        assert batch.inputs["mask"][row, :length].all()
        assert (batch.inputs["tokens"][row, length:] == 0).all()
    assert "mask" not in part.batch([2]).inputs
    assert set(padded([np.zeros((3, 2), np.float32)] * 2)) == {"tokens"}


def test_padding_and_company_change_nothing(tmp_path, double):
    task = prepare(write_ts(tmp_path), tmp_path).task
    module = weft.build(task.default_model(Size(32, 4)), seed=1).double().eval()
    for weight in module.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    part = a_part()
    inputs = part.batch(range(8)).inputs
    whole = module(inputs["tokens"].double(), mask=inputs["mask"]).logits
    for row in range(8):
        alone = module(part.batch([row]).inputs["tokens"].double()).logits[0]
        assert torch.allclose(alone, whole[row], atol=1e-10)


def test_values_are_scaled_by_training_statistics(tmp_path):
    part = a_part()
    steps = np.concatenate([part.row(n) for n in range(len(part))])
    assert np.allclose(steps.mean(0), 0, atol=1e-5) and np.allclose(steps.std(0), 1, atol=1e-4)
    assert np.array_equal(a_part(scaled=False).row(4), draw(17)[0][4])
    moving = a_part(differences=True, scaled=False).row(4)
    assert np.allclose(moving[1:, 3:], np.diff(draw(17)[0][4], axis=0)) and (moving[0, 3:] == 0).all()
    still = Preparation.learn([np.full((5, 2), 7, np.float32)], 1, None, False, True)
    assert still.deviation == (1.0, 1.0) and (still.end(np.full((2, 2), 7, np.float32)) == 0).all()
    ready = a_part(differences=True).preparation
    assert Preparation.from_tree(ready.to_tree()) == ready


def test_long_sequences_are_strided_and_cut(tmp_path):
    values = np.random.default_rng(0).normal(size=(6, 50, 2)).astype(np.float32)
    np.savez(tmp_path / "long.npz", x=values, y=np.array([0, 1] * 3))
    prepared = prepare(tmp_path / "long.npz", tmp_path, length=20, held_out=0.3)
    assert prepared.task.preparation.stride == 3 and {len(one) for one in prepared.train.values} == {17}
    assert prepared.task.length == 32 == prepared.task.default_model(Size()).length
    short = prepared.train.cut(5)
    assert short.tokens == 5 * len(short) and short.batch([0, 1], 3, 0).inputs["tokens"].shape == (2, 5, 2)
    assert np.array_equal(middle(values[0], 4), values[0][23:27]) and middle(values[0], 99).shape == (50, 2)
    assert averaged(np.arange(5, dtype=np.float32)[:, None], 2).ravel().tolist() == [0.5, 2.5, 4.0]


def test_gaps_of_skeletons_are_filled():
    values = np.array([[0, 0], [2, 4], [0, 0], [4, 8], [0, 0]], dtype=np.float32)
    assert fill_gaps(values).tolist() == [[2, 4], [2, 4], [3, 6], [4, 8], [4, 8]]
    assert fill_gaps(np.zeros((3, 2), np.float32)).shape == (3, 2)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.floats(0, 0.5), st.integers(0, 99))
def test_warped_time_stays_within_bounds(length, strength, seed):
    values = np.linspace(0, 1, length, dtype=np.float32)[:, None]
    warped = warp_time(values, own_random(seed, 0, 0), strength)
    assert 1 <= len(warped) <= max(1, round(length * (1 + strength)))
    assert warped.min() >= 0 and warped.max() <= 1 and (np.diff(warped[:, 0]) >= -1e-6).all()
    if strength == 0:
        assert np.allclose(warped, values, atol=1e-6)


@pytest.mark.parametrize(("axis", "kept"), [("x", 0), ("y", 1), ("z", 2)])
def test_bodies_turn_about_an_axis(axis, kept):
    values = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    turned = turn_joints(values, axis, 0.7).reshape(5, 4, 3)
    points = values.reshape(5, 4, 3)
    assert np.array_equal(turned[..., kept], points[..., kept])
    assert np.allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(points, axis=-1), atol=1e-5)
    assert not np.allclose(turned, points, atol=0.1)
    assert np.allclose(turn_joints(turned.reshape(5, 12), axis, -0.7), values, atol=1e-5)


def test_noise_and_resampling():
    values = np.ones((400, 3), np.float32)
    noisy = shake(values, own_random(0, 0, 0), 0.2, 0.0)
    assert 0.17 < noisy.std() < 0.23 and np.array_equal(shake(values, own_random(0, 0, 0), 0.0, 0.0), values)
    assert resample(np.array([[0.0], [2.0]], np.float32), np.array([0, 0.25, 1])).ravel().tolist() == [0, 0.5, 2]


@pytest.mark.parametrize("name", ["nano-sequences", "nano-encoder", "bert-base"])
def test_presets_fit(tmp_path, name):
    task = prepare(write_ts(tmp_path), tmp_path).task
    spec = task.fit(preset(name))
    assert (spec.input.kind, spec.input.channels, spec.output.classes, spec.length) == ("vectors", 3, 3, task.length)
    small = spec.replace(width=16, layers=1, **{"mixer.heads": 2})
    assert weft.build(small)(torch.zeros(2, 5, 3)).logits.shape == (2, 3)


def test_errors_say_what_to_do(tmp_path):
    path = write_ts(tmp_path)
    task = prepare(path, tmp_path).task
    np.savez(tmp_path / "odd.npz", x=np.zeros((2, 4, 3)), y=np.array(["rise", "hop"]))
    with pytest.raises(DataError, match="label 'hop' was not seen in training, where classes are fall, rise, wave"):
        task.read([str(tmp_path / "odd.npz")], tmp_path)
    np.savez(tmp_path / "thin.npz", x=np.zeros((2, 4, 2)), y=np.array(["rise", "fall"]))
    for call in (task.read, lambda paths, _: task.predict(None, paths, how())):
        with pytest.raises(DataError, match="sequences of 2 channels, but the model learned 3"):
            call([str(tmp_path / "thin.npz")], tmp_path)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(DataError, match=r"empty\.csv is empty"):
        prepare(tmp_path / "empty.csv", tmp_path)
    with pytest.raises(WeftError, match=r"no augmentation 'spin'"):
        prepare(path, tmp_path, augmentation="spin")
    with pytest.raises(WeftError, match=r"turn needs joints"):
        step_changes(("turn",), None)
    with pytest.raises(SpecError, match="vertical"):
        prepare(path, tmp_path, vertical="w")
    np.savez(tmp_path / "four.npz", x=np.ones((8, 4, 4)), y=np.array([0, 1] * 4))
    with pytest.raises(DataError, match=r"4 channels are no x, y, z"):
        prepare(tmp_path / "four.npz", tmp_path, vertical="y")


def test_options_come_from_the_command_line(tmp_path):
    changes = {"data.differences": "true", "data.augmentation": "warp", "data.vertical": "z", "data.scaled": "no"}
    run = train(write_ts(tmp_path), tmp_path / "run", steps=2, **changes)
    assert run.module.spec.input.channels == 6 and run.task.preparation.vertical == "z"
    assert run.task.preparation.mean == () and weft.load(tmp_path / "run").task.options == run.task.options


def test_few_sequences_make_small_batches(tmp_path):
    prepared = prepare(write_ts(tmp_path), tmp_path)
    assert prepared.task.recipe(Size(), 50).most_batch == 512
    prepared.task.seen = 20_000
    assert prepared.task.recipe(Size(), 50).most_batch == 2048
    planner = Planner(prepared.task, prepared.train, prepared.validation, {}, {}, 0, torch.device("cpu"))
    assert [planner._suitable_batch(Size(), tokens) for tokens in (1e5, 5e5, 1e8)] == [512, 1024, 2048]
    prepared.task.seen = 1_000_000
    assert prepared.task.recipe(Size(), 50).most_batch is None
    changes = {name: value for name, value in SMALL.items() if name != "training.batch"}
    request = TrainRequest("sequences", (str(tmp_path / "a.ts"),), tmp_path / "run", changes=changes, steps=1)
    done = run_training(request, Reporter())
    assert done.plan.batch == 512
