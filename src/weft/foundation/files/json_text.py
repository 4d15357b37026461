"""JSON of unknown origin: whatever is wrong with it is one short ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError that says what is wrong with it in a few words.

    Python's own parser also raises RecursionError (nested too deeply) and, for a number of very many digits, an error
    that speaks of Python's settings.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.object[error.start]:#04x} is not UTF-8") from None
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError:
        raise ValueError("a number has too many digits") from None


def as_whole_number(text: str) -> int | None:
    """The whole number that a text of the digits 0 to 9 is, if it has at most 18 of them; else None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None
