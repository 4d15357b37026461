"""The checker: every law on one model, in its own copy in float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from weft.foreign.recognize import subject_of
from weft.foreign.subject import NotTestable, Subject
from weft.foundation.errors import WeftError
from weft.laws import dependence, sameness, sanity
from weft.laws.finding import Finding, Report
from weft.laws.probe import Probe

Law = Callable[[Probe], Finding]
SMALL = 20_000_000

LAWS: dict[str, Law] = {
    "finite outputs": sanity.finite,
    "causality": dependence.causality,
    "reach": dependence.reach,
    "prefix": dependence.prefix,
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
}


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
    unknown = set(laws or ()) - set(LAWS)
    if unknown:
        raise WeftError(f"there is no law {min(unknown)!r}: choose from {', '.join(LAWS)}")
    try:
        subject = subject.widened()
    except NotTestable as why:
        raise WeftError(f"{name} cannot be checked: {why}") from None
    probe = Probe(subject, seed)
    with _few_threads(subject):
        findings = [_judge(law, LAWS[law], probe) for law in (laws or tuple(LAWS))]
        if compiled:
            findings.append(_judge("compiled", sameness.compiled, probe))
        if tokenizer is not None:
            findings.append(_judge("tokenizer round trip", lambda p: sanity.tokenizer(p, tokenizer), probe))
        matrix, allowed, tolerance = _matrices(probe)
    seconds = time.perf_counter() - started
    return Report(name, tuple(findings), subject.assumed, matrix, allowed, tolerance, seconds)


@contextmanager
def _few_threads(subject: Subject) -> Iterator[None]:
    """One thread for small models: their products are so small that threads mostly wait for each other."""
    before = torch.get_num_threads()
    if sum(p.numel() for p in subject.module.parameters()) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


FOR_IMAGES = (
    "finite outputs",
    "batch independence",
    "backend equality",
    "attention rows are distributions",
    "gradients reach every parameter",
    "eval is deterministic",
    "same seed, same bits",
    "compiled",
)


def _judge(name: str, law: Law, probe: Probe) -> Finding:
    """One law; what cannot be tested says so and why, and is never reported as holding."""
    if probe.subject.images and name not in FOR_IMAGES:
        return Finding(name, "not declared", "it sees an image whole, not a sequence of tokens")
    try:
        return law(probe)
    except NotTestable as why:
        return Finding(name, "not testable", str(why))
    except Exception as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Finding(name, "not testable", f"calling it fails: {type(error).__name__}: {reason:.160}")


def _matrices(probe: Probe) -> tuple[list[list[float]] | None, list[list[bool]] | None, float]:
    """What each output depends on, what it may depend on, and below what a difference is rounding."""
    try:
        D, tolerance = probe.matrix, probe.tolerance
    except Exception:
        return None, None, 0.0
    D = torch.nan_to_num(D, posinf=float(D[D.isfinite()].max()) if D.isfinite().any() else 1.0)
    return D.tolist(), dependence.declared_matrix(probe).tolist(), tolerance
