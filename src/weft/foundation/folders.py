"""The cache folder: what can be made again but is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """WEFT_CACHE, or weft in the user's cache folder."""
    given = os.environ.get("WEFT_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
