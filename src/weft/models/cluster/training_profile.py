"""What one training step needs of a model, whatever the devices: parameters, FLOPs, activations, what can split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from weft.foundation.matrix_products import ProductView
from weft.models.build import AnySpec
from weft.models.cluster.saved_activations import Saved, branches, saved, saved_by_block
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.estimates import Estimate, blank_model, estimate
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq
from weft.parts.attention import CrossAttention, SelfAttention
from weft.parts.block import Block
from weft.parts.experts import Experts
from weft.parts.feedforward import FeedForward, GatedFeedForward
from weft.parts.linear_attention import LinearAttention
from weft.parts.stack import Stack


@dataclass(frozen=True)
class BlockProfile:
    """`copies` blocks that are alike; all numbers are of one block and one sequence.

    `branches` are those that tensor parallelism splits, `entering` is the size of the block's input.
    """

    copies: int
    parameters: int
    branches: int
    entering: int
    saved: Saved


@dataclass(frozen=True)
class TrainingProfile:
    """A model as the planner sees it; FLOPs are of one forward pass over one sequence.

    `outside` are parameters outside of blocks (embeddings, output). `splits` is the number that heads and hidden widths
    have as greatest common divisor: tensor parallelism splits by its divisors, and 1 means not at all.
    """

    model: Estimate
    outside: int
    blocks: tuple[BlockProfile, ...]
    block_flops: int
    other_flops: int
    entering: int
    saved_outside: Saved
    splits: int

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

    def activation_bytes(self, number: int, recompute: bool) -> int:
        """Of one sequence with `number` bytes each (Korthikanti et al. 2022).

        With recomputation only inputs of blocks are kept (their 2 s b h L), and one block at a time is computed again.
        """
        outside = self.saved_outside.bytes(number)
        kept = [block.saved.bytes(number) for block in self.blocks]
        if not recompute:
            return outside + sum(block.copies * size for block, size in zip(self.blocks, kept, strict=True))
        inputs = sum(block.copies * block.entering * number for block in self.blocks)
        return outside + inputs + max(kept, default=0)


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
        outside=found.parameters - sum(block.copies * block.parameters for block in blocks),
        blocks=blocks,
        block_flops=block_flops,
        other_flops=found.flops_forward - block_flops,
        entering=entering,
        # Inputs of the last norm and of the output; its logits exist only in pieces.
        saved_outside=Saved(2 * entering),
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
            own = sum(p.numel() for p in block.parameters())
            one = BlockProfile(1, own, branches(block), tokens * found.width, kept)
            alike[one] = alike.get(one, 0) + 1
        for one, copies in alike.items():
            yield BlockProfile(copies, one.parameters, one.branches, one.entering, one.saved)


def _recurrent_blocks(model: RecurrentSeq2Seq, length: int) -> Iterator[BlockProfile]:
    """Encoder and decoder; the scores of all pairs are kept, as the alignment."""
    for net in (model.encoder, model.decoder):
        kept = saved(net, ProductView.full(length))
        if net is model.decoder and model.score is not None:
            kept += Saved(length * length + 2 * length * model.spec.memory_width)
        own = sum(p.numel() for p in net.parameters())
        yield BlockProfile(1, own, 1, length * net.net.input_size, kept)


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
