"""Dropout under torchrun with four processes, two data ranks of two tensor ranks: `check_dropout.py FOLDER`.

Writes what each process drew: the masks of its first step, and its replicated weights at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import Replicate

from weft.training import loop
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

loop.REPORT_SECONDS = -1.0
CHANGES = {
    "width": 24, "layers": 2, "mixer.heads": 4, "length": 18, "dropout": 0.4, "feedforward.dropout": 0.4,
    "training.batch": 180, "training.precision": "float64", "training.guard": False, "training.threads": 1,
}  # fmt: skip


def digest(x: Tensor) -> str:
    return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()[:16]


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    drawn: list[tuple[list[int], str]] = []
    kept: dict[str, str] = {}
    plain, run = F.dropout, loop.Loop.run

    def watched(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if training and p and len(drawn) < 9:
            drawn.append((list(x.shape), digest(plain(torch.ones_like(x), p).bool())))
        return plain(x, p, training, inplace)

    def run_and_keep(self: loop.Loop) -> None:
        run(self)
        for name, weight in self.module.named_parameters():
            if isinstance(weight.placements[1], Replicate):  # type: ignore[attr-defined]
                kept[name] = digest(weight.to_local().detach())  # type: ignore[attr-defined]

    F.dropout = watched  # type: ignore[assignment]
    loop.Loop.run = run_and_keep  # type: ignore[method-assign]
    data = (str(folder / "text.txt"),)
    for number in range(2):
        drawn.clear()
        request = TrainRequest(
            "text", data, folder / f"run{number}", "nano-gpt", CHANGES, 5, None, 3, parallel="fsdp,tp=2", timeout=60.0
        )
        run_training(request, Reporter())
    (folder / f"rank{rank}.json").write_text(json.dumps({"drawn": drawn, "kept": kept}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
