"""Single-token blocks: the same computation for one new token per row, with less overhead.

With one token per row a block is some twenty tiny operations, and calling modules costs more than computing. Here a
block's parts are taken out of it once; heads of queries and keys are normalized and rotated together, and matrices are
packed. Scoring, masking and gathering is the attention's own `gather`, so that watching sees it as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.inference.fast.packed_weights import LinearFunction, linear_function
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.auxiliary import Auxiliary
from weft.parts.block import Block, CrossAttentionSource, Parallel, PostNorm, PreNorm, SandwichNorm
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.masks import Mask
from weft.parts.norms import LayerNorm, Norm, RMSNorm, ZeroCenteredRMSNorm, unit_rows, unit_terms
from weft.parts.stack import Stack
from weft.parts.state import KeyValueState, LayerState, State
from weft.parts.token_positions import TokenPositions

Branch = Callable[..., Tensor]
WIDE = (torch.float32, torch.float64)
RMS_NORMS = (RMSNorm, ZeroCenteredRMSNorm)


class SingleTokenStack(Stack):
    """A stack of single-token blocks where possible; weights, masks and state are those of the stack given."""

    def __init__(self, stack: Stack) -> None:
        super().__init__([], stack.masks)
        self.blocks, self.masks, self.position, self.norm = stack.blocks, stack.masks, stack.position, stack.norm
        self._single_token = [single_token_block(block) for block in stack.blocks]
        self._last = _norm_function(stack.norm)

    def run_blocks(
        self,
        x: Tensor,
        token_positions: TokenPositions,
        mask: Mask | None,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
        auxiliary: Auxiliary | None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D]; what one token per row could break was checked when the state was begun."""
        if x.shape[1] != 1 or mask is not None or state is None or not state.counter.begun:
            return super().run_blocks(x, token_positions, mask, state, memory, auxiliary)
        contexts = self.contexts(token_positions, None, state)
        cross = None if memory is None else AttentionContext(token_positions, memory[1])
        for layer, (step, own) in enumerate(zip(self._single_token, self.masks, strict=True)):
            seen = None
            if memory is not None and cross is not None:
                seen = CrossAttentionSource(memory[0], cross, state.crosses[layer])
            x = step(x, contexts[own], state.layers[layer], seen, auxiliary)
        state.counter.advance(token_positions)
        return self._last(x)


def single_token_block(block: nn.Module) -> Branch:
    """The same block for one token per row, or the block itself where it has no such form."""
    kind = SINGLE_TOKEN_BLOCKS.get(type(block))
    if kind is None or not isinstance(block, Block) or block.training:
        return block
    attends = block.mixer is None or (type(block.mixer) is SelfAttention and _shares_width(block.mixer))
    return kind(block) if attends else block


def _shares_width(attention: SelfAttention) -> bool:
    """Whether queries, keys and values are vectors of one size, and queries and keys are normalized alike."""
    first, second = attention.query_norm, attention.key_norm
    if first is None or second is None:
        alike = first is second
    else:
        known = type(first) in RMS_NORMS and first.gamma.dtype in WIDE and second.gamma.dtype in WIDE
        alike = known and type(first) is type(second) and first.epsilon == second.epsilon
    return alike and attention.head_width == attention.value_width


class SingleTokenBlock:
    """A pre-norm block taken apart: its branches and their norms, in the order that it applies them."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.mixer = None if block.mixer is None else SingleTokenAttention(block.mixer)  # type: ignore[arg-type]
        self.cross = None if block.cross is None else SingleTokenCrossAttention(block.cross)
        self.feedforward = _feedforward_function(block.feedforward)
        norms = (block.mixer_norm, block.cross_norm, block.feedforward_norm)
        self.mixer_norm, self.cross_norm, self.feedforward_norm = (_norm_function(norm) for norm in norms)

    def __call__(
        self,
        x: Tensor,
        context: AttentionContext,
        state: LayerState | None,
        source: CrossAttentionSource | None,
        auxiliary: Auxiliary | None,
    ) -> Tensor:
        """[B, 1, D] -> [B, 1, D]; longer inputs go through the block itself."""
        if x.shape[1] != 1:
            return self.block(x, context, state, source, auxiliary)
        z = x
        if self.mixer is not None:
            x = self._branch(x, z, self.mixer_norm, self.mixer, context, state)
        if self.cross is not None and source is not None:
            x = self._branch(x, z, self.cross_norm, self.cross, source)
        if self.feedforward is not None:
            x = self._branch(x, z, self.feedforward_norm, self.feedforward, auxiliary)
        return x

    def _branch(self, x: Tensor, z: Tensor, norm: LinearFunction, branch: Branch, *extra: Any) -> Tensor:
        """`x` with a branch; `z` is what entered the block."""
        return x + branch(norm(x), *extra)


class SingleTokenPostNorm(SingleTokenBlock):
    """A post-norm block."""

    def _branch(self, x: Tensor, z: Tensor, norm: LinearFunction, branch: Branch, *extra: Any) -> Tensor:
        return norm(branch(x, *extra) + x)


class SingleTokenParallel(SingleTokenBlock):
    """A parallel block: every branch reads what entered the block."""

    def _branch(self, x: Tensor, z: Tensor, norm: LinearFunction, branch: Branch, *extra: Any) -> Tensor:
        return x + branch(norm(z), *extra)


class SingleTokenSandwichNorm(SingleTokenBlock):
    """A sandwich-norm block: each branch is followed by its own norm."""

    def __init__(self, block: SandwichNorm) -> None:
        super().__init__(block)
        norms = (block.mixer_output_norm, block.cross_output_norm, block.feedforward_output_norm)
        branches: tuple[Branch | None, ...] = (self.mixer, self.cross, self.feedforward)
        self.output_norms = {
            branch: _norm_function(norm) for branch, norm in zip(branches, norms, strict=True) if branch is not None
        }

    def _branch(self, x: Tensor, z: Tensor, norm: LinearFunction, branch: Branch, *extra: Any) -> Tensor:
        return x + self.output_norms[branch](branch(norm(x), *extra))


SINGLE_TOKEN_BLOCKS: dict[type, Callable[[Any], SingleTokenBlock]] = {
    PreNorm: SingleTokenBlock,
    PostNorm: SingleTokenPostNorm,
    SandwichNorm: SingleTokenSandwichNorm,
    Parallel: SingleTokenParallel,
}


class SingleTokenAttention:
    """Self-attention of one token per row: with T = 1 splitting heads is a view, and so is merging them."""

    def __init__(self, attention: SelfAttention) -> None:
        self.attention = attention
        self.qkv, self.output = linear_function(attention.qkv), linear_function(attention.output)
        self.H, self.G, self.K = attention.heads, attention.key_heads, attention.head_width
        self.unit: tuple[Tensor, Tensor] | None = None
        if attention.query_norm is not None and attention.key_norm is not None:
            pairs = ((attention.query_norm, self.H), (attention.key_norm, self.G))
            gammas = torch.cat([norm.scale().detach().expand(heads, 1, self.K) for norm, heads in pairs])
            self.unit = unit_terms(gammas, attention.query_norm.epsilon)

    def __call__(self, x: Tensor, context: AttentionContext, state: KeyValueState | None) -> Tensor:
        """[B, 1, D] -> [B, 1, D]."""
        B, H, G = x.shape[0], self.H, self.G
        heads = self.qkv(x).view(B, H + 2 * G, 1, self.K)
        queries_keys = heads.narrow(1, 0, H + G)
        if self.unit is not None:
            queries_keys = unit_rows(queries_keys, *self.unit)
        query, key = self.attention.rotate(queries_keys, context).split_with_sizes((H, G), 1)
        value = heads.narrow(1, H + G, G)
        if state is not None and context.cache_write is not None:
            key, value = state.append(key, value, context.cache_write)
        return self.output(self.attention.gather(query, key, value, context).flatten(1)[:, None])


class SingleTokenCrossAttention:
    """Cross-attention of one token per row to keys and values that the state keeps; else the attention itself."""

    def __init__(self, attention: CrossAttention) -> None:
        self.attention = attention
        self.query, self.output = linear_function(attention.query), linear_function(attention.output)
        self.norm = None if attention.query_norm is None else _norm_function(attention.query_norm)

    def __call__(self, x: Tensor, source: CrossAttentionSource) -> Tensor:
        """[B, 1, D] -> [B, 1, D]."""
        attention = self.attention
        if source.state is None or source.state.tensors is None:
            return attention(x, source.hidden, source.context, source.state)
        query = self.query(x).view(x.shape[0], attention.heads, 1, attention.head_width)
        query = query if self.norm is None else self.norm(query)
        key, value = source.state.tensors
        return self.output(attention.gather(query, key, value, source.context).reshape(x.shape[0], 1, -1))


def _feedforward_function(part: nn.Module | None) -> Branch | None:
    if type(part) is FeedForward:
        up, activation, down = linear_function(part.up), part.activation, linear_function(part.down)
        return lambda x, auxiliary: down(activation(up(x)))
    if type(part) is GatedFeedForward:
        gate_up, gate, out = linear_function(part.gate_up), part.activation, linear_function(part.down)

        def gated(x: Tensor, auxiliary: Auxiliary | None) -> Tensor:
            opened, raised = gate_up(x).chunk(2, -1)
            return out(gate(opened) * raised)

        return gated
    return part


def _norm_function(norm: Norm | None) -> LinearFunction:
    """The norm without its module; a norm of another kind is applied as it is."""
    if type(norm) is LayerNorm and norm.gamma.dtype in WIDE:
        shape, gamma, beta, epsilon = norm.gamma.shape, norm.gamma.detach(), norm.beta, norm.epsilon
        return lambda x: F.layer_norm(x, shape, gamma, beta, epsilon)
    if isinstance(norm, RMS_NORMS) and type(norm) in RMS_NORMS and norm.gamma.dtype in WIDE:
        floor, scale = unit_terms(norm.scale().detach(), norm.epsilon)
        return lambda x: unit_rows(x, floor, scale)
    return norm if norm is not None else lambda x: x
