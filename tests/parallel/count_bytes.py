"""Counts the bytes of collectives in one step's forward and backward pass: `count_bytes.py FOLDER LAYOUT`, by torchrun.

Bytes of the whole tensor of a call as one process sees it, by kind, as `weft plan` calls the payload.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.training import loop
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

KINDS = {"allreduce_": "all-reduce", "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter"}
CHANGES = {
    "width": 24, "layers": 3, "mixer.heads": 4, "mixer.key_heads": 2, "feedforward.hidden": 44,
    "length": 18, "dropout": 0.0, "training.batch": 72, "training.precision": "float32", "training.guard": False,
    "training.optimizer": "adamw", "data.tokenizer": "bytes",
}  # fmt: skip


class _Counting(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.partition("::")[2]
        if name in KINDS and function.namespace == "c10d":
            tensors = args[0] if name == "allreduce_" else [args[0] if name == "_allgather_base_" else args[1]]
            self.found[KINDS[name]] += sum(_bytes(tensor) for tensor in tensors)
        return function(*args, **(kwargs or {}))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main(folder: Path, layout: str) -> None:
    found: Counter[str] = Counter()
    backward = loop.Loop._backward

    def counted(self: loop.Loop, *args: Any) -> Tensor:
        if self.step != 1:  # the first step sets things up
            return backward(self, *args)
        with _Counting(found):
            return backward(self, *args)

    loop.Loop._backward = counted  # type: ignore[method-assign]
    request = TrainRequest(
        "text", (str(folder / "text.txt"),), folder / layout, "nano-llama", CHANGES, 2, None, 3, parallel=layout
    )
    run_training(request, Reporter())
    if os.environ["RANK"] == "0":
        (folder / f"{layout}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
