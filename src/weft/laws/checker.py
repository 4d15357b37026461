"""The checker: every law on one model, in its own copy in float64.

A law is a function from a `Probe` to a `Finding`; other packages add theirs by the entry points `weft.laws`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from weft.foreign.recognize import subject_of
from weft.foreign.subject import NotTestable, Subject
from weft.foundation.errors import WeftError
from weft.foundation.plugins import Registry
from weft.foundation.threads import number_of_threads
from weft.laws import dependence, sameness, sanity
from weft.laws.finding import Finding, LawFailedError, Report
from weft.laws.probe import Probe

Law = Callable[[Probe], Finding]
ONE_THREAD_PARAMETERS = 20_000_000

LAWS: Registry[Law] = Registry(
    "weft.laws",
    "law",
    {
        "finite outputs": sanity.finite,
        "causality": dependence.causality,
        "reach": dependence.reach,
        "prefix": dependence.prefix,
        "masks": dependence.masks,
        "graph reach": dependence.graph_reach,
        "batch independence": dependence.batch_independence,
        "left padding": sameness.left_padding,
        "right padding": sameness.right_padding,
        "document isolation": dependence.document_isolation,
        "cache = full forward": sameness.cache,
        "source seen": sameness.source_seen,
        "source padding": sameness.source_padding,
        "permutation equivariance": dependence.permutation,
        "shift invariance": dependence.shift,
        "backend equality": sameness.backends,
        "rows that see nothing": sanity.dead_rows,
        "attention rows are distributions": sanity.distributions,
        "all lengths": sameness.lengths,
        "gradients reach every parameter": sanity.gradients,
        "eval is deterministic": sameness.determinism,
        "same seed, same bits": sameness.same_seed,
        "initial loss": sanity.first_loss,
    },
)


def check(
    module: Any,
    example: Tensor | None = None,
    *,
    laws: tuple[str, ...] | None = None,
    tokenizer: Any = None,
    compiled: bool = False,
    seed: int = 0,
    **declared: Any,
) -> Report:
    """Check a model against the laws that it declares; the module itself is left untouched.

    `example` are tokens [B, T] (or vectors [B, T, C]) of the kind it takes, needed where the vocabulary is unknown.
    `declared` says what a foreign module declares: causal=True, positions="relative", window=128, ...
    """
    started = time.perf_counter()
    subject = subject_of(module, example, **declared)
    name = type(subject.module).__name__
    judged = {law: LAWS[law] for law in (LAWS.names() if laws is None else laws)}
    try:
        subject = subject.widened()
    except NotTestable as why:
        raise WeftError(f"{name} cannot be checked: {why}") from None
    probe = Probe(subject, seed)
    with _few_threads(subject):
        findings = [_judge(name, law, probe) for name, law in judged.items()]
        if compiled:
            findings.append(_judge("compiled", sameness.compiled, probe))
        if tokenizer is not None:
            findings.append(_judge("tokenizer round trip", lambda p: sanity.tokenizer(p, tokenizer), probe))
        matrix, allowed, tolerance = _matrices(probe)
    assumed = subject.assumed
    if subject.exact.casts:
        assumed = (*assumed, "its casts to narrower numbers inside are judged in float64")
    seconds = time.perf_counter() - started
    return Report(name, tuple(findings), assumed, matrix, allowed, tolerance, probe.precision, seconds)


def _few_threads(subject: Subject) -> AbstractContextManager[None]:
    """One thread for small models: their products are so small that threads mostly wait for each other."""
    small = sum(p.numel() for p in subject.module.parameters()) < ONE_THREAD_PARAMETERS
    return number_of_threads(1) if small else nullcontext()


# Laws on a sequence of tokens: nothing that a model of whole images declares.
ON_SEQUENCES = (
    "causality",
    "reach",
    "prefix",
    "masks",
    "graph reach",
    "left padding",
    "right padding",
    "document isolation",
    "cache = full forward",
    "source seen",
    "source padding",
    "permutation equivariance",
    "shift invariance",
    "rows that see nothing",
    "all lengths",
    "initial loss",
    "tokenizer round trip",
)


def _judge(name: str, law: Law, probe: Probe) -> Finding:
    """One law. What cannot be tested says so and why, and is never reported as holding; a bug in a law is an error."""
    if probe.subject.images and name in ON_SEQUENCES:
        return Finding(name, "not declared", "it sees an image whole, not a sequence of tokens")
    try:
        finding = law(probe)
    except NotTestable as why:
        return Finding(name, "not testable", str(why))
    except Exception as error:
        said, added = (str(error).splitlines() or [""])[0], name in set(LAWS) - set(LAWS.builtin)
        raise LawFailedError(
            f"the law {name!r} itself fails ({type(error).__name__}: {said:.160}): "
            + ("mend or uninstall the package that adds it" if added else "report it")
        ) from error
    if not isinstance(finding, Finding):
        raise LawFailedError(f"the law {name!r} gives a {type(finding).__name__}: return a weft.laws.Finding")
    return finding


def _matrices(probe: Probe) -> tuple[list[list[float]] | None, list[list[bool]] | None, float]:
    """What each output depends on, what it may depend on, and below what a difference is rounding."""
    if probe.subject.images:
        return None, None, 0.0
    try:
        D = probe.matrix
    except NotTestable:
        return None, None, 0.0
    D = torch.nan_to_num(D, posinf=float(D[D.isfinite()].max()) if D.isfinite().any() else 1.0)
    return D.tolist(), dependence.declared_matrix(probe).tolist(), 1e-12 * probe.scale
