"""What mutated files found (`make fuzz`), each as a plain test: one sentence, and nothing broken is taken for sound."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save
from typer.testing import CliRunner

from file_readers import READERS, FileReader
from weft.checkpoints.run_folder import RunFolder
from weft.cli.main import app
from weft.data.readers.captions import read_captions
from weft.data.readers.images import read_image
from weft.data.readers.sounds import read_sound
from weft.foundation.errors import LONGEST_SENTENCE, WeftError
from weft.foundation.files.atomic_files import DiskError
from weft.inference.decoding.beam import Beam
from weft.laws.finding import BrokenLawError
from weft.training.racing.race_folder import RaceFolder


def reader(name: str) -> FileReader:
    return next(one for one in READERS if one.name == name)


def refused(name, content, folder):
    """The sentence with which a reader refuses a content."""
    path = folder / reader(name).file
    path.write_bytes(content)
    with pytest.raises(WeftError) as caught:
        reader(name).read(path)
    return str(caught.value)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# --- nothing broken is taken for sound -------------------------------------------------------------------------------


def test_every_byte_of_a_png_counts(tmp_path):
    """Pillow skips the checksums of pixels."""
    for seed in reader("image").seeds():
        at = seed.index(b"IDAT") + 6
        assert "does not fit its checksum" in refused("image", flipped(seed, at), tmp_path)
        assert "does not fit its checksum" in refused("image", seed[: seed.index(b"IEND") - 4], tmp_path)
        (tmp_path / "more.png").write_bytes(seed + b"more")
        assert read_image(tmp_path / "more.png").size


def test_a_damaged_header_is_not_the_end_of_an_archive(tmp_path):
    """The module tarfile would leave out all that follows."""
    [seed] = reader("tar").seeds()
    assert "a header does not fit its checksum" in refused("tar", flipped(seed, 1024 + 3), tmp_path)
    assert "a header does not fit its checksum" in refused("tar", seed[: 1024 + 100], tmp_path)


def test_checksums_at_the_end_of_packed_archives_are_compared(tmp_path):
    gzipped, packed = reader("tgz").seeds()
    assert "is not a complete archive" in refused("tgz", flipped(gzipped, len(gzipped) - 6), tmp_path)
    assert "is not a complete archive" in refused("tgz", flipped(packed, len(packed) - 6), tmp_path)


def test_the_length_of_a_sound_fits_the_file(tmp_path):
    for seed in reader("wav").seeds():
        at = seed.index(b"data") + 4
        for bit in range(32):
            size = int.from_bytes(seed[at : at + 4], "little") ^ 1 << bit
            told = refused("wav", seed[:at] + size.to_bytes(4, "little") + seed[at + 4 :], tmp_path)
            assert "contradict each other" in told or "is cut off" in told
    streamed = seed[:4] + b"\xff" * 4 + seed[8:at] + b"\xff" * 4 + seed[at + 4 :]
    (tmp_path / "streamed.wav").write_bytes(streamed)
    assert len(read_sound(tmp_path / "streamed.wav")[1]) == 30


def test_samples_are_numbers(tmp_path):
    seed = reader("wav").seeds()[3]  # of floats
    at = seed.index(b"data") + 8
    for number in (float("nan"), float("inf")):
        assert "no finite numbers" in refused("wav", seed[:at] + struct.pack("<f", number) * 60, tmp_path)


def test_a_gguf_file_ends_with_its_tensors(tmp_path):
    [seed] = reader("gguf").seeds()
    assert "bytes after its tensors" in refused("gguf", flipped(seed, 8), tmp_path)


def test_pieces_have_no_unknown_fields(tmp_path):
    [seed] = reader("sentencepiece").seeds()
    assert "a piece has a field 4" in refused("sentencepiece", b"\x0a\x05\x0a\x01a\x20\x01" + seed, tmp_path)


# --- one sentence ----------------------------------------------------------------------------------------------------


def test_a_member_without_a_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"")
    content = (tmp_path / "a.zip").read_bytes()
    at = content.index(b"PK\x01\x02")
    nameless = content[: at + 28] + b"\0\0" + content[at + 30 : at + 46] + content[at + 47 :]
    end = nameless.index(b"PK\x05\x06")
    size = struct.pack("<I", end - at)
    assert "holds no image" in refused("zip", nameless[: end + 12] + size + nameless[end + 16 :], tmp_path)


def test_a_series_of_empty_lines(tmp_path):
    assert "a.csv is empty" in refused("series", b"\n\n", tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_names_that_no_file_can_have(name, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": name, "caption": "a"}) + "\n")
    with pytest.raises(WeftError, match="there is no image") as caught:
        read_captions([tmp_path / "a.jsonl"])
    assert len(str(caught.value)) < 600


def test_sentences_are_short_and_keep_their_remedy():
    told = str(WeftError(f"there is no field {'x' * 5000}: choose another"))
    assert len(told) < 350 and told.startswith("there is no field xxx") and told.endswith("x: choose another")
    told = str(WeftError("a, " * 5000 + "and no more: choose one"))
    assert len(told) <= LONGEST_SENTENCE and told.endswith("and no more: choose one")
    assert str(WeftError("short " * 100)) == "short " * 100 and str(WeftError(7)) == "7" and str(WeftError()) == ""
    assert len(str(BrokenLawError("a law " * 1000))) == 6000


@pytest.mark.parametrize("change", [{"path": ["a"]}, {"size": "1"}, {"modified": None}, {"sha256": {}}, {"more": 1}])
def test_fingerprints_of_the_wrong_kind(change, tmp_path):
    [seed] = reader("fingerprints").seeds()
    tree = json.loads(seed)
    tree["files"][0] |= change
    assert "is not a list of data files" in refused("fingerprints", json.dumps(tree).encode(), tmp_path)


def test_rows_of_metrics_whose_step_is_no_number(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": "x"}\n{"step": 1, "loss": 2}\n{"step": [1]}\n{"step": 3}\n')
    run = RunFolder(tmp_path)
    assert [row["step"] for row in run.read_metrics()] == [1, 3]
    run.keep_metrics_until(2)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 2}\n'


@pytest.mark.parametrize("facts", ["[]", "7", '{"step": "x"}', "{}", "[" * 100_000, "{"])
def test_states_whose_facts_are_no_table(facts, tmp_path):
    (tmp_path / "training").mkdir()
    file = tmp_path / "training" / "state-00000001.safetensors"
    file.write_bytes(save({"a": torch.zeros(1)}, {"weft": facts}))
    with pytest.raises(DiskError, match="is not a complete training state"):
        RunFolder(tmp_path).read_state(file)
    assert RunFolder(tmp_path).read_snapshot() is None


def test_a_race_that_nobody_won(tmp_path):
    _, seed = reader("plan").seeds()
    tree = json.loads(seed)
    tree["race"]["winner"] = 2
    assert "winner 2 is none of the 2 entrants" in refused("plan", json.dumps(tree).encode(), tmp_path)
    tree["race"] |= {"winner": 0, "entrants": [{**tree["race"]["entrants"][0], "points": []}]}
    assert "none of the 1 entrants that were judged" in refused("plan", json.dumps(tree).encode(), tmp_path)


def test_entrants_that_are_not_those_of_the_plan(tmp_path):
    folder, [entrants] = RaceFolder(RunFolder(tmp_path)), reader("race").seeds()
    folder.path.mkdir()
    (folder.path / "entrants.json").write_text(json.dumps([{**json.loads(entrants)[0], "entrant": None}]))
    with pytest.raises(WeftError, match=r"entrants.json is broken .*a plan has no entrant"):
        folder.read_entrants()
    (folder.path / "entrants.json").write_text(json.dumps(json.loads(entrants)[:1]))
    (tmp_path / "plan.json").write_bytes(reader("plan").seeds()[1])
    with pytest.raises(WeftError, match="are not of one race"):
        folder.complete()


@pytest.mark.parametrize("at", [b"y.npy", b"x.npy"])
def test_names_in_an_npz_agree_with_the_index(at, tmp_path):
    """An array that may be left out was left out when a bit of its name in the index was flipped."""
    [seed] = reader("sequence arrays").seeds()
    place = seed.rindex(b"lengths.npy")
    assert "is not a readable .npz file" in refused("sequence arrays", flipped(seed, place), tmp_path)
    told = refused("sequence arrays", flipped(seed, seed.rindex(at)), tmp_path)
    assert "is not a readable .npz file" in told and len(told) < 400


# --- numbers that no machine has -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set=layers=1000000000"], "layers: Input should be less than or equal to 4096"),
        (["--set=width=9223372036854775807"], "no tensor can have these sizes"),
        (["--device=meta"], "device 'meta' has no numbers to compute with"),
        (["--processes=100000"], "this machine runs at most"),
    ],
)
def test_a_training_that_cannot_be(words, told, tmp_path, monkeypatch):
    """Each of them took for ever, or all of the machine's processes, or ended in a traceback."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["train", "text", "sample:markov", "--steps=2", "--out=run", *words])
    assert done.exit_code == 2 and done.stdout == "", done.exception
    said = [line for line in done.stderr.splitlines() if line.startswith("weft: ")]
    assert len(said) == 1 and told in said[0] and len(said[0]) < 600, done.stderr
    assert not (tmp_path / "run" / "spec.json").exists()


def test_a_path_of_any_length_is_told_in_short(tmp_path):
    words = [sys.executable, "-m", "weft", "train", "text", "sample:markov", "--steps=2", "--out", "x" * 5000]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "File name too long" in told and len(told) < 400


def test_a_beam_of_any_width():
    assert Beam(1 << 16).width == 1 << 16
    with pytest.raises(WeftError, match="at most 65,536 hypotheses"):
        Beam(10**30)


def test_messages_of_libraries_are_one_line():
    assert (
        str(WeftError("a.parquet is broken: thrift\n  No more data.\n")) == "a.parquet is broken: thrift No more data."
    )
