"""Modules called as `module(tokens)` that give logits or hidden states [B, T, C], or one answer per text [B, C].

The answer is a tensor, in a tuple or an object.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.observed_masks import ObservedMasks
from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.models.output import Declaration

OUTPUTS = ("logits", "last_hidden_state", "hidden")
REAL_NAMES = ("attention_mask", "padding_mask", "src_key_padding_mask", "key_padding_mask", "real", "mask")
POSITION_NAMES = ("position_ids", "positions", "pos")
TARGET_NAMES = ("targets", "labels")
LENGTH_NAMES = ("block_size", "max_seq_len", "max_length", "max_len", "context_length", "n_ctx", "n_positions")
POSITION_WORDS = ("pos", "wpe")
OBSERVED_TOKENS = 13  # tokens with which its masks are observed
DECODERS = ("causallm", "lmhead", "gpt", "decoder", "languagemodel")


def first_tensor(out: Any) -> Tensor:
    """The answer of a call: a tensor, its `logits` or hidden states, or the first tensor in a tuple or dict."""
    if isinstance(out, Tensor):
        return out
    for name in OUTPUTS:
        value = out.get(name) if isinstance(out, dict) else getattr(out, name, None)
        if isinstance(value, Tensor):
            return value
    values = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1:
            return value
    raise NotTestable(f"its answer is a {type(out).__name__} without a tensor: wrap it so that it gives [B, T, C]")


def per_token(out: Tensor, length: int) -> Tensor:
    """Refuse an answer that is not one vector per token."""
    if out.dim() != 3 or out.shape[1] != length:
        raise NotTestable(f"its answer has shape {tuple(out.shape)}, not one vector for each of {length} tokens")
    return out


def counted(real: Tensor) -> Tensor:
    """Positions [B, T] that count real tokens only; padding before them has 0."""
    return (real.long().cumsum(1) - 1).clamp(min=0)


@dataclass
class PlainSubject(Subject):
    """Called with the content alone; a mask or positions only where the signature names them.

    Whether True in a mask means real or hidden is found by trial: marking all tokens as real must change nothing.
    `decided`: whether its name, attributes, buffers or the caller say if it may look ahead; else its masks are
    observed. `tried`: what trials found of its arguments.
    """

    give_positions: bool = True
    decided: bool = False
    tried: dict[str, int] = field(default_factory=dict)

    def run(self, call: SubjectCall) -> Tensor:
        real, position = self._argument(REAL_NAMES), self._argument(POSITION_NAMES)
        call.takes(*(["real"] if real else []), *(["positions"] if position else []))
        extra: dict[str, Any] = {}
        with self.exact:
            if call.positions is not None and position:
                extra[position] = call.positions
            if call.real is not None and real:
                extra[real] = self._mark(call, real, extra)
                if position and call.positions is None and self.give_positions:
                    extra |= self._numbered(call, position, real)
            return self._answer(call.content, extra)

    def without_positions(self) -> tuple[Subject, str] | None:
        """Without positions, which padding on the left needs and people often leave out."""
        position = self._argument(POSITION_NAMES)
        if position is None or not self.give_positions:
            return None
        other = copy.copy(self)
        other.give_positions = False
        return other, position

    def widened(self) -> Subject:
        """In the copy, the masks of its attentions say what it is meant to see, where nothing else does."""
        other = super().widened()
        if self.decided:
            return other
        length, random = min(OBSERVED_TOKENS, self.declares.length or OBSERVED_TOKENS), torch.Generator().manual_seed(0)
        masks = ObservedMasks()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), self.exact, masks:
                other._answer(other.content(1, length, random), {})  # type: ignore[attr-defined]
        except Exception:  # what cannot be called, each law says
            return other
        if masks.causal:
            said = f"{masks.causal} of {masks.attentions} attentions inside run with a causal mask, so it is "
            meant = 2 * masks.causal >= masks.attentions
            other.declares = replace(other.declares, causal=meant)
            other.assumed = (f"{said}{'' if meant else 'not '}taken to declare causality", *other.assumed[1:])
        return other

    def _numbered(self, call: SubjectCall, name: str, real: str) -> dict[str, Tensor]:
        """Positions of real tokens, if the argument is one for positions: counting an unpadded text changes nothing."""
        assert call.real is not None
        if "positions" not in self.tried:
            whole = replace(call, real=torch.ones_like(call.real))
            marked = {real: self._mark(whole, real, {})}
            try:
                plain = self._answer(call.content, marked)
                numbered = self._answer(call.content, {**marked, name: counted(torch.ones_like(call.real))})
                self.tried["positions"] = int(torch.allclose(numbered, plain, rtol=0, atol=1e-9))
            except Exception:  # it wants something else
                self.tried["positions"] = 0
        return {name: counted(call.real)} if self.tried["positions"] else {}

    def padding_argument(self, content: Tensor) -> tuple[str, int] | None:
        """The argument that marks padding and its sense, found by trial; None where it has none of that kind."""
        name = self._argument(REAL_NAMES)
        if name is None:
            return None
        try:
            with torch.no_grad(), self.exact:
                real = torch.ones(content.shape[:2], dtype=torch.bool)
                return name, self._find_sense(SubjectCall(content, real), name, {})
        except NotTestable:
            return None

    def target_argument(self, content: Tensor) -> str | None:
        """The argument without which it gives the logits of the last token alone, if there is one."""
        name = self._argument(TARGET_NAMES)
        with torch.no_grad(), self.exact:
            out = first_tensor(self.module(content)) if name is not None else content
        return name if out.dim() == 3 and out.shape[1] == 1 < content.shape[1] else None

    def _argument(self, known: tuple[str, ...]) -> str | None:
        names = inspect.signature(self.module.forward).parameters
        return next((name for name in known if name in names), None)

    def _answer(self, content: Tensor, extra: dict[str, Any]) -> Tensor:
        out = first_tensor(self.module(content, **extra))
        target = self._argument(TARGET_NAMES)
        if out.dim() == 3 and out.shape[1] == 1 < content.shape[1] and target:
            out = first_tensor(self.module(content, **extra, **{target: content}))
        return out

    def _mark(self, call: SubjectCall, name: str, extra: dict[str, Any]) -> Tensor:
        """The mask in the sense and type in which an unpadded text stays as it is without one."""
        assert call.real is not None
        if "sense" not in self.tried:
            self.tried["sense"] = self._find_sense(call, name, extra)
        return padding_senses(call.real)[self.tried["sense"]]

    def _find_sense(self, call: SubjectCall, name: str, extra: dict[str, Any]) -> int:
        assert call.real is not None
        required = inspect.signature(self.module.forward).parameters[name].default is inspect.Parameter.empty
        plain = None if required else self._answer(call.content, extra)
        for number, everything in enumerate(padding_senses(torch.ones_like(call.real))):
            try:
                marked = self._answer(call.content, {**extra, name: everything})
            except Exception:  # a sense that its code refuses is not the one
                continue
            if plain is None or torch.allclose(marked, plain, rtol=0, atol=1e-9):
                return number
        raise NotTestable(
            f"its argument {name} is not a mask [B, T] of real tokens: a text that is all real changes with it"
        )


def padding_senses(real: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """The ways in which modules are told which tokens are real: True or False for them, 1, 1.0."""
    return real, ~real, real.long(), real.to(dtype)


def plain_subject(module: nn.Module, example: Tensor | None) -> PlainSubject:
    """The last resort: a callable from content to one vector per token."""
    causal, why = guess_causal(module)
    vocabulary, said = None, [why or NO_CAUSALITY_DECLARED.format(type(module).__name__), "called as module(content)"]
    tables = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    tokens = [(name, part) for name, part in tables if not any(word in name for word in POSITION_WORDS)]
    if example is None and tokens:
        vocabulary = tokens[0][1].num_embeddings
        said.append(f"tokens are drawn from the {vocabulary} rows of {tokens[0][0]}")
    declares = Declaration(
        type(module).__name__, causal, False, "absolute", length=_length(module), vocabulary=vocabulary
    )
    subject = PlainSubject(module, declares, (), example, library="torch")
    if (name := subject._argument(REAL_NAMES)) is not None:
        said.append(f"{name} marks padding, in the sense in which a text without padding stays as it is")
    subject.assumed, subject.decided = tuple(said), why is not None
    return subject


NO_CAUSALITY_DECLARED = "nothing in {} is named a decoder or causal, so no causality is taken as declared"


def guess_causal(module: nn.Module) -> tuple[bool, str | None]:
    """Whether a module is taken to look only back, and why: its name, a flag, or a triangle that it keeps as a mask.

    None where nothing says so.
    """
    kind = type(module).__name__
    if any(word in kind.lower() for word in DECODERS) and "encoder" not in kind.lower():
        return True, f"{kind} is named a decoder, so it is taken to declare causality"
    for path, part in module.named_modules():
        flag = getattr(part, "causal", getattr(part, "is_causal", None))
        if isinstance(flag, bool):
            return (
                flag,
                f"{'its' if not path else path + ', whose'} attribute causal is {flag}, decides what it declares",
            )
    for name, buffer in module.named_buffers():
        if _is_triangle(buffer):
            return True, f"its buffer {name} is a triangle, so it is taken to declare causality"
    return False, None


def _is_triangle(buffer: Tensor) -> bool:
    """A mask [..., n, n] that shows the past and hides the future, in any of the usual forms."""
    if buffer.dim() < 2 or buffer.shape[-1] != buffer.shape[-2] or buffer.shape[-1] < 2:
        return False
    last = buffer.reshape(-1, *buffer.shape[-2:])[-1]
    past = torch.ones(last.shape, dtype=torch.bool, device=last.device).tril()
    hidden = last.isneginf() if last.is_floating_point() else last.bool()
    return bool(torch.equal(last.bool() & ~last.isneginf(), past) or torch.equal(hidden, ~past))


def _length(module: nn.Module) -> int | None:
    """The longest text it takes, where an attribute, a table of positions or a triangle says so."""
    said = [
        getattr(holder, name, None) for holder in (module, getattr(module, "config", None)) for name in LENGTH_NAMES
    ]
    said += [
        part.num_embeddings
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and any(word in name for word in POSITION_WORDS)
    ]
    said += [buffer.shape[-1] for _, buffer in module.named_buffers() if _is_triangle(buffer)]
    return min((length for length in said if isinstance(length, int) and length > 0), default=None)
