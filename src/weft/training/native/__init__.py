"""The gradient's norm, its scaling and AdamW for all weights of a model in one native call each."""

from weft.training.native.adamw import OneCallAdamW
from weft.training.native.clipping import clip_gradients

__all__ = ["OneCallAdamW", "clip_gradients"]
