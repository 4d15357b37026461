"""The likeliest token of each row of logits, and log sum_c e^(l_c): in float32 natively, with fewer passes than torch.

Torch's sum of a long row has other bits with other numbers of threads; here neither threads nor company change any.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.inference.fast.native.library import library

ONE_THREAD = 1 << 16  # logits below which one thread is faster


def likeliest(logits: Tensor) -> Tensor:
    """argmax_c l_c [B] of logits [B, C], the first one of equals."""
    found = _summarize(logits, sums=False)
    return logits.argmax(-1) if found is None else found[0]


def log_sum_exp(logits: Tensor) -> Tensor:
    """log sum_c e^(l_c) [B] of logits [B, C]."""
    found = _summarize(logits, sums=True)
    return logits.logsumexp(-1) if found is None else found[1]


def _summarize(logits: Tensor, sums: bool) -> tuple[Tensor, Tensor] | None:
    """(argmax, log-sum-exp) of each row; None where torch must compute them."""
    if logits.dtype != torch.float32 or logits.device.type != "cpu" or logits.dim() != 2 or not logits.numel():
        return None
    native = library()
    if native is None or (logits.requires_grad and torch.is_grad_enabled()):
        return None
    logits = logits.contiguous()
    rows, width = logits.shape
    best, total = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
    room = torch.empty(rows * native.weft_pieces(width), dtype=torch.float64)
    threads = 1 if logits.numel() < ONE_THREAD else torch.get_num_threads()
    native.weft_summaries(
        logits.data_ptr(), rows, width, best.data_ptr(), total.data_ptr() if sums else None, room.data_ptr(), threads
    )
    return best, total
