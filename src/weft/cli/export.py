"""`weft export`: writes a run in the format of another library."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from weft.checkpoints.export.export_checkpoint import ExportReport
from weft.cli.terminal import console, print_json, progress
from weft.runs.export_run import export

DECODERS = ("ForCausalLM", "LMHeadModel")
NEXT = {
    "huggingface": 'transformers: {kind}.from_pretrained("{out}")',
    "gguf": 'llama.cpp: llama-cli -m {out} -p "Once upon a time"',
    "onnx": "onnxruntime: see {out}/model.json for names of inputs and outputs",
}


def run_export(run: Path, to: str, out: Path, kind: str | None, certified: bool, as_json: bool) -> None:
    """Export a run, and print where it is and how it compares."""
    with progress("exporting") as report:
        made = export(run, to, out, type=kind, certificate=certified, progress=report)
    if as_json:
        print_json(made.to_tree())
    else:
        _print(console(), made)


def _print(out: Console, made: ExportReport) -> None:
    out.print(f"[bold]{escape(str(made.path))}[/bold]: {made.architecture}, {made.parameters:,} parameters")
    if made.parity is None:
        out.print(f"not compared: {made.why}", markup=False)
    else:
        out.print(
            f"compared with {made.peer}: logits differ by at most {made.parity:.2g} (the largest: {made.largest:.3g})",
            markup=False,
        )
    served = f"; vLLM: vllm serve {made.path}" if made.architecture.endswith(DECODERS) else ""
    then = NEXT[made.format].format(out=made.path, kind=made.architecture) + served
    out.print(f"Next, {then}", markup=False, style="dim")
