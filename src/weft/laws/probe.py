"""The probe: random content, the whole T x T dependency matrix from two batched forwards, and how exact this model is.

The matrix comes from T copies of one text with one token replaced each; tokens are replaced, never poisoned with NaN,
because 0 x NaN gives false alarms. Both forwards have the same shape, so a sound dense model differs by exactly 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.foreign.subject import NotTestable, Subject, SubjectCall, subject_code
from weft.foundation.seeds import generator

Mode = Literal["eval", "training"]
LENGTH, LONG = 13, 48
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
        wanted = max(LENGTH, (declares.prefix or declares.text_prefix or 0) + 7)
        if declares.reach is not None:
            wanted = max(wanted, min(declares.reach + 6, LONG))
        if declares.masks is not None:
            wanted = max(wanted, LONG)
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
            return self.answer(call).double()

    def answer(self, call: SubjectCall, subject: Subject | None = None) -> Tensor:
        """Outputs [B, T, C] as the subject gives them, with a gradient where one is asked for.

        Every call of the subject's own code goes through the probe: what fails there is no bug in a law.
        """
        subject = subject or self.subject
        with subject_code():
            out = subject.run(call)
        axes = 1 if subject.images else 2
        if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[:axes] != call.content.shape[:axes]:
            given = f"has shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"is a {type(out).__name__}"
            raise NotTestable(f"its answer {given}, not one vector for each token")
        return out

    def make_cache(self, batch: int) -> Any:
        with subject_code():
            return self.subject.make_cache(batch)

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        """The subject's outputs for the next tokens, given the cache; and the cache after them."""
        with subject_code():
            out, cache = self.subject.run_cached(call, cache)
        return out.double(), cache

    def set_backend(self, name: str) -> None:
        with subject_code():
            self.subject.set_backend(name)

    def fresh(self, seed: int) -> nn.Module:
        """The same model built again from a seed."""
        with subject_code("building it again fails"):
            return self.subject.fresh(seed)

    def attention_maps(self) -> dict[str, Tensor]:
        """The attention weights of the content, by layer."""
        with torch.no_grad(), subject_code("asking for its attention fails"):
            return self.subject.attention_maps(self.call(self.content))

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
        """A difference as text; 0.0 is called exact."""
        return "exactly 0.0" if value == 0 else f"{value:.2g}"
