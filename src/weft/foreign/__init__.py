"""Foreign: adapters that recognize how modules are called: tokens, masks, positions, cache, logits."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
