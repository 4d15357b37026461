"""Tasks: one file each; how data is read, the default model, loss, metric, prediction."""
