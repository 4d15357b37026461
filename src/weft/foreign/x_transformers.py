"""x-transformers: TransformerWrapper around Decoder or Encoder, AutoregressiveWrapper, ContinuousTransformerWrapper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.foreign.subject import Call, Subject, Unable
from weft.models.output import Declaration


class XTransformersSubject(Subject):
    """Called as net(tokens, mask=real); its cache is `return_intermediates` of the call before."""

    def run(self, call: Call) -> Tensor:
        """[B, T] -> logits [B, T, C]."""
        call.takes("real", "positions")
        extra: dict[str, Any] = {}
        if call.real is not None:
            extra["mask"] = call.real
        if call.positions is not None:
            extra["pos"] = call.positions
        return self.module(call.content, **extra)

    def begin(self, batch: int) -> Any:
        """Nothing seen yet."""
        if not self.declares.cached:
            raise Unable("an encoder keeps no cache")
        return None

    def feed(self, call: Call, cache: Any) -> tuple[Tensor, Any]:
        """It wants the whole text with each call and computes only what the cache does not hold."""
        call.takes()
        before = None if cache is None else cache[0]
        tokens = call.content if before is None else torch.cat((before, call.content), 1)
        extra = {} if cache is None else {"cache": cache[1]}
        out, new = self.module(tokens, return_intermediates=True, **extra)
        return out[:, -call.content.shape[1] :], (tokens, new)


def x_transformers_subject(module: nn.Module, example: Tensor | None) -> Subject:
    """The adapter for x-transformers' wrappers."""
    net = getattr(module, "net", module)
    layers = getattr(net, "attn_layers", None)
    if layers is None:
        from weft.foreign.plain import plain_subject

        return plain_subject(module, example)
    causal = bool(getattr(layers, "causal", False))
    embedding = getattr(net, "token_emb", None)
    vocabulary = getattr(net, "num_tokens", None) or getattr(getattr(embedding, "emb", None), "num_embeddings", None)
    declares = Declaration(
        type(layers).__name__,
        causal,
        causal,
        "absolute",
        length=getattr(net, "max_seq_len", None),
        vocabulary=vocabulary,
    )
    assumed = (
        f"its layers are {'a Decoder' if causal else 'an Encoder'} (causal={causal})",
        "mask=True marks real tokens",
    )
    return XTransformersSubject(net, declares, assumed, example, library="x-transformers")
