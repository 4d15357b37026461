"""The command `weft`. Nothing here imports torch: help and version answer at once, rooms load inside the commands."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft import __version__
from weft.foundation.errors import WeftError

FAILED, USER_ERROR, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141


class _Commands(TyperGroup):
    """Turns what may go wrong in any command into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except WeftError as error:
            if os.environ.get("WEFT_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            raise _stop(f"weft: {error}", USER_ERROR) from None
        except KeyboardInterrupt:
            raise _stop("weft: stopped", INTERRUPTED) from None
        except BrokenPipeError:
            # What is still in the buffer would fail again when Python closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(CLOSED_PIPE) from None
        return result


def _stop(sentence: str, code: int) -> typer.Exit:
    print(sentence, file=sys.stderr)
    return typer.Exit(code)


app = typer.Typer(
    cls=_Commands,
    name="weft",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _weft(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Weft: transformers, all of the textbook from one set of parts.

    \b
    Examples:
      weft demo                   train a small language model and see what it learned
      weft show                   all presets
      weft show gpt2              parameters, shapes, matrix products, memory, FLOPs
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
def show(
    preset: Annotated[
        str | None, typer.Argument(help="A preset's name or a spec file (.json, .toml); none lists all presets.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="N, the length in tokens; the model's own if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Parameters, shapes, the matrix products of a block, memory and FLOPs; builds nothing large.

    \b
    Examples:
      weft show                                all presets with family and parameters
      weft show gpt2
      weft show gpt3-175b --length 100000      what N x N attention weights would take
      weft show my-model.toml --json
    """
    from weft.cli.show import show_model, show_presets

    if preset is None:
        show_presets(as_json)
    else:
        show_model(preset, length, as_json)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="At most so long a training.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Train a small language model on Python's own documentation, without network, and see what it learned.

    \b
    Examples:
      weft demo
      weft demo --seconds 60
      weft demo --json
    """
    from weft.cli.demo import run_demo

    run_demo(seconds, as_json)


def run() -> None:
    """The entry point: `weft ...`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a question mark instead of a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(prog_name="weft")
    except KeyboardInterrupt:
        print("weft: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
