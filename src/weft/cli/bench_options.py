"""The options of `weft bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CaseNames = Annotated[list[str] | None, typer.Argument(help="Cases to measure; none: list them.", metavar="CASE")]
PeerNames = Annotated[
    str | None, typer.Option(help="Libraries to compare with; all that are installed if left out.", metavar="A,B")
]
Sizes = Annotated[
    list[str], typer.Option(help="Only contests or rows with this word in their names; repeatable.", metavar="WORD")
]
Rounds = Annotated[int, typer.Option(help="Number of rounds; in each, every contestant has one turn.")]
Seconds = Annotated[float, typer.Option(help="Length of a turn in seconds; a turn is at least one call.")]
Threads = Annotated[int, typer.Option(help="Threads of each contestant; 0: all cores.")]
Compiled = Annotated[bool, typer.Option("--compile", help="train: each also through torch.compile.")]
Precision = Annotated[str, typer.Option(help="train: float32 or bf16, for all contestants alike.")]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes: shows that all runs; the numbers say nothing.")]
Html = Annotated[Path | None, typer.Option(help="Write one self-contained page.", metavar="FILE")]
PictureFile = Annotated[Path | None, typer.Option(help="Draw the ratios: .png, .svg or .pdf.", metavar="FILE")]
Results = Annotated[
    list[Path],
    typer.Option(help="Show and draw what --json printed before, instead of measuring; repeatable.", metavar="FILE"),
]
Markdown = Annotated[Path | None, typer.Option(help="growth: write its table as this page.", metavar="FILE")]
Largest = Annotated[
    float | None, typer.Option(help="growth: bytes of the largest text; memory: weights of the import.")
]
DataFolder = Annotated[Path | None, typer.Option(help="quality: folder of the data sets.", metavar="DIR")]
ServerUrl = Annotated[
    str | None, typer.Option(help="serve: a server that speaks OpenAI's API, instead of starting some.", metavar="URL")
]
RunsFolder = Annotated[Path, typer.Option(help="quality: folder of runs and results.", metavar="DIR")]
Minutes = Annotated[float | None, typer.Option(help="quality: minutes per training instead of the row's.")]
Seeds = Annotated[str, typer.Option(help="quality: seeds of the trainings.", metavar="0,1,2")]
Again = Annotated[bool, typer.Option("--again", help="quality: also rows that were measured before.")]
