"""x-transformers: wrappers around Decoder and Encoder (tokens, vectors, images), encoder-decoders (XTransformer)."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.plain import first_tensor, per_token
from weft.foreign.subject import NotTestable, Subject, SubjectCall
from weft.models.output import Declaration
from weft.models.position_specs import Nature


class XTransformersSubject(Subject):
    """Called as net(content, mask=real); its cache is the `return_intermediates` of the call before.

    Padding on the left is told by `seq_start_pos`, as its `generate` does, so that positions count real tokens only.
    """

    def run(self, call: SubjectCall) -> Tensor:
        """[B, T] or [B, T, C] -> logits or vectors [B, T, C]."""
        with self.exact:
            if self.images:
                call.takes()
                return self.module(call.content, return_embeddings=True)
            call.takes("real", "positions", *(("source", "source_real") if self.declares.seq2seq else ()))
            extra = self._encoded(call)
            if call.real is not None:
                extra["mask"] = call.real
                pads = (~call.real).long().cumprod(1).sum(1)
                if pads.any():
                    extra["seq_start_pos"] = pads
            if call.positions is not None:
                extra["pos"] = call.positions
            return per_token(first_tensor(self._net(call.content, **extra)), call.content.shape[1])

    @property
    def _net(self) -> Any:
        return self.module.decoder.net if self.declares.seq2seq else self.module  # type: ignore[union-attr]

    def _encoded(self, call: SubjectCall) -> dict[str, Any]:
        if not self.declares.seq2seq:
            return {}
        if call.source is None:
            raise NotTestable("it needs a source")
        memory = self.module.encoder(call.source, mask=call.source_real, return_embeddings=True)  # type: ignore[operator]
        return {"context": memory, "context_mask": call.source_real}

    def make_cache(self, batch: int) -> Any:
        if not self.declares.cached:
            raise NotTestable("it cannot keep keys and values (can_cache_kv is False)")
        return None

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        """It wants the whole text with each call; cache_age says how many of its last tokens are new."""
        call.takes("source")
        size = call.content.shape[1]
        tokens = call.content if cache is None else torch.cat((cache[0], call.content), 1)
        extra = {} if cache is None else {"cache": cache[1], "cache_age": size}
        with self.exact:
            out, kept = self._net(tokens, return_intermediates=True, **extra, **self._encoded(call))
        return out[:, -size:], (tokens, kept)

    def backends(self) -> tuple[str, ...]:
        """Its own attention and torch's fused one, where no option rules the latter out."""
        return ("explicit", "flash") if any(attend.flash for attend in self._attends()) else ()

    def _attends(self) -> list[Any]:
        return [part for part in self.module.modules() if type(part).__name__ == "Attend"]

    def set_backend(self, name: str) -> None:
        """The flag that attn_flash sets."""
        for attend in self._attends():
            attend.flash = name == "flash"

    def attention_maps(self, call: SubjectCall) -> dict[str, Tensor]:
        """From its own attention, which keeps them."""
        if self.images or not hasattr(self._net, "to_logits"):
            raise NotTestable("its attention weights cannot be asked for")
        before = [attend.flash for attend in self._attends()]
        try:
            self.set_backend("explicit")
            with self.exact:
                _, maps = self._net(call.content, return_attn=True, **self._encoded(call))
        finally:
            for attend, flash in zip(self._attends(), before, strict=True):
                attend.flash = flash
        return {f"attention {layer}": weights for layer, weights in enumerate(maps) if isinstance(weights, Tensor)}

    def loss_inputs(self) -> bool:
        return self.declares.vocabulary is not None and getattr(self._net, "to_logits", None) is not None

    def widened(self) -> Subject:
        """Tied logits are a closure over the wrapper, which a copy must close over itself."""
        other = super().widened()
        copies = dict(zip(map(id, self.module.modules()), other.module.modules(), strict=True))
        for part in other.module.modules():
            for name, value in vars(part).items():
                if isinstance(value, types.FunctionType) and value.__closure__:
                    cells = (cell.cell_contents for cell in value.__closure__)
                    closure = tuple(types.CellType(copies.get(id(held), held)) for held in cells)
                    bound = types.FunctionType(
                        value.__code__, value.__globals__, value.__name__, value.__defaults__, closure
                    )
                    vars(part)[name] = bound
        return other


def x_transformers_subject(module: nn.Module, example: Tensor | None) -> Subject:
    """The adapter for x-transformers' wrappers, stacks of layers and XTransformer."""
    seq2seq = type(module).__name__ == "XTransformer"
    net: Any = getattr(module, "net", module)
    inner: Any = module.decoder.net if seq2seq else net  # type: ignore[union-attr]
    layers = getattr(inner, "attn_layers", inner if hasattr(inner, "disable_abs_pos_emb") else None)
    if layers is None:
        from weft.foreign.plain import plain_subject

        return plain_subject(module, example)
    causal = bool(layers.causal)
    table = getattr(getattr(inner, "pos_emb", None), "emb", None)
    tokens = hasattr(inner, "token_emb")
    declares = Declaration(
        type(layers).__name__,
        causal,
        causal and tokens and bool(getattr(inner, "can_cache_kv", False)),
        _positions(inner, layers),
        length=getattr(inner, "max_seq_len", None) if table is not None else None,
        vocabulary=inner.num_tokens if tokens else None,
        seq2seq=seq2seq,
    )
    if hasattr(inner, "patch_size"):
        example = _image(inner)
    elif not tokens:
        width = getattr(getattr(inner, "project_in", None), "in_features", layers.dim)
        example = torch.zeros(1, 1, width)
    source = torch.zeros(1, 1, dtype=torch.long) if seq2seq else None
    beside = ("mlp_head",) if hasattr(inner, "patch_size") else ()
    subject = XTransformersSubject(net, declares, (), example, source, beside=beside, library="x-transformers")
    if seq2seq:
        known = min(module.encoder.num_tokens, inner.num_tokens)  # type: ignore[union-attr]
        subject.declares = Declaration(**{**declares.__dict__, "vocabulary": known})
    subject.assumed = _assumptions(subject, type(layers).__name__, module is not net)
    return subject


def _assumptions(subject: XTransformersSubject, kind: str, wrapped: bool) -> tuple[str, ...]:
    """How it will be called, in plain words."""
    causal = subject.declares.causal
    visibility = "look only back" if causal else "see everything"
    said = [f"its layers are a {kind} (causal={causal}), so it is taken to {visibility}"]
    if wrapped:
        said.append("the net inside the wrapper is called, because the wrapper itself gives a loss")
    if subject.declares.seq2seq:
        said.append("the source goes through its encoder, the target through the net of its decoder")
    if not subject.images:
        said.append(
            "mask=True marks real tokens; padding on the left is also told by seq_start_pos, as generate() does"
        )
    return tuple(said)


def _positions(inner: Any, layers: Any) -> Nature:
    """Absolute where it adds a table or sines to the content, relative where attention knows distances, else none."""
    if type(getattr(inner, "pos_emb", None)).__name__ not in ("NoneType", "always") or hasattr(inner, "pos_embedding"):
        return "absolute"
    return (
        "relative" if getattr(layers, "rotary_pos_emb", None) is not None else "none" if layers.causal else "absolute"
    )


def _image(inner: Any) -> Tensor:
    side = round(inner.pos_embedding.shape[1] ** 0.5) * inner.patch_size
    channels = inner.patch_to_embedding[1].in_features // inner.patch_size**2
    return torch.zeros(1, channels, side, side)
