"""Alignment by cross-attention: whose weights say where each token written by an encoder-decoder comes from.

A transformer has many maps from target to source, and most are no alignment. Without gold alignments they are judged by
what the source does to the answer: e_(t,s) = KL(p(y_t | x) || p(y_t | x without s)), the prediction difference of Li et
al. 2019 ("On the Word Alignment from Neural Machine Translation"). Of a candidate with the map A, the score is

    sum_t e_(t, argmax_s A_(t,s)) / sum_t max_s e_(t,s)      (1: it always looks at what matters most)

over held-out sentences. Tokens that follow from what is already written hardly count, because there no source token
matters. Candidates: each head, the mean over the heads of each layer, the mean over all layers; each read at the step
that writes a token, or one step later, where the token is the decoder's input (Chen et al. 2020, "Accurate Word
Alignment Induction from Neural Machine Translation").
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

EXAMPLES = 64  # sentences that heads are chosen on
TOKENS = 200_000  # tokens that are read for it at most, so that long texts and large models are chosen on fewer
WEIGHTS = 1 << 24  # weights of one layer that are held at once
ROWS = 4096  # tokens per forward while source tokens are hidden

Example = tuple[Sequence[int], Sequence[int]]  # ids of a source with its stop, and of a target from its start on


@dataclass(frozen=True)
class AlignmentHeads:
    """Whose attention is the alignment: that of a layer (None: all), of a head (None: the mean over heads).

    With `shift` 1, row t is the step after the one that wrote token t.
    """

    layer: int | None = None
    head: int | None = None
    shift: int = 0

    def __str__(self) -> str:
        heads = "mean over heads" if self.head is None else f"head {self.head}"
        found = f"{heads}, {'mean over layers' if self.layer is None else f'layer {self.layer}'}"
        return f"{found}, one step later" if self.shift else found

    @classmethod
    def from_tree(cls, tree: Tree | None) -> AlignmentHeads | None:
        """From the facts of a run, which an old one lacks."""
        return None if tree is None else cls(**tree)

    def to_tree(self) -> Tree:
        return asdict(self)

    def read(self, maps: Sequence[Tensor]) -> Tensor:
        """The alignment [..., T - shift, S] from the maps of all layers, [..., H, T, S] each."""
        chosen = maps if self.layer is None else [maps[self.layer]]
        each = [layer.mean(-3) if self.head is None else layer[..., self.head, :, :] for layer in chosen]
        return torch.stack(each).mean(0)[..., self.shift :, :]


def candidates(heads: Sequence[int]) -> list[AlignmentHeads]:
    """All choices for a model with so many heads in each layer; of equal ones the first is taken."""
    found = []
    for shift in (0, 1):
        found.append(AlignmentHeads(shift=shift))
        for layer, count in enumerate(heads):
            found.append(AlignmentHeads(layer, None, shift))
            found += [AlignmentHeads(layer, head, shift) for head in range(count if count > 1 else 0)]
    return found


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
    """e_(t,s) [T, S] of one text: KL(p(y_t | x) || p(y_t | x without s)), each source token hidden in turn."""
    S, T = len(source), len(target)
    found = []
    with eval_mode(module), torch.inference_mode(), aside():
        before = module(source[None], target[None]).logits[0].float().log_softmax(-1)
        for places in torch.arange(S, device=source.device).split(max(1, ROWS // (S + T))):
            real = torch.arange(S, device=source.device) != places[:, None]
            texts = source.expand(len(places), S), target.expand(len(places), T)
            after = module(*texts, source_mask=Real(real)).logits.float().log_softmax(-1)
            found.append((before.exp() * (before - after)).sum(-1))
    return torch.cat(found).T.clamp(min=0.0)


def captured_effect(map: Tensor, effects: Tensor) -> tuple[float, float]:
    """(effect of the source tokens that rows [T, S] look at most, effect of those that matter most), summed over T."""
    looked = effects.gather(-1, map.argmax(-1, keepdim=True))
    return float(looked.sum()), float(effects.amax(-1).sum())


def choose_heads(module: nn.Module, examples: Sequence[Example]) -> AlignmentHeads | None:
    """The candidate that looks most at what matters, over these examples; None for a model without cross-attention."""
    counts = [part.heads for part in module.modules() if isinstance(part, CrossAttention)]
    if not isinstance(module, EncoderDecoder) or not counts:
        return None
    choices = candidates(counts)
    looked, most, tokens = [0.0] * len(choices), 0.0, 0
    device = next(module.parameters()).device
    for source, target in examples[:EXAMPLES]:
        tokens += len(source) * (len(source) + len(target))
        if tokens > TOKENS and most:
            break
        given, written = (torch.tensor(ids, device=device) for ids in (source, target))
        maps = [weights[0] for weights in cross_maps(module, given[None], written[None])]
        effects = source_effects(module, given, written)[:-1]
        for n, choice in enumerate(choices):
            mine, best = captured_effect(choice.read(maps)[: len(effects)], effects)
            looked[n] += mine
        most += best
    return choices[max(range(len(choices)), key=lambda n: looked[n])]


def read_alignments(
    module: nn.Module, choice: AlignmentHeads, examples: Sequence[Example], pad: int
) -> list[list[list[float]]]:
    """Per example [T - 1, S]: where each token after the first of the target looks in the source."""
    found: list[list[list[float]]] = []
    heads = max(part.heads for part in module.modules() if isinstance(part, CrossAttention))
    longest = max((len(source) * len(target) for source, target in examples), default=1)
    step = max(1, WEIGHTS // (heads * longest))
    device = next(module.parameters()).device
    for first in range(0, len(examples), step):
        some = examples[first : first + step]
        sources, targets = (pad_rows([pair[side] for pair in some], pad) for side in (0, 1))
        source, target = sources.tokens.to(device), targets.tokens.to(device)
        real = torch.arange(source.shape[1], device=device) < sources.lengths.to(device)[:, None]
        maps = choice.read(cross_maps(module, source, target, real))
        for map, (given, written) in zip(maps, some, strict=True):
            found.append(map[: len(written) - 1, : len(given)].tolist())
    return found
