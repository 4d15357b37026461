"""A process of a training that takes a few steps for each line that it reads; see the case parallel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from weft.bench.cases.parallel import CHANGES, SMALLER, STEPS


def main(folder: Path, threads: int, layout: str | None, quick: bool) -> None:
    """Train as `weft train` does, but step by step as told; the first line is the loss of the first step."""
    import torch

    from weft.training import loop, train
    from weft.training.reporting import Reporter
    from weft.training.request import TrainRequest

    torch.set_num_threads(threads)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def take_turns(own: loop.Loop) -> None:
        own.module.train()
        first = 0.0
        for number in range(3):
            loss, _ = own.one_step()
            own.step += 1
            first = float(loss) if number == 0 else first
        print(first, file=answers, flush=True)
        for _ in sys.stdin:
            for _ in range(STEPS):
                own.one_step()
                own.step += 1
            print("done", file=answers, flush=True)
        os._exit(0)

    loop.Loop.run = take_turns  # type: ignore[method-assign, assignment]
    out = folder / "run"
    changes = CHANGES | (SMALLER if quick else {}) | {"training.threads": threads}
    data = (str(folder / "text.txt"),)
    train.run_training(TrainRequest("text", data, out, changes=changes, steps=10**6, parallel=layout), Reporter())


if __name__ == "__main__":
    place, number, way, size = sys.argv[1:]
    main(Path(place), int(number), None if way == "none" else way, size == "quick")
