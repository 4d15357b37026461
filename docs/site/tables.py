"""Tables of the site from the code itself: every option of every task, every command, every preset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined
from reference import prose

from weft.foundation.spec import Spec

Row = Sequence[object]


def options_page() -> str:
    """Every option of every task with its type and default, and what the task reads."""
    from weft.models.build import MODEL_FAMILIES
    from weft.models.position_specs import POSITIONS
    from weft.tasks.registry import task_named, trainable_tasks
    from weft.training.training_spec import TrainingSpec

    lines = ["# Options of every task", "", INTRODUCTION, ""]
    for task in trainable_tasks():
        kind = task_named(task)
        lines += [f"## {task}", "", "`DATA` may be: " + prose(" ".join(kind.formats.split())), ""]
        if kind.auto:
            lines += [f"Model by `--preset auto`: {prose(kind.auto)}.", ""]
        families = ", ".join(f"[{name}](#family-{name})" for name in kind.families)
        lines += [f"Metric: `{kind.metric}`. Families: {families}.", ""]
        lines += [*_options("data", kind.Options), ""]
    lines += ["## Training", "", "For every task; a task's recipe may choose other defaults.", ""]
    lines += [*_options("training", TrainingSpec), "", "## The model", "", MODEL, ""]
    kinds: dict[str, dict[str, type[Spec]]] = {}
    for name, spec in MODEL_FAMILIES.items():
        lines += [f"### Family {name} {{#family-{name}}}", "", *_options("", spec), ""]
        for field, about in spec.model_fields.items():
            kinds.setdefault(field, {}).update({_kind(one): one for one in _specs(about.annotation)})
    kinds["positions"] |= {name: POSITIONS[name] for name in POSITIONS}
    for field, found in kinds.items():
        for kind, spec in found.items():
            lines += [f"### {field}: {kind}", "", *_options(field, spec), ""]
    return "\n".join(lines)


def _specs(annotation: object) -> Iterator[type[Spec]]:
    """The specs that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for inner in get_args(annotation):
        yield from _specs(inner)


def _kind(spec: type[Spec]) -> str:
    """The name by which a table chooses a spec."""
    field = spec.model_fields.get("kind")
    return spec.__name__.removesuffix("Spec").lower() if field is None else str(field.default)


INTRODUCTION = """Each is set by `--set NAME=VALUE` (repeatable), by a table in a TOML file (`--config run.toml`), or in
Python by `weft.train(..., set={"NAME": VALUE})`. This page is made from the code;
`weft train TASK --help` prints the same."""
MODEL = """`--set layers=6` changes a field of the model, `--set mixer.heads=4` one of its mixer. `kind` chooses among
variants, whose own fields are below: `--set positions.kind=alibi`."""


def _options(prefix: str, spec: type) -> Iterator[str]:
    """A table of the fields of a spec, then what its docstring says of them."""
    rows = []
    for name, field in spec.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "not set" if default is None else _plain(default)
        rows.append((f"`{prefix + '.' if prefix else ''}{name}`", f"`{_type(field.annotation)}`", f"`{shown}`"))
    yield from table(("option", "type", "default"), rows)
    yield from ("", prose("\n".join(line.strip() for line in (spec.__doc__ or "").strip().splitlines())))


def _plain(value: object) -> object:
    """A default as one would type it; of a spec its kind."""
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        return ",".join(str(_plain(one)) for one in value) or "none"
    return (getattr(value, "kind", None) or "defaults") if isinstance(value, Spec) else value


def _type(annotation: object) -> str:
    """A type in few words: a choice as its values, a spec as a table."""
    inner = [one for one in get_args(annotation) if one is not NoneType]
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, inner))
    if get_origin(annotation) is Annotated:
        return _type(inner[0])
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_type, inner)))
    if get_origin(annotation) is tuple:
        return f"list of {_type(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return "table"
    return {"str": "text", "int": "number", "float": "number", "bool": "true or false"}.get(
        getattr(annotation, "__name__", ""), "table"
    )


def commands_page() -> str:
    """Every command with its arguments and options, as `--help` tells them."""
    import typer

    from weft.cli.main import app

    lines = ["# Commands", "", "Made from what `weft COMMAND --help` prints.", ""]
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        told, _, examples = (command.help or "").partition("\b\n")
        lines += [f"## `weft {name}`", "", prose(re.sub(r" *\n *", "\n", told)), ""]
        if examples:
            lines += ["```text", *(line.removeprefix("  ") for line in examples.splitlines()[1:]), "```", ""]
        rows = []
        for one in command.params:
            flags = ", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts))
            if one.param_type_name == "argument":
                flags = f"`{one.metavar or one.human_readable_name}`"
            rows.append((flags, prose(" ".join((one.help or "").split()))))
        lines += [*table(("option", "what"), rows), ""]
    return "\n".join(lines)


def presets_page() -> str:
    """Every preset with its family and its number of parameters."""
    from weft.models.stored_estimates import stored_estimate, stored_presets

    rows = []
    for name in stored_presets():
        found = stored_estimate(name)
        assert found is not None
        plain = "the model as lectures draw it; training chooses its size" if found.plain else ""
        rows.append((f"`{name}`", found.estimate.family, f"{found.estimate.parameters:,}", plain))
    shown = table(("preset", "family", "parameters", ""), rows)
    return "\n".join(
        ["# All presets", "", "`weft show PRESET` tells what each is made of and what it costs.", "", *shown, ""]
    )


def table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| " + " | ".join(map(str, head)) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("\n", " ") for cell in row) + " |"
