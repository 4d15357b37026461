"""`weft predict`: a run's answers to inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, Device, Quantize, app
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.task import Answer


MOST = 8


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, or paths of images and tables; lines of stdin if left out.", metavar="INPUT"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 takes the most probable token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the most probable tokens that reach this probability together.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Leave out tokens below this share of the highest probability.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Number of beam search hypotheses.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Largest number of new tokens.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    samples: Annotated[int, typer.Option(help="Number of answers per input.")] = 1,
    repetition: Annotated[
        float, typer.Option(help="Repetition penalty: above 1, repeated tokens are less probable.")
    ] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop before; repeatable.")] = None,
    speculative: Annotated[
        bool, typer.Option(help="Speculative decoding by prompt lookup: faster where texts repeat themselves.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Format the input as a user's message to a chat model.")] = False,
    overflow: Annotated[
        str, typer.Option(help="For texts longer than in training: slide (drop the oldest tokens), refuse or extend.")
    ] = "slide",
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Predict: text -> continuation, sentence -> translation, image -> label, table -> forecast.

    \b
    Examples:
      weft predict runs/book "Once upon a time" --max-tokens 80 --seed 1
      weft predict runs/digits seven.png three.png --json
      cat sentences.txt | weft predict runs/ende --beam 5
      weft predict runs/book "Once upon a time" --quantize int8 --stop "The end"
    """
    how: dict[str, object] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "beam": beam}
    how |= {"max_tokens": max_tokens, "seed": seed, "samples": samples}
    how |= {"repetition": repetition, "stop": stop, "speculative": speculative, "chat": chat, "overflow": overflow}
    run_predict(run, inputs or [], how, device, quantize, as_json)


def run_predict(
    run: Path, inputs: Sequence[str], how: dict[str, Any], device: str | None, quantize: str | None, as_json: bool
) -> None:
    """Answers to all inputs; without any, each line of stdin is one."""
    from weft.cli.terminal import console, print_json
    from weft.runs.run import load

    given = list(inputs) or _lines()
    if not given:
        raise WeftError(
            f"nothing to answer: give an input, or lines on stdin: echo hello | weft predict {quote(str(run))}"
        )
    opened = load(run, device, quantize)  # type: ignore[arg-type]
    wanted = {name: value for name, value in how.items() if value is not None}
    continues = opened.task.continues_input and not wanted.get("chat")
    if opened.task.continues_input and _waits_for_one(given, wanted) and not as_json:
        _stream(opened, given[0], wanted)
        return
    alone = len(given) == 1 and wanted.get("samples", 1) == 1
    wanted.setdefault("top", MOST if as_json or (alone and sys.stdout.isatty()) else 0)
    answers = opened.answer(given, **wanted)
    if as_json:
        print_json([answer.to_tree() for answer in answers])
        return
    out = console()
    for answer in answers:
        _print(out, answer, continues, len(answers) > 1)
    if any(answer.more.get("slid") for answer in answers):
        _note(opened)


def _note(run: Run) -> None:
    length = getattr(run.module.spec, "length", None)
    words = f"longer than the {length} tokens it was trained for: the older half was forgotten on the way"
    sys.stderr.write(f"note: {words} (--overflow refuse stops instead)\n")


def _waits_for_one(given: list[str], how: dict[str, Any]) -> bool:
    """Whether a terminal waits for one text that can be shown token by token."""
    alone = len(given) == 1 and how.get("samples", 1) == 1 and "beam" not in how and not how.get("speculative")
    return alone and sys.stdout.isatty()


def _stream(run: Run, given: str, how: dict[str, Any]) -> None:
    text = given
    if not how.get("chat"):
        sys.stdout.write(given)
    for piece in run.stream(given, **how):
        text += piece
        sys.stdout.write(piece)
        sys.stdout.flush()
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
    from weft.cli.terminal import bars

    shown = answer.output if isinstance(answer.output, str) else _readable(answer.output)
    if continues:
        out.print(f"{answer.input}{shown}", markup=False, soft_wrap=True)
    elif many or "\n" in shown:
        out.print(f"{answer.input}\t{shown}", markup=False, soft_wrap=True)
    else:
        out.print(shown, markup=False, soft_wrap=True)
    shares = answer.more.get("probabilities")
    if isinstance(shares, dict) and not many and sys.stdout.isatty():
        ranked = sorted(shares.items(), key=lambda item: -item[1])[:MOST]
        title = "the first new token" if continues else "probabilities"
        lines = bars([(repr(name) if continues else name, share) for name, share in ranked])
        out.print(f"\n{title}\n{lines}", markup=False)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_readable(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple, dict)):
            return "\n".join(_readable(inner) for inner in value)
        return " ".join(f"{inner:.4g}" if isinstance(inner, float) else str(inner) for inner in value)
    return str(value)
