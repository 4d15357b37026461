"""Checkpoints: the run folder, safe tensors, foreign names and ours; never a pickle."""
