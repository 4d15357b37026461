"""`weft import`: makes a run of a checkpoint from another library."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.app import AsJson, app

if TYPE_CHECKING:
    from rich.console import Console

    from weft.checkpoints.convert_checkpoint import ImportReport


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="Hugging Face folder, .gguf file, or org/name on the hub (a folder of that name wins).", metavar="DIR"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new run.", metavar="RUN")],
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate/--no-certificate", help="Compare the logits with those of transformers, if it is installed."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Make a run of a checkpoint from another library.

    Takes GPT-2, GPT-NeoX (Pythia), OPT, Llama, Mistral, Qwen2, Qwen3, Mixtral, Phi-3, Gemma 2 and 3 (text), BERT,
    MiniLM, RoBERTa, ViT, DeiT, CLIP, T5, BART and Marian; GGUF files of Llama and GPT-2 models, whose matrices
    in Q8_0, Q4_0, Q4_1, Q4_K and Q6_K stay so. No code in the files is executed; broken or unknown files are refused,
    and then nothing is written.

    \b
    Examples:
      weft import SmolLM2-135M-Instruct --out runs/smollm
      weft predict runs/smollm "What is the capital of France?" --chat
      weft import HuggingFaceTB/SmolLM2-135M-Instruct --out runs/smollm       fetched by huggingface_hub
      weft import model.Q4_K_M.gguf --out runs/model --json
    """
    run_import(source, out, certificate, as_json)


def run_import(source: str, out: Path, certified: bool, as_json: bool) -> None:
    """Import a checkpoint, and print where the run is and how it compares."""
    from weft.checkpoints.convert_checkpoint import convert_checkpoint
    from weft.cli.terminal import console, print_json, progress

    with warnings.catch_warnings(record=True) as caught, progress("importing") as report:
        warnings.simplefilter("always")
        made = convert_checkpoint(source, out, certified, report)
    told = console(to_stderr=True)
    for warning in caught:
        if warning.category is UserWarning:
            told.print(f"weft: {warning.message}", markup=False)
    if as_json:
        print_json(made.to_tree())
        return
    _print(console(), made)


def _print(out: Console, made: ImportReport) -> None:
    from rich.markup import escape

    from weft.tasks.registry import task_named

    out.print(
        f"[bold]{escape(str(made.run))}[/bold]: {made.architecture} ({made.family}), {made.parameters:,} parameters"
    )
    certificate = made.certificate
    if certificate is None:
        out.print(f"no certificate: {made.uncertified}", markup=False)
    else:
        out.print(
            f"certificate: {certificate.outputs:,} outputs differ from those of {certificate.peer} by at most "
            f"{certificate.difference:.2g} (the largest is {certificate.largest:.3g})"
        )
    if made.blocks:
        out.print(f"weights stay in blocks of {', '.join(made.blocks)}; training and export compute floats from them")
    if made.left_out:
        out.print(f"left out, because no task uses them: {', '.join(made.left_out[:4])}", markup=False)
    words = f"weft predict {shlex.quote(str(made.run))} {task_named(made.task).example}"
    out.print(f"Next: {words}", markup=False, style="dim", soft_wrap=True)
