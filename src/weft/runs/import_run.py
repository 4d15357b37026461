"""Foreign checkpoints as runs: `weft.import_checkpoint` and `weft import` are this."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.runs.run import Run, load


def import_checkpoint(source: str | Path, out: str | Path, certificate: bool = True, device: str | None = None) -> Run:
    """A Hugging Face folder, a name on its hub, or a GGUF file as a run: `weft.import_checkpoint("folder", out="run")`.

    Where transformers is installed, its logits and ours are compared first (see import.json in the run's folder).
    """
    convert_checkpoint(source, out, certificate)
    return load(out, device)
