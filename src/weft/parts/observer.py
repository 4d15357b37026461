"""Observers: who is told what the parts of a model do while it runs.

A part tells each observer in `active` what it was given and what it computed. Without observers that is one look at
an empty tuple per part, which torch.compile traces without a graph break; while there are some, compiled models run
uncompiled, so that no event is lost. An observer may return another output than the part's (an intervention).

    for one in observer.active:                  # in a part
        y = one.on_attention(self, query, key, value, context, y)

    with observing(MyObserver()): model(tokens)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from weft.parts.attention_context import AttentionContext
    from weft.parts.relative import AttentionPosition
    from weft.parts.stack import Stack
    from weft.parts.state import State, TensorState
    from weft.parts.token_positions import TokenPositions


class Observer:
    """One method per event, of any part in any thread; each does nothing unless it is overridden.

    `on_...` comes after the part has computed; where it returns a tensor, that is what the model goes on with.
    `during_...` is a context that lasts while the part computes.
    """

    def during_stack(
        self,
        part: Stack,
        x: Tensor,
        token_positions: TokenPositions,
        state: State | None,
        memory: tuple[Tensor, TokenPositions] | None,
    ) -> AbstractContextManager[None]:
        """A stack runs on x [B, T, D]."""
        return nullcontext()

    def during_attention(self, part: nn.Module) -> AbstractContextManager[None]:
        """An attention scores, masks, weighs and gathers."""
        return nullcontext()

    def on_attention(
        self, part: nn.Module, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, output: Tensor
    ) -> Tensor:
        """Queries [B, H, T, K], keys [B, G, S, K], values [B, G, S, V] and each head's output [B, H, T, V]."""
        return output

    def on_linear_attention(
        self, part: nn.Module, x: Tensor, context: AttentionContext, state: TensorState | None, output: Tensor
    ) -> Tensor:
        """Input [B, T, D] and output [B, T, D] of a linear attention."""
        return output

    def on_alignment(
        self,
        part: nn.Module,
        query: Tensor,
        hidden: Tensor,
        token_positions: TokenPositions,
        state: State | None,
        weights: Tensor,
    ) -> None:
        """A score compared the decoder's states [B, T, H] with the encoder's [B, S, D]: weights [B, T, S]."""

    def on_recurrent_encoding(self, part: nn.Module, hidden: Tensor, token_positions: TokenPositions) -> None:
        """A recurrent encoder gave the states [B, S, D] of its source."""

    def on_embedding(self, part: nn.Module, given: Tensor, output: Tensor) -> Tensor:
        """Tokens, images or numbers as they were given, and their vectors [B, T, D]."""
        return output

    def on_input_positions(self, part: nn.Module, x: Tensor, output: Tensor) -> Tensor:
        """Vectors before and after positions were added or concatenated."""
        return output

    def on_attention_position(self, position: AttentionPosition) -> AttentionPosition | None:
        """The position that will act inside attention; None leaves it out."""
        return position

    def on_branch(self, part: nn.Module, output: Tensor) -> Tensor:
        """What a block's mixer, cross-attention or feed-forward adds to the residual stream, [B, T, D]."""
        return output

    def on_block(self, part: nn.Module, x: Tensor, output: Tensor) -> Tensor:
        """The residual stream before and after a block, [B, T, D]."""
        return output

    def on_experts(self, part: nn.Module, x: Tensor, gates: Tensor, chosen: Tensor) -> None:
        """For tokens x [..., D] the chosen experts and their gates, [N, A] each."""

    def on_answer(self, hidden: Tensor, head: Callable[[Tensor], Tensor]) -> None:
        """A model's last hidden states [B, T, D] and the head that reads them."""

    def on_state_reorder(self, state: State, rows: Tensor) -> None:
        """A state keeps rows[0], rows[1], ... in this order."""

    def on_state_rollback(self, state: State, count: int | Sequence[int]) -> None:
        """A state took back the last `count` tokens of each row; several numbers where rows differ."""

    def on_state_copy(self, state: State, copy: State) -> None:
        """A state was copied."""


active: tuple[Observer, ...] = ()
_lock = threading.Lock()
_aside = threading.local()  # .depth: number of `aside` contexts that this thread is in
_uncompiled: Any = None  # what torch.compiler.set_stance gave, while compiled models run uncompiled


@contextmanager
def observing(*observers: Observer) -> Iterator[None]:
    """Tell these observers, after those that are active already, until the context ends."""
    with _lock:
        _activate((*active, *observers))
    try:
        yield
    finally:
        with _lock:
            rest = list(active)
            for one in observers:
                rest.remove(one)
            _activate(tuple(rest))


@contextmanager
def aside() -> Iterator[None]:
    """What this thread runs meanwhile is no part of the call: recorders leave it out, while interventions act."""
    _aside.depth = getattr(_aside, "depth", 0) + 1
    try:
        yield
    finally:
        _aside.depth -= 1


def is_aside() -> bool:
    """Whether this thread is in an `aside` context."""
    return getattr(_aside, "depth", 0) > 0


def _activate(observers: tuple[Observer, ...]) -> None:
    global active, _uncompiled
    # Without torch's compiler in memory nothing is compiled, and importing it for this would take seconds.
    if observers and _uncompiled is None and "torch._dynamo" in sys.modules:
        _uncompiled = torch.compiler.set_stance("force_eager")
    active = observers
    if not observers and _uncompiled is not None:
        _uncompiled.__exit__(None, None, None)
        _uncompiled = None


@contextmanager
def during_stack(
    part: Stack,
    x: Tensor,
    token_positions: TokenPositions,
    state: State | None,
    memory: tuple[Tensor, TokenPositions] | None,
) -> Iterator[None]:
    """All observers' contexts at once; see `Observer.during_stack`."""
    with ExitStack() as contexts:
        for one in active:
            contexts.enter_context(one.during_stack(part, x, token_positions, state, memory))
        yield


@contextmanager
def during_attention(part: nn.Module) -> Iterator[None]:
    """All observers' contexts at once; see `Observer.during_attention`."""
    with ExitStack() as contexts:
        for one in active:
            contexts.enter_context(one.during_attention(part))
        yield
