"""A stack that decodes by the native step: the same weights, masks and state, one call for all layers.

It takes blocks of attention (with or without attention to a memory) and classic or gated feed-forwards in float32 or in
blocks of few bits, with layer or RMS norms, rotary or no positions inside attention, and dot products, scaled or
capped, as scores. For anything else and for many tokens at once the single-token stack runs, there too with native
products of matrices in blocks.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch
from torch import Tensor, nn

from weft.inference.fast.native.layout import (
    ACTIVATIONS,
    BRANCH_NORMS,
    LAYER,
    NO_NORM,
    OUTPUT_NORMS,
    RMS,
    Layer,
    Matrix,
    NormTerms,
    StackShape,
    StepCall,
    store_of,
)
from weft.inference.fast.native.library import library
from weft.inference.fast.native.matrices import (
    NATIVE_BLOCK_ROWS,
    NATIVE_ROWS,
    ONE_THREAD_WEIGHTS,
    BlockProducts,
    NativeMatrix,
    Unsupported,
    all_rows_alike,
    float32,
)
from weft.inference.fast.single_token import SingleTokenStack
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.auxiliary import Auxiliary
from weft.parts.block import Block, Parallel, PostNorm, PreNorm, SandwichNorm
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear import is_plain_linear
from weft.parts.masks import Causal, Mask, Prefix, Real, Window
from weft.parts.norms import LayerNorm, RMSNorm, ZeroCenteredRMSNorm
from weft.parts.quantized import products_by
from weft.parts.relative import Rotary
from weft.parts.scores import CappedDot, Dot, ScaledDot
from weft.parts.stack import Stack
from weft.parts.state import RING_SLACK, KeyValueState, State
from weft.parts.token_positions import TokenPositions

ARRANGEMENTS = (PreNorm, PostNorm, SandwichNorm, Parallel)  # in the order of decode.c
KNOWN: tuple[set[type], ...] = ({Causal}, {Causal, Window}, {Prefix})


def native_stack(stack: Stack) -> SingleTokenStack:
    """The stack by native steps where they support it, else the single-token one."""
    found = library()
    if found is None:
        return SingleTokenStack(stack)
    products = BlockProducts(found, stack)
    try:
        return NativeStack(stack, found, products)
    except Unsupported:
        return ProductStack(stack, products) if products.matrices else SingleTokenStack(stack)


class ProductStack(SingleTokenStack):
    """A single-token stack whose quantized layers multiply by native code, few rows or many."""

    def __init__(self, stack: Stack, products: BlockProducts) -> None:
        super().__init__(stack)
        self.products = products

    def run_blocks(
        self,
        x: Tensor,
        token_positions: TokenPositions,
        mask: Mask | None,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
        auxiliary: Auxiliary | None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        with products_by(self.products):
            return super().run_blocks(x, token_positions, mask, state, memory, auxiliary)


class NativeStack(ProductStack):
    """See the head of this file; several threads may use it, one step at a time."""

    def __init__(self, stack: Stack, found: ctypes.CDLL, products: BlockProducts) -> None:
        super().__init__(stack, products)
        self.library, self._step = found, found.weft_step
        self._held: list[Any] = []
        self._tables: list[Any] = []
        blocks = list(stack.blocks)
        if not blocks or len({type(block) for block in blocks}) > 1 or type(blocks[0]) not in ARRANGEMENTS:
            raise Unsupported
        kinds = [{type(term) for term in mask.terms()} for mask in self.masks]
        if any(kind not in KNOWN for kind in kinds):
            raise Unsupported
        # Tokens of an image see each other both ways, so several at once are not read one after the other.
        self._several = {Prefix} not in kinds
        self._slot_groups = list(dict.fromkeys(self._band(mask) for mask in self.masks))
        self._shape = self._describe(blocks)
        self._layers = (Layer * len(blocks))(
            *(self._layer(block, mask) for block, mask in zip(blocks, self.masks, strict=True))
        )
        self._call = StepCall()
        self._bound: list[Any] = []
        self._lock = threading.Lock()
        self._scratch, self._rounded = torch.empty(0), torch.empty(0, dtype=torch.uint8)
        self._rows = NATIVE_BLOCK_ROWS if self.products.matrices else NATIVE_ROWS
        self._attentions = [part for block in blocks for part in (block.mixer, block.cross) if part is not None]
        matrices = (m for layer in self._layers for m in (layer.qkv, layer.output, layer.up, layer.down))
        self._alone = sum(m.rows * m.cols for m in matrices) < ONE_THREAD_WEIGHTS

    @property
    def rows(self) -> int:
        """Number of tokens that one native step computes at most, of any texts; 0 if it takes one of each text only."""
        return self._rows if self._several else 0

    def run_blocks(
        self,
        x: Tensor,
        token_positions: TokenPositions,
        mask: Mask | None,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
        auxiliary: Auxiliary | None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]: native for a few tokens per row with a state; padding takes no time, and gives 0."""
        real = None if mask is None else token_positions.real
        unmarked = mask is None and token_positions.pads != "none" and bool((token_positions.positions < 0).any())
        if unmarked or not self._fits(x, mask, real, state, memory):
            return super().run_blocks(x, token_positions, mask, state, memory, auxiliary)
        assert state is not None
        if not state.counter.begun:
            self._expect(x, token_positions, mask, state, memory)
        with self._lock:
            return self._write(x, token_positions, real, state, memory)

    def _write(
        self,
        x: Tensor,
        token_positions: TokenPositions,
        real: Tensor | None,
        state: State,
        memory: tuple[Tensor, TokenPositions] | None,
    ) -> Tensor:
        orders, longest, capacities = self._plan_writes(token_positions, state)
        if memory is not None:
            longest = max(longest, memory[0].shape[1])
        self._bind(state, capacities, memory)
        B, T, _ = x.shape
        positions = token_positions.positions.expand(B, T)
        if real is None:
            starts, positions, rows = torch.arange(0, B * T + 1, T), positions.contiguous(), x.contiguous()
        else:
            starts = torch.cat((torch.zeros(1, dtype=torch.long), real.sum(1).cumsum(0)))
            positions, rows = positions[real], x[real]
        call = self._call
        call.batch, call.starts = B, starts.data_ptr()
        call.orders, call.positions = orders.data_ptr(), positions.data_ptr()
        self._bind_angles(token_positions, positions)
        threads = 1 if self._alone else torch.get_num_threads()
        self._make_room(positions.numel(), longest + T, threads)
        hidden = torch.empty_like(rows)
        self._step(
            ctypes.addressof(self._shape), ctypes.addressof(self._layers), ctypes.addressof(call),
            rows.data_ptr(), hidden.data_ptr(), threads,
        )  # fmt: skip
        state.counter.advance(token_positions)
        return hidden if real is None else torch.zeros_like(x).masked_scatter_(real[..., None], hidden)

    def _fits(
        self,
        x: Tensor,
        mask: Mask | None,
        real: Tensor | None,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
    ) -> bool:
        padded = type(mask) is Real and real is not None and real.shape[0] == x.shape[0]
        return (
            x.shape[1] <= (RING_SLACK if self._several else 1)
            and (mask is None or padded)
            and state is not None
            and state.counter.number is None
            and x.dtype == torch.float32
            and x.device.type == "cpu"
            and not torch.is_grad_enabled()
            and (memory is None or state.crosses[0].tensors is not None)
            and all(isinstance(own, KeyValueState) and _ready(own) for own in state.layers)
            and not any("gather" in attention.__dict__ for attention in self._attentions)
            and (rows := x.shape[0] * x.shape[1] if real is None else int(real.sum())) > 0
            and (all_rows_alike() or rows <= self._rows)
        )

    def _plan_writes(self, token_positions: TokenPositions, state: State) -> tuple[Tensor, int, list[int]]:
        """How many keys each row has in each group of slots, [groups, B]; the most of them; the groups' capacities."""
        for slots in state.cache_slots.values():
            slots.expect_room(token_positions)
        rows, capacities, longest = [], [], 0
        for window in self._slot_groups:
            slots = state.cache_slots[window]
            before: Tensor | int = slots.used if slots.filled is None else slots.filled
            longest = max(longest, slots.used)
            cache_write = slots.plan_write(token_positions)
            rows.append(torch.full((state.batch,), before) if isinstance(before, int) else before)
            capacities.append(cache_write.capacity)
        return torch.stack(rows), longest, capacities

    def _bind(self, state: State, capacities: list[int], memory: tuple[Tensor, TokenPositions] | None) -> None:
        """Pointers to keys and values, updated only when these have moved."""
        s = self._shape
        like = [torch.empty(state.batch, s.key_heads, 0, width) for width in (s.head_width, s.value_width)]
        for own, layer in zip(state.layers, self._layers, strict=True):
            assert isinstance(own, KeyValueState)
            own.ensure_capacity(like[0], like[1], capacities[layer.slot_group])
        source = None if memory is None else memory[0]
        tensors = [getattr(state.layers[0], "keys", None), state.crosses[0].tensors, source, capacities]
        if (
            len(self._bound) == 4
            and all(a is b for a, b in zip(tensors[:3], self._bound[:3], strict=True))
            and capacities == self._bound[3]
        ):
            return
        for n, layer in enumerate(self._layers):
            own = state.layers[n]
            if isinstance(own, KeyValueState) and own.keys is not None and own.values is not None:
                layer.keys, layer.values = store_of(own.keys), store_of(own.values)
            # A ring's slots come round at its capacity; others never reach it.
            layer.capacity = capacities[layer.slot_group]
            if memory is not None:
                kept = state.crosses[n].tensors
                assert kept is not None
                layer.memory_keys, layer.memory_values = store_of(kept[0]), store_of(kept[1])
        if memory is not None:
            self._bind_source(memory)
        self._bound = tensors

    def _bind_source(self, memory: tuple[Tensor, TokenPositions]) -> None:
        real = memory[1].real
        self._real = None if real is None else real.expand(memory[0].shape[:2]).to(torch.uint8).contiguous()
        self._call.source = memory[0].shape[1]
        self._call.source_real = None if self._real is None else self._real.data_ptr()

    def _bind_angles(self, token_positions: TokenPositions, positions: Tensor) -> None:
        """Pointers to (cos, sin) of all positions so far, [positions, R], updated only when these have moved."""
        if not self._shape.rotary:
            return
        last = (
            int(positions.max())
            if token_positions.start is None
            else token_positions.start + token_positions.length - 1
        )
        tables = [rotary.table(last + 1, positions.device, torch.float32) for rotary in self._rotaries]
        if len(tables) == len(self._tables) and all(a is b for a, b in zip(tables, self._tables, strict=True)):
            return
        for layer, number in zip(self._layers, self._turned_by, strict=True):
            layer.cosines, layer.sines = tables[number][0].data_ptr(), tables[number][1].data_ptr()
        self._tables = tables

    def _make_room(self, rows: int, longest: int, threads: int) -> None:
        s = self._shape
        row = max(
            s.heads * s.head_width + s.key_heads * (s.head_width + s.value_width), s.heads * s.value_width, s.width,
            s.cross_heads * max(s.cross_width, s.cross_value_width), s.hidden * (1 + s.gated),
        )  # fmt: skip
        longest = 1 << (longest + 16).bit_length()
        size = 4 * rows * row + threads * (3 * rows * s.width + longest + 16)
        if self._scratch.numel() < size:
            self._scratch = torch.empty(size)
        rounded = self.library.weft_rounded_size(row)
        if self.products.matrices and self._rounded.numel() < threads * rows * rounded:
            self._rounded = torch.empty(threads * rows * rounded, dtype=torch.uint8)
        call = self._call
        call.scratch, call.scratch_row, call.longest = self._scratch.data_ptr(), row, longest
        call.rounded, call.rounded_row = self._rounded.data_ptr(), rounded

    def _describe(self, blocks: list[Any]) -> StackShape:
        """What all layers share, refused where they do not."""
        positions = [getattr(block.mixer, "rotary", None) or self.position for block in blocks]
        if any(position is not None and type(position) is not Rotary for position in positions):
            raise Unsupported
        shapes = {_sizes(block) for block in blocks}
        if len(shapes) > 1:
            raise Unsupported
        shape = StackShape(len(blocks), *shapes.pop())
        shape.arrangement = ARRANGEMENTS.index(type(blocks[0]))
        self._rotaries, self._turned_by = _distinct(positions)
        widths = {0 if position is None else position.width for position in positions}
        if len(widths) > 1:
            raise Unsupported
        shape.rotary = widths.pop()
        shape.last = self.norm_terms(self.norm)
        scores = {(_scale_and_cap(block.mixer), _scale_and_cap(block.cross)) for block in blocks}
        if len(scores) > 1:
            raise Unsupported
        (shape.scale, shape.cap), (shape.cross_scale, shape.cross_cap) = scores.pop()
        return shape

    def _layer(self, block: Any, mask: Mask) -> Layer:
        layer = Layer()
        for name in (*BRANCH_NORMS, *(OUTPUT_NORMS if isinstance(block, SandwichNorm) else ())):
            setattr(layer, name, self.norm_terms(getattr(block, name)))
        mixer, cross, feedforward = block.mixer, block.cross, block.feedforward
        if mixer is not None:
            layer.qkv, layer.output = self._matrix(mixer.qkv), self._matrix(mixer.output)
            layer.query_norm, layer.key_norm = self.norm_terms(mixer.query_norm), self.norm_terms(mixer.key_norm)
        if cross is not None:
            layer.cross_query, layer.cross_output = self._matrix(cross.query), self._matrix(cross.output)
            layer.cross_query_norm = self.norm_terms(cross.query_norm)
        if feedforward is not None:
            up = feedforward.gate_up if isinstance(feedforward, GatedFeedForward) else feedforward.up
            layer.up, layer.down = self._matrix(up), self._matrix(feedforward.down)
        layer.window, layer.slot_group = self._band(mask) or 0, self._slot_groups.index(self._band(mask))
        return layer

    def _matrix(self, linear: nn.Module) -> Matrix:
        found = self.products.matrices.get(id(linear))
        if found is None:
            if not isinstance(linear, nn.Linear) or not is_plain_linear(linear):
                raise Unsupported
            found = NativeMatrix(self.library, linear.weight, linear.bias, self.products.room)
        self._held.append(found)
        return found.matrix

    def norm_terms(self, norm: nn.Module | None) -> NormTerms:
        if norm is None:
            return NormTerms(None, None, 0.0, NO_NORM)
        kinds = (LayerNorm, RMSNorm, ZeroCenteredRMSNorm)
        if not isinstance(norm, kinds) or type(norm) not in kinds:
            raise Unsupported
        gamma, beta = float32(norm.scale()), float32(getattr(norm, "beta", None))
        assert gamma is not None
        self._held += [t for t in (gamma, beta) if t is not None]
        kind = LAYER if isinstance(norm, LayerNorm) else RMS
        return NormTerms(gamma.data_ptr(), None if beta is None else beta.data_ptr(), norm.epsilon, kind)


def _distinct(positions: list[Any]) -> tuple[list[Rotary], list[int]]:
    """Rotary positions that differ, and which of them each layer has; layers may hold equal ones of their own."""
    found: dict[Any, Rotary] = {}
    keys = [None if one is None else (one.base, one.width, one.scaling) for one in positions]
    for key, one in zip(keys, positions, strict=True):
        if key is not None:
            found.setdefault(key, one)
    numbers = {key: number for number, key in enumerate(found)}
    return list(found.values()), [numbers.get(key, 0) for key in keys]


def _ready(own: KeyValueState) -> bool:
    return own.keys is None or own.keys.dtype == torch.float32


def _sizes(block: Block) -> tuple[int, ...]:
    """(D, H, G, K, V, F, those of cross-attention, activation, gated) of one block, in the order of `StackShape`."""
    mixer, cross, feedforward = block.mixer, block.cross, block.feedforward
    for part, kinds in (
        (mixer, (SelfAttention,)),
        (cross, (CrossAttention,)),
        (feedforward, (FeedForward, GatedFeedForward)),
    ):
        if part is not None and type(part) not in kinds:
            raise Unsupported
    if not isinstance(mixer, SelfAttention) or not isinstance(feedforward, (FeedForward, GatedFeedForward)):
        raise Unsupported
    if feedforward.activation_name not in ACTIVATIONS:
        raise Unsupported
    own = (mixer.width, mixer.heads, mixer.key_heads, mixer.head_width, mixer.value_width)
    other = (0, 0, 0, 0) if cross is None else (cross.heads, cross.key_heads, cross.head_width, cross.value_width)
    hidden = feedforward.down.in_features
    return (
        *own,
        hidden,
        *other,
        ACTIVATIONS[feedforward.activation_name],
        int(isinstance(feedforward, GatedFeedForward)),
    )


def _scale_and_cap(attention: SelfAttention | CrossAttention | None) -> tuple[float, float]:
    """(s, c) of e = s q.k, c = 0, or of e = c tanh(s q.k / c)."""
    if attention is None:
        return 0.0, 0.0
    score = attention.score
    if type(score) is CappedDot:
        return score.scale_of(attention.head_width), score.cap
    if type(score) not in (Dot, ScaledDot):
        raise Unsupported
    return score.as_dot_product(torch.empty(attention.head_width))[1], 0.0
