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
from weft.parts import observer
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.auxiliary import Auxiliary
from weft.parts.block import Block, CrossAttentionSource
from weft.parts.masks import Everything, Graph, Mask, Prefix, both, rules_of
from weft.parts.norms import Norm
from weft.parts.position_counter import PositionCounter
from weft.parts.relative import AttentionPosition
from weft.parts.state import CacheSlots, LayerState, State, TensorState
from weft.parts.token_positions import TokenPositions


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
        token_positions: TokenPositions,
        mask: Mask | None = None,
        state: State | None = None,
        memory: tuple[Tensor, TokenPositions] | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; `mask` narrows what each layer's own mask allows."""
        if not observer.active:
            return self.run_blocks(x, token_positions, mask, state, memory, auxiliary)
        with observer.during_stack(self, x, token_positions, state, memory):
            return self.run_blocks(x, token_positions, mask, state, memory, auxiliary)

    def run_blocks(
        self,
        x: Tensor,
        token_positions: TokenPositions,
        mask: Mask | None,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
        auxiliary: Auxiliary | None,
    ) -> Tensor:
        """`forward` itself, which a faster stack replaces."""
        self._expect(x, token_positions, mask, state, memory)
        contexts = self.contexts(token_positions, mask, state)
        cross = None if memory is None else AttentionContext(token_positions, memory[1])
        for layer, (block, own) in enumerate(zip(self.blocks, self.masks, strict=True)):
            kept = None if state is None else state.layers[layer]
            seen = None
            if memory is not None and cross is not None:
                seen = CrossAttentionSource(memory[0], cross, None if state is None else state.crosses[layer])
            y = block(x, contexts[own], kept, seen, auxiliary)
            for one in observer.active:
                y = one.on_block(block, x, y)
            x = y
        if state is not None:
            state.counter.advance(token_positions)
        return x if self.norm is None else self.norm(x)

    def _expect(
        self,
        x: Tensor,
        token_positions: TokenPositions,
        mask: Mask | None,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
    ) -> None:
        """Refuse, before anything is changed, what these blocks cannot do."""
        if mask is not None:
            self._expect_effect(mask)
        for own in (*dict.fromkeys(self.masks), mask):
            for leaf in own.leaves() if own is not None else ():
                if isinstance(leaf, Graph):
                    leaf.expect_fit(x.shape[0], token_positions)
                if isinstance(leaf, Prefix) and state is not None:
                    leaf.expect_whole(token_positions)
        if state is not None and (len(state.layers) != len(self.blocks) or set(state.cache_slots) != self._windows()):
            raise WeftError("this state was made by another model: make one with this model's make_state()")
        if memory is not None and memory[0].shape[0] != x.shape[0]:
            raise ShapeError(
                f"{x.shape[0]} rows of target for {memory[0].shape[0]} of source: give one source per row, "
                "and reorder the memory together with the state"
            )

    def _expect_effect(self, mask: Mask) -> None:
        """Refuse rules that would change nothing: without attention, or where each layer sees less already."""
        rules = rules_of(mask)
        other = next((m for m in self._mixers() if m is not None and not isinstance(m, SelfAttention)), None)
        owns = [own for own, m in zip(self.masks, self._mixers(), strict=True) if isinstance(m, SelfAttention)]
        if rules and (not owns or other is not None):
            mixes = "has no mixer" if other is None else f"mixes by {type(other).__name__}"
            raise WeftError(
                f"{both(rules)!r} acts inside attention, but this model {mixes}: "
                "use attention, or masks of padding and documents only"
            )
        asked = rules or ([mask] if isinstance(mask, Everything) else [])
        for rule in asked:
            if owns and all(rule != own and rule not in own.terms() and rule.includes(own) for own in owns):
                raise WeftError(
                    f"{rule!r} shows no less than {owns[0]!r}, which this model's layers see at most, so it would "
                    "change nothing: leave it out, or build the model with this mask (mixer.mask in its spec)"
                )

    def _band(self, mask: Mask) -> int | None:
        if mask not in self._bands:
            self._bands[mask] = _window(mask)
        return self._bands[mask]

    def _windows(self) -> set[int | None]:
        pairs = zip(self._mixers(), self.masks, strict=True)
        return {self._band(mask) for mixer, mask in pairs if isinstance(mixer, SelfAttention)}

    def contexts(
        self, token_positions: TokenPositions, mask: Mask | None, state: State | None
    ) -> dict[Mask, AttentionContext]:
        """One context for each distinct mask; layers with equal masks share it."""
        cache_slots = {} if state is None else state.cache_slots
        for slots in cache_slots.values():
            slots.expect_room(token_positions)
        writes = {key: slots.plan_write(token_positions) for key, slots in cache_slots.items()}
        contexts: dict[Mask, AttentionContext] = {}
        for own in dict.fromkeys(self.masks):
            cache_write = writes.get(self._band(own))
            keys = None if cache_write is None else cache_write.keys
            contexts[own] = AttentionContext(
                token_positions, keys, own & (mask or Everything()), self.position, cache_write
            )
        return contexts

    def _mixers(self) -> list[Any]:
        return [block.mixer for block in self.blocks]

    def make_state(self, batch: int, device: torch.device, capacity: int | None = None, origin: int = 0) -> State:
        """An empty state for `batch` rows: growing, or refusing more than `capacity` tokens.

        Layers with a window keep a ring of that many, however long the text, so `capacity` does not bound them.
        """
        layers: list[LayerState] = [TensorState() if mixer is None else mixer.make_state() for mixer in self._mixers()]
        cache_slots = {window: CacheSlots(batch, device, capacity, window) for window in self._windows()}
        return State(PositionCounter(batch, device, origin), cache_slots, layers, [TensorState() for _ in self.blocks])


def _window(mask: Mask) -> int | None:
    """How many keys back this mask may see, its own included; None without a bound."""
    back, _ = mask.band()
    return None if back is None else back + 1
