"""The probe: random content, the whole T x T dependency matrix from two batched forwards, and how exact this model is.

The matrix comes from T copies of one text with one token replaced each; tokens are replaced, never poisoned with NaN,
because 0 x NaN gives false alarms. Both forwards have the same shape, so a sound dense model differs by exactly 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.foundation.seeds import generator

Mode = Literal["eval", "training"]
LENGTH = 13
SOURCE_LENGTH = 11


class Probe:
    """One subject in float64 with its random content; all laws read from it."""

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        self.subject, self.seed = subject, seed
        self.random = generator(seed, "laws")

    @cached_property
    def length(self) -> int:
        """How many tokens are enough to see what is declared, within the longest that the model takes."""
        declares = self.subject.declares
        wanted = max(LENGTH, (declares.prefix or 0) + 7)
        if declares.reach is not None:
            wanted = max(wanted, min(declares.reach + 6, 48))
        return min(wanted, declares.length or wanted)

    @cached_property
    def content(self) -> Tensor:
        """[1, T]: one random text."""
        return self.subject.content(1, self.length, self.random)

    @cached_property
    def source(self) -> Tensor | None:
        """[1, S] or an image, where the subject has one."""
        return self.subject.source(1, SOURCE_LENGTH, self.random)

    def call(self, content: Tensor) -> SubjectCall:
        """A call with this content in every row, and the source repeated for each."""
        source = None if self.source is None else self.source.expand(len(content), *self.source.shape[1:])
        return SubjectCall(content, source=source)

    def run(self, call: SubjectCall, mode: Mode = "eval") -> Tensor:
        """The subject's outputs, without gradients; in training mode with the same random numbers every time."""
        with torch.no_grad(), self.in_mode(mode):
            return self.subject.run(call).double()

    @contextmanager
    def in_mode(self, mode: Mode) -> Iterator[None]:
        """Put the module into a mode and seed it; back to eval afterwards."""
        self.subject.module.train(mode == "training")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            try:
                yield
            finally:
                self.subject.module.eval()

    def other(self, content: Tensor) -> Tensor:
        """Other tokens for each given one; never the same."""
        batch, length = content.shape[:2]
        drawn = self.subject.content(batch, length, generator(self.seed, "other"))
        if content.is_floating_point():
            return drawn + 1.0
        again = self.subject.content(batch, length, generator(self.seed, "another"))
        third = self.subject.content(1, 64, generator(self.seed, "third"))[0]
        new = torch.where(drawn != content, drawn, again)
        for token in third:
            new = torch.where(new != content, new, token)
        return new

    def one_changed_each(self, content: Tensor) -> Tensor:
        """[T, T]: copy j has another token at j."""
        T = content.shape[1]
        copies = content.expand(T, *content.shape[1:]).clone()
        index = torch.arange(T)
        copies[index, index] = self.other(content)[0]
        return copies

    def dependence(self, call: SubjectCall, mode: Mode = "eval") -> Tensor:
        """D [T, T]: how much output i changes when input j is replaced."""
        T = call.content.shape[1]
        same = replace(call, content=call.content.expand(T, *call.content.shape[1:]).clone())
        changed = replace(call, content=self.one_changed_each(call.content))
        difference = (self.run(changed, mode) - self.run(same, mode)).abs().amax(-1)
        return torch.nan_to_num(difference, nan=float("inf")).T

    @cached_property
    def matrix(self) -> Tensor:
        """D in eval mode."""
        return self.dependence(self.spread(self.content))

    def spread(self, content: Tensor) -> SubjectCall:
        """The call for T copies: sources repeated T times."""
        T = content.shape[1]
        source = None if self.source is None else self.source.expand(T, *self.source.shape[1:])
        return SubjectCall(content, source=source)

    @cached_property
    def outputs(self) -> Tensor:
        """[1, T, C] of the content alone."""
        return self.run(self.call(self.content))

    @cached_property
    def scale(self) -> float:
        """The size of outputs."""
        return max(1.0, float(self.outputs.abs().max()))

    @cached_property
    def effect(self) -> float:
        """How much a typical permitted change changes: the median of what a token does to its own output."""
        own = self.matrix.diagonal()
        return float(own[own.isfinite()].median()) if own.isfinite().any() else 0.0

    @cached_property
    def noise(self) -> float:
        """What rounding alone does: the same text in a batch of another shape."""
        alone = self.outputs
        together = self.run(self.call(self.content.expand(5, *self.content.shape[1:]).clone()))
        return float(torch.nan_to_num((alone - together[:1]).abs(), nan=0.0).max())

    @cached_property
    def tolerance(self) -> float:
        """1e-10 of the outputs' size; for modules that compute in float32 inside, above their own rounding."""
        exact = 1e-10 * self.scale
        # More than 1e-5 of the outputs' size is no rounding: a fault must not hide behind its own noise.
        rounding = min(self.noise, 1e-5 * self.scale)
        return exact if self.noise < exact else max(30 * rounding, 1e-5 * self.effect)

    def say(self, value: float) -> str:
        """A difference in words: exactly 0.0 is said so."""
        return "exactly 0.0" if value == 0 else f"{value:.2g}"


def within(length: int, wanted: int) -> int:
    """A length that fits, or a word why none does."""
    if length < 3:
        raise NotTestable(f"it takes only {length} tokens: too few to test anything")
    return min(length, wanted)
