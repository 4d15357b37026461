"""Training that ends with its report: `weft.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from weft.foreign.wrap_module import GivenModule
from weft.inspection.pictures.show import in_notebook
from weft.reports.command import OWN_MODULE
from weft.reports.notebook import NotebookReporter
from weft.reports.report import report_training
from weft.runs.run import Run, load
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training


class ProcessOptions(TypedDict, total=False):
    """Options of the process, not of the run: the `device`, a `reporter` that is told of progress, and under torchrun
    the `parallel` layout of its processes."""

    device: str | None
    reporter: Reporter | None
    parallel: str | None


def train(
    task: str,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    preset: str = "auto",
    steps: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    resume: bool = False,
    base: str | Path | None = None,
    module: GivenModule | None = None,
    set: Mapping[str, Any] | None = None,
    **process: Unpack[ProcessOptions],
) -> Run:
    """Train a model and give its run: `weft.train("text", "book.txt", out="runs/book", minutes=5)`.

    `set` changes single options: `{"layers": 2, "training.rate": 0.001, "data.held_out": 0.2}`. `base` is the folder of
    a run whose model, tokenizer and weights training starts from; with `set={"training.lora": 8}` its weights stay, and
    adapters of rank 8 are trained. `seed` is 0 if left out; `resume` continues the run in `out`, to the same bits.

    `module` trains a module of your own: a class or function that makes one, which may take `vocabulary`, `length`,
    `classes`, `channels` or `size` by keyword; or a module, of which a copy is trained. The plan then chooses batch and
    steps only, and the run holds weights and a fingerprint, no code: `weft.load(out, module=...)` opens it. `process`:
    the `device`, and a `reporter` that is told of progress; in a notebook a bar is drawn if none is given. The run's
    folder ends up with `report.html`: what was planned and reached, the worst errors, what the model looks at, and what
    the data are like.
    """
    request = TrainRequest(
        task=task,
        data=(str(data),) if isinstance(data, str | Path) else tuple(str(path) for path in data),
        out=Path(out),
        preset=preset,
        changes=set or {},
        steps=steps,
        minutes=minutes,
        seed=seed,
        resume=resume,
        device=process.get("device"),
        base=None if base is None else str(base),
        parallel=process.get("parallel"),
    )
    reporter = process.get("reporter") or (NotebookReporter(f"training {task}") if in_notebook() else Reporter())
    result = run_training(request, reporter, module)
    if result is None:  # the first of several processes reports
        return load(request.out, request.device, module=module)
    report_training(request, result, reporter, None if module is None else OWN_MODULE)
    return result.run
