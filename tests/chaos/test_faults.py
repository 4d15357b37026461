"""Full disks, closed folders, signals, clocks that jump, folders that move: one sentence, and nothing lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from disturbed import SEED, contents, run, small_disk, start, wait

import weft
from conftest import SMALL, TEXT
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.checkpoints.run_folder import RunFolder
from weft.data.stores.token_store import open_token_store
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError

pytestmark = pytest.mark.chaos
root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user or to mount a disk")
NOBODY = 65534
BUT = ("report.html", "plan.json")


def train(book: Path, out: Path, **more):
    changes = {**SMALL, **more.pop("changes", {})}
    begun = (out / "spec.json").exists()
    steps = more.pop("steps", 40)
    return weft.train("text", book, out, steps=steps, set={} if begun else changes, resume=begun, device="cpu", **more)


@pytest.fixture
def whole(book, tmp_path):
    ended = run(lambda: train(book, tmp_path / "whole"), tmp_path)
    assert ended.code == 0, ended
    return contents(tmp_path / "whole", BUT)


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def is_begun(out: Path) -> bool:
    return any((out / "training").glob("state-*")) if out.exists() else False


# --- disks -----------------------------------------------------------------------------------------------------------


@root
@pytest.mark.parametrize("size", [20, 60, 120, 180, 260])
def test_a_disk_that_is_full_in_the_middle_of_a_training(book, tmp_path, whole, size):
    with small_disk(tmp_path / "disk", size << 10) as disk:
        out = disk / "run"
        ended = run(lambda: train(book, out), tmp_path)
        assert ended.code in (0, 2) and "\n" not in ended.said, ended
        if ended.code == 2:
            assert "space" in ended.said or "full" in ended.said, ended
        assert os.system(f"mount -o remount,size=64m '{disk}'") == 0
        ended = run(lambda: train(book, out), tmp_path)
        assert ended.code == 0, ended
        assert contents(out, BUT) == whole


@root
def test_a_disk_that_is_full_while_folders_are_made(trained, tmp_path):
    weft.export(trained, "huggingface", tmp_path / "sound", certificate=False)
    for size in (4, 12, 24, 40):
        with small_disk(tmp_path / "disk", size << 10) as disk:
            for work in (
                lambda disk=disk: weft.export(trained, "huggingface", disk / "out", certificate=False),
                lambda disk=disk: convert_checkpoint(tmp_path / "sound", disk / "out", certified=False),
                lambda disk=disk: open_token_store([tmp_path / "sound" / "big.txt"], BYTES, disk / "out"),
            ):
                (tmp_path / "sound" / "big.txt").write_text(TEXT * 1000)
                ended = run(work, tmp_path)
                assert ended.code == 2 and "full" in ended.said and "\n" not in ended.said, ended
                left = [path for path in disk.rglob("*") if path.suffix != ".lock" and path.name != "out"]
                assert left == [] and not (disk / "out" / "spec.json").exists()
                shutil.rmtree(disk / "out", ignore_errors=True)
        (tmp_path / "disk").rmdir()


BYTES = train_tokenizer("bytes", [])


@root
def test_folders_that_cannot_be_written(book, tmp_path, trained):
    """As another user, because permission bits do not stop root; and on a disk that is mounted for reading."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for path in (trained, *trained.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "cache").mkdir(mode=0o777, exist_ok=True)
    (tmp_path / "cache").chmod(0o777)
    for work in (
        lambda: train(book, closed / "run"),
        lambda: weft.export(trained, "huggingface", closed / "out", certificate=False),
    ):
        ended = run(work, tmp_path, NOBODY)
        assert ended.code == 2 and "ermission denied" in ended.said and "\n" not in ended.said, ended
    assert list(closed.iterdir()) == []
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        assert os.system(f"mount -o remount,ro '{disk}'") == 0
        ended = run(lambda: train(book, disk / "run"), tmp_path)
        assert ended.code == 2 and "ead-only" in ended.said, ended


@root
def test_permission_that_is_revoked_in_the_middle(book, tmp_path, whole):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    open_place = tmp_path / "open"
    open_place.mkdir()
    os.chown(open_place, NOBODY, NOBODY)
    (tmp_path / "cache").chmod(0o777)
    for path in (tmp_path / "cache").iterdir():
        path.chmod(0o777)
    out, said = open_place / "run", tmp_path / "said"
    child = start(lambda: train(book, out, steps=40), said, NOBODY)
    until(lambda: is_begun(out))
    for path in (out, out / "training"):
        os.chown(path, 0, 0)
        path.chmod(0o755)
    ended = wait(child, said)
    assert ended.code == 0 or (ended.code == 2 and "\n" not in ended.said), ended
    ended = run(lambda: train(book, out), tmp_path)
    assert ended.code == 0 and contents(out, BUT) == whole, ended


# --- signals, clocks, other processes --------------------------------------------------------------------------------


def command(book, out, *more):
    settings = [f"--set={name}={value}" for name, value in SMALL.items()]
    return [sys.executable, "-m", "weft", "train", "text", str(book), f"--out={out}", *settings, *more]


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGHUP]]
)
def test_signals(book, tmp_path, whole, signals):
    out = tmp_path / "run"
    child = subprocess.Popen(command(book, out, "--steps=40"), stderr=subprocess.PIPE, text=True)
    until(lambda: is_begun(out) or child.poll() is not None)
    for number in signals:
        child.send_signal(number)
        time.sleep(0.01)
    told = child.communicate(timeout=60)[1]
    assert "Traceback" not in told, told
    assert child.returncode in (0, 130, -signal.SIGTERM, -signal.SIGHUP), (child.returncode, told)
    assert run(lambda: train(book, out), tmp_path).code == 0
    assert contents(out, BUT) == whole


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0 * 365])
def test_a_clock_that_jumps(book, tmp_path, whole, jump):
    def work():
        real, calls = time.time, [0]

        def jumping():
            calls[0] += 1
            return real() + (jump if calls[0] % 2 else 0.0)

        time.time = jumping
        train(book, tmp_path / "run")

    ended = run(work, tmp_path)
    assert ended.code == 0 and contents(tmp_path / "run", BUT) == whole, ended


def test_two_runs_in_one_folder(book, tmp_path, whole):
    out, said = tmp_path / "run", tmp_path / "said"
    child = start(lambda: train(book, out), said)
    until(lambda: is_begun(out))
    other = run(lambda: train(book, out), tmp_path)
    ended = wait(child, said)
    assert ended.code == 0 and contents(out, BUT) == whole, ended
    assert other.code in (0, 2) and (other.code == 0 or f"is being written by process {child}" in other.said), other


def test_data_that_changes_under_a_resumed_run(book, tmp_path):
    out, said = tmp_path / "run", tmp_path / "said"
    child = start(lambda: train(book, out, steps=4000), said)
    until(lambda: is_begun(out))
    os.kill(child, signal.SIGKILL)
    wait(child, said)
    before = contents(out)
    book.write_text(book.read_text().replace("shore", "store"))
    ended = run(lambda: train(book, out, steps=4000), tmp_path)
    assert ended.code == 2 and "book.txt has changed since the run" in ended.said, ended
    assert {name for name in contents(out) if not name.endswith(".new")} <= set(before)


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_folder_that_is_moved_or_copied_in_the_middle(book, tmp_path, whole, how):
    out, said, there = tmp_path / "run", tmp_path / "said", tmp_path / "there"
    child = start(lambda: train(book, out), said)
    until(lambda: is_begun(out))
    if how == "moved":
        os.rename(out, there)
    else:
        copy = subprocess.run(["cp", "-r", str(out), str(there)], check=False)
        assert copy.returncode in (0, 1)  # a file may vanish under it
    ended = wait(child, said)
    if how == "copied":
        assert ended.code == 0 and contents(out, BUT) == whole, ended
    else:
        assert ended.code == 0 or (ended.code == 2 and "\n" not in ended.said), ended
        assert not out.exists(), contents(out)  # nothing is begun where the run was
    ended = run(lambda: train(book, there), tmp_path)
    assert ended.code == 0 and contents(there, BUT) == whole, ended


# --- broken files ----------------------------------------------------------------------------------------------------


def spoiled(data: bytes, how: str) -> bytes:
    middle = len(data) // 2
    return {
        "empty": b"",
        "half": data[:middle],
        "zeros": bytes(len(data)),
        "first byte": bytes([data[0] ^ 0x80]) + data[1:],
        "more": data + b"more",
        "a bit": flipped(data, random.Random(f"{SEED} {len(data)}")),
    }[how]


def flipped(data: bytes, drawn: random.Random) -> bytes:
    """One bit, anywhere."""
    at = drawn.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << drawn.randrange(8)]) + data[at + 1 :]


@pytest.mark.parametrize("how", ["empty", "half", "zeros", "first byte", "more", "a bit"])
def test_broken_files_of_a_run_are_named(book, tmp_path, whole, how):
    """Each file in turn: the run can be loaded and resumed, or a sentence names the file."""
    for name in sorted(contents(tmp_path / "whole")):
        if name in ("report.html", "command.txt"):
            continue
        out = tmp_path / "broken"
        shutil.copytree(tmp_path / "whole", out)
        file = out / name
        file.write_bytes(spoiled(file.read_bytes(), how))
        for work in (lambda out=out: weft.load(out), lambda out=out: train(book, out)):
            ended = run(work, tmp_path)
            assert ended.code in (0, 2) and "\n" not in ended.said, (name, ended)
            if ended.code == 2 and how != "a bit":  # which can make a field another, valid one
                stem = Path(name).name.split(".")[0].split("-")[0]
                assert stem in ended.said or "tokenizer" in ended.said, (name, ended)
        shutil.rmtree(out)


def test_a_damaged_state_gives_way_to_the_one_before(book, tmp_path):
    out = tmp_path / "run"
    ended = run(lambda: train(book, out, changes={"training.keep": 3}), tmp_path)
    assert ended.code == 0, ended
    newest = RunFolder(out).newest_state()
    assert newest is not None
    step = RunFolder(out).read_snapshot().step
    newest.write_bytes(newest.read_bytes()[:1000])
    assert RunFolder(out).read_snapshot().step < step
    with pytest.raises(WeftError, match="is not a complete"):
        RunFolder(out).read_state(newest)
