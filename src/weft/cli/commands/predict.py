"""`weft predict`: a run's answers to inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, Device, Module, Quantize, app
from weft.cli.environment import load_torch
from weft.cli.factory import find_factory
from weft.cli.generation_options import (
    MaxTokens,
    MinP,
    Question,
    Repetition,
    Seed,
    Speculative,
    Stop,
    Temperature,
    TopK,
    TopP,
    given_options,
)
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.data.readers.tables import TableOptions
    from weft.runs.run import Run
    from weft.tasks.task import Answer


Labels = Annotated[
    str | None,
    typer.Option(help="Labels to choose between for each image, for runs of images and texts.", metavar="A,B,..."),
]
Abstain = Annotated[
    float | None,
    typer.Option(help="Withhold answers of a smaller probability, for runs that choose among classes.", metavar="P"),
]
AnswersFile = Annotated[
    Path | None,
    typer.Option(
        help="Write the answers as a table (.csv, .tsv, .jsonl); the same command continues after a kill.",
        metavar="FILE",
    ),
]
TableSettings = Annotated[
    list[str],
    typer.Option("--set", help="How a table is read: data.columns=review, data.header=yes or no.", metavar="DATA.B=C"),
]
CLASSES_SHOWN = 8  # classes whose probabilities are shown


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, or paths of images and tables; lines of stdin if left out.", metavar="INPUT"),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    beam: Annotated[int | None, typer.Option(help="Number of beam search hypotheses.")] = None,
    max_tokens: MaxTokens = None,
    seed: Seed = 0,
    samples: Annotated[int, typer.Option(help="Number of answers per input.")] = 1,
    repetition: Repetition = 1.0,
    stop: Stop = None,
    speculative: Speculative = None,
    top: Annotated[
        int | None, typer.Option(help="Show the N most probable first tokens with their probabilities.", metavar="N")
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show for each new token the distribution that it was chosen from.")
    ] = False,
    question: Question = None,
    labels: Labels = None,
    abstain: Abstain = None,
    chat: Annotated[bool, typer.Option("--chat", help="Format the input as a user's message to a chat model.")] = False,
    overflow: Annotated[
        str, typer.Option(help="For texts longer than in training: slide (drop the oldest tokens), refuse or extend.")
    ] = "slide",
    out: AnswersFile = None,
    settings: TableSettings = [],  # noqa: B006
    quantize: Quantize = None,
    module: Module = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict: text -> continuation, sentence -> translation, image -> label, table -> forecast.

    A table (.csv, .tsv, .jsonl) of texts stands for its rows: the column that the run was trained on is read, or
    --set data.columns=NAME. A .txt file is one text; with --out, each of its lines is one.

    \b
    Examples:
      weft predict runs/book "Once upon a time" --max-tokens 80 --seed 1
      weft predict runs/digits seven.png three.png --json
      cat sentences.txt | weft predict runs/ende --beam 5
      weft predict runs/book "Once upon a time" --quantize int8 --stop "The end"
      weft predict runs/book "Once upon a" --top 10 --max-tokens 1
      weft predict runs/ende "a small house" --steps --top 3
      weft predict runs/reviews new.csv --out answers.csv
      weft predict runs/vqa photo.png --question "what color is the circle?"
      weft predict runs/clip photo.png --labels "a cat,a dog"
      weft predict runs/reviews "fine, I suppose" --abstain 0.8
    """
    if top is not None and top < 1:
        raise WeftError(f"--top {top} shows no token: use 1 or more, or leave it out")
    how = given_options(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, beam=beam, max_tokens=max_tokens, seed=seed,
        samples=samples, repetition=repetition, stop=stop, speculative=speculative, top=top, steps=steps, chat=chat,
        overflow=overflow, question=question, abstain=abstain,
        labels=None if labels is None else tuple(label.strip() for label in labels.split(",")),
    )  # fmt: skip
    load_torch()
    from weft.data.readers.tables import TableOptions

    table = TableOptions(**_table_settings(settings))
    run_predict(run, inputs or [], how, table, out, Opening(device, quantize, module), as_json)


@dataclass(frozen=True)
class Opening:
    """How the run is opened: device, quantization of its weights, and a factory of the user's own module."""

    device: str | None
    quantize: str | None
    module: str | None


def _table_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`--set data.columns=a` and `data.header=yes` as fields of TableOptions."""
    from weft.cli.settings import read_settings
    from weft.tasks.support.inputs.table_data import TableDataSpec

    changes = read_settings(settings)
    other = next((name for name in changes if name not in ("data.columns", "data.header")), None)
    if other is not None:
        raise WeftError(
            f"--set {other}: predict sets how a table is read alone: data.columns=NAME or data.header=yes|no"
        )
    spec = TableDataSpec(**{name.removeprefix("data."): value for name, value in changes.items()})
    return {"columns": spec.columns, "header": spec.header}


def run_predict(
    run: Path,
    inputs: Sequence[str],
    how: dict[str, Any],
    table: TableOptions,
    out: Path | None,
    opening: Opening,
    as_json: bool,
) -> None:
    """Answers to all inputs; without any, each line of stdin is one."""
    from weft.cli.terminal import console, print_json
    from weft.runs.run import load
    from weft.tasks.support.inputs.input_rows import open_inputs

    given = list(inputs) or _lines()
    if not given:
        raise WeftError(
            f"nothing to answer: give an input, or lines on stdin: echo hello | weft predict {quote(str(run))}"
        )
    opened = load(run, opening.device, opening.quantize, find_factory(opening.module))  # type: ignore[arg-type]
    if opened.task.generates and not opened.module.declares().cached:  # type: ignore[operator]
        sys.stderr.write("note: this model keeps no cache, so each new token reads the whole text again\n")
    if out is not None:
        _write_answers(opened, given, how, table, out, as_json)
        return
    given, notes = open_inputs(opened.task, given, table) if inputs else (given, [])
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
    task, asked = opened.task, "top" in how or "labels" in how or how.get("steps", False)
    if task.continues_input and not asked and _waits_for_one(given, how) and not as_json:
        _stream(opened, given[0], how)
        return
    if task.generates and not asked and not as_json:
        how = {**how, "top": 0}
    answers = opened.answer(given, **how)
    if as_json:
        print_json([answer.to_tree() for answer in answers])
        return
    terminal = console()
    for answer in answers:
        _print(terminal, answer, task.continues_input and not how.get("chat"), len(answers) > 1)
        if asked or (len(answers) == 1 and sys.stdout.isatty()):
            _print_probabilities(terminal, answer, task.generates)
    if any(answer.more.get("slid") for answer in answers):
        _note(opened)


def _write_answers(
    run: Run, given: Sequence[str], how: dict[str, Any], table: TableOptions, out: Path, as_json: bool
) -> None:
    """Answer a table, or other inputs, into a file, with progress on stderr."""
    from weft.cli.terminal import print_json, progress
    from weft.data.readers.files import existing_path, name_suffix
    from weft.runs.answer_table import answer_format
    from weft.runs.batch_prediction import predict_to_file
    from weft.tasks.support.inputs.input_rows import ROW_SUFFIXES, RowInputs

    answer_format(out)
    tables = [path for path in map(existing_path, given) if path is not None and name_suffix(path) in ROW_SUFFIXES]
    inputs: Any = list(given)
    if tables and isinstance(run.task, RowInputs):
        if len(given) > 1:
            raise WeftError(f"{len(given)} inputs with a table among them: give one table at a time with --out")
        inputs = run.task.open_rows(tables[0], table)
        for note in inputs.notes:
            sys.stderr.write(f"note: {note}\n")
    if run.task.generates and "top" not in how:
        how = {**how, "top": 0}
    try:
        with progress("predicting") as report:
            written = predict_to_file(run, inputs, out, how, report)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command continues\n")
        raise
    if as_json:
        print_json({"path": str(out), "inputs": written.inputs, "resumed": written.resumed})
        return
    before = f" ({written.resumed:,} of them before it was stopped)" if written.resumed else ""
    print(f"answers: {out}, to {written.inputs:,} inputs{before}")


def _note(run: Run) -> None:
    length = getattr(run.module.spec, "length", None)
    words = f"longer than the {length} tokens it was trained for: the older half was forgotten on the way"
    sys.stderr.write(f"note: {words} (--overflow refuse stops instead)\n")


def _waits_for_one(given: list[str], how: dict[str, Any]) -> bool:
    """Whether a terminal waits for one text that can be shown token by token."""
    alone = len(given) == 1 and how.get("samples", 1) == 1 and "beam" not in how
    return alone and sys.stdout.isatty()


def _stream(run: Run, given: str, how: dict[str, Any]) -> None:
    from weft.cli.terminal import TerminalText

    text, shown = given, TerminalText(sys.stdout)
    if not how.get("chat"):
        shown.write(given)
    for piece in run.stream(given, **how):
        text += piece
        shown.write(piece)
    sys.stdout.write("\n")
    written = [] if run.tokenizer is None else run.tokenizer.encode(text)
    if how.get("overflow") == "slide" and len(written) > getattr(run.module.spec, "length", len(written)):
        _note(run)


def _lines() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        return []
    try:
        return [line.rstrip("\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError:
        raise WeftError("stdin is not UTF-8 text: convert it first") from None


def _print(out: Any, answer: Answer, continues: bool, many: bool) -> None:
    """The answer; after its input where it continues it, or where there are many."""
    from weft.cli.answers import describe_answer

    shown = describe_answer(answer) or (answer.output if isinstance(answer.output, str) else _readable(answer.output))
    if continues:
        shown = f"{answer.input}{shown}"
    elif many or "\n" in shown:
        shown = f"{answer.input}\t{shown}"
    out.print(shown, markup=False, soft_wrap=True)


def _print_probabilities(out: Any, answer: Answer, generates: bool) -> None:
    """Bars of the first token, or of every step; for other tasks of the likeliest classes."""
    from weft.cli.terminal import print_bars, quoted

    shares = answer.more.get("probabilities")
    for number, step in enumerate(answer.more.get("steps", ()), 1):
        rows = [(quoted(one["token"]), one["probability"]) for one in step["probabilities"]]
        chosen = next(n for n, one in enumerate(step["probabilities"]) if one["id"] == step["id"])
        out.print(f"\nstep {number}: {quoted(step['token'])}", markup=False)
        print_bars(out, rows, chosen)
    if isinstance(shares, dict) and "steps" not in answer.more:
        ranked = list(shares.items())
        if not generates:
            ranked = sorted(ranked, key=lambda item: -item[1])[:CLASSES_SHOWN]
        out.print("\nthe first new token" if generates else "\nprobabilities")
        print_bars(out, [(quoted(name) if generates else name, share) for name, share in ranked])


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_readable(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple, dict)):
            return "\n".join(_readable(inner) for inner in value)
        return " ".join(f"{inner:.4g}" if isinstance(inner, float) else str(inner) for inner in value)
    return str(value)
