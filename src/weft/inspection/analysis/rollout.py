"""Rollout: attention through all layers (Abnar and Zuidema 2020): average the heads, multiply the layers.

    A~_l = (1 - r) mean_h A_lh + r I,   R = A~_L ... A~_2 A~_1

r = 0.5 stands for the residual connection past attention; r = 0 is attention alone. R_ij is the share of token i at
the top that comes from input token j, if tokens were mixed by attention only. Attention without a softmax counts by
its shares, |A_ij| / sum_j |A_ij|. Layers that mix tokens by convolution or recurrence have no A and are left out of the
product; `parts_left_out` names them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.foundation.errors import WeftError
from weft.inspection.recording.attention_records import Kind, shares
from weft.parts.embeddings import ConvolutionStem

if TYPE_CHECKING:
    from weft.inspection.recording.watch import Seen

RESIDUAL = 0.5


def rollout(seen: Seen, batch: int = 0, residual: float = RESIDUAL, kind: Kind | None = None, call: int = -1) -> Tensor:
    """R (T, T); row 0 of a model with a class token shows what its answer looks at."""
    return roll_out(averaged_layers(seen, batch, kind, call), residual)


def averaged_layers(seen: Seen, batch: int = 0, kind: Kind | None = None, call: int = -1) -> list[Tensor]:
    """mean_h A_lh (T, T) of each layer, lowest first."""
    one = seen.call(call)
    kind = one.choose(kind)
    layers = one.layers(kind)
    _, _, T, S = one.sizes(layers[0], kind, batch)
    if kind not in ("self", "encoder") or T != S:
        raise WeftError(
            f"layers of {kind} attention of {T} x {S} do not multiply: roll out the self-attention of one sequence"
        )
    maps = []
    for layer in layers:
        weights = seen.attention(layer, batch=batch, kind=kind, call=call)
        maps.append((weights if one.record(layer, kind, batch).normalized else shares(weights)).mean(0))
    return maps


def parts_left_out(seen: Seen, kind: Kind | None = None, call: int = -1) -> list[str]:
    """The parts that mix tokens but are no attention, so that no map of theirs is in the product."""
    stem = any(isinstance(part, ConvolutionStem) for part in seen.module.modules())
    found = ["the convolutions of the stem"] if stem else []
    return found + [f"layer {layer} ({words})" for layer, words in other_mixers(seen, kind, call)]


def other_mixers(seen: Seen, kind: Kind | None = None, call: int = -1) -> list[tuple[int, str]]:
    """The layers that mix tokens by something else than attention, and by what, in words."""
    others = seen.recorder.names.others.get(seen.call(call).choose(kind), [])
    return [(layer, re.sub("(?<!^)(?=[A-Z])", " ", type(mixer).__name__).lower()) for layer, mixer in others]


def roll_out(layers: list[Tensor], residual: float = RESIDUAL) -> Tensor:
    """The product of averaged maps (T, T), lowest layer first; see the head of this file."""
    if not 0 <= residual < 1:
        raise WeftError(f"a residual of {residual} leaves no attention: use 0 (attention alone) to below 1 (0.5)")
    rolled = torch.eye(layers[0].shape[0], dtype=layers[0].dtype, device=layers[0].device)
    for map in layers:
        rolled = mixed(map, residual) @ rolled
    return rolled


def mixed(map: Tensor, residual: float) -> Tensor:
    """(1 - r) A + r I; a row that looks nowhere stays with its token."""
    eye = torch.eye(map.shape[0], dtype=map.dtype, device=map.device)
    total = map.sum(-1, keepdim=True)
    return torch.where(total > 0, (1 - residual) * map + residual * eye, eye)
