"""The reference of the site: a page per package, from the sources' docstrings and signatures; nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "weft"
ENTITIES = {"<": "&lt;", ">": "&gt;", "$": "&#36;", "|": "&#124;"}
SPECIAL = re.compile(r"[\\*_\[\]<>$|]")
WIDE = 90
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def module_name(path: Path) -> str:
    """`weft.parts.attention` of src/weft/parts/attention.py; a package has the name of its folder."""
    steps = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(steps[:-1] if steps[-1] == "__init__" else steps)


def page_of(path: Path) -> str:
    """The page that tells of this source file: the one of its package."""
    return f"reference/{module_name(path.parent / '__init__.py')}.md"


def reference_pages() -> Iterator[tuple[str, str, str]]:
    """(title, address, text) of each page: the public names first, then every package in the order of its name."""
    yield "weft", "reference/weft.md", _front_page()
    for own in sorted(PACKAGE.rglob("__init__.py"), key=lambda path: module_name(path)):
        files = sorted(path for path in own.parent.glob("*.py") if path.name != "__init__.py")
        if own.parent != PACKAGE and files:
            name = module_name(own)
            lines = [f"# `{name}`", "", prose(_doc(ast.parse(own.read_text(encoding="utf-8")))), ""]
            for path in files:
                lines += _module(path)
            yield name, page_of(own), "\n".join(lines) + "\n"


def prose(text: str) -> str:
    """A docstring as Markdown: what is indented or in backticks stays, all else is plain text."""
    lines = []
    for line in text.strip().splitlines():
        if line.startswith("    "):
            lines.append(line)
        else:
            pieces = re.split(r"(`[^`]*`)", line)
            lines.append("".join(piece if piece.startswith("`") else SPECIAL.sub(_escaped, piece) for piece in pieces))
    return _apart("\n".join(lines))


def _escaped(found: re.Match[str]) -> str:
    return ENTITIES.get(found[0], f"\\{found[0]}")


def _apart(text: str) -> str:
    """Indented formulas stand as blocks of code: with an empty line before and after."""
    text = re.sub(r"(?m)^(?! {4}|$)(.*)\n(?= {4}\S)", r"\1\n\n", text)
    return re.sub(r"(?m)^( {4}.*)\n(?! {4}|$)", r"\1\n\n", text)


def _doc(node: ast.AST) -> str:
    assert isinstance(node, ast.Module | Definition)
    return ast.get_docstring(node) or ""


def _module(path: Path) -> Iterator[str]:
    tree, name = ast.parse(path.read_text(encoding="utf-8")), module_name(path)
    yield from (f"## `{name}` {{#{name}}}", "", prose(_doc(tree)), "")
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield from _definition(node, name)


def _definition(node: Definition, module: str) -> Iterator[str]:
    """A class with its fields and methods, or a function."""
    yield from (f"### `{node.name}` {{#{module}.{node.name}}}", "", *_code([_signature(node)]))
    yield from (prose(_doc(node)), "")
    if not isinstance(node, ast.ClassDef):
        return
    fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign) and not _private(part)]
    if fields:
        yield from _code(fields)
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
            line = re.sub(r",? \)", ")", " ".join(_signature(method).split()).replace("( ", "("))
            yield from (f"- `{line}`", "")
            yield from (f"    {line}".rstrip() for line in prose(_doc(method)).splitlines())
            yield ""


def _private(part: ast.AnnAssign) -> bool:
    return isinstance(part.target, ast.Name) and part.target.id.startswith("_")


def _code(lines: list[str]) -> list[str]:
    return ["```python", *lines, "```", ""]


def _signature(node: Definition) -> str:
    """What one types; of a class that has an __init__, the arguments of that. Long ones have a line per argument."""
    if isinstance(node, ast.ClassDef):
        made = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        bases = ", ".join(name for base in node.bases if not (name := ast.unparse(base)).startswith("_"))
        head, given, end = (
            f"class {node.name}",
            [] if made is None else _arguments(made.args),
            f"  # {bases}" * bool(bases),
        )
    else:
        head, given = node.name, _arguments(node.args)
        end = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{head}({', '.join(given)}){end}"
    return line if len(line) <= WIDE else f"{head}(\n    " + ",\n    ".join(given) + f",\n){end}"


def _arguments(of: ast.arguments) -> list[str]:
    """Each argument with its type and default, without self and cls."""
    plain = [*of.posonlyargs, *of.args]
    defaults = [*[None] * (len(plain) - len(of.defaults)), *of.defaults]
    found = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)]
    if of.vararg is not None or of.kwonlyargs:
        found.append("*" if of.vararg is None else f"*{ast.unparse(of.vararg)}")
    found += [_argument(one, default) for one, default in zip(of.kwonlyargs, of.kw_defaults, strict=True)]
    found += [] if of.kwarg is None else [f"**{ast.unparse(of.kwarg)}"]
    return [one for one in found if one not in ("self", "cls")]


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(one)
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if one.annotation is not None else f"{text}={ast.unparse(default)}"


def _front_page() -> str:
    """The names of `weft` itself, and the packages."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    homes = next(ast.literal_eval(part.value) for part in tree.body if _assigns(part, "_HOMES"))
    lines = ["# `weft`", "", prose(_doc(tree)), "", "## What `import weft` gives", "", "| name | what |", "|---|---|"]
    for name, home in homes.items():
        path = PACKAGE.parent / Path(*home.split(".")).with_suffix(".py")
        node = next(part for part in ast.parse(path.read_text(encoding="utf-8")).body if _names(part, name))
        told = prose(_doc(node).split("\n\n")[0].replace("\n", " "))
        lines.append(f"| [`weft.{name}`]({Path(page_of(path)).name}#{home}.{name}) | {told} |")
    return "\n".join(lines) + "\n"


def _assigns(part: ast.stmt, name: str) -> bool:
    return isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name) and part.targets[0].id == name


def _names(part: ast.stmt, name: str) -> bool:
    return isinstance(part, Definition) and part.name == name
