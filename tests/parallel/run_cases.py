"""Runs the trainings of a file one after the other: `python run_cases.py FOLDER`, alone or under torchrun.

Everything that went wrong is written beside the runs; a case that fails on one process fails on all of them.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from cases import STEPS, Case, read_cases

from weft.training import loop
from weft.training.parallel.layout import ParallelLayout
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training

loop.REPORT_SECONDS = -1.0  # every step is reported
ParallelLayout.expect_possible = lambda self, device_type: None  # type: ignore[method-assign]  # cp on CPUs: to prove it
DATA = {"text": "text.txt", "translation": "translation.tsv", "images": "images.npz"}


def request_of(case: Case, folder: Path, out: Path, parallel: str | None) -> TrainRequest:
    """The training of a case; with adapters it starts from a run of the same model."""
    changes, preset, base = dict(case.changes), case.preset, None
    if case.base:
        base = str(folder / "bases" / f"{case.task}-{case.preset}")
        changes = {name: value for name, value in changes.items() if name.startswith("training.")}
        preset = "auto"
    data = (str(folder / DATA[case.task]),)
    return TrainRequest(
        case.task, data, out, preset, changes, STEPS, None, 5, base=base, parallel=parallel, timeout=60.0
    )


def train_base(case: Case, folder: Path) -> None:
    """The run that a case with adapters starts from."""
    out = folder / "bases" / f"{case.task}-{case.preset}"
    if not (out / "model.safetensors").exists():
        changes = {name: value for name, value in case.changes.items() if name != "training.lora"}
        data = (str(folder / DATA[case.task]),)
        run_training(TrainRequest(case.task, data, out, case.preset, changes, 3, None, 5), Reporter())


def main(folder: Path) -> None:
    alone = "RANK" not in os.environ
    torch.set_num_threads(1)
    for case in read_cases(folder / "cases.json"):
        if not alone and case.processes != int(os.environ["WORLD_SIZE"]):
            continue
        if alone and case.base:
            train_base(case, folder)
        out = folder / ("one" if alone else "many") / case.name
        try:
            run_training(request_of(case, folder, out, None if alone else case.layout), Reporter())
        except BaseException:
            (folder / f"failed-{case.name}-{os.environ.get('RANK', 'alone')}.txt").write_text(traceback.format_exc())
            if not alone:
                raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
