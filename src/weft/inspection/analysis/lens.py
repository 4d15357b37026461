"""Lens: the residual stream after each block, read as if the block were the last one.

- norms |z_l| of each token, layer by layer;
- logit lens (nostalgebraist 2020): head(norm(z_l)), the answer of the model if it stopped at layer l;
- next-token distributions step by step, and loss by position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.foundation.numerics import widen
from weft.inference.fast.optimized import parts_only
from weft.inspection.recording.calling import answers, module_of, tokens_of
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.parts.observer import Observer, observing
from weft.parts.stack import Stack

Read = Callable[[Tensor], Tensor]
BlockList = tuple[str, list[nn.Module], nn.Module | None]


@dataclass
class Streams:
    """The residual stream of the last forward: `states`, [B, T, D] each: the input, then the output of each block.

    Of an encoder-decoder those of the stack that ran last, the decoder; `stacks` has all, by path.
    """

    stacks: dict[str, list[Tensor]] = field(default_factory=dict)
    last: str = ""
    read: Read | None = None

    @property
    def states(self) -> list[Tensor]:
        if not self.stacks:
            raise WeftError("no blocks have run yet: run the model inside `with streams(...) as s:`")
        return self.stacks[self.last]

    def keep(self, path: str, layer: int, x: Tensor, output: Tensor) -> None:
        """One block's input and output; the first block of a stack begins it anew."""
        if layer == 0:
            self.stacks[path] = [x.detach()]
        self.stacks[path].append(output.detach())
        self.last = path

    @property
    def names(self) -> list[str]:
        return ["input", *(f"block {layer}" for layer in range(len(self.states) - 1))]


class _StreamObserver(Observer):
    """Keeps the residual stream of Weft's own stacks, and how the model reads it."""

    def __init__(self, found: Streams, stacks: list[BlockList]) -> None:
        self.found = found
        self.norms = {path: norm for path, _, norm in stacks}
        self.places = {id(block): (path, layer) for path, blocks, _ in stacks for layer, block in enumerate(blocks)}
        self.here = threading.local()

    def on_block(self, part: nn.Module, x: Tensor, output: Tensor) -> Tensor:
        self.here.stack, layer = self.places.get(id(part), (None, 0))
        if self.here.stack is not None:
            self.found.keep(self.here.stack, layer, x, output)
        return output

    def on_answer(self, hidden: Tensor, head: Read) -> None:
        stack = getattr(self.here, "stack", None)
        if stack is not None:  # the blocks that ran last in this thread are this model's, and so is the answer
            norm = self.norms[stack]
            self.found.read = lambda z: head(z if norm is None else norm(z))


@contextmanager
def streams(subject: Any) -> Iterator[Streams]:
    """Keep the residual stream of any forward inside (references, nothing is computed)."""
    module = module_of(subject)
    found, stacks = Streams(), stacks_of(module)
    with parts_only(module), observing(_StreamObserver(found, stacks)), FunctionOverrides() as overrides:
        if not any(isinstance(part, Stack) for part in module.modules()):
            _keep_foreign(found, module, stacks, overrides)
        yield found


def _keep_foreign(found: Streams, module: nn.Module, stacks: list[BlockList], overrides: FunctionOverrides) -> None:
    for path, blocks, norm in stacks:
        for layer, block in enumerate(blocks):
            overrides.on(block, "forward", _foreign_block(found, path, layer))
        head = getattr(module, "get_output_embeddings", lambda: None)()
        if isinstance(head, nn.Module):
            found.read = _foreign_read(head, norm)


def _foreign_block(found: Streams, path: str, layer: int) -> Any:
    def wrapper(run: Any, part: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        out = run(part, x, *args, **kwargs)
        found.keep(path, layer, x, out if isinstance(out, Tensor) else out[0])
        return out

    return wrapper


def _foreign_read(head: nn.Module, norm: nn.Module | None) -> Read:
    return lambda z: head(z if norm is None else norm(z))


def stacks_of(module: nn.Module) -> list[BlockList]:
    """(path, blocks, last norm) of Weft's stacks; of another library's model its largest list of like modules."""
    own = [(path, part) for path, part in module.named_modules() if isinstance(part, Stack)]
    if own:
        return [(path, list(stack.blocks), stack.norm) for path, stack in own]
    lists = [
        (path, part) for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) and len({type(block) for block in part}) == 1
    ]  # fmt: skip
    if not lists:
        raise WeftError(f"a {type(module).__name__} has no list of blocks: there is no residual stream to look at")
    path, blocks = max(lists, key=lambda one: sum(p.numel() for p in one[1].parameters()))
    return [(path, list(blocks), _norm_after(module, path))]


def _norm_after(module: nn.Module, path: str) -> nn.Module | None:
    """The first norm after a list of blocks in the same module."""
    parent, _, own = path.rpartition(".")
    names = [name for name, _ in module.get_submodule(parent).named_children()]
    for name, part in module.get_submodule(parent).named_children():
        if names.index(name) > names.index(own) and "norm" in type(part).__name__.lower():
            return part
    return None


def residual_norms(found: Streams, batch: int = 0) -> Tensor:
    """(L + 1, T): the norm of each token's vector after each block."""
    return torch.stack([widen(state[batch]).norm(dim=-1) for state in found.states])


@dataclass(frozen=True)
class Lens:
    """At each depth (L + 1) and token T the likeliest answers, their probabilities (L + 1, T, top), and entropy.

    For a model with one answer per sequence T is 1.
    """

    names: list[str]
    tokens: Tensor
    probabilities: Tensor
    entropy: Tensor


@torch.no_grad()
def logit_lens(found: Streams, batch: int = 0, top: int = 5) -> Lens:
    """The answer at each depth; the last is the model's answer."""
    if found.read is None:
        raise WeftError("this model has no head over a vocabulary or classes: the logit lens has nothing to read with")
    tokens, chances, entropies = [], [], []
    for state in found.states:
        logits = widen(found.read(state[batch : batch + 1]))
        logs = logits.reshape(-1, logits.shape[-1]).log_softmax(-1)
        best = logs.topk(min(top, logs.shape[-1]), -1)
        tokens.append(best.indices)
        chances.append(best.values.exp())
        entropies.append(-(logs.exp() * logs).sum(-1))
    return Lens(found.names, torch.stack(tokens), torch.stack(chances), torch.stack(entropies))


@dataclass(frozen=True)
class NextTokens:
    """After each token of a text, the likeliest next ones (T, top) with their probabilities.

    `chance` (T - 1) and `rank` (T - 1): probability and rank of the actual next token; rank 0 is the likeliest.
    """

    tokens: Tensor
    probabilities: Tensor
    chance: Tensor
    rank: Tensor


def next_tokens(subject: Any, tokens: Any, top: int = 10, source: Any = None) -> NextTokens:
    """p(c | s_1 .. s_t) for each t at once; `source`: tokens [S] of an encoder-decoder, or an image."""
    module = module_of(subject)
    text = tokens_of(tokens, module)[:1]
    logs = widen(answers(subject, text, _source(source, module))[0]).log_softmax(-1)
    best = logs.topk(min(top, logs.shape[-1]), -1)
    came = logs[:-1].gather(-1, text[0, 1:, None])
    rank = (logs[:-1] > came).sum(-1)
    return NextTokens(best.indices, best.values.exp(), came[:, 0].exp(), rank)


def loss_by_position(subject: Any, tokens: Any, source: Any = None, real: Tensor | None = None) -> Tensor:
    """(T - 1): the mean cross-entropy of the token at each position 1 .. T - 1 over texts [B, T] without padding."""
    module = module_of(subject)
    texts = tokens_of(tokens, module)
    logits = widen(answers(subject, texts, _source(source, module), real))
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), texts[:, 1:], reduction="none")
    if real is None:
        return losses.mean(0)
    marks = real[:, 1:].to(losses.dtype)
    return (losses * marks).sum(0) / marks.sum(0).clamp(min=1)


def _source(source: Any, module: nn.Module) -> Tensor | None:
    if source is None:
        return None
    found = torch.as_tensor(source, device=next(module.parameters()).device)
    if found.is_floating_point():
        return found[None] if found.dim() == 3 else found
    return found[None] if found.dim() == 1 else found
