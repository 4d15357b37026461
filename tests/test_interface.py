"""Frozen: public names, state-dict keys, spec fields. Changing one must be done knowingly, in `tests/frozen`."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import weft

FROZEN = Path(__file__).parent / "frozen"
UNFROZEN = ("weft.cli", "weft.__main__")


def public_names() -> dict[str, list[str]]:
    names = {"weft": sorted(weft.__all__)}
    for info in pkgutil.walk_packages(weft.__path__, "weft."):
        if info.name.startswith(UNFROZEN):
            continue
        module = importlib.import_module(info.name)
        own = [
            name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]  # fmt: skip
        if own or not info.ispkg:
            names[module.__name__] = sorted(own)
    return names


def state_keys() -> dict[str, list[str]]:
    return {name: sorted(_once(weft.build(name, device="meta").state_dict())) for name in weft.presets()}


def _once(state: dict) -> set[str]:
    """Keys with block numbers folded: every block of a stack has the same."""
    return {".".join("*" if step.isdigit() else step for step in key.split(".")) for key in state}


def spec_fields() -> dict[str, list[str]]:
    from weft.models.build import MODEL_FAMILIES

    return {name: sorted(kind.model_fields) for name, kind in MODEL_FAMILIES.items()}


def command_options() -> dict[str, list[str]]:
    import typer

    from weft.cli.main import app

    group = typer.main.get_command(app)
    return {
        name: sorted(option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts))
        for name, command in sorted(group.commands.items())
    }


@pytest.mark.parametrize("what", [public_names, state_keys, spec_fields, command_options], ids=lambda f: f.__name__)
def test_frozen(what):
    path = FROZEN / f"{what.__name__}.json"
    found = what()
    if os.environ.get("WEFT_FREEZE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(path.read_text()), (
        "if this change is meant: WEFT_FREEZE=1 pytest tests/test_interface.py"
    )


def test_rooms_load_lazily():
    code = "import sys, weft; weft.__version__; print([m for m in sys.modules if m.startswith(('torch', 'weft.'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="nonsense"):
        weft.nonsense  # noqa: B018
    assert "build" in dir(weft)
    code = (
        "import weft; weft.parts.masks.Causal; print(hasattr(weft.parts, 'nonsense'), hasattr(weft.parts, '__path__'))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True"]
    # In any order, also where a room was loaded by another way before.
    code = "import weft; weft.watch; print(weft.inspection.analysis.lens.__name__, weft.figures.web.page.__name__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["weft.inspection.analysis.lens", "weft.figures.web.page"]


def test_foundation_holds_no_torch_modules():
    for path in (Path(weft.__file__).parent / "foundation").glob("*.py"):
        assert "nn" not in path.read_text(encoding="utf-8").replace("import torch.nn", "nn").split(), path


def test_no_file_is_long_and_no_function_takes_many_arguments():
    root = Path(weft.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                arguments = [a.arg for a in node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]
                command = path.parent.name == "commands" and node.decorator_list  # its arguments are the user's options
                assert command or len(arguments) <= 12, (path, node.name)
                assert node.end_lineno - node.lineno <= 70, (path, node.name)


def test_every_public_part_has_a_docstring():
    for module, names in public_names().items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if (callable(value) and isinstance(value, type)) or hasattr(value, "__code__"):
                assert value.__doc__, f"{module}.{name}"
