"""Native code: C sources of a package, built once per machine by the compiler at hand and kept in the cache folder.

Without a compiler, or with WEFT_NATIVE=0, there is none, and torch's own operations do the work. A library is loaded
only from a folder that nobody else can write, and only as it was built: its digest stands beside it, and a library that
was cut off or changed is built again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import flush_to_disk, write_text
from weft.foundation.files.folders import cache_folder
from weft.foundation.files.private_folder import NotPrivateError, private_folder

LOG = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")
# Products and sums are fused only where the source says so: then all processors give the same bits.
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared", "-w")
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
COMPILE_SECONDS = 120
BUILDING = "building-"


def find_compiler() -> str | None:
    """The path of a C compiler, or None where there is none or WEFT_NATIVE=0 asks to do without."""
    if os.environ.get("WEFT_NATIVE", "1") == "0" or os.name != "posix":
        return None
    names = (os.environ.get("CC"), *COMPILERS)
    return next((found for found in (shutil.which(name) for name in names if name) if found), None)


def load_library(
    package: str, sources: tuple[str, ...], declare: Callable[[ctypes.CDLL], ctypes.CDLL | None]
) -> ctypes.CDLL | None:
    """The library of a package after `declare` gave its calls their types; None where it cannot be built or fails."""
    compiler = find_compiler()
    if compiler is None:
        return None
    try:
        return declare(compiled(compiler, package, sources))
    except NotPrivateError as error:
        _warn(f"native code is off: {error}; make it yours alone, or set WEFT_CACHE to a private folder")
    except WeftError as error:
        _warn(f"native code is off: {error}")
    except (OSError, subprocess.SubprocessError) as error:
        LOG.info("native code of %s is off: %s", package, error)
    return None


@functools.cache
def _warn(sentence: str) -> None:
    """Once, however many libraries it concerns."""
    LOG.warning(sentence)


def compiled(compiler: str, package: str, sources: tuple[str, ...], *defines: str) -> ctypes.CDLL:
    """The library built from a package's files, of which the first is compiled; `defines` choose other code in it.

    It is named after that file and kept for the next time. An OSError or SubprocessError where it cannot be built.
    """
    folder = resources.files(package)
    texts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in sources}
    facts = (*texts.values(), compiler, _machine(), *FLAGS, *defines)
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
    path = private_folder(cache_folder() / "native") / f"{Path(sources[0]).stem}-{digest}.so"
    if not _is_as_built(path):
        with _alone(path.parent):
            if not _is_as_built(path):
                _build(compiler, texts, path, defines)
    return ctypes.CDLL(str(path))


def _digest_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_as_built(path: Path) -> bool:
    """Whether library and digest are there and fit: to load a file that was cut off ends the process by a signal."""
    try:
        return _digest(path) == _digest_file(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; what a killed one left is removed."""
    import fcntl

    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in folder.glob(f"{BUILDING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _machine() -> str:
    """What the compiled code depends on: it must not be carried to another kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.system()} {platform.machine()} {flags}"


def _build(compiler: str, sources: dict[str, str], path: Path, defines: tuple[str, ...]) -> None:
    """Compile beside the path, flush it to the disk and move it there; then write its digest."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=BUILDING) as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        code, built = Path(folder) / next(iter(sources)), Path(folder) / "built.so"
        for flags in MACHINE_FLAGS:
            command = [compiler, *FLAGS, *flags, *defines, "-o", str(built), str(code), "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
            if done.returncode == 0:
                flush_to_disk(built)
                digest = _digest(built)
                os.replace(built, path)
                write_text(_digest_file(path), digest)
                return
    raise OSError(f"{compiler} does not build {next(iter(sources))}")
