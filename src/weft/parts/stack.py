"""The stack: L blocks one after the other, each seeing under its own mask, and an optional last norm.

One call serves training, prefill and decoding: without a state the keys are the tokens given; with one they are
those that the state remembers, and the same masks apply, because the state knows their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.foundation.errors import ShapeError, WeftError
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import Sight
from weft.parts.auxiliary import Notes
from weft.parts.block import Block, Source
from weft.parts.masks import Everything, Graph, Mask, both, rules_of
from weft.parts.norms import Norm
from weft.parts.relative import AttentionPosition
from weft.parts.state import Clock, LayerState, State, TensorState, Track
from weft.parts.token_positions import Places


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
        self._bands: dict[Mask, int | None] = {}

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
        self._expect(x, mask, state, memory)
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

    def _expect(self, x: Tensor, mask: Mask | None, state: State | None, memory: tuple[Tensor, Places] | None) -> None:
        """Refuse, before anything is changed, what these blocks cannot do."""
        rules = rules_of(mask) if mask is not None else ()
        other = next((m for m in self._mixers() if m is not None and not isinstance(m, SelfAttention)), None)
        if rules and other is not None:
            raise WeftError(
                f"{both(rules)!r} acts inside attention, but this model mixes by {type(other).__name__}: "
                "use attention, or masks of padding and documents only"
            )
        for leaf in mask.leaves() if mask is not None else ():
            if isinstance(leaf, Graph) and leaf.adjacency.dim() == 3 and leaf.adjacency.shape[0] not in (1, x.shape[0]):
                raise ShapeError(f"graphs of {leaf.adjacency.shape[0]} rows for {x.shape[0]} rows of tokens: one a row")
        if state is not None and (len(state.layers) != len(self.blocks) or set(state.tracks) != self._windows()):
            raise WeftError("this state was made by another model: make one with this model's make_state()")
        if memory is not None and memory[0].shape[0] != x.shape[0]:
            raise ShapeError(
                f"{x.shape[0]} rows of target for {memory[0].shape[0]} of source: give one source a row, "
                "and reorder the memory together with the state"
            )

    def _band(self, mask: Mask) -> int | None:
        if mask not in self._bands:
            self._bands[mask] = _window(mask)
        return self._bands[mask]

    def _windows(self) -> set[int | None]:
        pairs = zip(self._mixers(), self.masks, strict=True)
        return {self._band(mask) for mixer, mask in pairs if isinstance(mixer, SelfAttention)}

    def _sights(self, places: Places, mask: Mask | None, state: State | None) -> dict[Mask, Sight]:
        """One sight for each distinct mask; layers with equal masks share it."""
        tracks = {} if state is None else state.tracks
        for track in tracks.values():
            track.expect_room(places)
        admissions = {key: track.admit(places) for key, track in tracks.items()}
        sights: dict[Mask, Sight] = {}
        for own in dict.fromkeys(self.masks):
            admission = admissions.get(self._band(own))
            keys = None if admission is None else admission.keys
            sights[own] = Sight(places, keys, own & (mask or Everything()), self.position, admission)
        return sights

    def _mixers(self) -> list[Any]:
        return [block.mixer for block in self.blocks]

    def make_state(self, batch: int, device: torch.device, capacity: int | None = None, origin: int = 0) -> State:
        """An empty state for `batch` rows: growing, or refusing more than `capacity` tokens.

        Layers with a window keep a ring of that many, however long the text, so `capacity` does not bound them.
        """
        layers: list[LayerState] = [TensorState() if mixer is None else mixer.make_state() for mixer in self._mixers()]
        tracks = {window: Track(batch, device, capacity, window) for window in self._windows()}
        return State(Clock(batch, device, origin), tracks, layers, [TensorState() for _ in self.blocks])


def _window(mask: Mask) -> int | None:
    """How many keys back this mask may see, its own included; None without a bound."""
    back, _ = mask.band()
    return None if back is None else back + 1
