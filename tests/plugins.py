"""Temporary distributions: packages with entry points, found by Python as installed ones are."""

from __future__ import annotations

from pathlib import Path


def write_distribution(folder: Path, name: str, code: dict[str, str], entry_points: dict[str, dict[str, str]]) -> Path:
    """A folder for sys.path or PYTHONPATH with modules `code` and entry points {group: {name: "module:attribute"}}."""
    folder.mkdir(parents=True, exist_ok=True)
    for module, text in code.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    # Installers write a dash in the name as an underscore; Python takes what stands before the first dash for the name.
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{own} = {target}" for own, target in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder
