"""Checkpoints: the run folder, safe tensors, foreign names and ours; never a pickle."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
