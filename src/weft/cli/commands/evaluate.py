"""`weft eval`: a run's metrics on other data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.app import AsJson, Device, Limit, Module, Quantize, app
from weft.cli.environment import load_torch
from weft.cli.factory import find_factory
from weft.foundation.errors import WeftError

if TYPE_CHECKING:
    from weft.foundation.spec import Tree
    from weft.runs.run import Run


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    data: Annotated[
        list[str],
        typer.Argument(
            help="Data that the run was not trained on: files, or sample: for built-in data.", metavar="DATA"
        ),
    ],
    shots: Annotated[
        int | None,
        typer.Option(help="Few-shot evaluation: K labeled examples in the prompt of a language model.", metavar="K"),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="With --shots: words for the labels, in the order of the labels.", metavar="A,B")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="With --shots: file that examples are drawn from; DATA if left out.", metavar="FILE"),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="With --shots: format of an example, such as 'Review: {text}\\nMood: {label}'.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --shots: seed of the drawn examples.")] = 0,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", help="Change how data are read, such as data.columns=text,mood; repeatable.", metavar="DATA.B=C"
        ),
    ] = [],  # noqa: B006
    limit: Limit = None,
    abstain: Annotated[
        float | None,
        typer.Option(help="Also tell coverage and accuracy of the answers of at least this probability.", metavar="P"),
    ] = None,
    quantize: Quantize = None,
    module: Module = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Print the task's metrics on data that the run was not trained on, with 95 % intervals, beside simple methods.

    \b
    Examples:
      weft eval runs/book other-book.txt
      weft eval runs/ende test.en test.de --limit 500 --json
      weft eval runs/reviews dev.tsv --abstain 0.8
      weft eval runs/smollm dev.tsv --shots 8 --labels negative,positive --prompt 'Review: {text}\\nMood: {label}'
    """
    load_torch()
    from weft.cli.settings import read_settings

    more: dict[str, object] = {"examples": examples}
    more["labels"] = None if labels is None else [word.strip() for word in labels.split(",")]
    more |= {"prompt": None if prompt is None else prompt.replace("\\n", "\n"), "seed": seed}
    if shots is None and any(more.values()):
        raise WeftError("--labels, --examples, --prompt and --seed go with --shots: give --shots K, from 0")
    few_shot = {} if shots is None else {"shots": shots, **more}
    how = {**few_shot, **{name: given for name, given in (("limit", limit), ("abstain", abstain)) if given is not None}}
    run_eval(run, data, how, read_settings(settings), device, quantize, as_json, module)


def run_eval(
    run: Path,
    data: Sequence[str],
    how: dict[str, Any],
    changes: Tree,
    device: str | None,
    quantize: str | None,
    as_json: bool,
    module: str | None = None,
) -> None:
    """The task's metrics on held-out data; with `shots` among the options the labels that a language model gives."""
    from weft.cli.terminal import print_json, progress
    from weft.runs.run import load
    from weft.tasks.support.language.few_shot import METRIC as FEW_SHOT_METRIC

    other = next((name for name in changes if not name.startswith("data.")), None)
    if other is not None:
        raise WeftError(f"--set {other}: a run is evaluated as it is; only the reading can be set: data.columns=a,b")
    opened = load(run, device, quantize, find_factory(module))  # type: ignore[arg-type]
    known = _trained_on(opened, data)
    if known:
        sys.stderr.write(f"note: the run was trained on {', '.join(known)}: other data would tell more\n")
    options = {name.removeprefix("data."): value for name, value in changes.items()}
    with progress("evaluating") as report:
        found = opened.evaluate(list(data), options=options, report=lambda share: report(share, ""), **how)
    main = FEW_SHOT_METRIC if "shots" in how else opened.task.metric
    if as_json:
        print_json({**found, "metric": main})
        return
    _print(opened, data, found, main)


def _print(run: Run, data: Sequence[str], found: Tree, main: str) -> None:
    """Metrics with intervals and simple methods; then what training measured, where the run has stored it."""
    from rich.markup import escape

    from weft.cli.metrics import print_metrics, print_standing, print_trust
    from weft.cli.terminal import console

    out, judged_by = console(), run.task.judged_by
    references, intervals = found.pop("references", {}), found.pop("intervals", {})
    training, trust = found.pop("training", {}), found.pop("trust", None)
    reliability, abstention = found.pop("reliability", []), found.pop("abstention", None)
    found.pop("loses_to", None)
    out.print(f"[bold]{escape(str(run.folder))}[/bold] on {escape(', '.join(data))}")
    print_metrics(out, found, main, references, intervals, judged_by)
    print_standing(out, judged_by, found, references, intervals)
    print_trust(out, trust, reliability, abstention)
    others = {name: value for name, value in training.get("references", {}).items() if name not in references}
    if others and training.get("value") is not None:
        own = {training["metric"]: training["value"]}
        out.print("[dim]On the validation data of training, not on these:[/dim]")
        print_metrics(out, own, training["metric"], others)
        print_standing(out, training["metric"], own, others)


def _trained_on(run: Run, data: Sequence[str]) -> list[str]:
    """The given files that were used for training, directly or in a folder; none where their end was held out."""
    from weft.tasks.task import SAMPLE

    if run.task.evaluates_on_tail:
        return []
    sources = [Path(source).resolve() for source in run.spec.sources if not source.startswith(SAMPLE)]
    given = [name for name in data if not name.startswith(SAMPLE)]
    return [name for name in given if any(Path(name).resolve().is_relative_to(source) for source in sources)]
