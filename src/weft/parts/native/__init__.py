"""Native kernels of parts: fewer passes over memory than torch's operations take, for training in float32 on CPUs."""

from weft.parts.native.attention import attention, suits_attention
from weft.parts.native.gelu import gelu_tanh
from weft.parts.native.layer_norm import layer_norm
from weft.parts.native.library import kernels, suits
from weft.parts.native.linear import linear, suits_linear

__all__ = ["attention", "gelu_tanh", "kernels", "layer_norm", "linear", "suits", "suits_attention", "suits_linear"]
