"""`weft tokens`: a text as tokens, ids and bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, app
from weft.foundation.errors import WeftError
from weft.foundation.files.regular_files import expect_regular

if TYPE_CHECKING:
    from weft.data.tokenizers.token_table import TokenRow, TokenTable
    from weft.data.tokenizers.tokenizer import Tokenizer

LEARNED = ("characters", "words", "bpe")


@app.command()
def tokens(
    tokenizer: Annotated[
        str,
        typer.Argument(
            help="Folder of a run; a tokenizer.json, vocab.txt, vocab.json or tokenizer.model, or a folder of them; "
            "or `bytes`.",
            metavar="RUN|TOKENIZER",
        ),
    ],
    text: Annotated[
        str | None, typer.Argument(help="The text; all of stdin if left out.", metavar="TEXT", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the text from a file.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens of a text: ids, bytes, and whether the ids give the text back.

    \b
    Examples:
      weft tokens runs/book "Once upon a time"
      weft tokens tokenizer.json "naïve café 😀" --json
      weft tokens bytes --file book.txt
    """
    from weft.cli.terminal import print_json
    from weft.data.tokenizers.token_table import tabulate_tokens

    table = tabulate_tokens(_open(tokenizer), _read(text, file))
    if as_json:
        print_json(_tree(table))
    else:
        _print(table)


def _open(name: str) -> Tokenizer:
    """The tokenizer of a run, of a file or folder, or the one of bytes, which needs no training."""
    from weft.checkpoints.sample_runs import locate_run
    from weft.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer

    path = locate_run(name)
    if path.exists():
        return load_tokenizer(path) if not (path / "spec.json").is_file() else _of_run(path)
    if name == "bytes":
        return train_tokenizer("bytes", [])
    if name in LEARNED:
        raise WeftError(
            f"a tokenizer of {name} is learned from texts: give a run that was trained with "
            f"--set data.tokenizer={name}, a tokenizer file, or `bytes`"
        )
    return load_tokenizer(path)


def _of_run(path: Path) -> Tokenizer:
    from weft.checkpoints.run_folder import RunFolder
    from weft.data.tokenizers.tokenizer import load_tokenizer

    folder = RunFolder(path)
    spec = folder.read_spec()
    if folder.tokenizer is None:
        raise WeftError(
            f"{path} is a run of task {spec.task} without a tokenizer: give a run that reads or writes text"
        )
    return load_tokenizer(folder.tokenizer)


def _read(text: str | None, file: Path | None) -> str:
    if text is not None and file is not None:
        raise WeftError("a text and --file: give one of them")
    if text is not None:
        return text
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise WeftError('no text: give one, such as "Once upon a time", --file FILE, or text on stdin')
    try:
        # Line ends are tokens too: they are read as they are.
        return sys.stdin.read() if file is None else expect_regular(file).read_bytes().decode()
    except UnicodeDecodeError:
        raise WeftError(f"{file or 'stdin'} is not UTF-8 text: convert it first") from None
    except OSError as error:
        raise WeftError(f"cannot read {file}: {error.strerror}") from None


def _print(table: TokenTable) -> None:
    """A table on a terminal, lines with tabs elsewhere; then the counts, and the text rebuilt where it differs."""
    from weft.cli.terminal import console, quoted

    out = console()
    rows = [(str(n), str(row.id), _shown(row), row.bytes.hex(" ")) for n, row in enumerate(table.rows)]
    if out.is_terminal:
        _print_table(out, rows)
    else:
        for cells in rows:
            print("\t".join(cells))
    count, share = len(table.rows), table.bytes_per_token
    counts = [f"{len(table.text):,} characters", f"{table.size:,} bytes", f"{count:,} tokens"]
    counts += [] if share is None else [f"{share:.2f} bytes per token"]
    out.print(f"{', '.join(counts)} (vocabulary {table.vocabulary:,})", markup=False)
    unknown = sum(row.unknown for row in table.rows)
    if unknown:
        out.print(f"{unknown:,} unknown: the vocabulary lacks them", markup=False)
    if not table.round_trip:
        out.print(f"the ids give another text back: {quoted(table.rebuilt)}", markup=False, soft_wrap=True)


def _print_table(out: Any, rows: list[tuple[str, str, str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title, justify in (("", "right"), ("id", "right"), ("token", "left"), ("bytes", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for number, index, token, own in rows:
        table.add_row(Text(number, "dim"), index, Text(token, "bold"), own)
    out.print(table)


def _shown(row: TokenRow) -> str:
    """The token's own text; incomplete characters as bytes, and what it is if it is no ordinary token."""
    from weft.cli.terminal import visible

    text = visible(row.bytes.decode("utf-8", "backslashreplace"))
    return f"{text} ({row.token})" if row.unknown else f"{text} (special)" if row.special else text


def _tree(table: TokenTable) -> dict[str, Any]:
    rows = [
        {
            "id": row.id,
            "token": row.token,
            "text": row.bytes.decode("utf-8", "backslashreplace"),
            "bytes": list(row.bytes),
            "start": row.start,
            "end": row.end,
            "special": row.special,
            "unknown": row.unknown,
        }
        for row in table.rows
    ]
    share = table.bytes_per_token
    return {
        "text": table.text,
        "tokens": rows,
        "counts": {"characters": len(table.text), "bytes": table.size, "tokens": len(rows)},
        "bytes_per_token": None if share is None else round(share, 6),
        "vocabulary": table.vocabulary,
        "rebuilt": table.rebuilt,
        "round_trip": table.round_trip,
    }
