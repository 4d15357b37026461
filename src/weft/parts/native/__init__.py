"""Native kernels of parts: fewer passes over memory and faster products than torch's, in float32 on CPUs."""

from weft.parts.native.attention import attention, suits_attention
from weft.parts.native.gelu import gelu_tanh
from weft.parts.native.layer_norm import layer_norm
from weft.parts.native.library import kernels, suits
from weft.parts.native.linear import (
    linear,
    linear_into,
    linear_to_weights,
    linear_to_x,
    suits_linear,
    suits_slopes,
)

__all__ = [
    "attention",
    "gelu_tanh",
    "kernels",
    "layer_norm",
    "linear",
    "linear_into",
    "linear_to_weights",
    "linear_to_x",
    "suits",
    "suits_attention",
    "suits_linear",
    "suits_slopes",
]
