"""Device and numerics policy: which device, which type is fast there, and what stays in float32 or wider."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.foundation.errors import WeftError

LOG = logging.getLogger(__name__)


def pick_device(name: str | None = None) -> torch.device:
    """The device asked for, or the best one present: CUDA, then MPS, then the CPU."""
    device = _find_device(name)
    LOG.info("device: %s", device)
    return device


def _find_device(name: str | None) -> torch.device:
    if name is not None and name != "auto":
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise WeftError(f"no device {name!r} on this machine: use cpu, or leave --device out") from error
        if device.type == "meta":
            raise WeftError("device 'meta' has no numbers to compute with: use cpu, or leave --device out")
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


@functools.cache
def _cpu_flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return frozenset(next((line for line in file if line.startswith("flags")), "").split())
    except OSError:
        return frozenset()


def bf16_is_fast(device: torch.device) -> bool:
    """Whether bf16 matrix products are faster than float32 ones; without units for it they can be 500x slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return bool(_cpu_flags() & {"amx_bf16", "avx512_bf16"})
    return False


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which softmax, routers, losses and norms' statistics are computed: float32, or float64 as given."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widen(x: Tensor) -> Tensor:
    """`x` in float32 or wider; returned as it is where it is wide already."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def minimize(loss: Callable[[], Tensor], weights: Sequence[Tensor], iterations: int, history: int) -> None:
    """Change the weights in place so that the loss, a number, becomes small: L-BFGS with a strong Wolfe line search.

    `history` is the number of steps that the curvature is estimated from (Nocedal and Wright 2006).
    """
    search = torch.optim.LBFGS(list(weights), max_iter=iterations, history_size=history, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        search.zero_grad()
        found = loss()
        found.backward()
        return found

    with torch.enable_grad():
        search.step(value)
