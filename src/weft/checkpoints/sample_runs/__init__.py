"""Sample runs: small trained models that ship with the package, so that commands and lessons work without training.

`sample:NAME-run` is the address of one wherever a run is read. They are read only: nothing is written into the package.
The file `command.txt` beside the weights holds the command that trained them.
"""

from __future__ import annotations

from pathlib import Path

from weft.foundation.errors import WeftError

PREFIX = "sample:"
HOME = Path(__file__).parent


def sample_runs() -> list[str]:
    """The addresses of all sample runs."""
    return sorted(f"{PREFIX}{folder.parent.name}" for folder in HOME.glob("*/spec.json"))


def locate_run(address: str | Path) -> Path:
    """The folder that an address means: a path, or a run that ships with the package."""
    text = str(address)
    if not text.startswith(PREFIX) or Path(text).is_dir():
        return Path(address)
    if text not in sample_runs():
        raise WeftError(f"there is no run {text}: give a run's folder, or {' or '.join(sample_runs())}")
    return HOME / text.removeprefix(PREFIX)


def address_of(folder: Path) -> str:
    """How a run's folder is told to a user: `sample:NAME-run` for one that ships with the package, else its path."""
    return f"{PREFIX}{folder.name}" if folder.parent == HOME else str(folder)
