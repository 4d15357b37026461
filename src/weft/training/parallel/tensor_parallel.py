"""Tensor and sequence parallelism: the parts of a model compute on their own heads, hidden units and tokens.

Between the parts of a block each process has a stretch of the tokens (norms, residuals, dropout); a part gathers all
tokens, computes its share, and its outputs are summed and scattered again. Parts that nothing divides see all tokens
on every process. In place; parts and models know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from weft.foundation.seeds import derive
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.block import Block, stochastic_depth
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear_attention import LinearAttention
from weft.parts.relative import AttentionPosition
from weft.parts.stack import Stack
from weft.training.parallel.collectives import gather_tokens, scatter_tokens, sum_gradients
from weft.training.parallel.layout import TENSOR
from weft.training.parallel.local_weights import Reading, give_out_local
from weft.training.parallel.tensor_splits import View, WeightSplit, interleaved


def split_model(model: nn.Module, mesh: DeviceMesh, splits: dict[str, WeightSplit]) -> Reading:
    """Divide the weights over the mesh's tensor axis, and rewire the parts."""
    reading = distribute_weights(model, mesh, splits)
    for part in list(model.modules()):
        if isinstance(part, Stack):
            _rewire_stack(part, mesh.get_group(TENSOR))
    return reading


def distribute_weights(model: nn.Module, mesh: DeviceMesh, splits: dict[str, WeightSplit]) -> Reading:
    """Make every weight a DTensor on this mesh, divided along its tensor axis; modules read their own parts."""
    reading = Reading(mesh.get_group(TENSOR))
    for name, part in model.named_modules():
        present = [weight for weight, value in part._parameters.items() if value is not None]
        own = {weight: splits[f"{name}.{weight}" if name else weight] for weight in present}
        for weight, split in own.items():
            part._parameters[weight] = _divided(part._parameters[weight], split, mesh)
        if own:
            views: dict[str, View] = {weight: split.view for weight, split in own.items()}
            give_out_local(part, views, reading)
    return reading


def local_part(weight: Tensor, split: WeightSplit, rank: int, count: int) -> Tensor:
    """What process `rank` of `count` holds of a whole weight."""
    if split.dim is None:
        return weight
    if split.sections:
        order = interleaved(split.sections, count).to(weight.device)
        return weight[order.chunk(count)[rank]]
    return weight.chunk(count, split.dim)[rank]


def _divided(weight: Any, split: WeightSplit, mesh: DeviceMesh) -> nn.Parameter:
    rank, count = mesh.get_local_rank(TENSOR), mesh.size(mesh.mesh_dim_names.index(TENSOR))  # type: ignore[union-attr]
    local = local_part(weight.detach(), split, rank, count).clone(memory_format=torch.contiguous_format)
    local = local.to(mesh.device_type)
    placements: list[Placement] = [Replicate(), Replicate() if split.dim is None else Shard(split.dim)]
    whole = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=weight.shape, stride=weight.contiguous().stride()
    )
    return nn.Parameter(whole, requires_grad=weight.requires_grad)


@dataclass
class Sequence:
    """The tokens of a stack's call, divided over a group: `length` T of them, and a seed that all processes share."""

    group: ProcessGroup
    length: int = 0
    seed: int = 0

    @property
    def stretch(self) -> tuple[int, int]:
        """The first own token and the one after the last; an empty stretch where there are few tokens."""
        size = -(-self.length // self.group.size())
        first = min(self.group.rank() * size, self.length)
        return first, min(first + size, self.length)

    def gather(self, x: Tensor, partial: bool) -> Tensor:
        return gather_tokens(x, self.length, self.group, partial)

    def scatter(self, y: Tensor, partial: bool) -> Tensor:
        return scatter_tokens(y, self.group, partial)


def _rewire_stack(stack: Stack, group: ProcessGroup) -> None:
    tokens = Sequence(group)
    heads = max((part.heads for part in stack.modules() if isinstance(part, SelfAttention)), default=0)
    for number, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        for part in (block.mixer, block.cross, block.feedforward):
            if part is not None:
                _rewire_part(part, tokens)
        _rewire_branch(block, tokens, number)
    if isinstance(stack.position, AttentionPosition) and heads:
        _rewire_position(stack.position, heads, group)
    stack.forward = partial(run_stack, stack.forward, tokens)  # type: ignore[method-assign]


def run_stack(forward: Callable[..., Tensor], tokens: Sequence, x: Tensor, *args: Any, **more: Any) -> Tensor:
    """Blocks on a stretch of the tokens, with random numbers of their own; outside all processes draw the same."""
    tokens.length = x.shape[1]
    tokens.seed = int(torch.randint(2**62, ())) if torch.is_grad_enabled() else 0
    devices = [] if x.device.type == "cpu" else [x.device]
    with torch.random.fork_rng(devices=devices, device_type=x.device.type if devices else "cuda"):
        torch.manual_seed(derive(tokens.seed, "stretch", tokens.group.rank()))
        y = forward(tokens.scatter(x, partial=False), *args, **more)
    return tokens.gather(y, partial=False)


def _rewire_part(part: nn.Module, tokens: Sequence) -> None:
    """Gather tokens before the part and scatter them after it; `partial` where the part gives a share of a sum."""
    count = tokens.group.size()
    shared = True
    if isinstance(part, SelfAttention | CrossAttention):
        part.heads, part.key_heads = part.heads // count, part.key_heads // count
        part.sections = [size // count for size in part.sections]
    elif isinstance(part, LinearAttention):
        part.heads //= count
    elif isinstance(part, Experts) and part.experts % count == 0:
        _rewire_experts(part, tokens.group)
    elif not isinstance(part, FeedForward | GatedFeedForward):
        shared = False
    # The router sees every token on every process: its gradients are whole, those of the experts are summed inside.
    entering = shared and not isinstance(part, Experts)
    run = _run_cross if isinstance(part, CrossAttention) else run_part
    part.forward = partial(run, part.forward, tokens, entering, shared)


def run_part(
    forward: Callable[..., Tensor], tokens: Sequence, entering: bool, leaving: bool, x: Tensor, *args: Any, **more: Any
) -> Tensor:
    """A part that sees all tokens: gathered before it and scattered after it, `partial` or not."""
    return tokens.scatter(forward(tokens.gather(x, entering), *args, **more), leaving)


def _run_cross(
    forward: Callable[..., Tensor],
    tokens: Sequence,
    entering: bool,
    leaving: bool,
    x: Tensor,
    memory: Tensor,
    *args: Any,
    **more: Any,
) -> Tensor:
    """The memory is whole on every process, and each looks at it with its own heads."""
    memory = sum_gradients(memory, tokens.group)
    return tokens.scatter(forward(tokens.gather(x, entering), memory, *args, **more), leaving)


def _rewire_experts(part: Experts, group: ProcessGroup) -> None:
    part.first = group.rank() * (part.experts // group.size())
    part.mix = partial(_mix_own, part.mix, group)  # type: ignore[method-assign]
    if part.shared is not None:
        part.shared.forward = partial(_run_shared, part.shared.forward, group)


def _mix_own(mix: Callable[..., Tensor], group: ProcessGroup, tokens: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
    return mix(sum_gradients(tokens, group), sum_gradients(gates, group), chosen)


def _run_shared(forward: Callable[..., Tensor], group: ProcessGroup, x: Tensor, *args: Any) -> Tensor:
    return forward(sum_gradients(x, group), *args)


def _rewire_position(position: AttentionPosition, heads: int, group: ProcessGroup) -> None:
    """A bias for all heads is cut to the own ones; one made from the queries is for those already."""
    bias = position.bias
    own = heads // group.size()
    first = group.rank() * own

    def local_bias(*args: Any, **more: Any) -> Tensor | None:
        found = bias(*args, **more)
        if found is None or found.shape[1] != heads:
            return found
        return found[:, first : first + own]

    position.bias = local_bias  # type: ignore[method-assign]


def _rewire_branch(block: Block, tokens: Sequence, number: int) -> None:
    """Stochastic depth leaves out the branch of a whole row: all processes must choose the same rows."""
    if not block.drop_path:
        return
    share, block.drop_path = block.drop_path, 0.0
    branch = block.branch

    def common_branch(part: nn.Module, output: Tensor) -> Tensor:
        output = branch(part, output)
        own = (part is block.mixer, part is block.cross)
        with torch.random.fork_rng(devices=[output.device] if output.is_cuda else []):
            torch.manual_seed(derive(tokens.seed, "depth", number, own.index(True) if True in own else 2))
            return stochastic_depth(output, share, block.training)

    block.branch = common_branch  # type: ignore[method-assign]
