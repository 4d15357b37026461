"""Weft's models with the weights of a transformers model, by the names that its checkpoints have."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file


def copy_from_transformers(model: Any, peer: Any, table: Sequence[Any]) -> Any:
    """`model` with the weights of `peer`; `table` is that of the checkpoint family (`weft.checkpoints.families`)."""
    from transformers.utils import logging

    switch: Any = logging.disable_progress_bar
    switch()
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        theirs = load_file(Path(folder) / "model.safetensors")
    ours = {row.ours: row.transform.read([theirs[name] for name in row.theirs]) for row in table}
    found = model.load_state_dict(ours, strict=False)
    assert not found.unexpected_keys, found
    return model
