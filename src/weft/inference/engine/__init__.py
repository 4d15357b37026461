"""Engine: continuous batching of many requests."""
