"""Foreign: adapters that recognize how modules are called: tokens, masks, positions, cache, logits."""
