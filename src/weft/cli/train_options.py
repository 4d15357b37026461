"""The options of `weft train`, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TaskName = Annotated[
    str,
    typer.Argument(help="A task; `weft train --help` lists those that are installed.", metavar="TASK"),
]
DataPaths = Annotated[
    list[str], typer.Argument(help="Files or folders, sample: for built-in data, or hf:org/name.", metavar="DATA")
]
Out = Annotated[Path | None, typer.Option(help="Folder of the new run.", metavar="RUN")]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Name of a preset, such as encoder or vit; auto fits the model to data and time.", show_default="auto"
    ),
]
Settings = Annotated[
    list[str],
    typer.Option("--set", help="Change one option, such as training.rate=0.001; repeatable.", metavar="A.B=C"),
]
Config = Annotated[Path | None, typer.Option(help="TOML file with options.", metavar="FILE")]
Steps = Annotated[int | None, typer.Option(help="Number of training steps.")]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Time in minutes for reading, training and evaluating; 5 if neither steps nor minutes are given. The plan "
        "is revised on the way, so that training ends on time on a machine whose speed changes."
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.", show_default="0")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out, to the same bits.")]
Base = Annotated[
    Path | None,
    typer.Option("--from", help="Fine-tune this run: start from its model, tokenizer and weights.", metavar="RUN"),
]
Lora = Annotated[
    int | None, typer.Option(help="With --from: train adapters of this rank, freeze the weights.", metavar="RANK")
]
Compiled = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Train through torch.compile. Left out: a plan of many minutes tries it, and takes it if it pays.",
    ),
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")]

# Options of several processes.
Processes = Annotated[
    int | None,
    typer.Option(help="Number of processes on this machine; torchrun starts them, and again if one dies."),
]
Parallel = Annotated[
    str | None,
    typer.Option(
        help="How processes share the work: ddp, fsdp, tp=N, cp=N, or fsdp,tp=N; also under torchrun.",
        show_default="ddp",
        metavar="LAYOUT",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which a process that does not answer is given up.", show_default="600", metavar="S"
    ),
]
