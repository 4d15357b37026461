"""The cache folder: what can be made again but is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from weft.foundation.errors import WeftError


def cache_folder() -> Path:
    """WEFT_CACHE, or weft in the user's cache folder; always an absolute path.

    A relative one would be another folder in each working folder. XDG_CACHE_HOME is ignored then, as its standard asks.
    """
    given = os.environ.get("WEFT_CACHE")
    if given:
        if not os.path.isabs(given):
            raise WeftError(f"WEFT_CACHE is {given!r:.200}, but an absolute path is needed: write it from / on")
        return Path(given)
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "weft"
    try:
        return Path.home() / ".cache" / "weft"
    except RuntimeError:
        raise WeftError("this user has no home folder to keep files in: set WEFT_CACHE to an absolute path") from None
