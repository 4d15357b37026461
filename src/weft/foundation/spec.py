"""Spec machinery: frozen, validated, versioned descriptions that round trip through JSON and TOML."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from weft.foundation.errors import SpecError
from weft.foundation.files.json_text import as_whole_number, parse_json

Tree = dict[str, Any]
MOST_BITS = 63  # of a whole number in a spec


class Spec(BaseModel):
    """A frozen, validated description. `replace` gives a changed copy; bad fields raise one clear sentence.

    Numbers are finite: JSON has no others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SpecError(describe_validation_error(error, type(self))) from None

    @model_validator(mode="before")
    @classmethod
    def _expect_bounded(cls, fields: Any) -> Any:
        """Whole numbers beyond 64 bits are no sizes: arithmetic with them would go on as if they were."""
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if isinstance(value, int) and value.bit_length() > MOST_BITS:
                raise ValueError(
                    f"{name} is a whole number of {value.bit_length()} bits: choose one of {MOST_BITS} or fewer"
                )
        return fields

    def replace(self, **changes: Any) -> Self:
        """A changed copy: `spec.replace(layers=2)`; nested fields by dots, `spec.replace(**{"mixer.heads": 2})`.

        Another `kind` starts from that kind's defaults.
        """
        tree = self.to_tree()
        for path, value in _in_order(changes):
            set_path(tree, path, value)
        return type(self).from_tree(tree)

    def to_tree(self) -> Tree:
        """Plain dicts, lists, strings and numbers, as JSON has them."""
        return self.model_dump(mode="json")

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Self:
        return cls(**tree)

    def to_json(self) -> str:
        return json.dumps(self.to_tree(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        try:
            tree = parse_json(text)
        except ValueError as error:
            raise SpecError(f"this spec is not JSON ({error}): check the file or write it with to_json()") from None
        return cls.from_tree(expect_table(tree))

    def to_toml(self) -> str:
        """TOML text; fields that are None are left out, because TOML has no null."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """The inverse of `to_toml`."""
        try:
            tree = _parse_toml(text)
        except ValueError as error:
            raise SpecError(f"this spec is not TOML ({error}): check the file or write it with to_toml()") from None
        return cls.from_tree(tree)


class VersionedSpec(Spec):
    """A spec that is written to disk: it has a version, and older trees are migrated version by version."""

    VERSION: ClassVar[int] = 1
    MIGRATIONS: ClassVar[dict[int, Callable[[Tree], Tree]]] = {}
    version: int = 1

    @model_validator(mode="after")
    def _is_current(self) -> Self:
        if self.version != self.VERSION:
            raise ValueError(f"version {self.version} is not {self.VERSION}: read older specs with from_json")
        return self

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Self:
        """Read a tree of this or an older version."""
        return cls(**cls.migrate(dict(tree)))

    @classmethod
    def migrate(cls, tree: Tree) -> Tree:
        """Bring a tree up to this version; a newer one is refused."""
        version = tree.get("version", 1)
        if not isinstance(version, int) or version < 1:
            raise SpecError(f"the spec's version is {version!r}, but versions are whole numbers from 1")
        if version > cls.VERSION:
            raise SpecError(f"the spec is of version {version}, but this Weft reads up to {cls.VERSION}: upgrade Weft")
        for step in range(version, cls.VERSION):
            tree = cls.MIGRATIONS[step](tree)
        return {**tree, "version": cls.VERSION}


def rename_fields(tree: Any, names: Mapping[str, str]) -> Any:
    """The tree with fields renamed at any depth, for migrations."""
    if isinstance(tree, dict):
        return {names.get(name, name): rename_fields(value, names) for name, value in tree.items()}
    return [rename_fields(value, names) for value in tree] if isinstance(tree, list) else tree


def parse_table(text: str) -> Tree:
    """A table from JSON or TOML text."""
    if text.lstrip().startswith(("{", "[", '"')) and "=" not in text.split("\n", 1)[0]:
        try:
            tree = parse_json(text)
        except ValueError as error:
            raise SpecError(f"this spec is not JSON ({error}): check the file") from None
        return expect_table(tree)
    try:
        return _parse_toml(text)
    except ValueError as error:
        raise SpecError(f"this spec is neither JSON nor TOML ({error}): check the file") from None


def _parse_toml(text: str) -> Tree:
    """A table from TOML text, or a ValueError in a few words."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError:
        raise ValueError("a number has too many digits") from None


def expect_table(tree: Any) -> Tree:
    """Refuse JSON that is not an object."""
    if not isinstance(tree, dict):
        raise SpecError(f"a spec is a table of fields, but this is a {type(tree).__name__}")
    return tree


class _NewTable(dict[str, Any]):
    """A table that was left out, or is of another kind now: its own tables are begun as they are named."""

    def __missing__(self, name: str) -> None:
        return None


def set_path(tree: Tree, path: str, value: Any) -> None:
    """Set `a.b.c` in nested dicts and lists; an unknown field is named in the error."""
    *parents, last = path.split(".")
    place: Any = tree
    holder: Any = None  # of the table at `place`, by the name or number `at`
    at: Any = None
    for depth, step in enumerate(parents):
        if isinstance(place, list) and len(place) == 1 and not step.isdecimal():
            place = place[0]
        try:
            key = int(step) if isinstance(place, list) else step
            if place[key] is None:
                place[key] = _NewTable()
            holder, at, place = place, key, place[key]
        except (KeyError, IndexError, ValueError, TypeError):
            hint = f": {_name_fields(step, place)}" if isinstance(place, dict) else ""
            if isinstance(place, list):
                above = ".".join(parents[:depth])
                hint = f": {above} holds {len(place)} tables, so name one by its number, such as {above}.0.{step}"
            raise SpecError(f"there is no field {'.'.join(parents[: depth + 1])!r} to set {path!r} in{hint}") from None
    if isinstance(place, list) and len(place) == 1 and not last.isdecimal():
        holder, at, place = place, 0, place[0]
    number = as_whole_number(last)
    if isinstance(place, list) and number is not None and number < len(place):
        place[number] = value
    elif isinstance(place, dict):
        if last == "kind" and holder is not None and place.get("kind") != value:
            holder[at] = _NewTable(kind=value)  # without the fields of another kind
        else:
            place[last] = value
    else:
        raise SpecError(f"{path!r} cannot be set: {'.'.join(parents) or path!r} is not a table of fields")


def _in_order(changes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Changes with each kind before its fields; what is changed inside a table that is given too is put into it."""
    found: Tree = {}
    for path in sorted(changes, key=lambda path: (path.count("."), not path.endswith(".kind"))):
        value = changes[path].to_tree() if isinstance(changes[path], Spec) else changes[path]
        above = next((name for name in found if path.startswith(f"{name}.") and isinstance(found[name], dict)), None)
        if above is None:
            found[path] = copy.deepcopy(value)
            continue
        *parents, last = path.removeprefix(f"{above}.").split(".")
        place = found[above]
        for step in parents:
            place = place.setdefault(step, {})
        place[last] = value
    return list(found.items())


def _name_fields(unknown: str, fields: Iterable[str]) -> str:
    """A likely correction of an unknown field, and the fields that exist."""
    known = list(fields)
    near = get_close_matches(unknown, known, 1, cutoff=0.7)
    return (f"did you mean {near[0]}? " if near else "") + f"It has {', '.join(known)}"


def describe_validation_error(error: ValidationError, kind: type[BaseModel]) -> str:
    """A validation error as one sentence that names the field, the value and what is allowed."""
    first, name = error.errors()[0], kind.__name__
    field = ".".join(str(step) for step in first["loc"]) or "the spec"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if first["type"] == "extra_forbidden":
        return f"{name} has no field {field!r}: {_name_fields(field, kind.model_fields)}"
    if first["type"] == "union_tag_not_found":
        return f"{name} needs the field '{field}.kind': say which kind it is"
    if first["type"] == "missing":
        return f"{name} needs the field {field!r}: give it a value"
    given = "" if first["type"] == "value_error" and not first["loc"] else f" (got {first['input']!r:.80})"
    return f"{name}.{field}: {message}{given}" if first["loc"] else f"{name}: {message}"
