"""Task transcription: sounds and vectors with texts, from files to predictions and pictures; error rates; errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.data.readers.files import DataError
from weft.data.readers.sounds import log_mel, read_sound, write_sound
from weft.data.readers.transcripts import read_transcripts
from weft.data.samples import SAMPLE_RATE, sample, write_spoken
from weft.foundation.errors import LengthError, WeftError
from weft.inspection.pictures.look import kinds_of, observe, picture_of
from weft.inspection.pictures.look_options import LookOptions
from weft.inspection.pictures.tasks.transcription import spoken_links, words_of_tokens
from weft.models.presets import preset
from weft.runs.run import load
from weft.tasks.support.evaluation.metrics import character_error_rate, edit_distance, word_error_rate
from weft.tasks.support.splits.transcripts import erase_stretches, frame_changes, hold_transcripts_out
from weft.tasks.task import GenerationOptions, Size
from weft.tasks.transcription import TranscriptionOptions, TranscriptionTask

QUICK = {"training.threads": 1, "training.guard": False, "data.augment": "none"}
WORDS = ("up", "down", "left")
TINY = {
    **QUICK, "width": 32, "layers": 1, "mixer.heads": 2, "encoder.mixer": {"kind": "convolution", "kernel": 3},
    "training.batch": 256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A run that learned from the sounds of the built-in sample; its folder, and that of other sounds."""
    folder = tmp_path_factory.mktemp("spoken")
    found = sample("spoken", size=500)
    write_spoken(found.train, folder / "train")
    write_spoken(found.validation, folder / "held")
    changes = {**QUICK, "data.validation": str(folder / "held"), "training.evaluate_every": 200}
    run = weft.train("transcription", folder / "train", out=folder / "run", steps=200, set=changes)
    return run, folder


def moves(count: int, seed: int = 0, channels: int = 2):
    """Vectors that stay for 3 to 5 steps up, down or left for each of 1 to 3 words."""
    random = np.random.default_rng(seed)
    directions = {"up": (0.0, 1.0), "down": (0.0, -1.0), "left": (-1.0, 0.0)}
    values, texts = [], []
    for _ in range(count):
        words = [WORDS[n] for n in random.integers(3, size=random.integers(1, 4))]
        rows = [np.tile(directions[word], (random.integers(3, 6), 1)) for word in words]
        steps = np.concatenate([part for row in rows for part in (row, np.zeros((1, 2)))])
        noisy = steps + 0.05 * random.standard_normal(steps.shape)
        values.append(np.pad(noisy, ((0, 0), (0, channels - 2))).astype(np.float32))
        texts.append(" ".join(words))
    return values, texts


def write_moves(folder, count: int, seed: int = 0, channels: int = 2, name: str = "texts.csv"):
    """One .npz of all sequences, named by as many lines of a table."""
    folder.mkdir(exist_ok=True)
    values, texts = moves(count, seed, channels)
    longest = max(map(len, values))
    x = np.stack([np.pad(one, ((0, longest - len(one)), (0, 0))) for one in values])
    np.savez(folder / "moves.npz", x=x, lengths=np.array([len(one) for one in values]))
    (folder / name).write_text("file,text\n" + "".join(f"moves.npz,{text}\n" for text in texts))
    return values, texts


# --- training, prediction, evaluation, pictures -----------------------------------------------------------------------


def test_the_sample_is_learned_far_better_than_by_its_neighbors(spoken):
    run, folder = spoken
    metrics = run.evaluate(folder / "held")
    assert metrics.keys() >= {"cer", "wer", "exact_match", "loss", "sequences"} and json.dumps(metrics)
    train, held = (run.task.read([str(folder / part)], folder) for part in ("train", "held"))
    references = run.task.references(train, held)
    assert metrics["cer"] < 0.25 < 0.4 < min(references.values())
    again = load(folder / "run")
    assert again.evaluate(folder / "held") == metrics


def test_sounds_are_predicted_from_their_paths(spoken):
    run, folder = spoken
    paths = sorted((folder / "held").glob("*.wav"))[:12]
    answers = run.predict(paths)
    for how in ({"beam": 2}, {"temperature": 1.0, "seed": 3}, {"samples": 2, "temperature": 0.5}):
        assert run.predict(paths, **how) == load(folder / "run").predict(paths, **how)
    alone = [run.predict([path])[0] for path in paths]
    assert answers == alone
    more = run.answer(paths[:1])[0].more
    assert more["source_tokens"][:3] == ["0.00", f"{0.01 * run.module.spec.source.patch:.2f}", more["source_tokens"][2]]


def test_a_picture_shows_where_in_time_each_word_looks(spoken, tmp_path):
    run, _ = spoken
    seen = observe(run, "sample:/1")
    assert seen.source[0] == "0.00" and seen.written[-1] == "<stop>"
    picture = picture_of(seen)
    channels, alignment, _ = picture.panels
    assert channels.values.shape == (len(seen.values), 40)
    assert alignment.columns == seen.source and alignment.rows == seen.written
    if seen.said == seen.truth.text:
        assert alignment.gold is not None
    picture.write(tmp_path / "look.html")
    assert (tmp_path / "look.html").stat().st_size > 10_000


def test_every_kind_of_picture_is_drawn_or_not_offered(spoken):
    run, folder = spoken
    seen = observe(run, str(folder / "held" / "0000.wav"))
    kinds = kinds_of(seen)
    assert {"alignment", "attention", "lens", "rollout"} <= set(kinds) and "reach" not in kinds
    for kind in kinds:
        assert picture_of(seen, LookOptions(kind=kind)).panels


def test_vectors_of_one_file_are_learned(tmp_path):
    write_moves(tmp_path / "moves", 120)
    values, texts = moves(9, seed=7)
    run = weft.train("transcription", tmp_path / "moves", out=tmp_path / "run", steps=120, set=TINY)
    assert run.module.spec.source.kind == "series" and run.task.facts()["sources"]["rate"] is None
    for number, one in enumerate(values):
        np.savez(tmp_path / f"{number}.npz", x=one[None])
    answers = run.predict([tmp_path / f"{number}.npz" for number in range(9)])
    assert character_error_rate(answers, texts) < 0.3


def test_a_run_is_trained_on_with_other_sounds(spoken, tmp_path):
    run, folder = spoken
    more = weft.train("transcription", folder / "held", out=tmp_path / "more", base=folder / "run", steps=2, set=QUICK)
    assert more.task.tokenizer.vocabulary == run.task.tokenizer.vocabulary
    assert more.task.preparation == run.task.preparation


@pytest.mark.parametrize(
    "changes",
    [
        {"source.kind": "vectors"},
        {"mixer": {"kind": "recurrence"}, "encoder.mixer": {"kind": "recurrence", "bidirectional": True}},
        {"mixer": {"kind": "convolution"}, "encoder.mixer": {"kind": "none"}, "encoder.width": 48},
    ],
    ids=["vectors", "recurrence", "convolution"],
)
def test_other_sources_and_mixers_train(tmp_path, changes):
    write_moves(tmp_path / "moves", 30)
    small = {**TINY, "encoder.mixer": {"kind": "none"}, **changes}
    small = {name: value for name, value in small.items() if name != "mixer.heads" or "mixer" not in changes}
    if changes.get("source.kind") == "vectors":
        small |= {"source.channels": 2}
    weft.train("transcription", tmp_path / "moves", out=tmp_path / "run", steps=3, set=small)
    np.savez(tmp_path / "one.npz", x=moves(1)[0][0][None])
    assert len(load(tmp_path / "run").predict([tmp_path / "one.npz"])) == 1


def test_a_preset_takes_the_sizes_of_the_data(tmp_path):
    write_moves(tmp_path / "moves", 30)
    found = TranscriptionTask.prepare([str(tmp_path / "moves")], TranscriptionOptions(), 0, tmp_path)
    spec = found.task.fit(preset("nano-speech-seq2seq"))
    assert (spec.source.channels, spec.source.patch) == (2, 4) and spec.encoder.width == 96
    assert spec.vocabulary == found.task.tokenizer.vocabulary
    for name in ("nano-seq2seq", "nano-image-seq2seq"):
        with pytest.raises(WeftError, match=r"reads vectors, but this model's source is (tokens|patches)"):
            found.task.fit(preset(name))


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_pads_sources_with_zeros_that_change_no_loss(tmp_path):
    write_moves(tmp_path / "moves", 40)
    found = TranscriptionTask.prepare([str(tmp_path / "moves")], TranscriptionOptions(), 0, tmp_path)
    task, split = found.task, found.train
    spec = task.default_model(Size(24, 2)).replace(**{"initialization.zero_residual": False, "source.patch": 3})
    module = weft.build(spec, dtype=torch.float64).eval()
    rows = sorted(range(len(split)), key=lambda n: len(split.values[n]))
    mixed = split.batch([rows[0], rows[-1], rows[3]])
    assert mixed.inputs["source"].shape[1] == len(split.values[rows[-1]])
    assert not mixed.inputs["source"][0, len(split.values[rows[0]]) :].any()
    each = [task.loss(module, split.batch([n])) for n in (rows[0], rows[-1], rows[3])]
    whole = task.loss(module, mixed)
    assert abs(whole.total.item() - sum(one.total.item() for one in each)) < 1e-9
    assert whole.count == sum(one.count for one in each)


def test_augmentation_follows_from_the_seed_and_keeps_the_text(tmp_path):
    write_moves(tmp_path / "moves", 20)
    split = TranscriptionTask.prepare([str(tmp_path / "moves")], TranscriptionOptions(), 0, tmp_path).train
    plain, once, again, other = (split.row(3, *how) for how in ((), (1, 0), (1, 0), (1, 1)))
    assert np.array_equal(once, again) and not np.array_equal(once[: len(plain)], plain[: len(once)])
    assert once.shape != other.shape or not np.array_equal(once, other)
    assert 0.8 * len(plain) < len(once) < 1.2 * len(plain)


def test_erased_stretches_are_zero_and_the_rest_is_untouched():
    values = np.random.default_rng(0).standard_normal((101, 41)).astype(np.float32) + 9
    erased = erase_stretches(values, np.random.default_rng(4))
    gone = erased == 0
    assert 0 < gone.mean() < 0.25 and np.array_equal(erased[~gone], values[~gone])
    assert (gone.all(1) | gone.all(0)[None].any()).any()


# --- error rates ------------------------------------------------------------------------------------------------------


def slow_distance(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


@given(st.text("abc", max_size=70), st.text("abc", max_size=70))
@settings(max_examples=150, deadline=None)
def test_the_edit_distance_is_that_of_the_table(one, other):
    assert edit_distance(one, other) == slow_distance(one, other)


def test_error_rates_by_hand():
    assert edit_distance("kitten", "sitting") == 3
    assert character_error_rate(["abxd", ""], ["abcd", "ef"]) == pytest.approx(3 / 6)
    assert word_error_rate(["one  two three"], ["one three"]) == pytest.approx(1 / 2)
    assert word_error_rate(["a b c d"], ["x"]) == 4.0
    assert character_error_rate(["größe"], ["größe"]) == 0.0
    with pytest.raises(WeftError, match="all references are empty"):
        character_error_rate(["a"], [" "])


# --- pictures' gold ---------------------------------------------------------------------------------------------------


def test_links_follow_the_moments_in_which_words_are_said():
    one = sample("spoken", size=3).train[0]
    assert one.text == "eight six"
    words = words_of_tokens(weft.data.tokenizers.tokenizer.train_tokenizer("characters", [one.text], 99), one.text)
    assert words == [0] * 5 + [None] + [1] * 3
    links = spoken_links(one, words, steps=2)
    frame = 2 * 0.01 * SAMPLE_RATE
    for word, found in zip(words, links, strict=True):
        if word is None:
            assert found == set()
            continue
        first, last = one.spans[word]
        assert min(found) * frame <= first < (min(found) + 1) * frame
        assert max(found) * frame <= last < (max(found) + 1) * frame


# --- reading ----------------------------------------------------------------------------------------------------------


def sounds(folder, count: int = 3, rate: int = 8000):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        wave = 0.3 * np.sin(np.arange(2000 + 100 * number) * (0.1 + 0.1 * number)).astype(np.float32)
        write_sound(folder / f"{number}.wav", wave, rate)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("t.csv", 'file,text\n0.wav,héllo\n1.wav,"a, b"\n', ()),
        ("t.csv", '0.wav,héllo\n1.wav,"a, b"\n', ()),
        ("t.tsv", "speaker\ttranscript\tpath\nx\théllo\t0.wav\ny\ta, b\t1.wav\n", ()),
        ("t.csv", "id;words;wave\n1;héllo;0.wav\n2;a, b;1.wav\n", ("wave", "words")),
        ("t.jsonl", '{"audio": "0.wav", "sentence": "héllo"}\n{"file": "1.wav", "text": "a,  b"}\n', ()),
    ],
)
def test_tables_of_files_and_texts(tmp_path, name, text, columns):
    sounds(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_transcripts([tmp_path], columns=columns)
    assert found.texts == ["héllo", "a, b"] and found.sources.rate == 8000
    assert np.array_equal(found.sources.values[0], log_mel(read_sound(tmp_path / "0.wav")[1], 8000))
    moved = tmp_path / "tables"
    moved.mkdir()
    (tmp_path / name).rename(moved / name)
    assert read_transcripts([moved / name], tmp_path, columns).texts == found.texts


def test_an_npz_of_several_sequences_is_named_once_for_each(tmp_path):
    values, texts = write_moves(tmp_path, 5)
    found = read_transcripts([tmp_path / "texts.csv"])
    assert found.texts == texts and found.sources.rate is None
    assert all(np.array_equal(a, b) for a, b in zip(found.sources.values, values, strict=True))
    table = tmp_path / "texts.csv"
    table.write_text(table.read_text() + "moves.npz,up\n")
    with pytest.raises(DataError, match=r"moves.npz holds 5 sequences, but 6 lines name it"):
        read_transcripts([table])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("file,text\n7.wav,x\n", r"line 2: there is no file .*7.wav; paths are relative"),
        ("file,text\n0.wav,  \n", "line 2: the text of 0.wav is empty"),
        ("file,text\nt.csv,x\n", "neither a .wav nor an .npz"),
        ("file,text\n", "no line of file and text"),
        ("0.wav,a,b\n", "3 columns and no header"),
        ("file,text\n0.wav,a\n1.wav,b\nother.wav,c\n", "16000 samples per second, but others have 8000"),
        ("file,text\n0.wav,a\nv.npz,b\n", "v.npz has 3 channels, but .*0.wav has 40"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, text, word):
    sounds(tmp_path)
    write_sound(tmp_path / "other.wav", np.zeros(999, np.float32), 16000)
    np.savez(tmp_path / "v.npz", x=np.zeros((1, 5, 3)))
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=word):
        read_transcripts([tmp_path / "t.csv"])


def test_other_nonsense_is_refused(tmp_path, spoken):
    run, folder = spoken
    sounds(tmp_path)
    (tmp_path / "one.csv").write_text("file,text\n0.wav,a\n")
    data = read_transcripts([tmp_path / "one.csv"])
    with pytest.raises(DataError, match="1 sequence: training and validation take two"):
        hold_transcripts_out(data, 0.1, 0)
    with pytest.raises(DataError, match="is no table of files and texts"):
        read_transcripts([tmp_path / "0.wav"])
    with pytest.raises(DataError, match=r"two are needed: those of file and text"):
        read_transcripts([tmp_path / "one.csv"], columns=["file"])
    with pytest.raises(WeftError, match="no augmentation 'echo'"):
        frame_changes(["echo"])
    write_sound(tmp_path / "high.wav", np.zeros(999, np.float32), 16000)
    with pytest.raises(DataError, match="sounds of 16000 samples per second, but the run learned from sounds of 8000"):
        run.predict([tmp_path / "high.wav"])
    np.savez(tmp_path / "v.npz", x=np.zeros((1, 5, 3)))
    with pytest.raises(DataError, match="has 3 channels, but the run learned from 40"):
        run.predict([tmp_path / "v.npz"])
    write_sound(tmp_path / "long.wav", np.zeros(80_000, np.float32), 8000)
    with pytest.raises(LengthError, match="but this model takes"):
        run.predict([tmp_path / "long.wav"])
    with pytest.raises(DataError, match="there is no file"):
        run.predict(["nothing.wav"])
    with pytest.raises(WeftError, match="has no sample 'dates'"):
        run.evaluate("sample:dates")
    with pytest.raises(WeftError, match="is of family vision"):
        weft.train("transcription", folder / "held", out=tmp_path / "x", preset="nano-vit", steps=1)
    for kind, word in {"tokens": "source is tokens", "vectors": "--set source.channels=40"}.items():
        with pytest.raises(WeftError, match=word):
            weft.train("transcription", folder / "held", out=tmp_path / "x", steps=1, set={"source.kind": kind})


def test_an_untrained_model_writes_something(tmp_path):
    write_moves(tmp_path / "moves", 12)
    found = TranscriptionTask.prepare(
        [str(tmp_path / "moves")], TranscriptionOptions(tokenizer="characters"), 0, tmp_path
    )
    module = weft.build(found.task.default_model(Size(32, 2))).eval()
    assert isinstance(found.task.preview(module, found.validation), str)
    subset = found.task.evaluation_subset(module, found.validation, 1e-9)
    assert subset.decoded and len(found.task._transcribe(module, [found.train.row(0)], GenerationOptions())) == 1
