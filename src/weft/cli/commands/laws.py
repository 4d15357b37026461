"""`weft laws`: checks a preset, a run, or the user's own module against the laws that it declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import FAILED, AsJson, Module, app
from weft.cli.environment import load_torch
from weft.cli.factory import find_factory, make_module
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    import torch

    from weft.laws import Report


FULL_SIZE_PARAMETERS = 20_000_000  # parameters up to which a preset is checked at its own size
COLORS = {"holds": "green", "broken": "bold red", "caution": "yellow", "not declared": "dim", "not testable": "dim"}


@app.command()
def laws(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PRESET|FILE.py:FACTORY",
            help="Folder of a run, name of a preset, or your model: path/file.py:factory or package.module:factory.",
        ),
    ] = None,
    module: Module = None,
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
    list_all: Annotated[
        bool, typer.Option("--all", help="List all laws, also those that hold and those that were not tested.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the report to this HTML file.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a model does what it declares.

    A causal model does not look ahead; padding, other rows of the batch and packing change nothing; decoding with a
    cache equals the full forward pass; and more. Listed are laws that are broken, with the submodule to blame, and
    cautions: laws that hold only with an argument that callers often leave out. The exit code is 1 if a declared law
    is broken or none could be tested.

    \b
    Examples:
      weft laws nano-gpt
      weft laws mixtral-8x7b --json                large presets are checked at a smaller size
      weft laws my_model.py:build                  build() gives your model; or package.module:build
      weft laws my_model.py:build --causal --all --html laws.html
      weft laws runs/own --module my_model.py:MyGPT
    """
    given = {"causal": causal, "positions": positions, "reach": reach, "vocabulary": vocabulary}
    declared = {name: value for name, value in given.items() if value is not None}
    if model is None and module is None:
        raise WeftError("give one model: `weft laws gpt2`, `weft laws path/file.py:factory` or the folder of a run")
    if html is not None:
        from weft.foundation.files.atomic_files import expect_other_file

        expect_other_file(html, [given.partition(":")[0] for given in (model, module) if given is not None])
    report = _check(model or "", module, example, declared, compiled)
    if html is not None:
        from weft.laws.page import write_page

        write_page(report, html)
    if as_json:
        from weft.cli.terminal import print_json

        print_json({**report.to_tree(), "html": None if html is None else str(html)})
    else:
        _print(report, html, list_all)
    if report.broken or not report.tested:
        raise typer.Exit(FAILED)


def _check(model: str, module: str | None, example: str | None, declared: dict[str, Any], compiled: bool) -> Report:
    """The report on a run, a preset, or what a factory in the user's own code makes."""
    load_torch()
    from weft.checkpoints.sample_runs import locate_run
    from weft.laws import check

    if not model or (":" in model and not locate_run(model).is_dir()):
        return check(make_module(model or str(module)), _example(example), compiled=compiled, **declared)
    subject, said = _preset(model, module)
    report = check(subject, _example(example), compiled=compiled, **declared)
    return replace(report, model=model, assumed=report.assumed if said is None else (said, *report.assumed))


def _preset(name: str, module: str | None) -> tuple[torch.nn.Module, str | None]:
    """The model of a run or of a preset; a large preset at a smaller size, with the same kinds of parts."""
    from weft.checkpoints.sample_runs import locate_run
    from weft.models.build import build
    from weft.models.presets import preset
    from weft.models.shrink import shrink
    from weft.models.stack_spec import StackSpec
    from weft.runs.run import load

    if locate_run(name).is_dir():
        return load(name, module=find_factory(module)).module, None
    if module is not None:
        raise WeftError(f"{name} is no folder of a run, so --module names another model: give one of them")
    if name.endswith(".py"):
        raise WeftError(
            f"{name!r} names no factory: write {name}:factory, with a function or class that gives the model"
        )
    spec = preset(name)
    parameters = sum(p.numel() for p in build(spec, device="meta").parameters())
    if parameters <= FULL_SIZE_PARAMETERS:
        return build(spec), None
    small = shrink(spec)
    layers = f", {small.layers} layers" if isinstance(small, StackSpec) else ""
    said = f"{parameters:,} parameters are checked at a smaller size: the same parts, width {small.width}{layers}"
    return build(small), said


def _example(text: str | None) -> torch.Tensor | None:
    import torch

    if text is None:
        return None
    try:
        return torch.tensor([[int(token) for token in text.replace(",", " ").split()]])
    except ValueError:
        raise WeftError(f"an example is token ids such as 3,1,4,1,5, not {text!r:.60}") from None


def _print(report: Report, html: Path | None, list_all: bool) -> None:
    """Broken laws and cautions one by one; of the rest a count, unless all are asked for."""
    from rich.table import Table
    from rich.text import Text

    from weft.cli.terminal import console

    out = console()
    for text in report.assumed:
        out.print(Text(f"Assumed: {text}.", style="dim"))
    listed = report.by_weight if list_all else [*report.broken, *report.cautions]
    if listed:
        table = Table(title=f"Laws of {report.model}", title_justify="left", expand=False)
        for heading in ("Law", "Verdict", "Evidence", "Blame and likely cause"):
            table.add_column(heading, overflow="fold")
        for f in listed:
            blame = ": ".join(text for text in (f.blame, f.cause) if text)
            table.add_row(f.law, Text(f.verdict, style=COLORS[f.verdict]), Text(f.evidence), Text(blame))
        out.print(table)
    rest = "" if list_all else "; --all lists them"
    said = f"Laws of {report.model}: {report.headline} (judged in {report.precision}, {report.seconds:.1f} s{rest})."
    out.print(said, markup=False)
    if html is not None:
        out.print(f"Report: {html}", markup=False)
