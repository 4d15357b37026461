"""What a model gives back, and what it declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from weft.foundation.lazy import lazy
from weft.models.position_specs import Nature
from weft.parts import observer
from weft.parts.masks import Mask
from weft.parts.state import State
from weft.parts.token_positions import TokenPositions


@dataclass
class Output:
    """Hidden states [B, T, D]; logits, computed when asked for; the state passed in; auxiliary losses and maps.

    A loss in chunks reads `hidden` and never needs the logits whole. What `logits` are is the model's answer: over the
    vocabulary, classes, or the raw parameters of a distribution.
    """

    hidden: Tensor
    head: Callable[[Tensor], Tensor]
    state: State | None = None
    auxiliary: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.hidden.device.type
        for one in observer.active:
            one.on_answer(self.hidden, self.head)
        self._modes = (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled(device))

    @lazy
    def logits(self) -> Tensor:
        """The answer, computed at the first use, in the modes (gradients, inference, autocast) of the call itself."""
        inference, gradients, autocast = self._modes
        device = self.hidden.device.type
        if torch.compiler.is_compiling():
            return self.head(self.hidden)
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
            torch.autocast(device, enabled=autocast),
        ):
            return self.head(self.hidden)


@dataclass(frozen=True)
class Memory:
    """What `encode` leaves for `decode`: hidden states [B, S, D], positions, and a summary c (recurrent models)."""

    hidden: Tensor
    token_positions: TokenPositions
    summary: Tensor | None = None

    def reorder(self, rows: Tensor) -> Memory:
        """Rows rows[0], rows[1], ... in this order; to be done together with `State.reorder`."""
        summary = None if self.summary is None else self.summary.index_select(0, rows)
        return Memory(self.hidden.index_select(0, rows), self.token_positions.reorder(rows), summary)


@dataclass(frozen=True)
class Declaration:
    """What a model promises of itself; the laws judge exactly this.

    `window`: the number of keys back that a query sees at each layer, its own included, so `reach` tokens in all.
    `prefix`: the number of tokens of an image before the text, seen by all. `text_prefix`: the number of the text's own
    first tokens that all see, so that they see each other in both directions; causal from there on. `masks`: what each
    layer sees, where that is more than causality and a window say. `positions`: none (order counts only through mask
    and mixer), absolute, relative. `isolates`: documents packed into one row can be kept apart. `source_length`: the
    longest source in tokens, where it has a bound of its own.
    """

    family: str
    causal: bool
    cached: bool
    positions: Nature
    order_free: bool = False
    window: int | None = None
    reach: int | None = None
    prefix: int | None = None
    text_prefix: int | None = None
    masks: tuple[Mask, ...] | None = None
    length: int | None = None
    vocabulary: int | None = None
    experts: bool = False
    seq2seq: bool = False
    isolates: bool = True
    source_length: int | None = None

    def to_tree(self) -> dict[str, Any]:
        """Plain values for JSON; masks in words."""
        masks = None if self.masks is None else [repr(mask) for mask in self.masks]
        return {**asdict(replace(self, masks=None)), "masks": masks}
