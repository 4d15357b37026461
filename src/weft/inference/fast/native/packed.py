"""Packed prompts: pieces of many prompts are read in one pass, and each becomes, bit for bit, what it becomes alone.

Products of matrices take the rows of all pieces one after the other, without padding. Native ones give a row the same
bits in any company; those of BLAS take at least `LEAST_ROWS` rows, and `weft.inference.engine.probe` asks the machine.
Attention takes each piece by itself; norms and activations are native, each row by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.inference.fast.native.layout import ACTIVATIONS
from weft.inference.fast.native.stack import NativeStack
from weft.models.decoder import Decoder
from weft.models.stack_spec import arrange_call
from weft.parts import native
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.block import Block, Parallel, PostNorm, SandwichNorm
from weft.parts.feedforward import GatedFeedForward
from weft.parts.masks import Mask
from weft.parts.quantized import BlockQuantizedLinear
from weft.parts.state import KeyValueState, State
from weft.parts.token_positions import TokenPositions

LEAST_ROWS = 16  # of a product: below, BLAS takes other ways, which depend on the number of rows and threads

RowFunction = Callable[[Tensor], Tensor]


class Piece(NamedTuple):
    """The next tokens of a text whose state is for this text alone."""

    tokens: Sequence[int]
    state: State


class PieceRows(NamedTuple):
    """Where a piece lies among the rows of all, and what its queries see under each mask.

    `seen`: the same for a multiple of `LEAST_ROWS` queries, those behind the last one for nothing.
    """

    first: int
    last: int
    contexts: dict[Mask, AttentionContext]
    seen: dict[Mask, AttentionContext]
    state: State

    @property
    def missing(self) -> int:
        """Number of queries that are computed for nothing."""
        return -(self.last - self.first) % LEAST_ROWS


def packed_reader(model: Any) -> PackedReader | None:
    """A reader for a model that is optimized already; None where it has no native step."""
    if not isinstance(model, Decoder) or not isinstance(model.stack, NativeStack) or not model.stack.rows:
        return None
    return PackedReader(model, model.stack)


class PackedReader:
    """See the head of this file."""

    def __init__(self, model: Decoder, stack: NativeStack) -> None:
        self.model, self.stack = model, stack
        blocks: list[Any] = list(stack.blocks)
        self.layers = [PackedBlock(stack, block, n) for n, block in enumerate(blocks)]
        self.last = _norm(stack, stack.norm)
        self.least_rows = LEAST_ROWS if self.linear_shapes() else 1  # native products have no other way for few

    def linear_shapes(self) -> list[tuple[int, int]]:
        """[rows, columns] of the matrices that BLAS multiplies by, each once."""
        parts = self.stack.blocks.modules()
        found = {tuple(part.weight.shape) for part in parts if isinstance(part, nn.Linear) and not _is_native(part)}
        return sorted((rows, columns) for rows, columns in found)

    def __call__(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Hidden states [T, D] of each piece; pieces of one text follow each other in their order."""
        entered, rows, first = [], [], 0
        for piece in pieces:
            tokens = torch.tensor([list(piece.tokens)])
            token_positions = arrange_call(tokens, None, None, piece.state)
            entered.append(self.model.input(self.model.embedding(tokens), token_positions)[0])
            contexts = self.stack.contexts(token_positions, None, piece.state)
            piece.state.counter.advance(token_positions)
            last = first + len(piece.tokens)
            rows.append(PieceRows(first, last, contexts, _several_queries(token_positions, contexts), piece.state))
            first = rows[-1].last
        if first < self.least_rows:
            entered.append(entered[0].new_zeros(self.least_rows - first, entered[0].shape[1]))
        x = torch.cat(entered)
        for layer in self.layers:
            x = layer(x, rows)
        x = self.last(x)
        return [x[one.first : one.last] for one in rows]


class PackedBlock:
    """A block that takes all rows [R, D] at once."""

    def __init__(self, stack: NativeStack, block: Block, number: int) -> None:
        mixer, feedforward = block.mixer, block.feedforward
        assert isinstance(mixer, SelfAttention)
        self.kind = type(block)
        self.attention = PackedAttention(stack, mixer, number)
        self.feedforward = _feedforward(stack, feedforward)
        self.mixer_norm, self.feedforward_norm = _norm(stack, block.mixer_norm), _norm(stack, block.feedforward_norm)
        if isinstance(block, SandwichNorm):
            self.mixer_output_norm = _norm(stack, block.mixer_output_norm)
            self.feedforward_output_norm = _norm(stack, block.feedforward_output_norm)

    def __call__(self, z: Tensor, pieces: Sequence[PieceRows]) -> Tensor:
        """[R, D] -> [R, D]."""
        if self.kind is PostNorm:
            z = self.mixer_norm(self.attention(z, pieces) + z)
            return self.feedforward_norm(self.feedforward(z) + z)
        if self.kind is Parallel:
            mixed = z + self.attention(self.mixer_norm(z), pieces)
            return mixed + self.feedforward(self.feedforward_norm(z))
        if self.kind is SandwichNorm:
            z = z + self.mixer_output_norm(self.attention(self.mixer_norm(z), pieces))
            return z + self.feedforward_output_norm(self.feedforward(self.feedforward_norm(z)))
        z = z + self.attention(self.mixer_norm(z), pieces)
        return z + self.feedforward(self.feedforward_norm(z))


class PackedAttention:
    """Self-attention whose products take all rows, and which scores, masks, weighs and gathers piece by piece."""

    def __init__(self, stack: NativeStack, attention: SelfAttention, number: int) -> None:
        self.own, self.number, self.mask = attention, number, stack.masks[number]
        self.qkv, self.output = _linear(stack, attention.qkv), _linear(stack, attention.output)

    def __call__(self, x: Tensor, pieces: Sequence[PieceRows]) -> Tensor:
        """[R, D] -> [R, D]."""
        own = self.own
        heads = self.qkv(x)
        mixed = heads.new_zeros(len(x), own.heads * own.value_width)
        for piece in pieces:
            first, last, context = piece.first, piece.last, piece.contexts[self.mask]
            kept = piece.state.layers[self.number]
            assert isinstance(kept, KeyValueState) and context.cache_write is not None
            query, key, value = heads[None, first:last].split_with_sizes(own.sections, dim=-1)
            query, key = own.position(own.split(query, own.heads), own.split(key, own.key_heads), context)
            key, value = kept.append(key, own.split(value, own.key_heads), context.cache_write)
            query = F.pad(query, (0, 0, 0, piece.missing)) if piece.missing else query
            y = own.gather(query, key, value, piece.seen[self.mask])[0, :, : last - first]
            mixed[first:last].view(last - first, own.heads, own.value_width).copy_(y.transpose(0, 1))
        return self.output(mixed)


def _several_queries(
    token_positions: TokenPositions, contexts: dict[Mask, AttentionContext]
) -> dict[Mask, AttentionContext]:
    """The contexts of a piece for a multiple of `LEAST_ROWS` queries: the bits of others differ with the threads."""
    count = -(-token_positions.length // LEAST_ROWS) * LEAST_ROWS
    if count == token_positions.length:
        return contexts
    positions = int(token_positions.positions[0, 0]) + torch.arange(count)
    queries = TokenPositions.of(positions)
    return {own: AttentionContext(queries, one.keys, one.mask, one.position) for own, one in contexts.items()}


def _linear(stack: NativeStack, linear: nn.Module) -> RowFunction:
    """x W^T + b for many rows."""
    if isinstance(linear, BlockQuantizedLinear):
        return lambda x: stack.products(linear, x)  # type: ignore[return-value]  # float32 in, never None
    assert isinstance(linear, nn.Linear)
    bias = None if linear.bias is None else linear.bias.detach()
    product = native.linear if _is_native(linear) else F.linear
    return partial(product, weight=linear.weight.detach(), bias=bias)


def _is_native(linear: nn.Linear) -> bool:
    """Whether `native.linear` multiplies by it, by which a row has the same bits in any company; decided once."""
    return native.suits_linear(linear.weight[:0], linear.weight, linear.bias, fewest=0)


def _norm(stack: NativeStack, norm: nn.Module | None) -> RowFunction:
    terms = stack.norm_terms(norm)

    def apply(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        stack.library.weft_normalize(ctypes.byref(terms), x.data_ptr(), y.data_ptr(), *x.shape, torch.get_num_threads())
        return y

    return apply


def _feedforward(stack: NativeStack, part: Any) -> RowFunction:
    gated = isinstance(part, GatedFeedForward)
    up, down = _linear(stack, part.gate_up if gated else part.up), _linear(stack, part.down)
    hidden, kind = part.down.in_features, ACTIVATIONS[part.activation_name]

    def apply(x: Tensor) -> Tensor:
        raised = up(x)
        y = raised.new_empty(len(raised), hidden)
        stack.library.weft_activate(
            raised.data_ptr(), y.data_ptr(), len(raised), hidden, kind, int(gated), torch.get_num_threads()
        )
        return down(y)

    return apply


__all__ = ["LEAST_ROWS", "PackedReader", "Piece", "packed_reader"]
