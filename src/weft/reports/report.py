"""The report of a training: one self-contained page in its run folder, from what the training measured anyway."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import torch

from weft.checkpoints.run_folder import RunFolder
from weft.figures.panels.panel import Panel
from weft.figures.panels.records import RecordsPanel
from weft.figures.picture import Picture
from weft.foundation.files.atomic_files import write_text
from weft.reports.attention_example import attention_panels
from weft.reports.command import planned_options, reproducing_command
from weft.reports.data_panels import data_panels
from weft.reports.plan_panels import plan_panels
from weft.reports.score_panels import score_panels
from weft.tasks.support.evaluation.calibration import tells_fault
from weft.tasks.support.evaluation.references import describe_standing
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.result import TrainingResult

REPORT = "report.html"
LARGEST = 2_000_000  # bytes of the page


def write_report(request: TrainRequest, result: TrainingResult, own_module: str | None = None) -> Path:
    """Write the page into the run's folder; where pictures of attention make it too large, they are left out.

    `own_module` names the user's own module in the command that is shown.
    """
    rows = list(RunFolder(request.out).read_metrics())
    panels = plan_panels(rows, result) + score_panels(result)
    looked, missing = attention_panels(result, result.run.spec.data.get("validation", ()))
    rest: list[Panel] = [] if result.data is None else data_panels(result.data)
    rest.append(_reproduction(request, result, own_module))
    notes = _warnings(result)
    text = _page(result, [*panels, *looked, *rest], [*notes, *filter(None, [missing])])
    if len(text.encode("utf-8", "replace")) > LARGEST:
        left_out = f"The example of attention is too large for this page: weft look {request.out} INPUT draws one."
        text = _page(result, [*panels, *rest], [*notes, left_out])
    path = request.out / REPORT
    write_text(path, text)
    return path


def report_training(
    request: TrainRequest, result: TrainingResult, reporter: Reporter, own_module: str | None = None
) -> Path | None:
    """`write_report`; one that fails is a note, for the run is complete without it."""
    try:
        return write_report(request, result, own_module)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        reporter.on_note(f"no report was written ({type(error).__name__}: {reason[:160]}); the run itself is complete")
        return None


def _page(result: TrainingResult, panels: list[Panel], notes: list[str]) -> str:
    run, metric = result.run, result.run.task.metric
    value = result.metrics.get(metric)
    reached = "" if not isinstance(value, int | float) else f": {metric.replace('_', ' ')} {value:.4g}"
    words = f"Task {run.task.name}, {result.plan.parameters:,} parameters, trained on {', '.join(run.spec.sources)}"
    return Picture(f"Training report of {run.folder.name}{reached}", tuple(panels), words, tuple(notes)).html()


def _warnings(result: TrainingResult) -> list[str]:
    """What a reader must know before any number, in words."""
    found = [] if result.leak is None else [f"LEAK: {result.leak}."]
    if result.data is not None and result.data.duplicates.flagged:
        found.append(f"{result.data.duplicates.describe()}.")
    metric = result.run.task.judged_by
    if metric in result.metrics:
        ends = result.intervals.get(metric)
        found += [f"{one}." for one in describe_standing(metric, result.metrics[metric], result.references, ends)]
    if result.trust is not None and tells_fault(result.trust):
        found.append(f"{result.trust}.")
    return [one[:1].upper() + one[1:] for one in found]


def _reproduction(request: TrainRequest, result: TrainingResult, own_module: str | None) -> RecordsPanel:
    """The command, what makes the same plan on another machine, and the versions."""
    rows = [("command", reproducing_command(request, own_module))]
    if request.steps is None:
        rows.append(
            ("the same plan at any speed", f"{planned_options(result.plan, result.run.spec.model)}, for --minutes")
        )
    files = RunFolder(request.out).read_fingerprints()
    rows += [("data", f"{file.path}, {file.size:,} bytes, sha256 {file.sha256[:16]}…") for file in files[:8]]
    here = (
        f"Weft {version('weft')}, torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    )
    rows.append(("made with", here))
    note = (
        "Continued with --resume: options that the run was begun with are in its spec.json." if request.resume else ""
    )
    return RecordsPanel("The command that trains the same again", ("", ""), tuple(rows), note=note)
