"""A tiny language model that holds its training at a step until a file appears, or fails there as it is told to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

HOLD_AT = 12
FOLDER = Path(os.environ.get("HELD_FOLDER", "."))
FAULT = os.environ.get("HELD_FAULT", "")  # of rank 1: an exception, a vanished file
HELD_SECONDS = 300.0


class Held(nn.Module):
    """Each process writes FOLDER/pid-RANK at the step and waits for FOLDER/go, which may be there already."""

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(vocabulary, 7), nn.Linear(7, vocabulary)
        self.steps = 0

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.steps += 1
            if self.steps == HOLD_AT:
                self.hold()
        return self.output(self.embedding(tokens))

    def hold(self) -> None:
        rank = os.environ.get("RANK", "0")
        if FAULT and rank == "1":
            fail()
        if FAULT or (FOLDER / "go").exists():
            return
        (FOLDER / f"new-{rank}").write_text(str(os.getpid()))
        (FOLDER / f"new-{rank}").replace(FOLDER / f"pid-{rank}")
        deadline = time.monotonic() + HELD_SECONDS
        while not (FOLDER / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def fail() -> None:
    if FAULT == "vanished":
        (FOLDER / "vanished.bin").read_bytes()
    if FAULT == "user":
        from weft.foundation.errors import WeftError

        raise WeftError("65 tokens, but the positions hold 64")
    raise ValueError("a bug of the user's model")
