"""Series decoder: numbers in, a distribution over the next numbers out; a decoder over patches of numbers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from weft.foundation.errors import ShapeError
from weft.models.output import Declaration, Output
from weft.models.stack_spec import StackSpec, arrange_call, as_mask, seen_by
from weft.parts.auxiliary import Auxiliary
from weft.parts.embeddings import SequenceInput, VectorEmbedding
from weft.parts.masks import Mask
from weft.parts.outputs import DistributionName, ForecastHead
from weft.parts.stack import Stack
from weft.parts.state import State


class SeriesSpec(StackSpec):
    """Series of `channels` numbers per step; a token is `patch` steps and predicts `ahead` patches; `length` tokens."""

    CAUSAL: ClassVar[bool] = True

    family: Literal["series"] = "series"
    channels: PositiveInt = 1
    patch: PositiveInt = 8
    length: PositiveInt = 64
    ahead: PositiveInt = 1
    distribution: DistributionName = "student"

    def build(self) -> SeriesDecoder:
        """The model, with torch's own random weights; `weft.build` initializes it."""
        own = self.width - self.positions.own_width()
        position = self.positions.build_input(self.length, self.width)
        embedding = VectorEmbedding(self.channels * self.patch, own)
        entry = SequenceInput(position, dropout=self.dropout)
        head = ForecastHead(self.width, self.ahead * self.patch * self.channels, self.distribution)
        return SeriesDecoder(self, embedding, entry, self.build_stack(seen_by(causal=True)), head)

    def declares(self) -> Declaration:
        """Causal in patches, and cached."""
        return self.declare(self.family, length=self.length)


class SeriesDecoder(nn.Module):
    """`model(values)`: for each patch, the raw parameters of the distribution of the next `ahead` ones as `logits`."""

    def __init__(
        self, spec: SeriesSpec, embedding: VectorEmbedding, input: SequenceInput, stack: Stack, head: ForecastHead
    ) -> None:
        super().__init__()
        self.spec, self.embedding, self.input, self.stack, self.head = spec, embedding, input, stack, head

    def forward(
        self,
        values: Tensor,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Output:
        """[B, T patch, C] -> hidden [B, T, D], logits [B, T, ahead patch C, 1 to 3], step by step.

        `positions` and `mask` count patches.
        """
        patch, channels = self.spec.patch, self.spec.channels
        if values.dim() != 3 or values.shape[2] != channels or values.shape[1] % patch:
            raise ShapeError(
                f"a series is [B, steps, {channels}] with steps a multiple of patch {patch}, "
                f"but this one has shape {tuple(values.shape)}: cut it to whole patches"
            )
        tokens = values.unflatten(1, (-1, patch)).flatten(2)
        mask = as_mask(mask)
        token_positions = arrange_call(tokens, positions, mask, state)
        auxiliary = Auxiliary(token_positions.real)
        hidden = self.stack(
            self.input(self.embedding(tokens), token_positions), token_positions, mask, state, auxiliary=auxiliary
        )
        return Output(hidden, self.head, state, auxiliary.summary())

    def make_state(self, batch: int = 1, capacity: int | None = None) -> State:
        """An empty state: growing, or refusing more than `capacity` patches."""
        return self.stack.make_state(batch, self.head.linear.weight.device, capacity)

    def declares(self) -> Declaration:
        return self.spec.declares()
