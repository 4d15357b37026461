"""Laws on what must give the same: padding, cache, backends, lengths, repetition."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from weft.foreign.subject import CallFailed, NotTestable, Subject, SubjectCall, subject_code
from weft.laws.causes import any_difference, cache_cause, padding_cause
from weft.laws.dependence import traces
from weft.laws.finding import Finding
from weft.laws.probe import Probe
from weft.laws.trace import diverged_at_all, diverged_in_slice, first_blind, first_divergence, trace

PADS = 4
Side = Literal["left", "right"]


def left_padding(probe: Probe) -> Finding:
    """Padding before a text changes nothing of what it gives."""
    return _padding(probe, "left")


def right_padding(probe: Probe) -> Finding:
    """Padding after a text changes nothing of what it gives."""
    return _padding(probe, "right")


def _padded(probe: Probe, side: Side, seed: int) -> SubjectCall:
    """Two rows of T: the first is a text of T - PADS tokens and padding, the second is full."""
    T = probe.length
    n = T - PADS
    content = probe.subject.content(2, T, torch.Generator().manual_seed(seed))
    content[1] = probe.content[0]
    content[0, slice(PADS, T) if side == "left" else slice(0, n)] = probe.content[0, :n]
    real = torch.ones(2, T, dtype=torch.bool)
    real[0, slice(0, PADS) if side == "left" else slice(n, T)] = False
    call = probe.call(content)
    call.real = real
    return call


def _padding(probe: Probe, side: Side) -> Finding:
    law, T = f"{side} padding", probe.length
    if T - PADS < 2:
        return Finding(law, "not testable", f"it takes only {T} tokens")
    call = _padded(probe, side, seed=1)
    row = _first_row(probe, call)
    value = _beside_padding(probe, row, side)
    if probe.differs(value):
        return _padding_broken(probe, row, side, value)
    full = 0.0  # that rows of a batch meet at all is another law's finding
    if not probe.row_leak("eval").found:
        full = float(torch.nan_to_num((probe.run(call)[1:] - probe.outputs).abs(), nan=float("inf")).max())
    if probe.differs(full):
        said, cause = (
            f"a full row beside a padded one changes by {full:.2g}",
            "the padding of one row is applied to another",
        )
        return Finding(law, "broken", said, None, cause, full)
    left_out = probe.subject.without_positions() if side == "left" else None
    if left_out is not None:
        lean, argument = left_out
        bare = _beside_padding(probe, row, side, lean)
        if probe.differs(bare):
            said = f"without {argument}, padded and alone differ by {bare:.2g}; with {argument}, by {probe.say(value)}"
            cause = f"positions count the padding: pass {argument} that count real tokens only, or pad on the right"
            return Finding(law, "caution", said, None, cause, bare)
    return Finding(law, "holds", f"padded and alone differ by {probe.say(value)}", violation=value)


def _first_row(probe: Probe, call: SubjectCall) -> SubjectCall:
    """The padded row by itself."""
    return replace(
        call, content=call.content[:1], real=None if call.real is None else call.real[:1], source=probe.source
    )


def _beside_padding(probe: Probe, row: SubjectCall, side: Side, subject: Subject | None = None) -> float:
    """How much a padded text differs from itself without padding; where it has one answer per text, that answer."""
    n, first = probe.length - PADS, PADS if side == "left" else 0
    out = probe.run(row, subject=subject)
    alone = probe.run(probe.call(probe.content[:, :n]), subject=subject)
    padded = out if probe.pooled else out[:, first : first + n]
    return float(torch.nan_to_num((padded - alone).abs(), nan=float("inf")).max())


def _padding_broken(probe: Probe, row: SubjectCall, side: Side, value: float) -> Finding:
    """Where padding first shows, and whether its own content does."""
    n, first = probe.length - PADS, PADS if side == "left" else 0
    out, again = (probe.run(call) for call in (row, _first_row(probe, _padded(probe, side, seed=2))))
    apart = (out - again)[0].abs()
    if not probe.pooled and row.real is not None:
        apart = apart[row.real[0]]
    seen = probe.differs(float(torch.nan_to_num(apart, nan=float("inf")).max()))
    runs = traces(probe, [probe.call(probe.content[:, :n]), row])
    path = first_divergence(*runs, diverged_in_slice(n, probe.length, first, probe.tolerance))
    takes_positions = "position_ids" in str(getattr(probe.subject, "names", ""))
    cause = padding_cause(seen, side, takes_positions, value != float("inf"), probe.pooled)
    return Finding(f"{side} padding", "broken", f"padded and alone differ by {value:.2g}", path, cause, value)


def source_padding(probe: Probe) -> Finding:
    """Padding of the source changes nothing of what the target gives."""
    law = "source padding"
    if not probe.subject.declares.seq2seq or probe.source is None:
        return Finding(law, "not declared", "it has no source")
    S = probe.source.shape[1]
    alone = probe.outputs
    worst = 0.0
    sides: tuple[Side, ...] = ("left", "right")
    for side in sides:
        source = probe.subject.source(1, S + PADS, torch.Generator().manual_seed(3))
        assert source is not None
        real = torch.ones(1, S + PADS, dtype=torch.bool)
        kept = slice(PADS, None) if side == "left" else slice(0, S)
        if source.shape[1] != S + PADS:
            return Finding(law, "not testable", "its source has one length")
        source[:, kept] = probe.source
        real[:, slice(0, PADS) if side == "left" else slice(S, None)] = False
        out = probe.run(SubjectCall(probe.content, source=source, source_real=real))
        value = float((out - alone).abs().max())
        if probe.differs(value):
            runs = traces(
                probe, [probe.call(probe.content), SubjectCall(probe.content, source=source, source_real=real)]
            )
            path = first_divergence(
                *runs, diverged_in_slice(S, S + PADS, PADS if side == "left" else 0, probe.tolerance)
            )
            other = probe.subject.source(1, S + PADS, torch.Generator().manual_seed(4))
            assert other is not None
            other[:, kept] = probe.source
            again = probe.run(SubjectCall(probe.content, source=other, source_real=real))
            cause = padding_cause(probe.differs(float((again - out).abs().max())), side, False)
            return Finding(
                law, "broken", f"{side} padding of the source changes outputs by {value:.2g}", path, cause, value
            )
        worst = max(worst, value)
    return Finding(law, "holds", f"padded and plain source differ by {probe.say(worst)}", violation=worst)


def source_seen(probe: Probe) -> Finding:
    """Every output sees all of the source."""
    law = "source seen"
    if not probe.subject.declares.seq2seq or probe.source is None:
        return Finding(law, "not declared", "it has no source")
    S = probe.source.shape[1]
    drawn = probe.subject.source(1, S, torch.Generator().manual_seed(5))
    third = probe.subject.source(1, S, torch.Generator().manual_seed(6))
    assert drawn is not None and third is not None
    changed = probe.source.expand(S, *probe.source.shape[1:]).clone()
    same = changed.clone()
    index = torch.arange(S)
    new = torch.where(drawn[0] != probe.source[0], drawn[0], third[0])
    changed[index, index] = new
    content = probe.content.expand(S, *probe.content.shape[1:]).clone()
    difference = (
        (probe.run(SubjectCall(content, source=changed)) - probe.run(SubjectCall(content, source=same))).abs().amax(-1)
    )
    touched = (changed != same).flatten(1).any(1)
    blind = [int(j) for j in index[touched] if float(difference[j].max()) == 0]
    if blind:
        j = blind[0]
        calls = [SubjectCall(probe.content, source=source[j : j + 1]) for source in (same, changed)]
        path = first_blind(*traces(probe, calls), diverged_at_all(0.0))
        return Finding(
            law, "broken", f"source token {j} changes no output", path, "the source's mask hides real tokens"
        )
    return Finding(law, "holds", f"each of {int(touched.sum())} source tokens changes the outputs")


def cache(probe: Probe) -> Finding:
    """Decoding with a cache, token by token and in chunks, gives what the full forward gives."""
    law = "cache = full forward"
    if not probe.subject.declares.cached:
        return Finding(law, "not declared", "it keeps no cache")
    probe.expect_tokens()
    worst = 0.0
    for name, sizes in _ways(probe):
        out = _run_in_chunks(probe, sizes)
        value = float(torch.nan_to_num((out - probe.outputs).abs(), nan=float("inf")).max())
        if probe.differs(value):
            differences = any_difference(out, probe.outputs)
            cause = cache_cause(torch.where(differences > probe.tolerance, differences, 0.0), name == "in chunks")
            path = _blame_cache(probe, sizes, differences)
            step = int((differences > probe.tolerance).nonzero()[0])
            said, cure = f"{name}, output {step} differs by {value:.2g}", _cure_of_cache(probe)
            if cure is not None:
                return Finding(
                    law, "caution", f"{said} without {cure}", path, f"{cause}: pass {cure}", value, (step, step)
                )
            return Finding(law, "broken", said, path, cause, value, (step, step))
        worst = max(worst, value)
    return Finding(law, "holds", f"token by token and in chunks, {probe.say(worst)}", violation=worst)


def _ways(probe: Probe) -> tuple[tuple[str, list[int]], ...]:
    """How a text is cut into steps."""
    T = probe.length
    prefix = min(T, probe.subject.declares.text_prefix or 1)
    return ("token by token", [prefix] + [1] * (T - prefix)), ("in chunks", _chunks(T, prefix))


def _cure_of_cache(probe: Probe) -> str | None:
    """The argument with which the cache gives what the full forward gives, where callers often leave it out."""
    found = probe.subject.with_step_positions()
    if found is None:
        return None
    subject, argument = found
    try:
        outs = [_run_in_chunks(probe, sizes, subject) for _, sizes in _ways(probe)]
    except NotTestable:
        return None
    apart = max(float(torch.nan_to_num((out - probe.outputs).abs(), nan=float("inf")).max()) for out in outs)
    return None if probe.differs(apart) else argument


def _chunks(T: int, prefix: int) -> list[int]:
    """Chunks of uneven sizes, one token among them; the first holds the prefix, which is seen in both directions."""
    sizes = [max(4, prefix), 1, 3]
    while sum(sizes) < T:
        sizes.append(min(5, T - sum(sizes)))
    return sizes


def _run_in_chunks(probe: Probe, sizes: list[int], subject: Subject | None = None) -> Tensor:
    pieces, first = [], 0
    with torch.no_grad(), probe.in_mode("eval"):
        kept = probe.make_cache(1)
        for size in sizes:
            piece = probe.content[:, first : first + size]
            if not piece.shape[1]:
                break
            out, kept = probe.run_cached(SubjectCall(piece, source=probe.source), kept, subject)
            pieces.append(out)
            first += size
    return torch.cat(pieces, 1)


def _blame_cache(probe: Probe, sizes: list[int], differences: Tensor) -> str | None:
    """Trace the first chunk that differs against the same places of the full forward."""
    wrong = int((differences > probe.tolerance).nonzero()[0])
    first = chunk = 0
    while first + sizes[chunk] <= wrong:
        first += sizes[chunk]
        chunk += 1
    size, kept = sizes[chunk], None
    with torch.no_grad(), probe.in_mode("eval"):
        kept = probe.make_cache(1)
        at = 0
        for number in range(chunk):
            piece = probe.content[:, at : at + sizes[number]]
            _, kept = probe.run_cached(SubjectCall(piece, source=probe.source), kept)
            at += sizes[number]
        piece = probe.content[:, at : at + size]
        stepped = trace(probe.subject.module, lambda: probe.run_cached(SubjectCall(piece, source=probe.source), kept))
    whole = probe.content[:, : at + size]
    full = trace(probe.subject.module, lambda: probe.run(probe.call(whole)))
    return first_divergence(stepped, full, diverged_in_slice(size, at + size, at, probe.tolerance))


def backends(probe: Probe) -> Finding:
    """Fused, explicit and blocked attention give the same."""
    law = "backend equality"
    names = probe.subject.backends()
    if len(names) < 2:
        return Finding(law, "not testable", "there is one way to compute its attention, or none to choose")
    outs: list[Tensor] = []
    try:
        for name in names:
            probe.set_backend(name)
            outs.append(probe.run(probe.call(probe.content)))
    except NotTestable as why:
        return Finding(law, "not testable", f"{name}: {why}")
    finally:
        if probe.subject.library == "weft":
            probe.set_backend("auto")
    value = max(float((outs[0] - other).abs().max()) for other in outs[1:])
    if probe.differs(value):
        path = _blame_backend(probe, names)
        return Finding(
            law,
            "broken",
            f"{' and '.join(names)} differ by {value:.2g}",
            path,
            "a scale, mask or bias missing in one",
            value,
        )
    return Finding(law, "holds", f"{', '.join(names)} differ by {probe.say(value)}", violation=value)


def _blame_backend(probe: Probe, names: tuple[str, ...]) -> str | None:
    runs = []
    for name in names:
        probe.set_backend(name)
        runs.append(trace(probe.subject.module, lambda: probe.run(probe.call(probe.content))))
    differs = diverged_at_all(probe.tolerance)
    return next((path for other in runs[1:] if (path := first_divergence(runs[0], other, differs)) is not None), None)


def compiled(probe: Probe) -> Finding:
    """torch.compile gives the same."""
    law = "compiled"
    with torch.no_grad(), subject_code("torch.compile"):
        copied = probe.subject.over(copy.deepcopy(probe.subject.module))
        copied.module.compile(dynamic=False)
        out = copied.run(probe.call(probe.content)).double()
    value = float((out - probe.outputs).abs().max())
    verdict = "holds" if not probe.differs(value) or value <= 1e-9 * probe.scale else "broken"
    return Finding(law, verdict, f"compiled and eager differ by {probe.say(value)}", violation=value)  # type: ignore[arg-type]


def lengths(probe: Probe) -> Finding:
    """One set of weights serves all lengths: shorter texts run, and a causal model's agree with a longer one's."""
    law, worst, whole = "all lengths", 0.0, probe.outputs  # what cannot be called at all is no matter of length
    prefixes = probe.subject.declares.causal and not probe.pooled
    for length in sorted({1, 2, probe.length // 2, probe.length - 1} - {0}):
        call = probe.call(probe.content[:, :length])
        try:
            out = probe.run(call)
        except CallFailed as why:
            return Finding(law, "broken", f"a text of {length} tokens fails: {why.reason:.120}")
        if not torch.isfinite(out).all():
            return Finding(law, "broken", f"a text of {length} tokens gives numbers that are not finite")
        if not prefixes or length < (probe.subject.declares.text_prefix or 1):
            continue
        value = float((out - whole[:, :length]).abs().max())
        if probe.differs(value):
            differs = diverged_in_slice(length, probe.length, 0, probe.tolerance)
            path = first_divergence(*traces(probe, [call, probe.call(probe.content)]), differs)
            said = f"the first {length} tokens alone differ by {value:.2g} from themselves in a longer text"
            return Finding(law, "broken", said, path, "something depends on the length", value)
        worst = max(worst, value)
    said = f"; prefixes agree to {probe.say(worst)}" if prefixes else ""
    return Finding(law, "holds", f"1 to {probe.length} tokens{said}", violation=worst)


def determinism(probe: Probe) -> Finding:
    """In eval mode the same input gives the same bits, whatever was computed in between."""
    law = "eval is deterministic"
    first = probe.run(probe.call(probe.content))
    probe.run(probe.call(probe.subject.content(2, probe.length, probe.random)))
    torch.rand(3)
    with torch.no_grad():
        again = probe.answer(probe.call(probe.content)).double()
    value = float(torch.nan_to_num((first - again).abs(), nan=float("inf")).max())
    if value > 0:
        run = partial(probe.answer, probe.call(probe.content))
        a = trace(probe.subject.module, run)
        probe.run(probe.call(probe.subject.content(2, probe.length, probe.random)))
        b = trace(probe.subject.module, run)
        path = first_divergence(a, b, diverged_at_all(0.0))
        return Finding(
            law,
            "broken",
            f"the same input differs by {value:.2g} the second time",
            path,
            "randomness or stale state in eval mode",
            value,
        )
    return Finding(law, "holds", "the same input gives the same bits")


def same_seed(probe: Probe) -> Finding:
    """Built twice from one seed, all weights have the same bits."""
    law = "same seed, same bits"
    a, b = probe.fresh(5).state_dict(), probe.fresh(5).state_dict()
    apart = [key for key in a if not torch.equal(a[key], b[key])]
    if apart:
        return Finding(law, "broken", f"{len(apart)} weights differ, first {apart[0]}", apart[0].rsplit(".", 1)[0])
    return Finding(law, "holds", f"{len(a)} tensors equal bit for bit")
