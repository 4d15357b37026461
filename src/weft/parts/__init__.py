"""Parts: pure functions and small modules, tensors in, tensors out. Every equation of the lectures is one of them."""
