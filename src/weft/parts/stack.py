"""The stack: L blocks one after the other, each seeing under its own mask, and an optional last norm.

One call serves training, prefill and decoding: without a state the keys are the tokens given; with one they are
those that the state remembers, and the same masks apply, because the state knows their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.parts.attention import SelfAttention
from weft.parts.block import Block, Source
from weft.parts.masks import Everything, Mask
from weft.parts.norms import Norm
from weft.parts.notes import Notes
from weft.parts.places import Places
from weft.parts.relative import AttentionPosition
from weft.parts.sight import Sight
from weft.parts.state import Clock, LayerState, State, TensorState, Track


class Stack(nn.Module):
    """Blocks with their masks, the position that acts inside attention (shared by all layers) and the last norm."""

    def __init__(
        self,
        blocks: Sequence[Block],
        masks: Sequence[Mask],
        position: AttentionPosition | None = None,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.masks = tuple(masks)
        self.position = position
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        places: Places,
        mask: Mask | None = None,
        state: State | None = None,
        memory: tuple[Tensor, Places] | None = None,
        notes: Notes | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; `mask` narrows what each layer's own mask allows."""
        sights = self._sights(places, mask, state)
        cross = None if memory is None else Sight(places, memory[1])
        for layer, (block, own) in enumerate(zip(self.blocks, self.masks, strict=True)):
            kept = None if state is None else state.layers[layer]
            seen = None
            if memory is not None and cross is not None:
                seen = Source(memory[0], cross, None if state is None else state.crosses[layer])
            x = block(x, sights[own], kept, seen, notes)
        if state is not None:
            state.clock.advance(places)
        return x if self.norm is None else self.norm(x)

    def _sights(self, places: Places, mask: Mask | None, state: State | None) -> dict[Mask, Sight]:
        """One sight for each distinct mask; layers with equal masks share it."""
        admissions = {} if state is None else {key: track.admit(places) for key, track in state.tracks.items()}
        sights: dict[Mask, Sight] = {}
        for own in dict.fromkeys(self.masks):
            admission = admissions.get(_window(own))
            keys = None if admission is None else admission.keys
            sights[own] = Sight(places, keys, own & (mask or Everything()), self.position, admission)
        return sights

    def _mixers(self) -> list[Any]:
        return [block.mixer for block in self.blocks]

    def make_state(self, batch: int, device: torch.device, capacity: int | None = None) -> State:
        """An empty state for `batch` rows: growing, or refusing more than `capacity` tokens."""
        pairs = zip(self._mixers(), self.masks, strict=True)
        windows = {_window(mask) for mixer, mask in pairs if isinstance(mixer, SelfAttention)}
        layers: list[LayerState] = [TensorState() if mixer is None else mixer.make_state() for mixer in self._mixers()]
        tracks = {window: Track(batch, device, capacity, window) for window in windows}
        return State(Clock(batch, device), tracks, layers, [TensorState() for _ in self.blocks])


def _window(mask: Mask) -> int | None:
    """How many keys back this mask may see, its own included; None without a bound."""
    back, _ = mask.band()
    return None if back is None else back + 1
