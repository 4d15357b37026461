"""The cache of compiled libraries: only what this user built, as it was built, is ever loaded."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from weft.foundation import native_code
from weft.foundation.errors import WeftError
from weft.foundation.files.folders import cache_folder
from weft.foundation.files.private_folder import NotPrivateError, private_folder

COMPILER = native_code.find_compiler()
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler on this machine")

LOAD = """
import ctypes
from weft.foundation import native_code
def declare(found):
    found.weft_norm.restype = ctypes.c_double
    return found
found = native_code.load_library("weft.training.native", ("update.c",), declare)
print("none" if found is None else found.weft_norm(None, None, 0, 1))
"""
PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { FILE *file = fopen("%s", "w"); if (file) fclose(file); }
double weft_norm(void) { return 7; }
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE", str(folder))
    monkeypatch.delenv("WEFT_NATIVE", raising=False)
    return folder


def load(**environment):
    """In a process of its own: a library that was cut off ends it."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def library_in(cache: Path) -> Path:
    [found] = (cache / "native").glob("update-*.so")
    return found


def test_the_folder_is_private_and_nothing_else_is_left_in_it(cache):
    assert load() == (0, "0.0", "")
    assert stat.S_IMODE((cache / "native").stat().st_mode) == 0o700
    library = library_in(cache)
    assert {file.name for file in (cache / "native").iterdir()} == {library.name, f"{library.name}.sha256", ".lock"}


@pytest.mark.parametrize("spoil", ["cut", "flip", "empty", "no digest", "other digest"])
def test_a_library_that_is_not_as_it_was_built_is_built_again(cache, spoil):
    assert load() == (0, "0.0", "")
    library = library_in(cache)
    built, digest = library.read_bytes(), library.with_name(f"{library.name}.sha256")
    if spoil == "cut":
        os.truncate(library, 5000)
    elif spoil == "flip":
        library.write_bytes(built[:100] + bytes([built[100] ^ 1]) + built[101:])
    elif spoil == "empty":
        os.truncate(library, 0)
    elif spoil == "no digest":
        digest.unlink()
    else:
        digest.write_bytes(b"\xff")
    assert load() == (0, "0.0", "")
    assert len(library.read_bytes()) == len(built) and digest.read_text() != ""


def plant(cache: Path, mark: Path) -> Path:
    """A library with the right name and a fitting digest that would create a file when it is loaded."""
    library = library_in(cache)
    source = cache / "planted.c"
    source.write_text(PLANTED % mark)
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    library.with_name(f"{library.name}.sha256").write_text(native_code._digest(library))
    return library


def test_what_others_could_have_written_is_not_loaded(cache, tmp_path):
    assert load() == (0, "0.0", "")
    plant(cache, tmp_path / "ran")
    assert load()[1] != "0.0" and (tmp_path / "ran").exists()  # the folder was private: it is trusted
    (tmp_path / "ran").unlink()
    (cache / "native").chmod(0o777)
    assert load() == (0, "0.0", "")
    assert not (tmp_path / "ran").exists() and stat.S_IMODE((cache / "native").stat().st_mode) == 0o700


def test_folders_that_others_can_exchange_are_refused(cache, tmp_path):
    assert load() == (0, "0.0", "")
    plant(cache, tmp_path / "ran")
    cache.chmod(0o777)
    code, said, told = load()
    assert (code, said) == (0, "none") and not (tmp_path / "ran").exists()
    assert told.count("\n") == 0 and f"others can write into {cache}" in told and "WEFT_CACHE" in told
    cache.chmod(0o1777)  # like /tmp: others cannot exchange what is not theirs
    private_folder(cache / "native")


def test_links_and_other_owners_are_refused(cache, tmp_path):
    (tmp_path / "theirs").mkdir()
    cache.mkdir()
    (cache / "native").symlink_to(tmp_path / "theirs")
    with pytest.raises(NotPrivateError, match="not a folder of yours"):
        private_folder(cache / "native")
    with pytest.raises(NotPrivateError, match="no absolute path"):
        private_folder(Path("native"))
    if os.getuid() == 0:
        (cache / "native").unlink()
        (cache / "native").mkdir(mode=0o700)
        os.chown(cache / "native", 65534, 65534)
        with pytest.raises(NotPrivateError, match="not a folder of yours"):
            private_folder(cache / "native")
        os.chown(cache, 65534, 65534)
        with pytest.raises(NotPrivateError, match="belongs to another user"):
            private_folder(cache / "more")


def test_relative_paths_are_never_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "weft"
    assert load() == (0, "0.0", "") and not (tmp_path / "here").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert cache_folder() == tmp_path / "there" / "weft"
    monkeypatch.setenv("WEFT_CACHE", "here")
    with pytest.raises(WeftError, match="WEFT_CACHE is 'here', but an absolute path is needed"):
        cache_folder()


def test_processes_build_one_after_the_other_and_remove_what_a_killed_one_left(cache):
    left = cache / "native" / f"{native_code.BUILDING}killed"
    left.mkdir(parents=True)
    (left / "update.c").touch()
    together = [subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in together] == [b"0.0", b"0.0"]
    assert not left.exists() and library_in(cache)


def test_a_compiler_that_fails_leaves_nothing(cache):
    with pytest.raises(OSError, match="does not build"):
        native_code.compiled(shutil.which("false") or "/bin/false", "weft.training.native", ("update.c",))
    assert [file.name for file in (cache / "native").iterdir()] == [".lock"]
    assert isinstance(native_code.compiled(str(COMPILER), "weft.training.native", ("update.c",)), ctypes.CDLL)
