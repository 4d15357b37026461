"""Likely causes of a divergence: each is tried on the tensors, and named only if it turns one into the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.inspection.comparison.activation_trace import ActivationEvent, ActivationTrace, apart
from weft.inspection.comparison.attention_causes import attention_cause
from weft.parts.feedforward import ACTIVATIONS

Cause = tuple[str, str]
EPSILONS = ("epsilon", "eps", "variance_epsilon", "layer_norm_eps")
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "none": lambda x: x,
    "leaky-relu": F.leaky_relu,
    "elu": F.elu,
}
SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)


@dataclass(eq=False)
class Divergence:
    """The first two tensors that differ, the traces of both runs, and the tensors that agreed before, newest first."""

    a: ActivationEvent
    b: ActivationEvent
    one: ActivationTrace
    two: ActivationTrace
    agreed: list[Tensor]
    limit: float

    def same(self, x: Tensor, y: Tensor) -> bool:
        """Whether two tensors are equal up to rounding."""
        return x.shape == y.shape and apart(x, y) <= 100 * self.limit

    @property
    def given(self) -> Tensor | None:
        """The input of a's part whose output differs."""
        own = [s for s in self.one.events if s.path == self.a.path and s.visit == self.a.visit and s.when == "in"]
        return own[0].tensor if own else None


@torch.no_grad()
def likely_cause(divergence: Divergence) -> Cause:
    """The first cause that explains the divergence, and the numbers behind it."""
    tried = (_shapes, _order, _inside_attention) if divergence.a.when == "in" else (_shapes,)
    ways: tuple[Callable[[Divergence], Cause | None], ...] = (
        *tried,
        _epsilon,
        _norm_kind,
        _activation,
        _transposed,
        _bias,
        _gain,
        _shifted,
        _residual,
        _scale,
        _inside_attention,
        _weights,
    )
    for way in ways:
        found = way(divergence)
        if found is not None:
            return found
    return "unknown", f"{divergence.a.name} and {divergence.b.name} differ; no known cause turns one into the other"


def _shapes(p: Divergence) -> Cause | None:
    if p.a.tensor.shape == p.b.tensor.shape:
        return None
    return "shape", f"{tuple(p.a.tensor.shape)} {p.a.name} but {tuple(p.b.tensor.shape)} {p.b.name}"


def _children(trace: ActivationTrace, path: str) -> list[str]:
    """The names of a part's direct parts, in the order in which they first run."""
    prefix = f"{path}." if path else ""
    found: list[str] = []
    for s in trace.events:
        if s.when == "in" and s.path.startswith(prefix) and s.path != path:
            name = s.path[len(prefix) :].split(".")[0]
            if name not in found:
                found.append(name)
    return found


def _order(p: Divergence) -> Cause | None:
    """Pre-norm or post-norm: the same parts run in another order."""
    parents = [s.path.rpartition(".")[0] for s in (p.a, p.b)]
    mine, theirs = _children(p.one, parents[0]), _children(p.two, parents[1])
    one, two = _roles(p.one.module, parents[0], mine), _roles(p.two.module, parents[1], theirs)
    if len(one) > 1 and one != two and sorted(one) == sorted(two) and "norm" in one:
        return "norm order", f"a runs {' -> '.join(mine)}, b runs {' -> '.join(theirs)}"
    return None


def _roles(module: nn.Module, parent: str, names: list[str]) -> list[str]:
    owner = module.get_submodule(parent)
    return ["norm" if _is_norm(getattr(owner, name, owner)) else "branch" for name in names]


def _is_norm(part: Any) -> bool:
    return "norm" in type(part).__name__.lower()


def _inside_attention(p: Divergence) -> Cause | None:
    return attention_cause(p)


def _epsilon(p: Divergence) -> Cause | None:
    """A norm's epsilon: a's norm runs again with other values."""
    x, own = p.given, _attribute(p.a.part, EPSILONS)
    if x is None or own is None or p.a.when != "out":
        return None
    theirs = _attribute(p.b.part, EPSILONS)
    name, before = own
    candidates = [theirs[1]] if theirs is not None else []
    for epsilon in [*candidates, *(10.0**-n for n in range(3, 13)), 0.0]:
        if epsilon == before:
            continue
        setattr(p.a.part, name, epsilon)
        try:
            again = _run(p.a.part, x)
        finally:
            setattr(p.a.part, name, before)
        if again is not None and p.same(again, p.b.tensor):
            return "norm epsilon", f"{before:g} in a, {epsilon:g} in b ({p.a.path})"
    return None


def _attribute(part: nn.Module, names: tuple[str, ...]) -> tuple[str, float] | None:
    for name in names:
        value = getattr(part, name, None)
        if isinstance(value, float):
            return name, value
    return None


def _run(part: nn.Module, x: Tensor) -> Tensor | None:
    try:
        with torch.no_grad():
            out = part(x)
    except (TypeError, RuntimeError):
        return None
    return out if isinstance(out, Tensor) else None


def _norm_kind(p: Divergence) -> Cause | None:
    """LayerNorm subtracts the mean, RMSNorm does not; some norms add 1 to gamma."""
    x = p.given
    if x is None or p.a.when != "out" or not (_is_norm(p.a.part) or _is_norm(p.b.part)):
        return None
    found = []
    for part, y in ((p.a.part, p.a.tensor), (p.b.part, p.b.tensor)):
        gamma = next((w for w in part.parameters(recurse=False) if w.dim() == 1), torch.ones(x.shape[-1]))
        beta = getattr(part, "beta", None) if getattr(part, "beta", None) is not None else getattr(part, "bias", None)
        epsilon = (_attribute(part, EPSILONS) or ("", 0.0))[1]
        found.append(next((name for name, z in _norms(x, gamma.to(x), beta, epsilon) if p.same(z, y)), None))
    if found[0] and found[1] and found[0] != found[1]:
        return "norm kind", f"{found[0]} in a, {found[1]} in b ({p.a.path})"
    return None


def _norms(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Iterator[tuple[str, Tensor]]:
    shift = 0.0 if beta is None else beta.to(x)
    centered = x - x.mean(-1, keepdim=True)
    layer = centered * (centered.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    rms = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    yield "LayerNorm", layer * gamma + shift
    yield "RMSNorm", rms * gamma + shift
    yield "RMSNorm with 1 + gamma", rms * (1 + gamma) + shift
    yield "no norm", x


def _activation(p: Divergence) -> Cause | None:
    """Another activation, plain or gated, between the tensors that agree and those that differ."""
    for x in _before(p, 8):
        for ways in (_plain_ways, _gated_ways):
            names = [next((name for name, y in ways(x, s.tensor) if p.same(y, s.tensor)), None) for s in (p.a, p.b)]
            if names[0] and names[1] and names[0] != names[1]:
                gelus = all("gelu" in name for name in names if name)
                return "GELU kind" if gelus else "activation", f"{names[0]} in a, {names[1]} in b ({p.a.path})"
    return None


def _plain_ways(x: Tensor, like: Tensor) -> Iterator[tuple[str, Tensor]]:
    if x.shape == like.shape:
        yield from ((name, f(x)) for name, f in KINDS.items())


def _gated_ways(x: Tensor, like: Tensor) -> Iterator[tuple[str, Tensor]]:
    if x.shape[:-1] == like.shape[:-1] and x.shape[-1] == 2 * like.shape[-1]:
        first, second = x.chunk(2, -1)
        yield from ((f"gated {name}", f(first) * second) for name, f in KINDS.items())
        yield from ((f"gated {name}, gate second", f(second) * first) for name, f in KINDS.items())


def _linear(part: nn.Module) -> Tensor | None:
    weight = getattr(part, "weight", None)
    return weight if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _transposed(p: Divergence) -> Cause | None:
    x, W = p.given, _linear(p.a.part)
    if x is None or W is None or p.a.when != "out" or W.shape[0] != W.shape[1] or not x.is_floating_point():
        return None
    bias = getattr(p.a.part, "bias", None)
    other = p.a.tensor - F.linear(x, W.to(x)) + F.linear(x, W.to(x).T)
    if p.same(other, p.b.tensor) or (bias is not None and p.same(x @ W.to(x), p.b.tensor)):
        return "transposed weight", f"b gives x W where a gives x W^T ({p.a.path}, {W.shape[0]} x {W.shape[1]})"
    return None


def _bias(p: Divergence) -> Cause | None:
    """The difference is one vector, the same for every token."""
    x, y = p.a.tensor, p.b.tensor
    if x.dim() < 2 or x.flatten(0, -2).shape[0] < 2:
        return None
    difference = (y - x).flatten(0, -2)
    steady = float((difference - difference[0]).abs().max())
    if steady > 100 * p.limit * float(x.abs().max()):
        return None
    mine, theirs = (_bias_of(s.part) is not None for s in (p.a, p.b))
    if mine == theirs:
        return "bias", f"b adds another vector of length {float(difference[0].norm()):.3g} to every token ({p.a.path})"
    size = float(difference[0].norm())
    return "missing bias", f"{'b' if mine else 'a'} has no bias; it would add {size:.3g} ({p.a.path})"


def _bias_of(part: nn.Module) -> Tensor | None:
    for name in ("bias", "beta"):
        value = getattr(part, name, None)
        if isinstance(value, Tensor) and bool(value.any()):
            return value
    return None


def _gain(p: Divergence) -> Cause | None:
    """A norm's gamma: each feature has its own factor, the same for every token."""
    if not (_is_norm(p.a.part) or _is_norm(p.b.part)) or p.a.when != "out":
        return None
    ratio = (p.b.tensor / p.a.tensor).flatten(0, -2).nan_to_num()
    low, high = float(ratio.min()), float(ratio.max())
    steady = float((ratio - ratio[0]).abs().max()) < 1e-5 * max(abs(low), abs(high))
    if len(ratio) < 2 or not steady or high - low < 1e-9:
        return None
    return "norm weights", f"gamma differs by factors of {low:.3g} to {high:.3g} ({p.a.path})"


def _shifted(p: Divergence) -> Cause | None:
    """Position vectors that start at another row of the table."""
    x, y = p.a.tensor, p.b.tensor
    T = x.shape[-2] if x.dim() > 1 else 0
    for base in [*(t for t in _before(p, 4) if t.shape == x.shape), torch.zeros_like(x)]:
        mine, theirs = (x - base).movedim(-2, 0), (y - base).movedim(-2, 0)
        if T < 3 or p.same(mine[1:], mine[:-1]):
            continue
        for k in (k for k in SHIFTS if abs(k) < T - 1):
            pair = (mine[k:], theirs[:-k]) if k > 0 else (mine[:k], theirs[-k:])
            if p.same(*pair):
                return "position offset", f"token t has in b the position that t {k:+d} has in a ({p.a.path})"
    return None


def _before(p: Divergence, count: int) -> list[Tensor]:
    """The part's input, and the last tensors that agreed."""
    return ([] if p.given is None else [p.given]) + p.agreed[:count]


def _residual(p: Divergence) -> Cause | None:
    difference = p.a.tensor - p.b.tensor
    for x in p.agreed[:24]:
        for sign, who in ((1, "b"), (-1, "a")):
            if p.same(sign * difference, x) and float(x.abs().max()) > 0:
                return "missing residual", f"{who} lacks a residual connection: the difference is a tensor from before"
    return None


def _scale(p: Divergence) -> Cause | None:
    x, y = p.a.tensor.double(), p.b.tensor.double()
    factor = float((x * y).sum() / x.square().sum().clamp(min=1e-300))
    if not p.same(x * factor, y) or abs(factor) < 1e-12:
        return None
    embeds = "embed" in type(p.a.part).__name__.lower()
    return "embedding scale" if embeds else "scale", f"b is {factor:.6g} times a ({p.a.path})"


def _weights(p: Divergence) -> Cause | None:
    mine, theirs = dict(p.a.part.named_parameters()), dict(p.b.part.named_parameters())
    for name, weight in mine.items():
        other = theirs.get(name)
        if other is not None and other.shape == weight.shape and not p.same(weight.detach(), other.detach()):
            if weight.dim() == 2 and weight.shape[0] == weight.shape[1] and p.same(weight.detach().T, other.detach()):
                return "transposed weight", f"{p.a.path}.{name} is the other's transpose"
            return "weights", f"{p.a.path}.{name} differs by {apart(weight.detach(), other.detach()):.2%}"
    return None
