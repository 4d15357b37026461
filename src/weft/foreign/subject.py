"""A subject: a model as the laws see it, whatever library it comes from.

An adapter says how to call it and what it declares. What it cannot do it refuses with `NotTestable`, so that a law that
needs it is reported as not testable, with the reason, and never as holding; so is a call in which the module itself
fails (`CallFailed`). To have any other module checked, subclass `Subject` and implement `run`.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.exact import Exact
from weft.foundation.errors import WeftError
from weft.models.output import Declaration
from weft.parts.masks import Mask
from weft.parts.quantized import dequantize


def fill_zero_weights(module: nn.Module) -> int:
    """Give weight matrices that are all zero small random values; how many there were. Nothing else is touched."""
    random = torch.Generator().manual_seed(0)
    zeros = [p for p in module.parameters() if p.dim() >= 2 and p.numel() and not p.any()]
    with torch.no_grad():
        for weight in zeros:
            weight.copy_(torch.randn(weight.shape, generator=random, dtype=torch.float64) * weight.shape[-1] ** -0.5)
    return len(zeros)


class NotTestable(Exception):
    """Why something cannot be asked of this subject, in words."""


class CallFailed(NotTestable):
    """The subject's own code raised when it was called; `reason` is the first line of what it said."""

    def __init__(self, error: Exception, what: str = "calling it fails") -> None:
        self.reason = (str(error).splitlines() or [type(error).__name__])[0]
        super().__init__(f"{what}: {type(error).__name__}: {self.reason:.160}")


class CallRefused(CallFailed):
    """A Weft model refuses the call, with the reason in words."""


@contextmanager
def subject_code(what: str = "calling it fails") -> Iterator[None]:
    """What the subject raises inside becomes `CallFailed`; what a hook of the laws raises there stays an error."""
    try:
        yield
    except NotTestable:
        raise
    except Exception as error:
        if _in_a_hook_of_laws(error):
            raise
        raise (CallRefused if isinstance(error, WeftError) else CallFailed)(error, what) from error


def _in_a_hook_of_laws(error: Exception) -> bool:
    """Whether a frame of the laws lies below one of the subject's, in the traceback."""
    rooms = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [room.startswith(("weft.laws.", "weft.foreign.", "contextlib")) for room in rooms]
    first = ours.index(False) if False in ours else len(ours)
    return any(room.startswith("weft.laws.") for room in rooms[first:])


_WORDS = {"real": "padding mask", "source_real": "padding mask for its source", "documents": "document ids"}


@dataclass
class SubjectCall:
    """One call: content [B, T] or [B, T, C], and what may come with it.

    `real` [B, T] marks real tokens; `positions` [B, T] places them; `documents` [B, T] packs them; `mask` is one of
    ours; `source` and `source_real` are an encoder-decoder's or an image.
    """

    content: Tensor
    real: Tensor | None = None
    positions: Tensor | None = None
    documents: Tensor | None = None
    mask: Mask | None = None
    source: Tensor | None = None
    source_real: Tensor | None = None

    def takes(self, *allowed: str) -> None:
        """Refuse what an adapter has no way to pass on."""
        for name in ("real", "positions", "documents", "mask", "source", "source_real"):
            if getattr(self, name) is not None and name not in allowed:
                raise NotTestable(f"this kind of module takes no {_WORDS.get(name, name)}")


@dataclass
class Subject:
    """A module, what it declares, and what was assumed in saying so.

    `avoid`: tokens with a meaning of their own, never drawn. `beside`: names of parts that the outputs asked for do not
    pass (a pooler, a classifier), so no gradient is expected to reach them. Within `exact`, narrower casts are widened.
    """

    module: nn.Module
    declares: Declaration
    assumed: tuple[str, ...] = ()
    example: Tensor | None = None
    source_example: Tensor | None = None
    avoid: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()
    library: str = "torch"
    exact: Exact = field(default_factory=Exact)

    def run(self, call: SubjectCall) -> Tensor:
        """One output vector per token, [B, T, C], computed all at once; or one per text, [B, C]."""
        raise NotImplementedError

    def make_cache(self, batch: int) -> Any:
        """An empty cache."""
        raise NotTestable("this kind of module is called without a cache")

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        """Outputs for the next tokens, given the cache; and the cache after them."""
        raise NotTestable("this kind of module is called without a cache")

    def without_positions(self) -> tuple[Subject, str] | None:
        """The same subject, not told positions with padding, as callers often leave them out; and their name."""
        return None

    def with_step_positions(self) -> tuple[Subject, str] | None:
        """The same subject, told positions with each step of a cache, as callers often do not; and their name."""
        return None

    def backends(self) -> tuple[str, ...]:
        """Names of the ways to compute attention that can be chosen between."""
        return ()

    def set_backend(self, name: str) -> None:
        raise NotTestable("the way attention is computed cannot be chosen from outside")

    def declares_distributions(self) -> bool:
        """Whether the rows of its attention are meant to be distributions, as after a softmax."""
        return True

    def attention_maps(self, call: SubjectCall) -> dict[str, Tensor]:
        """The weights [B, H, T, S] of each attention that declares distributions, by the path or name of its layer."""
        raise NotTestable("its attention weights cannot be asked for")

    def loss_inputs(self) -> bool:
        """Whether outputs are logits over the vocabulary of the content."""
        return self.declares.vocabulary is not None

    def fresh(self, seed: int) -> nn.Module:
        """The same model built again from a seed."""
        raise NotTestable("it cannot be built again from outside: give a spec or a preset")

    def widened(self) -> Subject:
        """An independent copy in float64, in eval mode; the original is left untouched."""
        try:
            module = copy.deepcopy(self.module)
        except Exception as error:
            raise NotTestable(f"the module cannot be copied ({type(error).__name__})") from error
        other = self.over(dequantize(module.cpu()).double().eval())
        filled = fill_zero_weights(other.module)
        if filled:
            said = f"{filled} weights that are exactly zero got small values in the copy, to show what they hide"
            other.assumed = (*self.assumed, said)
        return other

    def over(self, module: nn.Module) -> Subject:
        """The same adapter around another module."""
        other = copy.copy(self)
        other.module = module
        return other

    @property
    def vectors(self) -> bool:
        """Whether the content is vectors of numbers rather than tokens."""
        return self.example is not None and self.example.is_floating_point()

    @property
    def images(self) -> bool:
        """Whether the content is whole images, [B, channels, height, width]."""
        return self.example is not None and self.example.dim() == 4

    def content(self, batch: int, length: int, random: torch.Generator) -> Tensor:
        """Random content of this subject's kind; images have no length."""
        if self.images and self.example is not None:
            return torch.randn(batch, *self.example.shape[1:], generator=random, dtype=torch.float64)
        if self.vectors and self.example is not None:
            return torch.randn(batch, length, *self.example.shape[2:], generator=random, dtype=torch.float64)
        return self._tokens(self.example, self.declares.vocabulary, (batch, length), random)

    def source(self, batch: int, length: int, random: torch.Generator) -> Tensor | None:
        """Random source of an encoder-decoder, or images; None where there is none."""
        if self.source_example is None:
            return None
        if self.source_example.is_floating_point():
            shape = (batch, *self.source_example.shape[1:])
            return torch.randn(shape, generator=random, dtype=torch.float64)
        return self._tokens(self.source_example, self.declares.vocabulary, (batch, length), random)

    def _tokens(self, example: Tensor | None, vocabulary: int | None, shape: tuple[int, int], random: Any) -> Tensor:
        """Drawn from the vocabulary where it is known, else from the tokens of the example."""
        choices = torch.arange(vocabulary) if vocabulary else torch.empty(0, dtype=torch.long)
        if vocabulary is None:
            if example is None:
                raise NotTestable("its vocabulary is unknown: give an example of tokens")
            choices = example.flatten().unique()
        choices = choices[~torch.isin(choices, torch.tensor(self.avoid, dtype=torch.long))] if self.avoid else choices
        if len(choices) < 2:
            raise NotTestable("fewer than two different tokens are known: give an example with more")
        return choices[torch.randint(0, len(choices), shape, generator=random)]
