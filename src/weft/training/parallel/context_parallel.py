"""Context parallelism: each process computes a stretch of a long text's tokens, with all of the weights.

Queries stay where they are; keys and values of all stretches are gathered in every attention, as in the training of
Llama 3 (Grattafiori et al. 2024). Which keys a query sees follows from positions, as in cached decoding, so every mask
works. Feed-forwards and norms work within a token. Parts that mix tokens otherwise (recurrence, convolution) and
experts, whose balance is that of the whole batch, see all tokens on every process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.norms import Norm
from weft.parts.stack import Stack
from weft.training.parallel.collectives import sum_gradients
from weft.training.parallel.layout import TENSOR
from weft.training.parallel.local_weights import Reading
from weft.training.parallel.tensor_parallel import Sequence, distribute_weights, run_part, run_stack
from weft.training.parallel.tensor_splits import PARTIAL, WHOLE, WeightSplit

LOCAL = (SelfAttention, CrossAttention, FeedForward, GatedFeedForward)  # compute on a stretch of tokens


def context_splits(model: nn.Module) -> dict[str, WeightSplit]:
    """Every process has every weight; inside of blocks each sees other tokens, so gradients are summed."""
    found = {name: WHOLE for name, _ in model.named_parameters()}
    for name, stack in model.named_modules():
        if not isinstance(stack, Stack):
            continue
        for own, _ in stack.named_parameters():
            found[f"{name}.{own}" if name else own] = PARTIAL
        for own, part in stack.named_modules():
            if own.count(".") == 2 and not _is_local(part):  # blocks.N.mixer, blocks.N.feedforward, ...
                found |= {f"{name}.{own}.{weight}": WHOLE for weight, _ in part.named_parameters()}
    return found


def _is_local(part: nn.Module) -> bool:
    return isinstance(part, (*LOCAL, Norm))


def split_context(model: nn.Module, mesh: DeviceMesh) -> Reading:
    """Let the stacks of a model compute a stretch of the tokens on each process of the mesh's last axis; in place."""
    reading = distribute_weights(model, mesh, context_splits(model))
    for part in list(model.modules()):
        if isinstance(part, Stack):
            _rewire(part, mesh.get_group(TENSOR))
    return reading


def _rewire(stack: Stack, group: ProcessGroup) -> None:
    tokens = Sequence(group)
    for block in stack.blocks:
        parts: tuple[Any, ...] = (block.mixer, block.cross, block.feedforward)
        for part in parts:
            if isinstance(part, SelfAttention):
                part.forward = partial(_attend, part, tokens)  # type: ignore[method-assign]
            elif isinstance(part, CrossAttention):
                part.forward = partial(_cross, part.forward, tokens)  # type: ignore[method-assign]
            elif part is not None and not isinstance(part, LOCAL):
                part.forward = partial(run_part, part.forward, tokens, False, False)
    stack.forward = partial(run_stack, stack.forward, tokens)  # type: ignore[method-assign]


def _attend(part: SelfAttention, tokens: Sequence, x: Tensor, context: AttentionContext, state: None = None) -> Tensor:
    """Own queries [B, H, c, K] look at the keys and values of all stretches."""
    first, last = tokens.stretch
    own = AttentionContext(context.queries.slice(first, last), context.queries, context.mask, context.position)
    query, key, value = (states[:, :, : last - first] for states in part.project(x))
    query, key = part.position(query, key, own)
    key, value = (_gather_states(states, x.shape[1], tokens) for states in (key, value))
    y = part.merge(part.gather(query, key, value, own))
    # A process whose stretch is empty gathers with the others, in the backward pass too.
    return F.pad(y, (0, 0, 0, x.shape[1] - y.shape[1])) + 0.0 * (key.sum() + value.sum())


def _gather_states(states: Tensor, length: int, tokens: Sequence) -> Tensor:
    """[B, G, n, K] of n <= c own tokens -> [B, G, T, K]."""
    B, G, n, K = states.shape
    rows = F.pad(states.transpose(1, 2).reshape(B, n, G * K), (0, 0, 0, length - n))
    return tokens.gather(rows, partial=True).view(B, -1, G, K).transpose(1, 2)


def _cross(
    forward: Callable[..., Tensor], tokens: Sequence, x: Tensor, memory: Tensor, context: AttentionContext, *more: Any
) -> Tensor:
    """Own queries look at the memory, which is whole on every process."""
    first, last = tokens.stretch
    own = AttentionContext(context.queries.slice(first, last), context.keys, context.mask, context.position)
    y = forward(x[:, : last - first], sum_gradients(memory, tokens.group), own, *more)
    return F.pad(y, (0, 0, 0, x.shape[1] - y.shape[1]))
