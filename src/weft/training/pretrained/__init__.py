"""Training from weights that exist: where the model comes from, fine-tuning, a head on a frozen body."""
