"""Optimized models: the same model for decoding, with single-token blocks and packed weights, native where possible.

An optimized model shares every weight with its original and takes the same calls. It is kept for as long as the
original lives, and made anew when a weight has changed since (training between two texts), or a part was replaced.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.inference.fast.native import NativeMatrix, NativeStack, native_head, native_stack
from weft.inference.fast.packed_weights import LinearFunction, packed_linear
from weft.parts import observer
from weft.parts.embeddings import TokenEmbedding
from weft.parts.outputs import CappedHead, LanguageHead, TiedHead
from weft.parts.quantized import BlockMatrix, BlockQuantizedEmbedding
from weft.parts.stack import Stack

STACKS = ("stack", "decoder")
EMBEDDINGS = ("embedding", "target_embedding")

_kept: WeakKeyDictionary[nn.Module, tuple[object, nn.Module]] = WeakKeyDictionary()
_parts_only: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_lock = threading.Lock()


def optimized(model: nn.Module, native: bool = True) -> nn.Module:
    """The model made fast for decoding; itself where there is nothing to gain.

    The model itself, whose own parts run one by one, also with `native=False`, inside `parts_only` and where somebody
    has registered forward hooks on a part.
    """
    if not native or _hooked(model) or (_parts_only and any(part in _parts_only for part in model.modules())):
        return model
    if not any(isinstance(getattr(model, name, None), Stack) for name in STACKS):
        return model
    version = _version(model)
    found = _kept.get(model)
    if found is None or found[0] != version:
        found = _kept[model] = (version, _optimize(model))
    return found[1]


@contextmanager
def parts_only(model: nn.Module) -> Iterator[None]:
    """Texts begun inside, in any thread, are written by the model's own parts, as with `native=False`.

    It holds for every part of the model, and for every model that shares a part with it.
    """
    parts = list(model.modules())
    with _lock:
        for part in parts:
            _parts_only[part] = _parts_only.get(part, 0) + 1
    try:
        yield
    finally:
        with _lock:
            for part in parts:
                _parts_only[part] -= 1
                if not _parts_only[part]:
                    del _parts_only[part]


def _hooked(model: nn.Module) -> bool:
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def _version(model: nn.Module) -> tuple[object, ...]:
    """Changes whenever a weight or a part does; each time where weights made in inference mode do not tell."""
    return tuple((id(t), object() if t.is_inference() else t._version, t.data_ptr(), t.dtype) for t in _tensors(model))


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _optimize(model: nn.Module) -> nn.Module:
    """A shallow copy with a native or single-token decoding stack and a packed head."""
    twin = copy.copy(model)
    twin._modules = dict(model._modules)
    for name in STACKS:
        stack = getattr(model, name, None)
        if isinstance(stack, Stack):
            twin._modules[name] = native_stack(stack)
    for name in EMBEDDINGS:
        embedding: Any = getattr(model, name, None)
        if type(embedding) in (TokenEmbedding, BlockQuantizedEmbedding):
            twin._modules[name] = UncheckedEmbedding(embedding)
    head = getattr(model, "head", None)
    own: Any = head.head if type(head) is CappedHead else head
    if type(own) in (LanguageHead, TiedHead):
        packed = PackedHead(own, getattr(model, "target_embedding", None) or model.embedding)  # type: ignore[arg-type]
        twin._modules["head"] = packed if own is head else CappedHead(packed, head.cap, head.vocabulary)  # type: ignore[union-attr]
    return twin


def exact_rows(model: nn.Module) -> int:
    """Number of tokens that one call computes bit for bit as it computes each alone; 0 if that is not promised.

    So where stack and head of the optimized model are native. Not while somebody watches: what is recorded is one token
    at a time.
    """
    return native_rows(optimized(model))


def native_rows(own: nn.Module) -> int:
    """`exact_rows` of a model that is optimized already."""
    stacks = [getattr(own, name) for name in STACKS if isinstance(getattr(own, name, None), nn.Module)]
    product = _native_head(own)
    if observer.active or not stacks or product is None or not all(isinstance(one, NativeStack) for one in stacks):
        return 0
    return min(product.most_rows, *(one.rows for one in stacks))


def decodes_alike(model: nn.Module) -> bool:
    """Whether each text is decoded bit for bit alike in whatever company: where stack and head are native."""
    own = optimized(model)
    stacks = [getattr(own, name) for name in STACKS if isinstance(getattr(own, name, None), nn.Module)]
    return bool(stacks) and all(isinstance(one, NativeStack) for one in stacks) and _native_head(own) is not None


def _native_head(own: nn.Module) -> NativeMatrix | None:
    head: Any = getattr(own, "head", None)
    head = head.head if type(head) is CappedHead else head
    return getattr(head, "native", None)


class UncheckedEmbedding(nn.Module):
    """A token embedding that does not check single tokens: those that a model generates are in its vocabulary."""

    def __init__(self, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.own, self.scale = embedding, embedding.scale

    @property
    def weight(self) -> Tensor:
        return self.own.weight

    @property
    def device(self) -> torch.device:
        return self.own.device

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, D]."""
        if tokens.shape[1] != 1:
            x: Tensor = self.own(tokens)
            return x
        x = self.own.look_up(tokens)
        x = x if self.scale == 1.0 else x * self.scale
        for one in observer.active:
            x = one.on_embedding(self.own, tokens, x)
        return x


class PackedHead(nn.Module):
    """A language head for few rows at a time: by the native product, or with packed weights."""

    def __init__(self, head: LanguageHead | TiedHead, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.own, self.scale = head, getattr(head, "scale", 1.0)
        holder = embedding if isinstance(head, TiedHead) else head.linear
        weight: Tensor | BlockMatrix = holder if isinstance(holder, BlockMatrix) else holder.weight
        self.native = native_head(weight, head.bias)
        self.packed_linear: LinearFunction | None = None
        if self.native is None and isinstance(weight, Tensor):
            self.packed_linear = packed_linear(weight, head.bias)

    def forward(self, hidden: Tensor, embedding: TokenEmbedding) -> Tensor:
        """[..., D] -> [..., C]."""
        x = hidden if self.scale == 1.0 else hidden * self.scale
        logits = None if self.native is None else self.native(x)
        if logits is None and self.packed_linear is not None:
            logits = self.packed_linear(x)
        return self.own(hidden, embedding) if logits is None else logits
