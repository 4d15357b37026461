"""The compiled library: built once per machine from `decode.c` by the compiler at hand, kept in the cache folder.

Without a compiler, or with WEFT_NATIVE=0, there is none, and decoding uses torch's own operations.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch

from weft.foundation.folders import cache_folder
from weft.inference.fast.native.layout import Matrix, matrix_of

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fPIC", "-shared", "-w")
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
COMPILE_SECONDS = 120


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built or does not compute what torch computes."""
    if os.environ.get("WEFT_NATIVE", "1") == "0":
        return None
    source = resources.files("weft.inference.fast.native").joinpath("decode.c").read_text(encoding="utf-8")
    names = (os.environ.get("CC"), *COMPILERS)
    compiler = next((found for found in (shutil.which(name) for name in names if name) if found), None)
    if compiler is None:
        return None
    name = hashlib.sha256("\n".join((source, compiler, _machine())).encode()).hexdigest()[:20]
    try:
        path = cache_folder() / "native" / f"decode-{name}.so"
        if not path.exists():
            _build(compiler, source, path)
        return _checked(ctypes.CDLL(str(path)))
    except (OSError, subprocess.SubprocessError):
        return None


def _machine() -> str:
    """What the compiled code depends on: it must not be carried to another kind of processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.system()} {platform.machine()} {flags}"


def _build(compiler: str, source: str, path: Path) -> None:
    """Compile beside the path and move it there, so that two processes at once do no harm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, built = Path(folder) / "decode.c", Path(folder) / "decode.so"
        code.write_text(source, encoding="utf-8")
        for flags in MACHINE_FLAGS:
            command = [compiler, *FLAGS, *flags, "-o", str(built), str(code), "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
            if done.returncode == 0:
                os.replace(built, path)
                return
    raise OSError(f"{compiler} does not build the decoding step")


def _checked(found: ctypes.CDLL) -> ctypes.CDLL | None:
    """The library with its calls declared, if a product of it is right."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.weft_step.argtypes = [pointer] * 5 + [number]
    found.weft_product.argtypes = [ctypes.POINTER(Matrix), pointer, pointer, number, number]
    found.weft_step.restype = found.weft_product.restype = None
    made = torch.Generator().manual_seed(0)
    weight, x = torch.randn(7, 19, generator=made), torch.randn(2, 19, generator=made)
    y = torch.zeros(2, 7)
    found.weft_product(ctypes.byref(matrix_of(weight, None)), x.data_ptr(), y.data_ptr(), 2, 1)
    return found if torch.allclose(y, x @ weight.T, atol=1e-5) else None
