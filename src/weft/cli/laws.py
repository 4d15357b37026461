"""`weft laws`: checks a preset, a run, or the user's own module against the laws that it declares."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import FAILED, AsJson, app
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    import torch

    from weft.laws import Report


WHOLE = 20_000_000  # parameters up to which a preset is checked at its own size
COLORS = {"holds": "green", "broken": "bold red", "not declared": "dim", "not testable": "yellow"}


@app.command()
def laws(
    preset: Annotated[
        str | None, typer.Argument(metavar="RUN|PRESET", help="Folder of a run or name of a preset.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="Your own model: package.module:factory, a function that makes it.")
    ] = None,
    example: Annotated[
        str | None, typer.Option(help="Token ids to check it with, such as 3,1,4; random ones if left out.")
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--not-causal", help="Declare whether tokens see only earlier ones.")
    ] = None,
    positions: Annotated[
        str | None, typer.Option(help="Declare the kind of its positions: none, absolute or relative.")
    ] = None,
    reach: Annotated[int | None, typer.Option(help="Declare how many tokens back it sees, over all layers.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Declare the size of its vocabulary.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Also compare with the model under torch.compile.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the report to this HTML file.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a model does what it declares.

    A causal model does not look ahead; padding, other rows of the batch and packing change nothing; decoding with a
    cache equals the full forward pass; and more. The exit code is 1 if a declared law is broken.

    \b
    Examples:
      weft laws nano-gpt
      weft laws mixtral-8x7b --json                large presets are checked at a smaller size
      weft laws --module my_project.model:build --causal --html laws.html
    """
    given = {"causal": causal, "positions": positions, "reach": reach, "vocabulary": vocabulary}
    declared = {name: value for name, value in given.items() if value is not None}
    if not run_laws(preset, module, example, declared, as_json, html, compiled):
        raise typer.Exit(FAILED)


def run_laws(
    name: str | None,
    module: str | None,
    example: str | None,
    declared: dict[str, Any],
    as_json: bool,
    html: Path | None,
    compiled: bool,
) -> bool:
    """Check a model and print the verdicts; True if no declared law is broken."""
    from weft.cli.terminal import print_json
    from weft.laws import check
    from weft.laws.page import write_page

    if (name is None) == (module is None):
        raise WeftError(
            "give either a preset or run, or a module: `weft laws gpt2` or `weft laws --module package.module:factory`"
        )
    subject, said = _preset(name) if name is not None else (_module(module or ""), None)
    report = check(subject, _example(example), compiled=compiled, **declared)
    if name is not None:
        assumed = report.assumed if said is None else (said, *report.assumed)
        report = replace(report, model=name, assumed=assumed)
    if html is not None:
        write_page(report, html)
    if as_json:
        print_json({**report.to_tree(), "html": None if html is None else str(html)})
    else:
        _print(report, html)
    return not report.broken


def _preset(name: str) -> tuple[torch.nn.Module, str | None]:
    """The model of a run or of a preset; a large preset at a smaller size, with the same kinds of parts."""
    from weft.models.build import build
    from weft.models.presets import preset
    from weft.models.shrink import shrink
    from weft.runs.run import load

    if Path(name).is_dir():
        return load(name).module, None
    spec = preset(name)
    parameters = sum(p.numel() for p in build(spec, device="meta").parameters())
    if parameters <= WHOLE:
        return build(spec), None
    small = shrink(spec)
    layers = "" if small.family == "recurrent-seq2seq" else f", {small.layers} layers"
    said = f"{parameters:,} parameters are checked at a smaller size: the same parts, width {small.width}{layers}"
    return build(small), said


def _module(place: str) -> Any:
    """The module that a factory in the user's own code makes: package.module:factory."""
    import torch

    path, _, factory = place.partition(":")
    if not path or not factory:
        raise WeftError(f"{place!r} names no factory: write package.module:factory")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(path), factory)
    except ModuleNotFoundError as error:
        raise WeftError(f"there is no module {error.name!r} here: run from its folder or install it") from error
    except AttributeError as error:
        raise WeftError(f"module {path!r} has no {factory!r}: name a function or class that gives the model") from error
    except Exception as error:
        raise WeftError(f"importing {path!r} fails with {type(error).__name__}: {error}") from error
    if isinstance(found, torch.nn.Module):
        return found
    if not callable(found):
        raise WeftError(f"{place!r} is a {type(found).__name__}: name a module or a function that makes one")
    try:
        return found()
    except Exception as error:
        raise WeftError(f"{place} fails with {type(error).__name__}: {error}") from error


def _example(text: str | None) -> torch.Tensor | None:
    import torch

    if text is None:
        return None
    try:
        return torch.tensor([[int(token) for token in text.replace(",", " ").split()]])
    except ValueError:
        raise WeftError(f"an example is token ids such as 3,1,4,1,5, not {text!r:.60}") from None


def _print(report: Report, html: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from weft.cli.terminal import console

    out = console()
    for text in report.assumed:
        out.print(Text(f"Assumed: {text}.", style="dim"))
    table = Table(title=f"Laws of {report.model}", title_justify="left", expand=False)
    for heading in ("Law", "Verdict", "Evidence", "Blame and likely cause"):
        table.add_column(heading, overflow="fold")
    for f in report.findings:
        blame = ": ".join(text for text in (f.blame, f.cause) if text)
        table.add_row(f.law, Text(f.verdict, style=COLORS[f.verdict]), Text(f.evidence), Text(blame))
    out.print(table)
    out.print(f"{report.headline} ({report.seconds:.1f} s).", markup=False)
    if html is not None:
        out.print(f"Report: {html}", markup=False)
