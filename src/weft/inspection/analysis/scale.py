"""The effect of the scale: what 1/sqrt(D_K) does to attention before training, and to training itself.

For unit normal q, k in R^D_K the score q.k has mean 0 and variance D_K; divided by sqrt(D_K) it has variance 1 (Vaswani
et al. 2017). Large scores saturate the softmax: the largest weight a_max goes to 1, the entropy to 0, and with them the
gradient, because the Jacobian da/de = diag(a) - a a^T vanishes. Its Frobenius norm, without forming it:

    |diag(a) - a a^T|^2 = sum a^2 - 2 sum a^3 + (sum a^2)^2      (1/n - 1/n^2 for n equal weights, 0 for a single one)

Statistics are indexed by `WAYS`: with the scale, and without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.data.samples import sample
from weft.foundation.errors import WeftError
from weft.foundation.seeds import derive, generator
from weft.models.build import build
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LinearHeadSpec
from weft.models.position_specs import SinusoidalSpec
from weft.models.teacher_forcing import IGNORED
from weft.tasks.support.splits.text_pairs import Ends, Pairs, PairsSplit, learn_tokenizer, real_mask

WAYS = ("with 1/sqrt(D_K)", "without")
SCORES = ("scaled-dot", "dot")
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS, ROWS = 64, 256  # keys per row, and rows that are averaged
BLOCK = 64  # rows whose keys are held at once
SAMPLE, EXAMPLES, BATCH, RATE = "dates", 4000, 1024, 3e-3
WIDTH, HELD_OUT, POINTS = 64, 100, 20
MOST_STEPS = 5000

Progress = Callable[[float, str], None]


def jacobian_norm(weights: Tensor) -> Tensor:
    """|diag(a) - a a^T| of each row a [..., S] of softmax weights, by Frobenius: [...]."""
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0.0).sqrt()


@dataclass(frozen=True)
class ScaleStatistics:
    """By D_K, each [ways, widths]: variance of the scores; mean of a row's largest weight, entropy, Jacobian's norm."""

    widths: tuple[int, ...]
    variance: Tensor
    largest: Tensor
    entropy: Tensor
    jacobian: Tensor


def scale_statistics(
    widths: Sequence[int] = WIDTHS, keys: int = KEYS, rows: int = ROWS, seed: int = 0
) -> ScaleStatistics:
    """Attention of `rows` unit normal queries to `keys` unit normal keys, for each D_K."""
    found = []
    for width in widths:
        random = generator(seed, "scale", width)
        query = torch.randn(rows, width, generator=random, dtype=torch.float64)
        products = torch.cat(
            [
                (torch.randn(len(some), keys, width, generator=random, dtype=torch.float64) @ some[:, :, None])[..., 0]
                for some in query.split(BLOCK)
            ]
        )
        for scores in (products / math.sqrt(width), products):
            weights = scores.softmax(-1)
            entropy = -torch.xlogy(weights, weights).sum(-1).mean()
            found.append(torch.stack([scores.var(), weights.amax(-1).mean(), entropy, jacobian_norm(weights).mean()]))
    table = torch.stack(found).reshape(len(widths), len(WAYS), 4).permute(2, 1, 0)
    return ScaleStatistics(tuple(widths), *table)


@dataclass(frozen=True)
class ScaleCurves:
    """Validation loss of the same model with and without the scale, [ways, points], after so many `steps`."""

    head_width: int
    steps: tuple[int, ...]
    losses: Tensor


def head_width_of(spec: Any) -> int:
    """D_K of the first attention of a model's spec."""
    mixers = [mixer for mixer in getattr(spec, "mixer", ()) if isinstance(mixer, AttentionSpec)]
    if not mixers:
        raise WeftError(f"a model of family {spec.family} has no attention with heads: choose a transformer")
    return int(mixers[0].head_width or spec.width // mixers[0].heads)


def scale_curves(head_width: int, steps: int, seed: int = 0, progress: Progress | None = None) -> ScaleCurves:
    """Train one small encoder-decoder twice on dates, with scores q.k / sqrt(D_K) and q.k; all else is the same.

    One head of D_K numbers, one layer each; matrices start so that queries and keys are about unit normal.
    """
    if not 1 <= steps <= MOST_STEPS:
        raise WeftError(f"{steps} training steps for the effect of the scale: choose 1 to {MOST_STEPS}")
    train, held_out = _dates(seed)
    every = max(1, steps // POINTS)
    places = sorted({*range(0, steps, every), steps})
    losses = []
    for number, score in enumerate(SCORES):
        spec = EncoderDecoderSpec(
            vocabulary=train.vocabulary,
            length=64,
            width=WIDTH,
            layers=1,
            mixer=AttentionSpec(heads=1, head_width=head_width, score=score),
            feedforward=ClassicSpec(hidden=2 * WIDTH),
            positions=SinusoidalSpec(),
            initialization=InitializationSpec(scheme="fan-in", embedding=1.0),
            head=LinearHeadSpec(),
        )

        def report(step: int, loss: float, before: int = number, name: str = WAYS[number]) -> None:
            if progress is not None:
                progress((before + step / steps) / len(SCORES), f"{name}: step {step} of {steps}, loss {loss:.2f}")

        losses.append(_train(spec, train.split, held_out, places, seed, report))
    return ScaleCurves(head_width, tuple(places), torch.tensor(losses))


@dataclass(frozen=True)
class _Training:
    split: PairsSplit
    vocabulary: int


def _dates(seed: int) -> tuple[_Training, PairsSplit]:
    """Some dates in letters, and some held out."""
    found = sample(SAMPLE, seed, EXAMPLES)
    pairs: list[Pairs] = [[(one.source, one.target) for one in part] for part in (found.train, found.validation)]
    tokenizer = learn_tokenizer("characters", [text for pair in pairs[0] for text in pair], None)
    ends = Ends.of(tokenizer)
    train, held_out = (
        PairsSplit(part, tokenizer.encode_many([a for a, _ in part]), tokenizer.encode_many([b for _, b in part]), ends)
        for part in (pairs[0], pairs[1][:HELD_OUT])
    )
    return _Training(train, tokenizer.vocabulary), held_out


def _train(
    spec: EncoderDecoderSpec,
    train: PairsSplit,
    held_out: PairsSplit,
    places: Sequence[int],
    seed: int,
    report: Callable[[int, float], None],
) -> list[float]:
    """The validation loss in nats per token after each of the steps in `places`; AdamW at a constant rate."""
    module = build(spec, seed)
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=0.0)
    found: list[float] = []
    order: list[Sequence[int]] = []
    for step in range(places[-1] + 1):
        if step in places:
            with torch.no_grad():
                found.append(float(_loss(module, held_out, range(len(held_out)))))
            report(step, found[-1])
        if not order:
            order = list(train.batches(BATCH, derive(seed, "scale"), step))
        optimizer.zero_grad(set_to_none=True)
        _loss(module, train, order.pop()).backward()
        optimizer.step()
    return found


def _loss(module: torch.nn.Module, split: PairsSplit, examples: Sequence[int]) -> Tensor:
    batch = split.batch(examples)
    inputs: dict[str, Any] = dict(batch.inputs)
    logits = module(inputs["source"], inputs["target"], source_mask=real_mask(inputs.get("source_real"))).logits
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
