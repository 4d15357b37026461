"""A module of the user's own, called as Weft calls its models: `model(tokens, mask=real, state=state) -> Output`.

What it is called with is a `ModuleInterface`, which a task gives: tokens [B, T], vectors [B, T, C] or images
[B, C, H, W] in; logits per token [B, T, C] or one answer [B, C] out. Its weights keep the names that it gave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.plain import first_tensor, padding_senses
from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.foundation.errors import WeftError
from weft.models.module_spec import ModuleSpec
from weft.models.output import Declaration, Output
from weft.models.stack_spec import as_mask
from weft.parts.masks import Mask, Real

TRIED = (2, 7)  # rows and tokens with which a module is first called


@dataclass(frozen=True)
class ModuleInterface:
    """How a task calls a module of the user's own, and what it offers to the factory of one.

    `example`: what goes in, of the shape and type of the data. `per_token`: the answer is [B, T, C], else [B, C].
    `classes`: C at least; what a module answers beyond them is cut off. `sizes`: numbers by the names under which a
    factory may take them. `causal`: the answer for a token must not depend on later ones.
    """

    example: Tensor
    per_token: bool
    classes: int
    sizes: dict[str, int]
    causal: bool = False

    @classmethod
    def of_language(cls, vocabulary: int, length: int) -> ModuleInterface:
        """Tokens [B, T] -> logits of the next token, [B, T, vocabulary]."""
        sizes = {"vocabulary": vocabulary, "length": length}
        return cls(torch.zeros(1, 1, dtype=torch.long), True, vocabulary, sizes, causal=True)

    @classmethod
    def of_texts(cls, vocabulary: int, classes: int, length: int) -> ModuleInterface:
        """Tokens [B, T] -> logits [B, classes]."""
        sizes = {"vocabulary": vocabulary, "classes": classes, "length": length}
        return cls(torch.zeros(1, 1, dtype=torch.long), False, classes, sizes)

    @classmethod
    def of_vectors(cls, classes: int, channels: int, length: int) -> ModuleInterface:
        """Vectors [B, T, channels] -> logits [B, classes]."""
        sizes = {"classes": classes, "channels": channels, "length": length}
        return cls(torch.zeros(1, 1, channels), False, classes, sizes)

    @classmethod
    def of_images(cls, classes: int, channels: int, size: int) -> ModuleInterface:
        """Images [B, channels, size, size] -> logits [B, classes]."""
        sizes = {"classes": classes, "channels": channels, "size": size}
        return cls(torch.zeros(1, channels, size, size), False, classes, sizes)

    @property
    def images(self) -> bool:
        return self.example.dim() == 4

    def content(self, longest: int | None = None) -> Tensor:
        """Random content to try a module with, of at most `longest` tokens."""
        (rows, tokens), random = TRIED, torch.Generator().manual_seed(0)
        tokens = min(tokens, longest or tokens)
        if self.images:
            return torch.randn(rows, *self.example.shape[1:], generator=random)
        if self.example.is_floating_point():
            return torch.randn(rows, tokens, *self.example.shape[2:], generator=random)
        return torch.randint(self.sizes["vocabulary"], (rows, tokens), generator=random)

    @property
    def answer(self) -> str:
        """The shape of the answer, in words."""
        return f"[B, {'T, ' * self.per_token}{self.classes}]"


@dataclass(frozen=True)
class CallForm:
    """How a module takes what not all modules take: the names of its arguments, None where it has none.

    `mask` marks padding, in the sense of that number (see `padding_senses`). `target` must be given to get the logits
    of all tokens, not of the last one alone.
    """

    mask: str | None = None
    sense: int = 0
    mask_required: bool = False
    target: str | None = None


class TextState:
    """The state of a module that keeps none: the texts so far, read again with every call.

    `cache`: that of a module which has one, as long as it fits the texts.
    """

    def __init__(self, batch: int) -> None:
        self.texts: list[list[int]] = [[] for _ in range(batch)]
        self.cache: Any = None

    can_rollback = True

    def can_take_back(self, count: int) -> bool:
        """Whether all texts are as long."""
        return count <= min(map(len, self.texts))

    def rollback(self, count: int) -> None:
        """Take back each text's last `count` tokens."""
        self.texts, self.cache = [text[: len(text) - count] for text in self.texts], None

    def reorder(self, rows: Tensor) -> None:
        """Keep texts rows[0], rows[1], ... in this order."""
        order = torch.as_tensor(rows).tolist()
        if order != list(range(len(self.texts))):
            self.texts, self.cache = [list(self.texts[row]) for row in order], None

    def copy(self) -> TextState:
        """An independent copy, which reads its texts anew."""
        other = TextState(0)
        other.texts = [list(text) for text in self.texts]
        return other


class UserModule(nn.Module):
    """The user's `module` with the interface of Weft's models.

    `cached`: how its own cache is used, where the adapter of its library knows that.
    """

    def __init__(
        self,
        module: nn.Module,
        spec: ModuleSpec,
        interface: ModuleInterface,
        form: CallForm = CallForm(),
        cached: Subject | None = None,
    ) -> None:
        super().__init__()
        self.module, self.spec, self.interface, self.form, self.cached = module, spec, interface, form, cached

    def declares(self) -> Declaration:
        return self.spec.declares()

    def forward(
        self,
        tokens: Tensor | None = None,
        positions: Tensor | None = None,
        mask: Mask | Tensor | None = None,
        state: Any = None,
        images: Tensor | None = None,
    ) -> Output:
        """Tokens or images -> logits, which are the hidden states of the output too: no head is known."""
        content = images if tokens is None else tokens
        if content is None or positions is not None:
            raise WeftError(f"{self.spec.name}, a module of your own, takes tokens or images, and no positions")
        real = self._real(mask)
        logits = self._run(content, real) if state is None else self._continue(content, real, state)
        return Output(logits, nn.Identity(), state)

    def make_state(self, batch: int = 1, capacity: int | None = None) -> TextState:
        """A state that holds the texts; the module's own cache too, if it has one."""
        return TextState(batch)

    def _real(self, mask: Mask | Tensor | None) -> Tensor | None:
        mask = as_mask(mask)
        if mask is None or isinstance(mask, Real):
            return None if mask is None or bool(mask.real.all()) else mask.real.bool()
        raise WeftError(
            f"{self.spec.name}, a module of your own, can hide padding, but takes no mask such as {mask!r}: "
            "leave data.isolate and masks out"
        )

    def _run(self, content: Tensor, real: Tensor | None) -> Tensor:
        """The answer to rows with padding: hidden by the module's own mask, or else left out."""
        if real is None and self.form.mask_required:
            real = content.new_ones(content.shape[:2], dtype=torch.bool)
        if real is None:
            return self._answer(content)
        if self.form.mask is not None and bool((real[:, :-1] >= real[:, 1:]).all()):
            return self._answer(content, {self.form.mask: padding_senses(real, self._dtype)[self.form.sense]})
        return self._by_length(content, real)

    @property
    def _dtype(self) -> torch.dtype:
        return next((w.dtype for w in self.module.parameters() if w.is_floating_point()), torch.float32)

    def _by_length(self, content: Tensor, real: Tensor) -> Tensor:
        """Rows of one length at a time, without padding: so a module that takes no mask sees none."""
        lengths = real.sum(1)
        found: Tensor | None = None
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero()[:, 0]
            given = content[rows][real[rows]].unflatten(0, (len(rows), length))
            answer = self._run(given, None)
            if found is None:
                found = answer.new_zeros(len(content), *content.shape[1:2] * self.interface.per_token, answer.shape[-1])
            where = (rows,) if not self.interface.per_token else torch.nonzero(_only(real, rows), as_tuple=True)
            found = found.index_put(where, answer.flatten(0, -2))
        assert found is not None
        return found

    def _answer(self, content: Tensor, extra: Mapping[str, Any] | None = None) -> Tensor:
        more = dict(extra or {}) | ({} if self.form.target is None else {self.form.target: content})
        try:
            found = first_tensor(self.module(content, **more))
        except NotTestable as why:
            raise WeftError(f"{self.spec.name} cannot be trained: {why}") from None
        self._expect_shape(found, content)
        return found[..., : self.interface.classes]

    def _expect_shape(self, found: Tensor, content: Tensor) -> None:
        sides = content.shape[: 1 + self.interface.per_token]
        if found.shape[:-1] != sides or found.shape[-1] < self.interface.classes:
            raise WeftError(
                f"{self.spec.name} answers {list(content.shape)} by {list(found.shape)}, but this task needs logits "
                f"{self.interface.answer}: give a module that answers so"
            )

    def _continue(self, tokens: Tensor, real: Tensor | None, state: TextState) -> Tensor:
        """Logits [B, T, C] of the next tokens of each text."""
        rows = [row.tolist() if real is None else row[real[n]].tolist() for n, row in enumerate(tokens)]
        before = [len(text) for text in state.texts]
        state.texts = [[*text, *row] for text, row in zip(state.texts, rows, strict=True)]
        even = len(set(before)) == 1 and real is None
        if even and self.cached is not None:
            return self._with_cache(tokens, state)
        longest = max(map(len, state.texts))
        whole, marks = tokens.new_zeros(len(rows), longest), tokens.new_zeros(len(rows), longest, dtype=torch.bool)
        for n, text in enumerate(state.texts):
            whole[n, : len(text)], marks[n, : len(text)] = tokens.new_tensor(text), True
        found = self._run(whole, None if bool(marks.all()) else marks)
        if even:
            return found[:, before[0] :]
        answer = found.new_zeros(*tokens.shape, found.shape[-1])
        for n, row in enumerate(rows):
            place = slice(None) if real is None else real[n]
            answer[n, place] = found[n, before[n] : before[n] + len(row)]
        return answer

    def _with_cache(self, tokens: Tensor, state: TextState) -> Tensor:
        assert self.cached is not None
        given = tokens
        if state.cache is None:
            state.cache, given = self.cached.make_cache(len(tokens)), tokens.new_tensor(state.texts)
        found, state.cache = self.cached.run_cached(SubjectCall(given), state.cache)
        self._expect_shape(found, given)
        return found[:, -tokens.shape[1] :, : self.interface.classes]

    # --- its weights, by the names that it gave them ------------------------------------------------------------------

    def named_parameters(self, *args: Any, **more: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **more)

    def state_dict(self, *args: Any, **more: Any) -> Any:
        """That of the module; of tensors that share their memory, the first."""
        found = self.module.state_dict(*args, **more)
        return {name: found[name] for name, first in _ties(found).items() if name == first}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """The inverse of `state_dict`."""
        ties = _ties(self.module.state_dict())
        also = {name: state_dict[first] for name, first in ties.items() if first in state_dict}
        return self.module.load_state_dict({**also, **state_dict}, strict=strict, assign=assign)


def _ties(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each tensor the name of the first that is the same memory."""
    first: dict[tuple[Any, ...], str] = {}
    found = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (name,)
        found[name] = first.setdefault(place, name)
    return found


def _only(real: Tensor, rows: Tensor) -> Tensor:
    """The marks of these rows, none of others."""
    chosen = torch.zeros_like(real)
    chosen[rows] = real[rows]
    return chosen
