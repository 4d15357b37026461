"""The compiled library: built once per machine from `decode.c` and its headers by the compiler at hand, and kept in the
cache folder.

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
SOURCES = (
    "decode.c",
    "products.h",
    "blocks.h",
    "blocks_avx512.h",
    "blocks_avx2.h",
    "blocks_portable.h",
    "vectors.h",
)
# Products and sums are fused only where the source says so: then all processors give the same bits.
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared", "-w")
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
COMPILE_SECONDS = 120


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it cannot be built or does not compute what torch computes."""
    if os.environ.get("WEFT_NATIVE", "1") == "0":
        return None
    names = (os.environ.get("CC"), *COMPILERS)
    compiler = next((found for found in (shutil.which(name) for name in names if name) if found), None)
    if compiler is None:
        return None
    try:
        return compiled(compiler)
    except (OSError, subprocess.SubprocessError):
        return None


def compiled(compiler: str, *defines: str) -> ctypes.CDLL | None:
    """The library by this compiler, kept for the next time; `defines` (-DWEFT_PORTABLE) choose other code."""
    folder = resources.files("weft.inference.fast.native")
    sources = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in SOURCES}
    facts = (*sources.values(), compiler, _machine(), *FLAGS, *defines)
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
    path = cache_folder() / "native" / f"decode-{name}.so"
    if not path.exists():
        _build(compiler, sources, path, defines)
    return _checked(ctypes.CDLL(str(path)))


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
        code, built = Path(folder) / SOURCES[0], Path(folder) / "decode.so"
        for flags in MACHINE_FLAGS:
            command = [compiler, *FLAGS, *flags, *defines, "-o", str(built), str(code), "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
            if done.returncode == 0:
                os.replace(built, path)
                return
    raise OSError(f"{compiler} does not build the decoding step")


def _checked(found: ctypes.CDLL) -> ctypes.CDLL | None:
    """The library with its calls declared, if a product of it is right."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.weft_step.argtypes = [pointer] * 5 + [number]
    found.weft_product.argtypes = [ctypes.POINTER(Matrix), pointer, pointer, number, pointer, number]
    found.weft_pack.argtypes = [number, pointer, number, number, pointer]
    found.weft_packed_size.argtypes, found.weft_rounded_size.argtypes = [number] * 3, [number]
    found.weft_packed_size.restype = found.weft_rounded_size.restype = number
    found.weft_step.restype = found.weft_product.restype = found.weft_pack.restype = None
    made = torch.Generator().manual_seed(0)
    weight, x = torch.randn(7, 19, generator=made), torch.randn(2, 19, generator=made)
    y = torch.zeros(2, 7)
    found.weft_product(ctypes.byref(matrix_of(weight, None)), x.data_ptr(), y.data_ptr(), 2, None, 1)
    return found if torch.allclose(y, x @ weight.T, atol=1e-5) else None
