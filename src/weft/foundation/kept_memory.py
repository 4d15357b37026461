"""Freed memory that a process keeps for itself, because it asks for as much again at once.

Each step of a training makes and frees the same tensors. The C library gives large ones back to the kernel, which has
to find and clear new pages at the next step: 2 to 4 % of the time of small steps on a CPU.
"""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Blocks above this size, the largest that glibc allows, still are mappings of their own, which leave no gaps.
LARGEST_KEPT = 32 * 2**20
MOST_KEPT = 2**31 - 1
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep blocks of up to 32 MB when they are freed, from now on; whether that is possible here.

    It is with glibc, unless the environment says how memory is to be kept.
    """
    if sys.platform != "linux" or any(name in os.environ for name in SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    kept: bool = mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) == 1 and mallopt(M_TRIM_THRESHOLD, MOST_KEPT) == 1
    return kept
