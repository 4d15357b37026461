"""Native code: C sources of a package, built once per machine by the compiler at hand and kept in the cache folder.

Without a compiler, or with WEFT_NATIVE=0, there is none, and torch's own operations do the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from weft.foundation.folders import cache_folder

COMPILERS = ("cc", "gcc", "clang")
# Products and sums are fused only where the source says so: then all processors give the same bits.
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared", "-w")
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
COMPILE_SECONDS = 120


def find_compiler() -> str | None:
    """The path of a C compiler, or None where there is none or WEFT_NATIVE=0 asks to do without."""
    if os.environ.get("WEFT_NATIVE", "1") == "0":
        return None
    names = (os.environ.get("CC"), *COMPILERS)
    return next((found for found in (shutil.which(name) for name in names if name) if found), None)


def compiled(compiler: str, package: str, sources: tuple[str, ...], *defines: str) -> ctypes.CDLL:
    """The library built from a package's files, of which the first is compiled; `defines` choose other code in it.

    It is named after that file and kept for the next time. An OSError or SubprocessError where it cannot be built.
    """
    folder = resources.files(package)
    texts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in sources}
    facts = (*texts.values(), compiler, _machine(), *FLAGS, *defines)
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
    path = cache_folder() / "native" / f"{Path(sources[0]).stem}-{digest}.so"
    if not path.exists():
        _build(compiler, texts, path, defines)
    return ctypes.CDLL(str(path))


def _machine() -> str:
    """What the compiled code depends on: it must not be carried to another kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.system()} {platform.machine()} {flags}"


def _build(compiler: str, sources: dict[str, str], path: Path, defines: tuple[str, ...]) -> None:
    """Compile beside the path and move it there, so that two processes at once do no harm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        code, built = Path(folder) / next(iter(sources)), Path(folder) / "built.so"
        for flags in MACHINE_FLAGS:
            command = [compiler, *FLAGS, *flags, *defines, "-o", str(built), str(code), "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
            if done.returncode == 0:
                os.replace(built, path)
                return
    raise OSError(f"{compiler} does not build {next(iter(sources))}")
