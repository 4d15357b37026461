"""Files of tensors: safetensors, written atomically, read memory-mapped. Never a pickle."""

from __future__ import annotations

import errno
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from weft.foundation.files.atomic_files import DiskError, write_atomic
from weft.foundation.files.regular_files import expect_regular


def write_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str] | None = None) -> None:
    """A safetensors file, atomically; tensors are written contiguous and from the CPU."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def save(fresh: Path) -> None:
        try:
            save_file(ready, fresh, metadata=notes)
        except SafetensorError as error:  # which tells the system's error in words only
            raise OSError(_number_in(str(error)), str(error)) from None

    write_atomic(path, save)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped."""
    try:
        return load_file(expect_regular(path, DiskError))
    except FileNotFoundError:
        raise DiskError(f"there is no file {path}: check the run folder") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise DiskError(
            f"{path} is not a complete safetensors file ({str(error)[:120]}): restore it or train again"
        ) from None


def read_notes(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    with safe_open(path, framework="pt") as opened:
        return dict(opened.metadata() or {})


def _number_in(text: str) -> int:
    return errno.ENOSPC if "space" in text.lower() or "os error 28" in text.lower() else errno.EIO
