"""`weft eval` and `weft predict`: a run evaluated and used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from rich.markup import escape

from weft.cli.terminal import bars, console, print_json
from weft.cli.train import print_metrics
from weft.foundation.errors import WeftError
from weft.foundation.spec import Tree
from weft.runs.run import Run, load
from weft.tasks.support.few_shot import METRIC as FEW_SHOT_METRIC
from weft.tasks.task import SAMPLE, Answer

MOST = 8


def run_eval(
    run: Path,
    data: Sequence[str],
    shots: dict[str, Any],
    changes: Tree,
    device: str | None,
    quantize: str | None,
    as_json: bool,
) -> None:
    """The task's metrics on held-out data; with `shots` the labels that a language model gives."""
    other = next((name for name in changes if not name.startswith("data.")), None)
    if other is not None:
        raise WeftError(f"--set {other}: a run is evaluated as it is; only the reading can be set: data.columns=a,b")
    opened = load(run, device, quantize)  # type: ignore[arg-type]
    known = _trained_on(opened, data)
    if known:
        sys.stderr.write(f"note: the run was trained on {', '.join(known)}: other data would tell more\n")
    options = {name.removeprefix("data."): value for name, value in changes.items()}
    found = opened.evaluate(list(data), options=options, **shots)
    main = FEW_SHOT_METRIC if shots else opened.task.metric
    if as_json:
        print_json({**found, "metric": main})
        return
    out = console()
    out.print(f"[bold]{escape(str(run))}[/bold] on {escape(', '.join(data))}")
    print_metrics(out, found, main)


def _trained_on(run: Run, data: Sequence[str]) -> list[str]:
    """Those of the files that the run learned from, or that lie in a folder it did, unless their end was held out."""
    if run.task.evaluates_on_tail:
        return []
    sources = [Path(source).resolve() for source in run.spec.sources if not source.startswith(SAMPLE)]
    given = [name for name in data if not name.startswith(SAMPLE)]
    return [name for name in given if any(Path(name).resolve().is_relative_to(source) for source in sources)]


def run_predict(
    run: Path, inputs: Sequence[str], how: dict[str, Any], device: str | None, quantize: str | None, as_json: bool
) -> None:
    """Answers to all inputs; without any, each line of stdin is one."""
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
        raise WeftError("stdin is no text in UTF-8: convert it first") from None


def _print(out: Any, answer: Answer, continues: bool, many: bool) -> None:
    """The answer; after its input where it continues it, or where there are many."""
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
