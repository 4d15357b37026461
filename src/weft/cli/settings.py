"""Options as users write them: `--set a.b=c`, a config file, and the table of all defaults for `--help`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from weft.foundation.errors import WeftError
from weft.foundation.files.json_text import parse_json
from weft.foundation.files.regular_files import expect_regular
from weft.foundation.spec import Spec, Tree, parse_table

LENGTHS = ("steps", "minutes", "training.steps")


def read_config(path: Path | None) -> Tree:
    """The options in a TOML file, by dotted names; those of the model without `model.`."""
    if path is None:
        return {}
    try:
        tree = parse_table(expect_regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WeftError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WeftError(f"{path} is not UTF-8 text: write it as TOML") from None
    return _without_model(dict(_flat(tree)))


def read_settings(settings: Sequence[str]) -> Tree:
    """The options given as `--set NAME=VALUE`, by dotted names; those of the model without `model.`."""
    changes: Tree = {}
    for setting in settings:
        name, found, value = setting.partition("=")
        if not found or not name.strip():
            raise WeftError(
                f"--set {setting} sets nothing: write a name and a value, such as --set training.rate=0.001"
            )
        changes[name.strip()] = _value(value.strip())
    return _without_model(changes)


def override(lower: Tree, upper: Tree) -> Tree:
    """Both, where `upper` wins; it also decides alone how long to train, be it in steps or minutes."""
    if any(name in upper for name in LENGTHS):
        lower = {name: value for name, value in lower.items() if name not in LENGTHS}
    return lower | upper


def _without_model(changes: Tree) -> Tree:
    return {name.removeprefix("model."): value for name, value in changes.items()}


def _flat(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The tables data, training and model by dotted names; a table inside them is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and not prefix:
            yield from _flat(value, f"{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(text: str) -> Any:
    """JSON where it is JSON (numbers, true, false, null, lists, tables), else text."""
    try:
        return parse_json(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def list_defaults(task: str) -> str:
    """Every data and training option of a task with its default, as lines of help."""
    from weft.data.samples import samples
    from weft.models.plain_presets import plain_presets
    from weft.tasks.registry import task_named
    from weft.training.training_spec import TrainingSpec

    kind = task_named(task)
    lines = ["DATA may be:", *(f"  {line}".rstrip() for line in kind.formats.splitlines()), ""] if kind.formats else []
    for title, prefix, spec in (
        (f"Data of task {task}", "data", kind.Options),
        ("Training, unless the task's recipe says otherwise", "training", TrainingSpec),
    ):
        lines += [f"{title} (--set {prefix}.NAME=VALUE):", *_defaults(prefix, spec), ""]
        lines += [f"  {line.strip()}".rstrip() for line in (spec.__doc__ or "").strip().splitlines()] + [""]
    own = samples().get(task, ())
    lines += [f"Built-in data: {', '.join(f'sample:{name}' for name in own)}", ""] if own else []
    chosen = (
        f"Model (--preset auto, the default): {kind.auto}." if kind.auto else "Model (--preset auto): the task's own."
    )
    plain = plain_presets(kind.families)
    lines += [chosen, f"Plain, as lectures draw it: --preset {', '.join(plain)}.", ""] if plain else [chosen, ""]
    lines.append(
        f"Families: {', '.join(kind.families)}; any field of the spec, such as --set layers=6; see `weft show`."
    )
    return "\n".join(lines)


def _defaults(prefix: str, spec: type[Spec]) -> Iterator[str]:
    for name, field in spec.model_fields.items():
        default = "not set" if field.default is None else field.default
        shown = ",".join(default) or "none" if isinstance(default, tuple) else default
        yield f"  {prefix}.{name} = {shown}"
