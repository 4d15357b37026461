"""Nothing remains of what was killed or had no room, and no folder is taken from who is writing it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from weft.checkpoints.run_folder import RunFolder
from weft.foundation.files import atomic_files
from weft.foundation.files.atomic_files import DiskError, atomic_folder, lock_folder


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
    training = tmp_path / "training"
    training.mkdir()
    left = [tmp_path / ".spec.json.77.new", training / ".state-00000012.safetensors.4242.new"]
    kept = [tmp_path / "mine.new", tmp_path / ".mine.new", training / "state-00000011.safetensors"]
    for file in (*left, *kept):
        file.write_text("x")
    with RunFolder(tmp_path).hold():
        assert not any(file.exists() for file in left) and all(file.exists() for file in kept)


def test_a_kill_while_a_state_is_written(tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom weft.foundation.files import atomic_files\n"
        "atomic_files.flush_to_disk = lambda path: os.kill(os.getpid(), 9)\n"
        "atomic_files.write_text(Path(sys.argv[1]) / 'training' / 'state-00000001.safetensors', 'x' * 1000)\n"
    )
    (tmp_path / "training").mkdir()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert len(list((tmp_path / "training").iterdir())) == 1
    with RunFolder(tmp_path).hold():
        assert list((tmp_path / "training").iterdir()) == []


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["os.ftruncate", "os.pwrite", "os.replace", "os.open", "pathlib.Path.mkdir"])
def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch, place):
    out = tmp_path / "run"
    monkeypatch.setattr(place, full)
    if place in ("os.ftruncate", "os.pwrite"):  # only who holds the lock is not noted
        with atomic_folder(out, "importing") as fresh:
            (fresh / "a").touch()
        assert (out / "a").exists()
    else:
        with (
            pytest.raises(DiskError, match="the disk is full"),
            atomic_folder(out, "importing"),
        ):
            pass
        assert not out.exists()
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir() if file.name != "run"] == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    left = tmp_path / ".run.exporting"
    (left / "inner").mkdir(parents=True)
    (left / ".lock").write_text("77")  # an older version kept it there
    (tmp_path / ".run.exporting.lock").write_text("77")
    with atomic_folder(tmp_path / "run", "exporting") as fresh:
        assert list(fresh.iterdir()) == []
        (fresh / "b").touch()
    assert [file.name for file in tmp_path.rglob("*")] == ["run", "b"]


def test_a_second_process_is_refused_until_the_folder_is_in_place(tmp_path, monkeypatch):
    """The lock is beside the folder: it is held while the folder is moved, and what is moved is never emptied."""
    out, tried = tmp_path / "run", []
    real = os.replace

    def replace(source, target):
        for _ in range(2):
            with pytest.raises(DiskError, match=f"process {os.getpid()}"), atomic_folder(out, "importing"):
                pass
            tried.append(sorted(file.name for file in Path(source).iterdir()))
        real(source, target)

    monkeypatch.setattr(atomic_files.os, "replace", replace)
    with atomic_folder(out, "importing") as fresh:
        (fresh / "model").touch()
    assert tried == [["model"]] * 2 and (out / "model").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run"]


RACE = """
import os, shutil, sys
from pathlib import Path
from weft.foundation.files.atomic_files import DiskError, atomic_folder
out, mine, made = Path(sys.argv[1]), Path(sys.argv[2]), 0
for turn in range(100):
    try:
        with atomic_folder(out, "importing") as fresh:
            for name in range(5):
                (fresh / str(name)).write_text(f"{mine} {turn}")
    except DiskError:
        continue
    os.rename(out, mine)
    assert sorted(file.name for file in mine.iterdir()) == ["0", "1", "2", "3", "4"]
    assert {file.read_text() for file in mine.iterdir()} == {f"{mine} {turn}"}
    shutil.rmtree(mine)
    made += 1
print(made)
"""


def test_processes_that_race_for_one_folder(tmp_path):
    """What one has finished is whole and its own, however often they meet."""
    commands = [[sys.executable, "-c", RACE, tmp_path / "run", tmp_path / f"mine{n}"] for n in range(3)]
    together = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    made = [process.communicate()[0] for process in together]
    assert [process.returncode for process in together] == [0, 0, 0] and any(int(count) for count in made)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path):
    """Between opening and locking, the holder may have removed the file: then a new one is locked."""
    waiting, order = threading.Event(), []
    real = os.path.samestat

    def samestat(one, other):
        if not order:
            order.append("removed")
            (tmp_path / ".lock").unlink()
            return real(one, other) and False
        waiting.set()
        return real(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_files.os.path, "samestat", samestat)
        with lock_folder(tmp_path):
            assert waiting.is_set() and (tmp_path / ".lock").exists()
