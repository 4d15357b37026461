"""Models as pure tensor graphs, for ONNX: no state objects, no checks of values, one attention kernel.

A decoder's cached keys and values go in as `past.L.keys`, `past.L.values` [B, G, S, K] and come out as
`present.L.*` [B, G, S + T, K]; S may be 0. `mask` is 1 where a token is real, 0 for padding, over past and new tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.models.decoder import Decoder
from weft.models.encoder import Encoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.parts.attention import set_backend
from weft.parts.attention_context import AttentionContext
from weft.parts.experts import Experts, route
from weft.parts.masks import Everything
from weft.parts.outputs import Pool, pool_tokens
from weft.parts.positions import LearnedPositions, join_positions
from weft.parts.stack import Stack
from weft.parts.state import CacheWrite
from weft.parts.token_positions import TokenPositions
from weft.parts.word_embedding import WordEmbedding


def positions_from_mask(mask: Tensor) -> TokenPositions:
    """Positions of real tokens count from 0, padding has -1."""
    real = mask > 0
    return TokenPositions.of(torch.where(real, real.long().cumsum(1) - 1, -1))


class Past:
    """The cache of one attention layer: new keys and values are appended to the given ones."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def append(self, key: Tensor, value: Tensor, cache_write: CacheWrite) -> tuple[Tensor, Tensor]:
        """All keys and values so far."""
        self.keys, self.values = torch.cat((self.keys, key), 2), torch.cat((self.values, value), 2)
        return self.keys, self.values


def run_stack(
    stack: Stack, x: Tensor, queries: TokenPositions, keys: TokenPositions, past: tuple[Tensor, ...], memory: Any = None
) -> tuple[Tensor, list[Tensor]]:
    """(hidden states, keys and values of all layers) of a stack with the cache `past`."""
    cache_write = CacheWrite(keys, 0, 0)
    contexts = {
        own: AttentionContext(queries, keys, own & Everything(), stack.position, cache_write) for own in stack.masks
    }
    present: list[Tensor] = []
    for layer, (block, own) in enumerate(zip(stack.blocks, stack.masks, strict=True)):
        kept = Past(*past[2 * layer : 2 * layer + 2])
        x = block(x, contexts[own], kept, memory, None)
        present += [kept.keys, kept.values]
    return (x if stack.norm is None else stack.norm(x)), present


class DecoderGraph(nn.Module):
    """tokens [B, T], mask [B, S + T], past -> logits [B, T, C], present."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        model, keys = self.model, positions_from_mask(mask)
        queries = TokenPositions.of(keys.positions[:, past[0].shape[2] :])
        x = model.input(model.embedding(tokens), queries)
        hidden, present = run_stack(model.stack, x, queries, keys, past)
        return model.head(hidden, embedding=model.embedding), *present


class SourceGraph(nn.Module):
    """source [B, N], source_mask [B, N] -> memory [B, N, D]."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor) -> Tensor:
        return self.model.encode(source, positions=positions_from_mask(source_mask).positions).hidden


class TargetGraph(nn.Module):
    """target [B, T], memory [B, N, D], source_mask [B, N], past -> logits [B, T, C], present."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, memory: Tensor, source_mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from weft.parts.block import CrossAttentionSource

        model, S = self.model, past[0].shape[2]
        index = torch.arange(S + target.shape[1], device=target.device)[None]
        queries, keys = TokenPositions.of(index[:, S:]), TokenPositions.of(index)
        embedding = model.target_embedding or model.embedding
        x = model.target_input(embedding(target), queries)
        seen = CrossAttentionSource(memory, AttentionContext(queries, positions_from_mask(source_mask)))
        hidden, present = run_stack(model.decoder, x, queries, keys, past, seen)
        return model.head(hidden, embedding=embedding), *present


class EncoderGraph(nn.Module):
    """tokens (or words, or vectors) and mask [B, T] -> logits, or with `pool` one vector per text."""

    def __init__(self, model: Encoder, pool: Pool | None = None, normalize: bool = False) -> None:
        super().__init__()
        self.model, self.pool, self.normalize = model, pool, normalize

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        token_positions = positions_from_mask(mask)
        output = self.model(tokens, positions=token_positions.positions)
        if self.pool is None:
            return output.logits
        vectors = pool_tokens(output.hidden, token_positions, self.pool)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors


class PlainGraph(nn.Module):
    """One tensor in, logits out: images, or rows of equal length."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor) -> Tensor:
        return self.model(given).logits


class UncheckedPositions(nn.Module):
    """Learned positions without checks of the input."""

    def __init__(self, positions: LearnedPositions) -> None:
        super().__init__()
        self.table, self.join = positions.table, positions.join

    def forward(self, x: Tensor, token_positions: TokenPositions) -> Tensor:
        """[B, T, D'] -> [B, T, D]."""
        return join_positions(x, F.embedding(token_positions.positions.clamp(min=0), self.table), self.join)


class MaskedWordEmbedding(nn.Module):
    """Word embeddings with a plain convolution over characters, padding masked in the maximum."""

    def __init__(self, words: WordEmbedding) -> None:
        super().__init__()
        self.own = words

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T, 1 + L] -> [B, T, D]."""
        own, spelled = self.own, tokens[..., 1:].flatten(0, 1)
        real = spelled > 0
        letters = F.embedding(spelled, own.characters.weight) * real[..., None]
        found = F.conv1d(letters.transpose(1, 2), own.taps.weight, padding=own.taps.kernel_size[0] // 2)
        lowest = torch.finfo(found.dtype).min
        strongest = found.masked_fill(~real[:, None], lowest).amax(2).masked_fill(~real.any(1, keepdim=True), 0.0)
        looks = strongest if own.taps.bias is None else strongest + own.taps.bias
        return own.words(tokens[..., 0]) + looks.unflatten(0, tokens.shape[:2])


class DenseExperts(nn.Module):
    """Every expert processes every token; the gates of inactive experts are 0, so the sum is the same."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.own = experts

    def forward(self, x: Tensor, auxiliary: Any = None) -> Tensor:
        """[..., D] -> [..., D]."""
        own = self.own
        gates, chosen, probabilities = route(F.linear(x, own.router), own.active, own.gates)
        weights = torch.zeros_like(probabilities).scatter(-1, chosen, gates)
        y = torch.zeros_like(x)
        for number in range(own.experts):
            hidden = own._activate(F.linear(x, own.up[number]))
            y = y + weights[..., number, None] * F.linear(hidden, own.down[number])
        return y if own.shared is None else y + own.shared(x)


def make_exportable(model: nn.Module) -> nn.Module:
    """Replace modules that have no tensor graph, in place; the outputs stay the same."""
    for part in list(model.modules()):
        for name, child in part.named_children():
            if isinstance(child, LearnedPositions):
                setattr(part, name, UncheckedPositions(child))
            elif isinstance(child, WordEmbedding):
                setattr(part, name, MaskedWordEmbedding(child))
            elif isinstance(child, Experts):
                setattr(part, name, DenseExperts(child))
    # Fully masked rows must give zeros: only this kernel guarantees it on every runtime.
    set_backend(model, "explicit")
    return model.eval().requires_grad_(False)


def expect_exportable(spec: Any) -> None:
    """Refuse, by the name of the field, what cannot be exported."""
    families = ("decoder", "encoder", "encoder-decoder", "vision", "series")
    if spec.family not in families:
        raise WeftError(f"family is {spec.family!r}, but ONNX is written for {', '.join(families)}")
    source = getattr(getattr(spec, "source", None), "kind", "tokens")
    if source != "tokens":
        raise WeftError(f"source is {source!r}, but ONNX is written for tokens in an encoder-decoder")
    with_memory = spec.family in ("decoder", "encoder-decoder")
    known = ("attention",) if with_memory else ("attention", "convolution", "grid-convolution", "none")
    mixers = (*spec.mixer, *(spec.encoder_stack().mixer if spec.family == "encoder-decoder" else ()))
    other = next((mixer.kind for mixer in mixers if mixer.kind not in known), None)
    if other is not None:
        raise WeftError(f"mixer is {other!r}, but ONNX is written for {', '.join(known)} in a {spec.family}")
    prefix = spec.declares().text_prefix
    if prefix is not None:
        raise WeftError(
            f"mixer.mask is a prefix of {prefix} tokens that must be read in one call, which an ONNX file cannot check:"
            " use the run itself, or train without the prefix"
        )
