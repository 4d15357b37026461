"""The app that all commands belong to: errors become one sentence and an exit code."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft import __version__
from weft.cli.environment import choose_for_this_machine, describe_process
from weft.foundation.errors import WeftError

FAILED, USER_ERROR, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

ORDER = (
    "demo",
    "train",
    "predict",
    "chat",
    "tokens",
    "eval",
    "compare",
    "look",
    "lookup",
    "serve",
    "laws",
    "show",
    "plan",
    "import",
    "export",
    "bench",
)


class _Commands(TyperGroup):
    """Turns what may go wrong in any command into one sentence and an exit code; lists commands as users meet them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Bytes of the command line that are no UTF-8 become halves of surrogate pairs, which nothing can write."""
        for place, word in enumerate(args, 1):
            if not _is_text(word):
                raise _stop(
                    f"argument {place}, {ascii(word)[:60]}, is not UTF-8: convert it, or rename the file", USER_ERROR
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except WeftError as error:
            raise _stop(str(error), getattr(error, "exit_code", USER_ERROR)) from None
        except KeyboardInterrupt:
            raise _stop("stopped", INTERRUPTED) from None
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(CLOSED_PIPE) from None
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise _stop("there is not enough memory: choose a smaller model, batch or input", USER_ERROR) from None
        except OSError as error:
            _drop_output()
            where = error.filename or "the output"
            told = WeftError(f"cannot read or write {where}: {error.strerror}; check disk and path")
            raise _stop(str(told), USER_ERROR) from None
        return result


def _is_out_of_memory(error: Exception) -> bool:
    """Torch's allocator for CPUs has no error of its own; that of GPUs has."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stop(sentence: str, code: int) -> typer.Exit:
    """Print the sentence, without what would command the terminal: it may quote a file, a model or a template."""
    from weft.cli.terminal import without_controls

    if code == USER_ERROR and os.environ.get("WEFT_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    print(f"weft: {without_controls(sentence)}", file=sys.stderr)
    return typer.Exit(code)


def _drop_output() -> None:
    """Discard what is still in the buffer: writing it would fail again when Python closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Commands,
    name="weft",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value.")]
Device = Annotated[str | None, typer.Option(help="Device: cpu, cuda or mps; the fastest one present if left out.")]
Limit = Annotated[
    int | None,
    typer.Option(
        help="At most N examples, evenly spread; of series the first N windows.",
        metavar="N",
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="Quantization of the weights: int8 (a quarter of the memory) or int4 (a fifth, but small models answer "
        "worse); none if left out."
    ),
]

Module = Annotated[
    str | None,
    typer.Option(
        help="Your own model: path/file.py:factory or package.module:factory; a run that was trained with it needs it.",
        metavar="FILE.py:FACTORY",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _weft(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also print what was chosen for this machine: device, threads, kernels.")
    ] = False,
) -> None:
    """Weft: transformers, all of the textbook from one set of parts.

    \b
    Examples:
      weft demo                   train two small models and see what they learned
      weft train text book.txt --out runs/book --minutes 5
      weft predict runs/book "Once upon a time"
      weft chat runs/smollm       talk to a chat model
      weft tokens runs/book "Once upon a time"
      weft look runs/book "Once upon a time" --out book.html
      weft serve runs/book        an HTTP API that OpenAI's clients speak
      weft show                   all presets
      weft show gpt2              parameters, shapes, matrix products, memory, FLOPs
      weft plan llama-2-7b --devices 64xH100      memory, time and layout on many devices, estimated
      weft laws gpt2              check the laws that it declares
      weft bench                  what can be measured against other libraries
    """
    if verbose:
        _log_to_stderr(ctx)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def _log_to_stderr(ctx: typer.Context) -> None:
    """Print what the rooms log, until the command ends; `ctx.obj` is what was chosen before torch was loaded."""
    log = logging.getLogger("weft")
    handler, level = logging.StreamHandler(sys.stderr), log.level
    handler.setFormatter(logging.Formatter("weft: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    if ctx.obj is not None:
        log.info(ctx.obj)

    def close() -> None:
        for sentence in describe_process():
            log.info(sentence)
        log.removeHandler(handler)
        log.setLevel(level)

    ctx.call_on_close(close)


def run() -> None:
    """The entry point of `weft` and `python -m weft`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a question mark instead of a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if sys.stdin is not None:  # in the C locale, bytes that are no UTF-8 would pass
        sys.stdin.reconfigure(errors="strict")  # type: ignore[union-attr]
    waiting = choose_for_this_machine(sys.argv[1:])
    try:
        app(prog_name="weft", obj=waiting)
    except KeyboardInterrupt:
        print("weft: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
