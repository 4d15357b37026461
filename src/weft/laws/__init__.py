"""Laws: prove that a model does what it declares, also the user's own.

weft.laws.check(module, example_tokens).raise_if_broken()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft.foundation.packages import open_lazily

if TYPE_CHECKING:
    from weft.laws.checker import LAWS, check
    from weft.laws.finding import BrokenLawError, Finding, Report

_HOMES = {"LAWS": "checker", "check": "checker", "BrokenLawError": "finding", "Finding": "finding", "Report": "finding"}

__all__ = ["LAWS", "BrokenLawError", "Finding", "Report", "check"]


def __getattr__(name: str) -> Any:
    """Loaded at the first use: the pytest fixture of this room must not make every pytest run wait for torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"weft.laws.{_HOMES[name]}"), name)
    return open_lazily(__name__)(name)
