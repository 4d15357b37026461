"""Likely causes in plain words, read off the pattern of what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.laws.trace import tensors_in

if TYPE_CHECKING:
    from weft.laws.probe import Mode, Probe


def local_dependence(probe: Probe, path: str, mode: Mode) -> Tensor | None:
    """D [T, T] at the output of one submodule, from one text with one token replaced at a time."""
    T = probe.length
    part = probe.subject.module.get_submodule(path)
    found: list[Tensor] = []

    def keep(_: object, __: object, out: object) -> None:
        tensor = next((t for t in tensors_in(out) if t.dim() >= 3 and t.shape[:2] == (1, T)), None)
        if tensor is not None:
            found.append(tensor.detach().double())

    hook = part.register_forward_hook(keep)
    try:
        for place in (None, *range(T)):
            content = probe.content if place is None else probe.one_changed(probe.content, place)
            probe.run(probe.call(content), mode)
    finally:
        hook.remove()
    if not found or len(found) % (T + 1):
        return None
    firsts = found[:: len(found) // (T + 1)]
    return torch.stack([(changed - firsts[0])[0].abs().flatten(1).amax(-1) for changed in firsts[1:]], 1)


def causality_cause(probe: Probe, path: str | None, D: Tensor, mode: Mode, limit: float) -> str:
    """Why the future is seen; up to `limit` a difference is rounding."""
    kind = "" if not path else type(probe.subject.module.get_submodule(path)).__name__
    name = f"{kind} {(path or '').rsplit('.', 1)[-1]}".lower()
    local = None if not path else local_dependence(probe, path, mode)
    D = D if local is None else local
    T = D.shape[0]
    ahead = limit < D
    distances = [(int(j) - int(i)) for i, j in ahead.triu(1).nonzero()]
    sees_past = bool(ahead.tril(-1).any())
    if mode == "training":
        return "the mask is lost in training (under dropout), or statistics run over batch or time"
    if distances and max(distances) == 1:
        return "the mask is shifted by one: each token sees the next"
    if not sees_past and distances:
        return "the mask is inverted: it shows the future and hides the past"
    if "norm" in name or "batch" in name:
        return "statistics over the sequence: a norm that averages over time"
    column = D[:, T - 1]
    if bool((column[:-1] > limit).all()):
        spread = column[:-1].max() / column[:-1].min().clamp(min=1e-300)
        if float(spread) < 1.5 and "att" not in name:
            return "statistics over the sequence: a mean or maximum over time is subtracted or added"
        return "no mask, or one that is dropped on this path; or a softmax over the wrong axis"
    if distances and min(distances) > 1:
        return "some later tokens are seen: a mask with a wrong offset"
    return "some later tokens are seen"


def padding_cause(seen: bool, side: str, takes_positions: bool, finite: bool = True, pooled: bool = False) -> str:
    """Why padding changes what real tokens give; `seen`: whether the padding's own content matters."""
    if not finite:
        return "rows of padding become NaN and spread (0 x NaN): softmax over nothing must give zeros"
    if pooled and side == "left":
        return "padding is averaged in, or the answer is read at the first place, which is padding: pad on the right"
    if seen and pooled:
        return "padding is looked at, or its vectors are averaged in: weigh the average by the padding mask"
    if seen:
        return "padding is looked at: the padding mask is missing, inverted or shifted"
    if side == "left" and takes_positions:
        return "positions count the padding: pass position_ids that count real tokens only"
    return "positions count the padding: pad on the right, or give positions that count real tokens only"


def cache_cause(differences: Tensor, in_chunks: bool) -> str:
    """Why decoding with a cache differs, from the difference at each step; `in_chunks`: one by one it did not."""
    if in_chunks:
        return (
            "the mask of several tokens after a cache is missing or aligned to the wrong corner, "
            "or a recurrent state is not carried into them"
        )
    wrong = (differences > 0).nonzero().flatten()
    first = int(wrong[0]) if len(wrong) else 0
    if first == 0:
        return (
            "the first call with an empty cache differs already: the mask or positions depend on the cache's presence"
        )
    if first == 1:
        return "from the first cached step on: positions restart (a cache offset), or the mask is missing there"
    return f"from step {first} on: the cache is overwritten, stale or too short"


def any_difference(a: Tensor, b: Tensor) -> Tensor:
    """[T]: the largest difference at each place, inf where one is not finite."""
    difference = torch.nan_to_num((a - b).abs(), nan=float("inf"))
    return difference.flatten(2).amax(-1).amax(0)
