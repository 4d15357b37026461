"""The run folder of several processes: the first one writes it, what the others write is not written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torch import Tensor

from weft.checkpoints.run_folder import RunFolder, RunSpec, Snapshot
from weft.data.fingerprints import Fingerprint
from weft.data.tokenizers.tokenizer import Tokenizer
from weft.foundation.files.atomic_files import write_text
from weft.foundation.spec import Tree

LAUNCH = ".launch"  # the name of the launch that trains, by which its restarted workers know the run as theirs


def launch_name() -> str | None:
    """The name of this launch by torchrun, if it has one."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if name in (None, "", "none") else name


def read_launch(path: Path) -> str | None:
    """The launch that last trained the run."""
    with contextlib.suppress(OSError):
        return (path / LAUNCH).read_text(encoding="utf-8")
    return None


class LeadingFolder(RunFolder):
    """The first process's: notes which launch trains."""

    def write_spec(self, spec: RunSpec) -> None:
        if name := launch_name():
            write_text(self.path / LAUNCH, name)
        super().write_spec(spec)

    def keep_metrics_until(self, step: int) -> None:
        if name := launch_name():
            write_text(self.path / LAUNCH, name)
        super().keep_metrics_until(step)


class SilentFolder(RunFolder):
    """Reads only."""

    def expect_usable(self) -> None:
        """The first process looks."""

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """The first process holds the lock."""
        return contextlib.nullcontext()

    def write_spec(self, spec: RunSpec) -> None:
        """Left to the first process."""

    def write_plan(self, plan: Tree) -> None:
        """Left to the first process."""

    def write_fingerprints(self, files: list[Fingerprint]) -> None:
        """Left to the first process."""

    def write_references(self, found: Tree) -> None:
        """Left to the first process."""

    def write_model(self, weights: dict[str, Tensor], facts: Tree | None = None) -> None:
        """Left to the first process."""

    def write_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Left to the first process."""

    def write_snapshot(self, snapshot: Snapshot, keep: int = 1) -> None:
        """Left to the first process."""

    def complete_sharded_state(self, step: int, facts: Tree, scalars: dict[str, float], keep: int = 1) -> None:
        """Left to the first process."""

    def add_metrics(self, row: Tree) -> None:
        """Left to the first process."""

    def keep_metrics_until(self, step: int) -> None:
        """Left to the first process."""
