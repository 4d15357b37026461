"""`weft export`: writes a run in the format of another library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import AsJson, app

if TYPE_CHECKING:
    from rich.console import Console

    from weft.checkpoints.export.export_checkpoint import ExportReport


DECODERS = ("ForCausalLM", "LMHeadModel")
NEXT = {
    "huggingface": 'transformers: {kind}.from_pretrained("{out}")',
    "gguf": 'llama.cpp: llama-cli -m {out} -p "Once upon a time"',
    "onnx": "onnxruntime: see {out}/model.json for names of inputs and outputs",
}


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="Format to write: huggingface, gguf or onnx.", metavar="FORMAT")],
    out: Annotated[Path, typer.Option(help="Folder to create.", metavar="DIR")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--type", help="Type of the weights in a GGUF file: f32, f16, bf16 or q8_0; as stored if left out."
        ),
    ] = None,
    certificate: Annotated[
        bool, typer.Option("--certificate/--no-certificate", help="Compare the logits with those of the other library.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a run in the format of another library.

    Hugging Face folders (GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, BERT, RoBERTa, ViT, DeiT, T5, BART and Marian
    architectures), GGUF files of Llama and GPT-2 models for llama.cpp, ONNX files with the decoder's cache as inputs
    and outputs. If no architecture fits the model, the error names the field that prevents it.

    \b
    Examples:
      weft export runs/llama --to huggingface --out llama-hf
      weft export runs/smollm --to gguf --type q8_0 --out smollm-gguf
      weft export runs/book --to onnx --out book-onnx --json
    """
    run_export(run, to, out, kind, certificate, as_json)


def run_export(run: Path, to: str, out: Path, kind: str | None, certified: bool, as_json: bool) -> None:
    """Export a run, and print where it is and how it compares."""
    from weft.cli.terminal import console, print_json, progress
    from weft.runs.export_run import export

    with progress("exporting") as report:
        made = export(run, to, out, type=kind, certificate=certified, progress=report)
    if as_json:
        print_json(made.to_tree())
    else:
        _print(console(), made)


def _print(out: Console, made: ExportReport) -> None:
    from rich.markup import escape

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
    out.print(f"Next, {then}", markup=False, style="dim", soft_wrap=True)
