"""Alignment by cross-attention: which layer says where each token written by an encoder-decoder comes from.

A transformer has many maps from target to source, and most are no alignment. Without gold alignments they are judged by
what the source does to the answer, e_(t,s) = 1/2 sum_y |p(y | x, t) - p(y | x without s, t)|, the prediction difference
(Li et al. 2019, "On the Word Alignment from Neural Machine Translation"). Of a candidate with the map A, the score is

    sum_t e_(t, argmax_s A_(t,s)) / sum_t max_s e_(t,s)      (1: it always looks at what matters most)

over held-out sentences. Tokens that follow from what is already written hardly count, because there no source token
matters. Candidates are the means over the heads of each layer, and over all layers; single heads miss too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from weft.data.batching import pad_rows
from weft.foundation.spec import Tree
from weft.inference.decoding.conditioning import eval_mode
from weft.models.encoder_decoder import EncoderDecoder
from weft.parts.attention import CrossAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Real
from weft.parts.observer import Observer, aside, observing

EXAMPLES = 32  # sentences that the layer is chosen on
MOST_TOKENS = 200_000  # tokens that are read for it at most, so that long texts and large models are chosen on fewer
WEIGHTS_AT_ONCE = 1 << 24  # weights of one layer that are held at once
TOKENS_PER_FORWARD = 4096  # tokens per forward while source tokens are hidden

Example = tuple[Sequence[int], Sequence[int]]  # ids of a source with its stop, and of a target from its start on


@dataclass(frozen=True)
class AlignmentLayer:
    """The layer whose attention to the source, averaged over its heads, is the alignment; None: the mean over all."""

    layer: int | None = None

    def __str__(self) -> str:
        return "mean over all layers and heads" if self.layer is None else f"layer {self.layer}, mean over heads"

    @classmethod
    def from_tree(cls, tree: Tree | None) -> AlignmentLayer | None:
        """From the facts of a run, which an old one lacks."""
        return None if tree is None else cls(**tree)

    def to_tree(self) -> Tree:
        return asdict(self)

    def read(self, maps: Sequence[Tensor]) -> Tensor:
        """The alignment [..., T, S] from the maps of all layers, [..., H, T, S] each."""
        chosen = maps if self.layer is None else [maps[self.layer]]
        return torch.stack([layer.mean(-3) for layer in chosen]).mean(0)


class _CrossMaps(Observer):
    """Keeps the weights of each cross-attention of one model, [B, H, T, S], in the order of its layers."""

    def __init__(self, module: nn.Module) -> None:
        self.parts = {id(part) for part in module.modules() if isinstance(part, CrossAttention)}
        self.maps: list[Tensor] = []

    def on_attention(
        self, part: nn.Module, query: Tensor, key: Tensor, value: Tensor, context: AttentionContext, output: Tensor
    ) -> Tensor:
        if id(part) in self.parts and isinstance(part, CrossAttention):
            self.maps.append(part.weights(query, key, context))
        return output


def cross_maps(module: nn.Module, source: Tensor, target: Tensor, real: Tensor | None = None) -> list[Tensor]:
    """The cross-attention of each layer over source [B, S] while target [B, T] is forced: [B, H, T, S]."""
    watcher = _CrossMaps(module)
    with eval_mode(module), torch.inference_mode(), aside(), observing(watcher):
        module(source, target, source_mask=None if real is None else Real(real))
    return [weights.float() for weights in watcher.maps]


def source_effects(module: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """e_(t,s) [T, S] of one text, from 0 to 1: how much p changes at each step as each source token is hidden."""
    S, T = len(source), len(target)
    found = []
    with eval_mode(module), torch.inference_mode(), aside():
        before = module(source[None], target[None]).logits[0].float().softmax(-1)
        for places in torch.arange(S, device=source.device).split(max(1, TOKENS_PER_FORWARD // (S + T))):
            real = torch.arange(S, device=source.device) != places[:, None]
            texts = source.expand(len(places), S), target.expand(len(places), T)
            after = module(*texts, source_mask=Real(real)).logits.float().softmax(-1)
            found.append((before - after).abs().sum(-1) / 2)
    return torch.cat(found).T


def captured_effect(map: Tensor, effects: Tensor) -> float:
    """The sum over rows [T, S] of the effect of the source token that each looks at most."""
    return float(effects.gather(-1, map.argmax(-1, keepdim=True)).sum())


def choose_layer(module: nn.Module, examples: Sequence[Example]) -> AlignmentLayer | None:
    """The candidate that looks most at what matters, over these examples; None for a model without cross-attention."""
    layers = sum(isinstance(part, CrossAttention) for part in module.modules())
    if not isinstance(module, EncoderDecoder) or not layers:
        return None
    # Of equal ones the first is taken.
    candidates = [AlignmentLayer(), *(AlignmentLayer(layer) for layer in range(layers if layers > 1 else 0))]
    looked, tokens = [0.0] * len(candidates), 0
    device = next(module.parameters()).device
    for number, (source, target) in enumerate(examples[:EXAMPLES]):
        tokens += len(source) * (len(source) + len(target))
        if number and tokens > MOST_TOKENS:
            break
        given, written = (torch.tensor(ids, device=device) for ids in (source, target))
        maps = [weights[0] for weights in cross_maps(module, given[None], written[None])]
        effects = source_effects(module, given, written)
        for place, candidate in enumerate(candidates):
            looked[place] += captured_effect(candidate.read(maps), effects)
    return candidates[looked.index(max(looked))]


def read_alignments(
    module: nn.Module, choice: AlignmentLayer, examples: Sequence[Example], pad: int
) -> list[list[list[float]]]:
    """Per example [T, S]: where the model looked in the source after each token of the target."""
    found: list[list[list[float]]] = []
    heads = max(part.heads for part in module.modules() if isinstance(part, CrossAttention))
    longest = max((len(source) * len(target) for source, target in examples), default=1)
    step = max(1, WEIGHTS_AT_ONCE // (heads * longest))
    device = next(module.parameters()).device
    for first in range(0, len(examples), step):
        some = examples[first : first + step]
        sources, targets = (pad_rows([pair[side] for pair in some], pad) for side in (0, 1))
        source, target = sources.tokens.to(device), targets.tokens.to(device)
        real = torch.arange(source.shape[1], device=device) < sources.lengths.to(device)[:, None]
        maps = choice.read(cross_maps(module, source, target, real))
        for map, (given, written) in zip(maps, some, strict=True):
            found.append(map[: len(written), : len(given)].tolist())
    return found
