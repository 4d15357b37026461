"""Laws on who may depend on whom: causality, reach, batch company, documents, order, shift."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from weft.foreign.subject import CallRefused, NotTestable, SubjectCall, subject_code
from weft.laws.causes import causality_cause
from weft.laws.finding import Finding
from weft.laws.leak import Leak, amplified
from weft.laws.probe import ONE_ANSWER, ROWS, Mode, Probe
from weft.laws.trace import (
    Differs,
    TraceStep,
    diverged_at_all,
    diverged_before,
    diverged_in_order,
    diverged_in_row,
    diverged_in_slice,
    diverged_outside,
    first_divergence,
    first_overreach,
    trace,
)
from weft.parts.masks import BlockSparse, Graph, Mask

MODES: tuple[Mode, ...] = ("eval", "training")


def traces(probe: Probe, calls: list[SubjectCall], mode: Mode = "eval") -> tuple[list[TraceStep], list[TraceStep]]:
    """A trace of each of two calls."""
    a, b = (trace(probe.subject.module, partial(probe.run, call, mode)) for call in calls)
    return a, b


def _blame(probe: Probe, calls: list[SubjectCall], differs: Differs, mode: Mode = "eval") -> str | None:
    """Where two runs first part."""
    return first_divergence(*traces(probe, calls, mode), differs)


def declared_matrix(probe: Probe) -> Tensor:
    """[T, T], True where output i may depend on input j, from what is declared."""
    T, declares = probe.length, probe.subject.declares
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    seen = (j <= i) | (j < (declares.text_prefix or 0)) if declares.causal else torch.ones(T, T, dtype=torch.bool)
    if declares.reach is not None:
        seen = seen & ((i - j).abs() < declares.reach)
    return seen if declares.masks is None else seen & mask_paths(probe)


def mask_paths(probe: Probe) -> Tensor:
    """[T, T], True where a path through the masks of all layers leads from output i to input j."""
    # A class token stands before the content, and what it saw reaches others.
    extra = int(bool(getattr(getattr(probe.subject.module, "spec", None), "class_token", False)))
    T = probe.length + extra
    own = seen = torch.eye(T, dtype=torch.bool)
    for mask in probe.subject.declares.masks or ():
        seen = ((mask.grid(T) | own).double() @ seen.double()) > 0
    return seen[extra:, extra:]


def _worst(D: Tensor, forbidden: Tensor) -> tuple[float, tuple[int, int]]:
    """The largest entry where none is allowed, and where it is."""
    values = torch.where(forbidden, D, torch.zeros_like(D))
    flat = int(values.argmax())
    T = D.shape[1]
    return float(values.flatten()[flat]), (flat // T, flat % T)


def _leak(probe: Probe, call: SubjectCall, forbidden: Tensor, mode: Mode) -> tuple[Leak, tuple[int, int]]:
    """Whether an output depends on an input that is hidden from it, and the pair where it does most."""
    D = probe.matrix_in(mode) if call.mask is None else probe.dependence(call, mode)
    value, (i, j) = _worst(D, forbidden)
    if value == 0:
        return Leak(0.0), (i, j)
    changed = probe.one_changed(call.content, j)
    hidden = forbidden[:, j]
    leak = probe.leak(lambda factor: float(probe.change(call, changed, mode, factor)[0][hidden].max()))
    return leak, (i, j)


def _leak_traces(
    probe: Probe, call: SubjectCall, changed: Tensor, leak: Leak, mode: Mode = "eval"
) -> tuple[list[TraceStep], list[TraceStep]]:
    """Traces of the two runs that show a leak, its factor included."""
    first = trace(probe.subject.module, partial(probe.run, call, mode))
    with amplified(probe.subject.module, call.content, changed, leak.factor or 1.0) as content:
        second = trace(probe.subject.module, partial(probe.run, replace(call, content=content), mode))
    return first, second


def _in_mode(mode: Mode) -> str:
    return "" if mode == "eval" else " in training"


def causality(probe: Probe) -> Finding:
    """No output depends on a later input; in eval mode and, with the same random numbers, in training mode."""
    law, call = "causality", probe.call(probe.content)
    if not probe.subject.declares.causal:
        return Finding(law, "not declared", _undeclared(probe))
    leaks = []
    for mode in MODES:
        leak, (i, j) = _leak(probe, call, _ahead(probe), mode)
        leaks.append(leak)
        if leak.found:
            limit = probe.blame_limit(leak)
            runs = _leak_traces(probe, call, probe.one_changed(probe.content, j), leak, mode)
            path = first_divergence(*runs, diverged_before(probe.length, j, limit))
            cause = causality_cause(probe, path, probe.matrix_in(mode), mode, limit)
            said = f"output {i} changes by {leak.words} with input {j}{_in_mode(mode)}"
            return Finding(law, "broken", said, path, cause, leak.value, (i, j))
    leak = max(leaks, key=lambda one: one.value)
    if float(probe.matrix.tril(-1).max()) == 0:
        return Finding(law, "holds", f"outputs change by {leak.words}; but they depend on no earlier input either")
    prefix = probe.subject.declares.text_prefix
    later = "later input" if prefix is None else f"later input after the prefix of {prefix}"
    return Finding(law, "holds", f"outputs change by {leak.words} with any {later}", violation=leak.value)


def _ahead(probe: Probe) -> Tensor:
    """[T, T], True where input j comes after output i and is not in a prefix that all see."""
    later = torch.ones(probe.length, probe.length, dtype=torch.bool).triu(1)
    later[:, : probe.subject.declares.text_prefix or 0] = False
    return later


def _undeclared(probe: Probe) -> str:
    """What a model does that declares no causality, where it gives one answer per token and so can be measured."""
    unknown, T = "it may look ahead", probe.length
    try:
        for mode in MODES:
            D = probe.matrix_in(mode)
            if D.shape != (T, T) or T < 2 or not bool(D.isfinite().all()):
                return unknown
            leak, (i, j) = _leak(probe, probe.call(probe.content), _ahead(probe), mode)
            if leak.found:
                said = f"it looks ahead: output {i} depends on token {j}{_in_mode(mode)}"
                return f"{said}; pass causal=True (--causal) if it must not"
    except NotTestable as why:  # why it cannot be called, the laws that are declared say
        return str(why) if str(why) == ONE_ANSWER else unknown
    return "it does not look ahead" + ("" if float(probe.matrix.tril(-1).max()) > 0 else ", nor back")


def reach(probe: Probe) -> Finding:
    """No output depends on inputs farther away than the layers' windows and kernels add up to."""
    law, declares = "reach", probe.subject.declares
    if declares.reach is None:
        return Finding(law, "not declared", "no window or kernel bounds what it sees")
    if declares.reach >= probe.length:
        return Finding(
            law, "not testable", f"its reach of {declares.reach} tokens is not less than the {probe.length} tried"
        )
    call = probe.call(probe.content)
    leak, (i, j) = _leak(probe, call, ~declared_matrix(probe), "eval")
    if leak.found:
        runs = _leak_traces(probe, call, probe.one_changed(probe.content, j), leak)
        window = declares.window or declares.reach
        path = first_overreach(runs[0], runs[1], probe.length, j, window, probe.blame_limit(leak))
        cause = "a window one key too wide, or a layer without its window"
        said = f"output {i} changes by {leak.words} with input {j}"
        return Finding(law, "broken", said, path, cause, leak.value, (i, j))
    return Finding(law, "holds", f"at most {declares.reach} tokens; beyond, {leak.words}", violation=leak.value)


def prefix(probe: Probe) -> Finding:
    """All tokens see all of a prefix (an image, or the text's own first tokens), and are causal after it."""
    law, declares = "prefix", probe.subject.declares
    if declares.text_prefix is not None:
        return _text_prefix(probe, min(declares.text_prefix, probe.length))
    if declares.prefix is None:
        return Finding(law, "not declared", "no prefix is seen by all")
    if probe.source is None or not probe.source.is_floating_point():
        return Finding(law, "not testable", "its prefix cannot be changed from outside")
    image = probe.source.clone().requires_grad_()
    out = probe.answer(SubjectCall(probe.content, source=image))
    with subject_code("its gradient fails"):
        (gradient,) = torch.autograd.grad(out[0, 0].square().sum(), image)
    unseen = float((gradient == 0).double().mean())
    if unseen > 0:
        return Finding(law, "broken", f"{unseen:.0%} of the prefix does not reach the first token of the text")
    return Finding(law, "holds", f"all {declares.prefix} prefix tokens reach the first token of the text")


def _text_prefix(probe: Probe, length: int) -> Finding:
    """Each output depends on each token of the text's own prefix to which the masks lead."""
    law, D, paths = "prefix", probe.matrix[:, :length], mask_paths(probe)[:, :length]
    unseen = ((D == 0) & paths).nonzero()
    if len(unseen):
        i, j = unseen[0].tolist()
        return Finding(law, "broken", f"token {j} of the prefix does not reach output {i}", at=(i, j))
    return Finding(law, "holds", f"the {length} prefix tokens reach each other in both directions, and all after them")


def masks(probe: Probe) -> Finding:
    """No output depends on inputs to which no path through the masks of the layers leads."""
    law, declares = "masks", probe.subject.declares
    if declares.masks is None:
        return Finding(law, "not declared", "its layers have no mask but causality and windows")
    paths = mask_paths(probe)
    hidden = int((~paths).sum())
    if not hidden:
        return Finding(law, "not testable", f"its layers lead from each of {probe.length} tokens to each")
    call = probe.call(probe.content)
    leak, (i, j) = _leak(probe, call, ~paths, "eval")
    if leak.found:
        runs = _leak_traces(probe, call, probe.one_changed(probe.content, j), leak)
        path = first_divergence(*runs, diverged_outside(probe.length, paths[:, j], probe.blame_limit(leak)))
        said = f"output {i} changes by {leak.words} with input {j}, to which no path leads"
        return Finding(law, "broken", said, path, "a layer without its mask", leak.value, (i, j))
    return Finding(law, "holds", f"{hidden} pairs without a path: {leak.words}", violation=leak.value)


def graph_reach(probe: Probe) -> Finding:
    """With a graph as the mask, an output depends only on nodes that paths of at most L edges lead to."""
    law, subject = "graph reach", probe.subject
    if subject.declares.causal or subject.library != "weft" or not hasattr(subject.module, "stack"):
        return Finding(law, "not declared", "it takes no graph")
    T = probe.length
    A = torch.rand(T, T, generator=probe.random) < 0.2
    layers = len(subject.module.stack.blocks)  # type: ignore[union-attr,arg-type]
    step = (A | torch.eye(T, dtype=torch.bool)).double()
    seen = torch.linalg.matrix_power(step, max(layers, 1)) > 0
    call = SubjectCall(probe.content, mask=Graph(A))
    try:
        leak, (i, j) = _leak(probe, call, ~seen, "eval")
    except CallRefused as why:
        return Finding(law, "not declared", f"it refuses a graph: {why.reason}")
    if leak.found:
        runs = _leak_traces(probe, call, probe.one_changed(probe.content, j), leak)
        path = first_divergence(*runs, diverged_outside(T, step[:, j] > 0, probe.blame_limit(leak)))
        said = f"node {i} changes by {leak.words} with node {j}, to which no path leads"
        return Finding(law, "broken", said, path, "the graph is not the mask of every layer", leak.value, (i, j))
    return Finding(law, "holds", f"without a path, {leak.words}", violation=leak.value)


def batch_independence(probe: Probe) -> Finding:
    """A row's outputs do not depend on the rows beside it (equal shapes, so exactly equal), nor on their number."""
    law, leaks = "batch independence", []
    for mode in MODES:
        leak = probe.row_leak(mode)
        leaks.append(leak)
        if leak.found:
            runs = _leak_traces(probe, *probe.company(), leak, mode)
            path = first_divergence(*runs, diverged_in_row(ROWS, probe.blame_limit(leak)))
            cause = "statistics over the batch" if mode == "training" else "a buffer or statistic shared between rows"
            said = f"row 0 changes by {leak.words} with the rows beside it{_in_mode(mode)}"
            return Finding(law, "broken", said, path, cause, leak.value)
    among = probe.call(probe.content.expand(5, *probe.content.shape[1:]).clone())
    apart = float(torch.nan_to_num((probe.outputs - probe.run(among)[:1]).abs(), nan=0.0).max())
    if probe.differs(apart):
        path = _blame(probe, [probe.call(probe.content), among], diverged_in_slice(1, 5, 0, probe.tolerance))
        said = f"a row alone and the same row among 5 differ by {apart:.2g}"
        return Finding(law, "broken", said, path, "something depends on the number of rows", apart)
    leak = max(leaks, key=lambda one: one.value)
    return Finding(law, "holds", f"row 0 changes by {leak.words} with the rows beside it", violation=leak.value)


def document_isolation(probe: Probe) -> Finding:
    """Documents packed into one row give what each gives alone."""
    law, T = "document isolation", probe.length
    probe.expect_tokens()
    cut = T // 2
    ids = torch.cat((torch.zeros(1, cut, dtype=torch.long), torch.ones(1, T - cut, dtype=torch.long)), 1)
    packed_call = probe.call(probe.content)
    packed_call.documents = ids
    try:
        packed = probe.run(packed_call)
    except CallRefused as why:
        return Finding(law, "not declared", f"it refuses packed documents: {why.reason}")
    worst, path = 0.0, None
    for first, last in ((cut, T), (0, cut)):
        alone_call = probe.call(probe.content[:, first:last])
        alone = probe.run(alone_call)
        value = float((packed[:, first:last] - alone).abs().max())
        if value > worst:
            worst = value
            if probe.differs(value):
                path = _blame(
                    probe, [alone_call, packed_call], diverged_in_slice(last - first, T, first, probe.tolerance)
                )
    if probe.differs(worst):
        cause = "a document sees its neighbor, or its positions go on counting from it"
        return Finding(law, "broken", f"a packed document differs by {worst:.2g} from itself alone", path, cause, worst)
    return Finding(law, "holds", f"packed and alone differ by {probe.say(worst)}", violation=worst)


def permutation(probe: Probe) -> Finding:
    """Where order counts for nothing, permuting the inputs permutes the outputs."""
    law = "permutation equivariance"
    if not probe.subject.declares.order_free:
        return Finding(law, "not declared", "order counts")
    probe.expect_tokens()
    order = torch.randperm(probe.length, generator=probe.random)
    moved = probe.run(probe.call(probe.content[:, order]))
    value = float((probe.outputs[:, order] - moved).abs().max())
    if probe.differs(value):
        calls = [probe.call(probe.content), probe.call(probe.content[:, order])]
        path = _blame(probe, calls, diverged_in_order(probe.length, order, probe.tolerance))
        said = f"a permuted input changes outputs by {value:.2g}"
        return Finding(law, "broken", said, path, "something depends on the index", value)
    return Finding(law, "holds", f"outputs follow their inputs to {probe.say(value)}", violation=value)


def shift(probe: Probe) -> Finding:
    """Where positions are relative, moving all of them changes nothing."""
    law, declares = "shift invariance", probe.subject.declares
    if declares.positions != "relative" and not (declares.positions == "none" and declares.causal):
        return Finding(
            law,
            "not declared",
            "positions are absolute" if declares.positions == "absolute" else "order counts for nothing",
        )
    if declares.seq2seq or declares.prefix is not None or declares.text_prefix is not None:
        return Finding(law, "not testable", "positions count from the source or the prefix")
    if declares.masks is not None and any(_counts_from_start(leaf) for m in declares.masks for leaf in m.leaves()):
        return Finding(law, "not testable", "its masks count positions from the start")
    positions = torch.arange(probe.length)[None]
    calls = [SubjectCall(probe.content, positions=positions), SubjectCall(probe.content, positions=positions + 7)]
    value = float((probe.run(calls[0]) - probe.run(calls[1])).abs().max())
    if probe.differs(value) and value > 1e-5 * probe.effect:  # tables of angles are rounded to float32
        path = _blame(probe, calls, diverged_at_all(probe.tolerance))
        return Finding(
            law,
            "broken",
            f"moving all positions by 7 changes outputs by {value:.2g}",
            path,
            "an absolute position leaks in",
            value,
        )
    return Finding(law, "holds", f"moving all positions by 7 changes outputs by {probe.say(value)}", violation=value)


def _counts_from_start(mask: Mask) -> bool:
    """Whether it is a rule of positions themselves, not of distances alone."""
    return isinstance(mask, BlockSparse | Graph)
