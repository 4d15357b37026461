"""Attention of other libraries: torch's fused kernel, visible softmaxes, nn.MultiheadAttention.

torch's fast paths are neither switched off nor hooked (a hook alone would make torch take another path): where they
hide queries and keys, the inputs are kept and projected again when a map is asked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.inspection.recording.attention_records import AttentionRecord, GivenAttentionRecord, Kind
from weft.inspection.recording.call_log import ForeignPart
from weft.inspection.recording.function_overrides import FunctionOverrides
from weft.inspection.recording.kernel_records import DeferredAttentionRecord, KernelAttentionRecord, multihead_record

if TYPE_CHECKING:
    from weft.inspection.recording.recorder import Recorder

KERNEL = "scaled_dot_product_attention"
MULTIHEAD = (
    *("query", "key", "value", "key_padding_mask", "need_weights"),
    *("attn_mask", "average_attn_weights", "is_causal"),
)
SOFTMAXES_TRACED = 64  # softmaxes outside of attentions whose callers are looked up
LAYER = ("src", "src_mask", "src_key_padding_mask", "is_causal")


def observe_foreign_attention(recorder: Recorder, overrides: FunctionOverrides) -> None:
    """Record the attentions of a module that are not Weft's own."""
    names = recorder.names
    if names.own and not names.foreign:
        return
    wrappers = _Wrappers(recorder)
    for path, part in names.foreign.items():
        if isinstance(part, nn.MultiheadAttention):
            overrides.on(part, "forward", wrappers.multihead(path))
        else:
            overrides.on(part, "forward", wrappers.part(path))
    for part in recorder.module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            overrides.on(part, "forward", wrappers.encoder_layer)
    for code, name in _homes(recorder.module, F, KERNEL):
        overrides.everywhere(code, name, wrappers.kernel)
    overrides.everywhere(torch.Tensor, "softmax", wrappers.softmax)
    for code, name in _homes(recorder.module, torch, "softmax"):
        overrides.everywhere(code, name, wrappers.softmax)


def _homes(module: nn.Module, home: Any, function: str) -> list[tuple[Any, str]]:
    """Where a function of torch is called from: its home, and files of the module's code that have it under a name."""
    original = getattr(home, function)
    homes: list[tuple[Any, str]] = [(home, function)]
    for name in sorted({type(part).__module__ for part in module.modules()}):
        code = sys.modules.get(name)
        if code is not None and code is not home:
            homes += [(code, own) for own, value in list(vars(code).items()) if value is original]
    return homes


class _Wrappers:
    """One for each way in which other libraries compute attention."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.names, self.here = recorder, recorder.names, recorder.log.here
        self.noted = 0

    def add(self, kind: Kind, path: str, record: AttentionRecord) -> None:
        """Add a record to its layer."""
        own = self.here.passes[-1] if self.here.passes else None
        time = 0 if own is None else own.times[path]
        if own is not None:
            own.times[path] += 1
        layer = self.names.layer_of(kind, path, time)
        self.recorder.add(kind, layer, path, record if self.recorder.wanted(layer) else None, record.rows)

    def part(self, path: str) -> Any:
        """An attention of another library: remember that we are inside."""

        def wrapper(run: Any, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
            given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            shape = () if given is None else tuple(given.shape)
            self.here.foreign_parts.append(ForeignPart(path, self.names.kind_of(path, part), shape))
            try:
                return run(part, *args, **kwargs)
            finally:
                self.here.foreign_parts.pop()

        return wrapper

    def multihead(self, path: str) -> Any:
        """nn.MultiheadAttention: where the kernel was not called, keep its inputs."""

        def wrapper(run: Any, part: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
            given = dict(zip(MULTIHEAD, args, strict=False), **kwargs)
            kind = self.names.kind_of(path, part)
            if given["key"] is not given["query"] and kind != "encoder":
                kind = "cross"
            before = self.here.count
            self.here.foreign_parts.append(ForeignPart(path, kind))
            try:
                out = run(part, *args, **kwargs)
            finally:
                self.here.foreign_parts.pop()
            if self.here.count == before:
                self.add(kind, path, multihead_record(part, **given))
            return out

        return wrapper

    def encoder_layer(self, run: Any, part: nn.TransformerEncoderLayer, *args: Any, **kwargs: Any) -> Any:
        """On torch's fast path nothing inside the layer is called."""
        before = self.here.count
        out = run(part, *args, **kwargs)
        if self.here.count == before:
            given = dict(zip(LAYER, args, strict=False), **kwargs)
            path = self.names.paths[id(part.self_attn)]
            kept, mask, padding = given["src"].detach(), given.get("src_mask"), given.get("src_key_padding_mask")

            def make() -> KernelAttentionRecord:
                with torch.no_grad():
                    x = part.norm1(kept) if part.norm_first else kept
                return multihead_record(part.self_attn, x, x, x, padding, attn_mask=mask).made

            self.add(self.names.kind_of(path, part.self_attn), path, DeferredAttentionRecord(kept.size(0), make))
        return out

    def kernel(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        """The fused kernel, called from inside the module."""
        out = run(*args, **kwargs)
        here = self.here
        if (here.passes or here.foreign_parts) and not here.own_depth:
            record = KernelAttentionRecord.of(*args, **kwargs)
            if record is not None:
                inside = here.foreign_parts[-1] if here.foreign_parts else ForeignPart("", "self")
                self.add(inside.kind, inside.path, record)
        return out

    def softmax(self, run: Any, scores: Tensor, *args: Any, **kwargs: Any) -> Any:
        """A softmax over keys inside an attention gives its weights."""
        out = run(scores, *args, **kwargs)
        here = self.here
        dim = kwargs.get("dim", args[0] if args else None)
        if here.own_depth or scores.dim() < 2 or dim not in (-1, scores.dim() - 1):
            return out
        if here.foreign_parts:
            inside = here.foreign_parts[-1]
            heads = _with_heads(scores.dim(), tuple(scores.shape), inside.shape)
            if heads is not None:
                record = GivenAttentionRecord(out.detach()[heads], scores.detach()[heads])
                self.add(inside.kind, inside.path, record)
        elif here.passes and self.noted < SOFTMAXES_TRACED:
            self.noted += 1
            self._note_caller()
        return out

    def _note_caller(self) -> None:
        """Which part of the module took a softmax outside of what is called an attention: it may be one."""
        frame = sys._getframe(2)
        while frame is not None:
            part = frame.f_locals.get("self")
            if isinstance(part, nn.Module) and id(part) in self.names.paths and not isinstance(part, nn.Softmax):
                self.recorder.unclaimed.setdefault(type(part).__name__, self.names.paths[id(part)])
                return
            frame = frame.f_back  # type: ignore[assignment]


def _with_heads(dim: int, shape: tuple[int, ...], given: tuple[int, ...]) -> tuple[Any, ...] | None:
    """The index that makes scores [B, H, T, S] of those in a part whose first input has the shape `given`.

    [B, T, S] is one head, where B is that of the input (else heads and texts share the axis); so is [T, S] of [T, D].
    """
    if dim == 4:
        return (slice(None),)
    if dim == 3 and len(given) == 3 and shape[0] == given[0]:
        return (slice(None), None)
    return (None, None) if dim == 2 and len(given) == 2 else None
