"""A textbook decoder as a user would write it, and the faults that the field has shipped, one a class."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.foreign.subject import Subject, SubjectCall
from weft.models.output import Declaration

V, D, H, N = 41, 24, 3, 64


class Attention(nn.Module):
    """Causal self-attention with a cache, in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def allowed(self, T: int, S: int) -> Tensor:
        return torch.ones(T, S, dtype=torch.bool).tril(S - T)

    def weigh(self, e: Tensor, allowed: Tensor) -> Tensor:
        return e.masked_fill(~allowed, float("-inf")).softmax(-1)

    def project_memory(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (k, v) if past is None else (torch.cat((past[0], k), 2), torch.cat((past[1], v), 2))

    def hide(self, real: Tensor) -> Tensor:
        return real

    def forward(self, x: Tensor, real: Tensor | None, past: Any) -> tuple[Tensor, Any]:
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        past = k, v = self.project_memory(past, k, v)
        allowed = self.allowed(q.shape[2], k.shape[2])
        if real is not None:
            own = torch.eye(q.shape[2], k.shape[2], dtype=torch.bool)
            allowed = (allowed & self.hide(real)[:, None, None, :]) | (own & ~real[:, None, :, None])
        A = self.weigh(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, allowed)
        return self.out((A @ v).transpose(1, 2).flatten(-2)), past


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module, norm1: nn.Module, norm2: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp, self.norm1, self.norm2 = attention, mlp, norm1, norm2

    def forward(self, x: Tensor, real: Tensor | None, past: Any) -> tuple[Tensor, Any]:
        y, past = self.attention(self.norm1(x), real, past)
        x = x + y
        return x + self.mlp(self.norm2(x)), past


class TextbookGPT(nn.Module):
    """Three blocks; a fault is planted in the middle one by giving another part."""

    def __init__(self, **parts: type[nn.Module]) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(N, D)
        make = {"attention": Attention, "mlp": MLP, "norm1": lambda: nn.LayerNorm(D), "norm2": lambda: nn.LayerNorm(D)}
        self.blocks = nn.ModuleList(
            Block(**{name: (parts.get(name, kind) if layer == 1 else kind)() for name, kind in make.items()})
            for layer in range(3)
        )
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)
        nn.init.normal_(self.head.weight, std=0.02)

    def place(self, tokens: Tensor, real: Tensor | None, past: Any) -> Tensor:
        if real is not None:
            return (real.long().cumsum(1) - 1).clamp(min=0)
        first = 0 if past is None else past[0][0].shape[2]
        return torch.arange(first, first + tokens.shape[1])[None]

    def embed(self, tokens: Tensor, token_positions: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions(token_positions)

    def forward(self, tokens: Tensor, real: Tensor | None = None, past: Any = None) -> tuple[Tensor, Any]:
        x, new = self.embed(tokens, self.place(tokens, real, past)), []
        for layer, block in enumerate(self.blocks):
            x, kept = block(x, real, None if past is None else past[layer])
            new.append(kept)
        return self.head(self.norm(x)), new


class TextbookSubject(Subject):
    """The small protocol by which a user declares a model of his own."""

    @staticmethod
    def of(module: nn.Module) -> TextbookSubject:
        return TextbookSubject(module, Declaration("textbook", True, True, "absolute", length=N, vocabulary=V))

    def run(self, call: SubjectCall) -> Tensor:
        call.takes("real")
        return self.module(call.content, call.real)[0]

    def make_cache(self, batch: int) -> Any:
        return None

    def run_cached(self, call: SubjectCall, cache: Any) -> tuple[Tensor, Any]:
        return self.module(call.content, past=cache)

    def fresh(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return type(self.module)()


# --- attention -----------------------------------------------------------------------------------------------------


class SeesNext(Attention):
    def allowed(self, T, S):
        return torch.ones(T, S, dtype=torch.bool).tril(S - T + 1)


class HidesItself(Attention):
    def allowed(self, T, S):
        return torch.ones(T, S, dtype=torch.bool).tril(S - T - 1)


class Inverted(Attention):
    def allowed(self, T, S):
        return torch.ones(T, S, dtype=torch.bool).triu(S - T)


class Unmasked(Attention):
    def allowed(self, T, S):
        return torch.ones(T, S, dtype=torch.bool)


class LostInTraining(Attention):
    def allowed(self, T, S):
        return torch.ones(T, S, dtype=torch.bool) if self.training else super().allowed(T, S)


class MaskedAfterSoftmax(Attention):
    def weigh(self, e, allowed):
        return e.softmax(-1) * allowed


class SoftmaxOverQueries(Attention):
    def weigh(self, e, allowed):
        return e.masked_fill(~allowed, float("-inf")).softmax(-2)


class SoftMask(Attention):
    def weigh(self, e, allowed):
        return (e - 2.0 * ~allowed).softmax(-1)


class UpperLeftMaskWithCache(Attention):
    def allowed(self, T, S):
        return torch.ones(T, S, dtype=torch.bool) if T == 1 else torch.ones(T, S, dtype=torch.bool).tril()


class UnmaskedWithCache(Attention):
    def allowed(self, T, S):
        return super().allowed(T, S) if T == S else torch.ones(T, S, dtype=torch.bool)


class ForgetsOldKeys(Attention):
    def project_memory(self, past, k, v):
        k, v = super().project_memory(past, k, v)
        return (k, v) if past is None else (k[:, :, -6:], v[:, :, -6:])


class StaleCache(Attention):
    def forward(self, x, real, past):
        y, new = super().forward(x, real, past)
        return y, new if past is None else (past[0], past[1])


class CacheInWrongOrder(Attention):
    def project_memory(self, past, k, v):
        return (k, v) if past is None else (torch.cat((k, past[0]), 2), torch.cat((v, past[1]), 2))


class ValuesNotCached(Attention):
    def project_memory(self, past, k, v):
        if past is None:
            return k, v
        return torch.cat((past[0], k), 2), torch.cat((torch.zeros_like(past[1]), v), 2)


class IgnoresPadding(Attention):
    def hide(self, real):
        return torch.ones_like(real)


class InvertedPadding(Attention):
    def hide(self, real):
        return ~real | real.all(1, keepdim=True)


class ShiftedPadding(Attention):
    def hide(self, real):
        return real.roll(-1, 1)


class OneRowsPaddingForAll(Attention):
    def hide(self, real):
        return real[:1].expand_as(real)


class SubtractsMeanValue(Attention):
    def forward(self, x, real, past):
        y, past = super().forward(x, real, past)
        return y - y.mean(1, keepdim=True), past


class SharedBuffer(Attention):
    def forward(self, x, real, past):
        y, past = super().forward(x, real, past)
        return y + 0.1 * y[-1:].detach(), past


class StaleBuffer(Attention):
    last = None

    def forward(self, x, real, past):
        y, past = super().forward(x, real, past)
        before, self.last = self.last, y.detach().mean()
        return y if before is None else y * (1 + before), past


class TemperatureByLength(Attention):
    def weigh(self, e, allowed):
        return super().weigh(e * e.shape[-1] / 8, allowed)


# --- norms and feed-forwards ---------------------------------------------------------------------------------------


class BatchNormOverTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class LayerNormOverTime(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, x.shape[1:])


class CentersOverTime(nn.Module):
    def forward(self, x):
        return x - x.mean(1, keepdim=True)


STATISTICS = {
    "mean": lambda x: x.mean(0),
    "std": lambda x: x.std(0),  # over a batch of one row it is not a number
    "variance": lambda x: x.var(0, correction=0),
    "median": lambda x: x.median(0).values,
    "maximum": lambda x: x.amax(0),
}


class AddsStatistic(nn.LayerNorm):
    """layer_norm(x) + strength * statistic(x over batch, time or both): however weak, tokens or rows meet there."""

    def __init__(self, taken: str, over: str, strength: float, training_only: bool = False) -> None:
        super().__init__(D)
        self.taken, self.over, self.strength, self.training_only = taken, over, strength, training_only

    def forward(self, x):
        y = super().forward(x)
        if self.training_only and not self.training:
            return y
        rows = {"batch": x, "time": x.transpose(0, 1), "both": x.flatten(0, 1)}[self.over]
        found = STATISTICS[self.taken](rows)
        return y + self.strength * (found[:, None] if self.over == "time" else found)


class FourierConvolution(nn.Module):
    """A causal convolution over all the past by a Fourier transform, and a mean over time beside it."""

    def __init__(self, leak: float) -> None:
        super().__init__()
        self.taps, self.leak = nn.Parameter(torch.randn(N, D) / 8), leak

    def forward(self, x):
        T = x.shape[1]
        x_f, k_f = torch.fft.rfft(x, 2 * T, dim=1), torch.fft.rfft(self.taps[:T], 2 * T, dim=0)
        return torch.fft.irfft(x_f * k_f, 2 * T, dim=1)[:, :T] + self.leak * x.mean(1, keepdim=True)


class GlobalMax(MLP):
    def forward(self, x):
        return super().forward(x) + x.amax(1, keepdim=True)


class DropoutInEval(MLP):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.1, training=True)


class ExpertChoice(MLP):
    """Each expert picks its best tokens out of the whole text."""

    def forward(self, x):
        y = super().forward(x)
        score = x[..., 0]
        return y * (score >= score.topk(max(1, x.shape[1] // 2), 1).values[:, -1:])[..., None]


class CapacityOverBatch(MLP):
    """An expert's capacity is shared out over the batch."""

    def forward(self, x):
        chosen = (x[..., 0] > 0).flatten().flip(0).cumsum(0).flip(0).view(x.shape[:2])
        return super().forward(x) / (1 + chosen)[..., None]


class Detached(MLP):
    def forward(self, x):
        return super().forward(x.detach())


class Unused(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(D, D)


class DividesByLength(MLP):
    def forward(self, x):
        return super().forward(x) * 8 / x.shape[1]


# --- whole models --------------------------------------------------------------------------------------------------


class CountsPadding(TextbookGPT):
    def place(self, tokens, real, past):
        return super().place(tokens, None, past)


class RestartsPositions(TextbookGPT):
    def place(self, tokens, real, past):
        return super().place(tokens, real, None)


class PositionsOffByOneWithCache(TextbookGPT):
    def place(self, tokens, real, past):
        return super().place(tokens, real, past) + (0 if past is None else 1)


class LooksAtTheLabel(TextbookGPT):
    """The classic: inputs shifted the wrong way, so each token is fed its own answer."""

    def embed(self, tokens, token_positions):
        return super().embed(tokens.roll(-1, 1), token_positions)


class StartsTooLarge(TextbookGPT):
    def __init__(self, **parts) -> None:
        super().__init__(**parts)
        nn.init.normal_(self.head.weight, std=2.0)


class Unseeded(TextbookGPT):
    def __init__(self, **parts) -> None:
        super().__init__(**parts)
        random = torch.Generator()
        random.seed()
        self.norm.weight.data = 1 + 0.1 * torch.randn(D, generator=random)
