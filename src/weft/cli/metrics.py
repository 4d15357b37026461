"""Metrics on the terminal: one line per number."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape


def print_metrics(out: Console, metrics: dict[str, Any], main: str, references: dict[str, float] | None = None) -> None:
    """One line per number, the `main` metric first and in bold; what simple methods reach stands below, dimmed."""
    wide = max(map(len, (*metrics, *(references or {}), "best possible")))
    for name, value in sorted(metrics.items(), key=lambda item: item[0] != main):
        title = name.replace("_", " ").ljust(wide)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            out.print(f"  {title}")
            for row in value:
                out.print("    " + "  ".join(f"{key} {_number(cell)}" for key, cell in row.items()), markup=False)
        elif isinstance(value, dict):
            out.print(f"  {title} " + ", ".join(f"{k} {_number(v)}" for k, v in value.items()), markup=False)
        else:
            out.print(f"  {title} {_number(value)}", markup=False, style="bold" if name == main else "")
    for name, value in (references or {}).items():
        out.print(f"  [dim]{escape(name.ljust(wide))} {_number(value)}[/dim]")


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
