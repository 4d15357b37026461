"""Analysis: numbers computed from recorded attention and activations."""
