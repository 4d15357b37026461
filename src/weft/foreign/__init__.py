"""Foreign: adapters that recognise how modules are called: tokens, masks, positions, cache, logits."""
