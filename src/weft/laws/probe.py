"""The probe: random content, the whole T x T dependency matrix from two batched forwards, and how exact this model is.

The matrix comes from T copies of one text with one token replaced each; tokens are replaced, never poisoned with NaN,
because 0 x NaN gives false alarms. Both forwards have the same shape, so a sound dense model differs by exactly 0.0;
`weft.laws.leak` tells rounding from a leak elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.foreign.subject import NotTestable, Subject, SubjectCall, subject_code
from weft.foundation.seeds import generator
from weft.laws.leak import Leak, amplified, judge_leak

Mode = Literal["eval", "training"]
LENGTH, LONG = 13, 48
ROWS = 3
ONE_ANSWER = "it gives one answer per text, not one per token"
SOURCE_LENGTH = 11


class Probe:
    """One subject in float64 with its random content; all laws read from it."""

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        self.subject, self.seed = subject, seed
        self.random = generator(seed, "laws")
        self.precision = "float64"
        self._matrices: dict[Mode, Tensor] = {}
        self._row_leaks: dict[Mode, Leak] = {}

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

    def run(self, call: SubjectCall, mode: Mode = "eval", subject: Subject | None = None) -> Tensor:
        """The subject's outputs, without gradients; in training mode with the same random numbers every time."""
        with torch.no_grad(), self.in_mode(mode):
            return self.answer(call, subject).double()

    def answer(self, call: SubjectCall, subject: Subject | None = None) -> Tensor:
        """Outputs [B, T, C] as the subject gives them, with a gradient where one is asked for.

        Every call of the subject's own code goes through the probe: what fails there is no bug in a law.
        """
        subject = subject or self.subject
        with subject_code():
            out = subject.run(call)
        if isinstance(out, Tensor) and out.dtype in (torch.float32, torch.float16, torch.bfloat16):
            self.precision = str(out.dtype).removeprefix("torch.")  # something inside narrows, whatever it is asked for
        return self._rows(out, call.content)

    def _rows(self, out: Any, content: Tensor) -> Tensor:
        """The answer as [B, T, C]; as [B, 1, C] where there is one per text."""
        if not isinstance(out, Tensor):
            raise NotTestable(f"its answer is a {type(out).__name__}, not a tensor")
        B, T = content.shape[:2]
        if out.dim() == 3 and out.shape[0] == B and (self.subject.images or out.shape[1] in (1, T)):
            return out
        if out.dim() == 2 and out.shape[0] == B:
            return out[:, :, None] if self._numbers else out[:, None]
        raise NotTestable(f"its answer has shape {tuple(out.shape)}, not one vector for each token or text")

    @cached_property
    def _numbers(self) -> bool:
        """Whether an answer of two axes is one number per token, [B, T], and not one vector per text, [B, C]."""
        if self.subject.images or self.length < 2:
            return False
        with torch.no_grad(), subject_code():
            shapes = [self.subject.run(self.call(self.content[:, :n])).shape[1] for n in (self.length, self.length - 1)]
        return shapes == [self.length, self.length - 1]

    @property
    def pooled(self) -> bool:
        """Whether there is one answer per text, as of a classifier or an embedding, and not one per token."""
        return not self.subject.images and self.outputs.shape[1] == 1 < self.length

    def expect_tokens(self) -> None:
        """Refuse a question about single tokens where there is one answer per text."""
        if self.pooled:
            raise NotTestable(ONE_ANSWER)

    def make_cache(self, batch: int) -> Any:
        with subject_code():
            return self.subject.make_cache(batch)

    def run_cached(self, call: SubjectCall, cache: Any, subject: Subject | None = None) -> tuple[Tensor, Any]:
        """The subject's outputs for the next tokens, given the cache; and the cache after them."""
        with subject_code():
            out, cache = (subject or self.subject).run_cached(call, cache)
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
        module = self.subject.module
        module.train(mode == "training")
        # Running statistics that a pass in training mode moves would change the passes after it.
        kept = [(buffer, buffer.clone()) for buffer in module.buffers()] if mode == "training" else []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            try:
                yield
            finally:
                module.eval()
                for buffer, before in kept:
                    buffer.copy_(before)

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

    def one_changed(self, content: Tensor, place: int) -> Tensor:
        """[1, T]: the same text with another token at one place."""
        changed = content.clone()
        changed[:, place] = self.other(content)[:, place]
        return changed

    def change(self, call: SubjectCall, changed: Tensor, mode: Mode = "eval", factor: float = 1.0) -> Tensor:
        """[B, T]: how much each output changes when the content becomes `changed`, or `factor` times as different."""
        before = self.run(call, mode)
        with amplified(self.subject.module, call.content, changed, factor) as content:
            after = self.run(replace(call, content=content), mode)
        # What is not finite in both runs is no change, nor is an overflow that the factor itself causes.
        unknown = float("inf") if factor == 1 else 0.0
        difference = torch.nan_to_num((after - before).abs(), nan=unknown, posinf=unknown)
        return difference.masked_fill(~(after.isfinite() | before.isfinite()), 0.0).amax(-1)

    def leak(self, change: Callable[[float], float]) -> Leak:
        """Whether outputs that must not change do; `change(factor)` is by how much. No fault raises its own limit."""
        return judge_leak(change, lambda: max(1e-12 * self.scale, 30 * self.rounding))

    def blame_limit(self, leak: Leak) -> float:
        """Below what a difference inside, in runs that show a leak, is taken for rounding."""
        return max(1e-3 * leak.value, 1e-15 * self.scale * (leak.factor or 1.0))

    def dependence(self, call: SubjectCall, mode: Mode = "eval") -> Tensor:
        """D [T, T]: how much output i changes when input j is replaced, for a call of one row.

        From two forwards of T copies, copy j with another token at j; where rows of a batch meet, from one forward per
        place, so that what leaks between rows is not taken for a leak in time.
        """
        self.expect_tokens()
        if not self.outputs.isfinite().any():
            raise NotTestable("none of its outputs is a finite number")
        T = call.content.shape[1]
        if self.row_leak(mode).value > 0:
            rows = [self.change(call, self.one_changed(call.content, j), mode)[0] for j in range(T)]
            return torch.stack(rows, 1)
        copies = call.content.expand(T, *call.content.shape[1:]).clone()
        index = torch.arange(T)
        changed = copies.clone()
        changed[index, index] = self.other(call.content)[0]
        source = None if call.source is None else call.source.expand(T, *call.source.shape[1:])
        return self.change(replace(call, content=copies, source=source), changed, mode).T

    def matrix_in(self, mode: Mode) -> Tensor:
        """D of the content, in one mode."""
        if mode not in self._matrices:
            self._matrices[mode] = self.dependence(self.call(self.content), mode)
        return self._matrices[mode]

    @property
    def matrix(self) -> Tensor:
        """D in eval mode."""
        return self.matrix_in("eval")

    def company(self) -> tuple[SubjectCall, Tensor]:
        """A batch whose first row is the content, and the same with other rows beside it."""
        together = self.subject.content(ROWS, self.length, generator(self.seed, "company"))
        together[0] = self.content[0]
        changed = together.clone()
        changed[1:] = self.other(together)[1:]
        return self.call(together), changed

    def row_leak(self, mode: Mode) -> Leak:
        """Whether a row depends on the rows beside it."""
        if mode not in self._row_leaks:
            call, changed = self.company()
            self._row_leaks[mode] = self.leak(lambda factor: float(self.change(call, changed, mode, factor)[0].max()))
        return self._row_leaks[mode]

    @cached_property
    def outputs(self) -> Tensor:
        """[1, T, C] of the content alone."""
        return self.run(self.call(self.content))

    @cached_property
    def scale(self) -> float:
        """The size of outputs; an infinite one must not make every difference small."""
        finite = self.outputs[self.outputs.isfinite()]
        return max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)

    @cached_property
    def effect(self) -> float:
        """How much a typical permitted change changes: the median of what a token does to its own output."""
        own = self.matrix.diagonal()
        return float(own[own.isfinite()].median()) if own.isfinite().any() else 0.0

    @cached_property
    def rounding(self) -> float:
        """What rounding inside does to outputs: f(w + d) + f(w - d) - 2 f(w), for a small step d of all weights.

        It vanishes for any smooth function, faulty or not, up to the precision that is computed with; so a fault cannot
        hide behind it. About 1e-15 of the outputs' size in float64, 1e-7 where something computes in float32.
        """
        weights = [p for p in self.subject.module.parameters() if p.is_floating_point()]
        kept, random = [p.data for p in weights], generator(self.seed, "rounding")
        steps = [1e-8 * torch.randn(p.shape, generator=random, dtype=p.dtype) for p in weights]
        total = -2 * self.outputs
        try:
            for sign in (1, -1):
                for p, weight, step in zip(weights, kept, steps, strict=True):
                    p.data = weight * (1 + sign * step)
                total = total + self.run(self.call(self.content))
        finally:
            for p, weight in zip(weights, kept, strict=True):
                p.data = weight
        found = float(torch.nan_to_num(total.abs(), nan=0.0, posinf=0.0).max())
        return min(found, 1e-6 * self.scale)

    @cached_property
    def tolerance(self) -> float:
        """What runs of different shapes may differ by: 1e-10 of the outputs' size, or rounding where that is more."""
        return max(1e-10 * self.scale, 30 * self.rounding)

    def differs(self, value: float) -> bool:
        """Whether runs of different shapes differ by more than rounding, which is measured only where it counts."""
        return value > 1e-10 * self.scale and value > self.tolerance

    def say(self, value: float) -> str:
        """A difference as text; 0.0 is called exact."""
        return "exactly 0.0" if value == 0 else f"{value:.2g}"
