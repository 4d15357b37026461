"""Runs in the formats of other programs: `weft.export` and `weft export` are this."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoints.convert_checkpoint import ConversionProgress
from weft.checkpoints.export.export_checkpoint import ExportReport, export_checkpoint
from weft.checkpoints.export.export_source import open_export_source
from weft.runs.run import Run


def export(
    run: Run | str | Path,
    to: str,
    out: str | Path,
    *,
    type: str | None = None,
    certificate: bool = True,
    progress: ConversionProgress | None = None,
) -> ExportReport:
    """Write a run for other programs: `weft.export(run, "huggingface", "out")`; also "gguf" and "onnx".

    `type` is that of a GGUF file's weights: f32, f16, bf16 or q8_0. Of a `Run` in memory its present weights are
    written, with adapters merged.
    """
    found = open_export_source(run.folder, run.module) if isinstance(run, Run) else open_export_source(Path(run))
    return export_checkpoint(found, to, Path(out), type, certificate, progress)
