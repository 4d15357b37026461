"""Training: optimizers and schedules."""
