"""A stage of a training: `python run_stage.py FOLDER OUT LAYOUT END STEP`, alone or under torchrun.

END says how the stage ends at STEP: `stop` as after Ctrl-C, `kill` as by kill -9, `end` with the whole training.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch

from weft.training import loop
from weft.training.reporting import Reporter, TrainingProgress
from weft.training.request import TrainRequest
from weft.training.train import run_training

loop.REPORT_SECONDS = -1.0
CHANGES = {
    "width": 24, "layers": 2, "mixer.heads": 4, "mixer.key_heads": 4, "feedforward.hidden": 44, "length": 19,
    "dropout": 0.0, "training.batch": 190, "training.precision": "float64", "training.ema": 0.8,
    "training.checkpoint_every": 5, "training.evaluate_every": 10, "training.guard": False, "training.threads": 1,
}  # fmt: skip
STEPS = 40


class _Ender(Reporter):
    def __init__(self, out: Path, end: str, step: int) -> None:
        self.out, self.end, self.step = out, end, step

    def on_step(self, progress: TrainingProgress) -> None:
        if progress.step != self.step or self.end == "end":
            return
        if self.end == "kill":  # once the state before is complete, which is written in the background
            before = self.out / "training" / f"state-{self.step // 5 * 5:08d}" / "state.json"
            deadline = time.monotonic() + 60
            while not before.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT if self.end == "stop" else signal.SIGKILL)


def main(folder: Path, out: Path, layout: str, end: str, step: int) -> None:
    torch.set_num_threads(1)
    parallel = layout if "RANK" in os.environ else None
    request = TrainRequest(
        "text", (str(folder / "text.txt"),), out, "nano-llama", CHANGES, STEPS, None, 5,
        resume=out.exists(), parallel=parallel, timeout=60.0,
    )  # fmt: skip
    try:
        run_training(request, _Ender(out, end, step))
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
