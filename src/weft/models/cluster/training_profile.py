"""What one training step needs of a model, whatever the devices: parameters, FLOPs, activations, what can split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import nn

from weft.foundation.matrix_products import ProductView
from weft.models.build import AnySpec
from weft.models.cluster.loss_memory import OutputProfile, output_profile
from weft.models.cluster.saved_activations import Saved, branches, saved, saved_by_block
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.estimate_types import Estimate
from weft.models.estimates import blank_model, estimate
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.block import Block
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear_attention import LinearAttention
from weft.parts.stack import Stack

# (rows, numbers per row) of each weight; fsdp shards rows.
Shapes = tuple[tuple[int, int], ...]


def padded_parameters(shapes: Shapes, shards: int = 1) -> int:
    """Numbers in weights whose rows are filled up to a multiple of `shards`, as fsdp gathers and scatters them."""
    return sum(-(-rows // shards) * shards * rest for rows, rest in shapes)


@dataclass(frozen=True)
class BlockProfile:
    """`copies` blocks that are alike; all numbers are of one block and one sequence.

    `branches` are those that tensor parallelism splits, `entering` is the size of the block's input, `shapes` are those
    of its weights.
    """

    copies: int
    shapes: Shapes
    branches: int
    entering: int
    saved: Saved

    @property
    def parameters(self) -> int:
        return padded_parameters(self.shapes)

    def kept_bytes(self, number: int, tp: int) -> int:
        """What it keeps; tp divides all but the inputs of its branches, which are gathered and kept whole."""
        whole = self.branches * self.entering * number if tp > 1 else 0
        return whole + (self.saved.bytes(number) - whole) // tp


@dataclass(frozen=True)
class TrainingProfile:
    """A model as the planner sees it; FLOPs are of one forward pass over one sequence.

    `outside_shapes` are those of weights outside of blocks (embeddings, output). `splits` is the number that heads and
    hidden widths have as greatest common divisor: tensor parallelism splits by its divisors, and 1 means not at all.
    """

    model: Estimate
    outside_shapes: Shapes
    blocks: tuple[BlockProfile, ...]
    block_flops: int
    other_flops: int
    entering: int
    output: OutputProfile
    splits: int

    @property
    def outside(self) -> int:
        """Parameters outside of blocks."""
        return padded_parameters(self.outside_shapes)

    @property
    def largest_block(self) -> int:
        """Parameters of the largest block."""
        return max((block.parameters for block in self.blocks), default=0)

    @property
    def training_flops(self) -> int:
        """3 x forward: what the model needs (Chowdhery et al. 2022 count these for their MFU)."""
        return 3 * (self.block_flops + self.other_flops)

    def computed_flops(self, recompute: bool) -> int:
        """What is computed: with recomputation blocks run forward twice, 4 x in all (Narayanan et al. 2021)."""
        return self.training_flops + (self.block_flops if recompute else 0)

    def activation_bytes(self, number: int, recompute: bool, tp: int = 1) -> int:
        """Of one sequence with `number` bytes each (Korthikanti et al. 2022), on one of `tp` devices.

        Outside of blocks these are inputs of the last norm, of which each device has a stretch, and of the output.
        With recomputation only inputs of blocks are kept (their 2 s b h L), and one block at a time is computed again.
        """
        outside = number * self.entering // tp + number * self.entering
        if not recompute:
            return outside + sum(block.copies * block.kept_bytes(number, tp) for block in self.blocks)
        inputs = sum(block.copies * block.entering * number for block in self.blocks)
        return outside + inputs // tp + self._one_block_bytes(number, tp)

    def micro_batch_bytes(self, sequences: int, number: int, recompute: bool, tp: int = 1) -> int:
        """Activations of `sequences` at a time, and what the loss takes.

        No block is computed again before the loss has had its gradients; that of a tied W still waits then.
        """
        kept = sequences * self.activation_bytes(number, recompute, tp)
        loss = self.output.loss_bytes(sequences, number) // tp
        if not recompute:
            return kept + loss
        block = sequences * self._one_block_bytes(number, tp)
        return kept - block + max(loss, block + self.output.waiting_bytes(number) // tp)

    def _one_block_bytes(self, number: int, tp: int) -> int:
        return max((block.kept_bytes(number, tp) for block in self.blocks), default=0)


def training_profile(spec: AnySpec, length: int | None = None) -> TrainingProfile:
    """The profile of a model at this length, its own if none is given."""
    found = estimate(spec, length)
    model = blank_model(spec)
    blocks = tuple(
        _recurrent_blocks(model, found.length) if isinstance(model, RecurrentSeq2Seq) else _blocks(model, found)
    )
    block_flops = sum(group.flops for group in found.groups if group.where not in ("input", "output"))
    entering = found.tokens * found.width
    return TrainingProfile(
        model=found,
        outside_shapes=_outside_shapes(model),
        blocks=blocks,
        block_flops=block_flops,
        other_flops=found.flops_forward - block_flops,
        entering=entering,
        output=output_profile(model, found.length),
        splits=_splits(model),
    )


def _stacks(model: nn.Module, found: Estimate) -> Iterator[tuple[Stack, int, int | None]]:
    """(stack, tokens in it, tokens that its cross-attention sees)."""
    if isinstance(model, EncoderDecoder):
        source = model.spec.source.tokens(found.length)
        yield model.encoder, source, None
        yield model.decoder, found.length, source
        return
    for part in model.modules():
        if isinstance(part, Stack):
            yield part, found.tokens, None


def _blocks(model: nn.Module, found: Estimate) -> Iterator[BlockProfile]:
    for stack, tokens, source in _stacks(model, found):
        alike: dict[BlockProfile, int] = {}
        for block in stack.blocks:
            assert isinstance(block, Block)
            kept = saved_by_block(block, ProductView.full(tokens), found.width, stack.position, source)
            one = BlockProfile(1, _shapes(block.parameters()), branches(block), tokens * found.width, kept)
            alike[one] = alike.get(one, 0) + 1
        for one, copies in alike.items():
            yield replace(one, copies=copies)


def _recurrent_blocks(model: RecurrentSeq2Seq, length: int) -> Iterator[BlockProfile]:
    """Encoder and decoder; the scores of all pairs are kept, as the alignment."""
    for net in (model.encoder, model.decoder):
        kept = saved(net, ProductView.full(length))
        if net is model.decoder and model.score is not None:
            kept += Saved(length * length + 2 * length * model.spec.memory_width)
        yield BlockProfile(1, _shapes(net.parameters()), 1, length * net.net.input_size, kept)


def _shapes(weights: Iterable[nn.Parameter]) -> Shapes:
    return tuple((len(weight), weight[0].numel()) if weight.dim() else (1, 1) for weight in weights)


def _outside_shapes(model: nn.Module) -> Shapes:
    if isinstance(model, RecurrentSeq2Seq):
        blocks: list[nn.Module] = [model.encoder, model.decoder]
    else:
        blocks = [part for part in model.modules() if isinstance(part, Block)]
    inside = {id(weight) for block in blocks for weight in block.parameters()}
    return _shapes(weight for weight in model.parameters() if id(weight) not in inside)


def _splits(model: nn.Module) -> int:
    """What tensor parallelism can divide all blocks by: heads of attention and hidden widths of feed-forwards."""
    sizes: list[int] = []
    for block in (part for part in model.modules() if isinstance(part, Block)):
        for part in (block.mixer, block.cross, block.feedforward):
            sizes += _split_sizes(part)
    return math.gcd(*sizes) if sizes else 1


def _split_sizes(part: nn.Module | None) -> list[int]:
    if part is None:
        return []
    if isinstance(part, (SelfAttention, CrossAttention)):
        return [part.heads, part.key_heads]
    if isinstance(part, LinearAttention):
        return [part.heads]
    if isinstance(part, (FeedForward, GatedFeedForward)):
        return [part.down.in_features]
    if isinstance(part, Experts):
        return [part.hidden, *_split_sizes(part.shared)]
    return [1]  # recurrences and convolutions are not split
