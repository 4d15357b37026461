"""Seeds: every random number comes from a generator that is a function of a seed and a name."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. `derive(7, "layer", 3)`; purposes never share a stream."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator for one purpose; on the CPU by default, so that bits do not depend on the device."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))
