"""The plan of a training on many devices: each layout is costed, the best that fits is recommended with the reason."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from weft.foundation.errors import WeftError
from weft.models.build import AnySpec
from weft.models.cluster.candidates import EFFICIENCY, USABLE, Candidate, Request, candidates, ranked, usable_memory
from weft.models.cluster.communication import LINK_EFFICIENCY
from weft.models.cluster.device_table import GB, MOST_DEVICES, Cluster, PrecisionName
from weft.models.cluster.failures import RESTART_SECONDS, Failures, failures
from weft.models.cluster.layouts import layouts
from weft.models.cluster.training_profile import TrainingProfile, training_profile

TOKENS_PER_PARAMETER = 20  # compute-optimal training (Hoffmann et al. 2022)
SHORT = 0.1  # seconds of a step below which latency, which is not counted, matters
ALIKE = 1.02  # layouts whose times differ less are equally fast, and the simpler one is chosen

# Tokens per batch of GPT-3's sizes (Brown et al. 2020, table 2.1), in multiples of 2^19: from this number of
# parameters on. The largest, 3.2 million there, is 1,536 sequences of 2,048 tokens, as Narayanan et al. 2021 have it.
BATCHES = ((0, 1 << 19), (10**9, 1 << 20), (5 * 10**9, 1 << 21), (10**11, 6 << 19))


def default_batch(parameters: int) -> int:
    """Tokens per batch for a model of this size, by the table of GPT-3."""
    return max(batch for least, batch in BATCHES if parameters >= least)


@dataclass(frozen=True)
class ClusterPlan:
    """The recommended candidate, the others, and what follows from them; times in seconds, memory in bytes.

    `runners_up` are the fastest of each other combination of axes, `too_large` those that do not fit.
    """

    profile: TrainingProfile
    request: Request
    sequences: int
    best: Candidate
    runners_up: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    failures: Failures

    @property
    def batch_tokens(self) -> int:
        """Tokens per step, of whole sequences."""
        return self.sequences * self.profile.model.tokens

    @property
    def steps(self) -> int:
        return math.ceil(self.request.tokens / self.batch_tokens)

    def days(self, candidate: Candidate) -> float:
        """Days of the whole training, with what failures take."""
        return self.steps * candidate.time.total / (1 - self.failures.lost) / 86400

    def mfu(self, candidate: Candidate) -> float:
        """Model FLOPs utilization (Chowdhery et al. 2022): FLOPs that the model needs, as a share of the peak."""
        cluster = self.request.cluster
        peak = cluster.count * cluster.device.flops(self.request.precision)
        return self.sequences * self.profile.training_flops / candidate.time.total / peak

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know beside the numbers."""
        notes = self.profile.model.notes
        if self.best.time.total < SHORT:
            notes += (
                f"a step of {1000 * self.best.time.total:.3g} ms is short: starting kernels and collectives, which is "
                f"not counted here, will take longer; raise --batch or take fewer devices",
            )
        return notes

    def to_tree(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        cluster, best = self.request.cluster, self.best
        return {
            "parameters": self.profile.model.parameters,
            "length": self.profile.model.length,
            "devices": {"count": cluster.count, "name": cluster.name, **cluster.device.to_tree()},
            "tokens": self.request.tokens,
            "batch": self.batch_tokens,
            "sequences": self.sequences,
            "steps": self.steps,
            **self._candidate_tree(best),
            "device_hours": self.days(best) * 24 * cluster.count,
            "collectives": [asdict(collective) for collective in best.collectives],
            "failures": asdict(self.failures),
            "reasons": list(self.reasons),
            "runners_up": [self._candidate_tree(candidate) for candidate in self.runners_up],
            "too_large": [self._candidate_tree(candidate) for candidate in self.too_large],
            "notes": list(self.notes),
            "assumptions": {
                "precision": self.request.precision,
                "efficiency": self.request.efficiency,
                "link_efficiency": LINK_EFFICIENCY,
                "usable_memory": USABLE,
                "restart_seconds": RESTART_SECONDS,
            },
        }

    def _candidate_tree(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "layout": asdict(candidate.layout),
            "micro_batch": candidate.pieces.micro_batch,
            "micro_steps": candidate.pieces.micro_steps,
            "recompute": candidate.recompute,
            "memory": {**asdict(candidate.memory), "total": candidate.memory.total},
            "communication": candidate.sent,
            "payload": candidate.payload,
            "step_seconds": {**asdict(candidate.time), "total": candidate.time.total},
            "mfu": self.mfu(candidate),
            "days": self.days(candidate),
        }


def plan_cluster(
    spec: AnySpec,
    cluster: Cluster,
    tokens: int | None = None,
    batch: int | None = None,
    length: int | None = None,
    precision: PrecisionName | None = None,
    efficiency: float = EFFICIENCY,
) -> ClusterPlan:
    """Cost every layout of these devices and recommend one; what is left out is chosen by the size of the model."""
    profile = training_profile(spec, length)
    precision = precision or cluster.device.default_precision()
    if precision not in cluster.device.tflops:
        known = ", ".join(cluster.device.tflops)
        raise WeftError(
            f"{cluster.name} has no peak FLOP/s for {precision}: choose from {known}, or add it to the table"
        )
    if not 0 < efficiency <= 1:
        raise WeftError(f"efficiency {efficiency:g} is no share of the peak FLOP/s: choose more than 0, at most 1")
    request = Request(
        cluster,
        precision,
        default_batch(profile.model.parameters) if batch is None else batch,
        TOKENS_PER_PARAMETER * profile.model.active_parameters if tokens is None else tokens,
        efficiency,
    )
    sequences = _sequences(profile, request)
    lost = failures(profile.model.parameters, cluster)
    costed = list(candidates(profile, request, sequences))
    fitting = ranked(costed, cluster)
    if not fitting:
        raise WeftError(_too_large(profile, request, sequences, costed))
    fast = [candidate for candidate in fitting if candidate.time.total <= ALIKE * fitting[0].time.total]
    best = min(fast, key=lambda candidate: candidate.layout.complexity)
    runners_up, too_large = _others(best, fitting, costed)
    reasons = _reasons(best, costed, cluster)
    if best is not fitting[0]:
        gain = 1 - fitting[0].time.total / best.time.total
        reasons += (f"{fitting[0].layout.words} is {gain:.1%} faster, but less simple.",)
    return ClusterPlan(profile, request, sequences, best, runners_up, too_large, reasons, lost)


def _others(
    best: Candidate, fitting: list[Candidate], costed: list[Candidate]
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """(fastest of each other combination of axes that fits, that of least memory of each that does not)."""
    fastest: dict[tuple[str, ...], Candidate] = {}
    for candidate in fitting:
        fastest.setdefault(candidate.layout.axes, candidate)
    leanest: dict[tuple[str, ...], Candidate] = {}
    for candidate in sorted(costed, key=lambda candidate: candidate.memory.total):
        if candidate.layout.axes not in fastest:
            leanest.setdefault(candidate.layout.axes, candidate)
    fastest.pop(best.layout.axes)
    return tuple(fastest.values()), tuple(leanest.values())


def _sequences(profile: TrainingProfile, request: Request) -> int:
    """Sequences per batch; every data rank needs one."""
    each, cluster = profile.model.tokens, request.cluster
    if request.batch < each:
        raise WeftError(f"a batch of {request.batch:,} tokens is less than one sequence of {each:,}: raise --batch")
    sequences = request.batch // each
    most = sequences * max(layout.tp for layout in layouts(cluster, profile.splits))
    if cluster.count > most:
        raise WeftError(
            f"{cluster.count:,} devices, but a batch of {sequences:,} sequences of {each:,} tokens feeds at most "
            f"{most:,}: raise --batch or take fewer devices"
        )
    return sequences


def _too_large(profile: TrainingProfile, request: Request, sequences: int, costed: list[Candidate]) -> str:
    """Why nothing fits, and how many devices would do."""
    cluster, least = request.cluster, min(candidate.memory.total for candidate in costed)
    what = (
        f"{profile.model.parameters:,} parameters do not fit on {cluster.words} in any layout: at least "
        f"{least / GB:,.1f} GB per device, but {usable_memory(cluster) / GB:,.1f} GB are usable"
    )
    count = 1 << cluster.count.bit_length()
    while count <= min(MOST_DEVICES, sequences * cluster.device.devices_per_node):
        larger = Cluster(cluster.name, cluster.device, count)
        again = Request(larger, request.precision, request.batch, request.tokens, request.efficiency)
        if ranked(candidates(profile, again, sequences), larger):
            return f"{what}; {larger.words} would do"
        count *= 2
    return f"{what}, and no number of them would do: shorten --length or choose devices with more memory"


def _reasons(best: Candidate, costed: list[Candidate], cluster: Cluster) -> tuple[str, ...]:
    """Why this layout, in sentences: for each choice, what the best alternative without it would be."""
    usable, layout = usable_memory(cluster), best.layout
    if cluster.count == 1:
        sharing = ["There is one device, so nothing is shared."]
    elif layout.fsdp == 1 and layout.tp == 1:
        sharing = ["Weights, gradients and optimizer state fit whole on each device: dp communicates least."]
    else:
        sharing = []
    if layout.fsdp > 1:
        plain = [c for c in costed if c.layout.fsdp == 1 and c.layout.tp == layout.tp]
        sharing.append(f"fsdp={layout.fsdp}: without sharding, {_instead(plain, best, usable)}.")
    if layout.tp > 1:
        plain = [c for c in costed if c.layout.tp == 1]
        sharing.append(f"tp={layout.tp}: without it, {_instead(plain, best, usable)}.")
    if best.recompute:
        plain = [c for c in costed if c.layout == layout and not c.recompute]
        sharing.append(f"Recomputation: without it, {_instead(plain, best, usable)}.")
    else:
        sharing.append("No recomputation: the activations of all blocks fit.")
    return tuple(sharing)


def _instead(others: list[Candidate], best: Candidate, usable: int) -> str:
    """What the alternatives come to: too few sequences, too much memory, or more time."""
    if not others:
        return "there are more devices than sequences in the batch"
    fitting = [candidate for candidate in others if candidate.memory.total <= usable]
    if not fitting:
        least = min(candidate.memory.total for candidate in others)
        return f"at least {least / GB:,.1f} GB per device are needed, but {usable / GB:,.1f} GB are usable"
    ratio = min(candidate.time.total for candidate in fitting) / best.time.total
    return f"a step takes {ratio:.2f} times as long" if ratio >= 1.005 else "a step is no faster"
