"""Beam search: keep the K likeliest beginnings, extend each by every token, keep the K likeliest again.

score = log p(y | x) / lp(|y|),   lp(n) = ((5 + n) / 6)^alpha        (Wu et al. 2016)

Several prompts are searched at once, K rows each. A hypothesis that ends leaves the beam for the pool of finished ones
and its place goes to the next best; a prompt is done when no open hypothesis can still enter the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.foundation.errors import WeftError
from weft.inference.decoding.conditioning import (
    MemoryConditioned,
    SourceTexts,
    condition,
    declared,
    device_of,
    eval_mode,
)
from weft.inference.decoding.generate import Ended, Generated, context_limit
from weft.inference.decoding.sessions import DecodingSession, PrefillOptions, start_session

NEVER = float("-inf")


@dataclass(frozen=True)
class Beam:
    """`width` K open hypotheses; `penalty` alpha: 0 favors short texts, more favors long; the `best` are given."""

    width: int = 4
    penalty: float = 0.6
    best: int = 1

    def __post_init__(self) -> None:
        if self.width < 1 or self.best < 1:
            raise WeftError(f"a beam of width {self.width} giving the best {self.best} finds nothing: use at least 1")
        if self.best > self.width:
            raise WeftError(f"the best {self.best} of a beam of width {self.width}: widen it, or ask for fewer")

    def divisor(self, length: int) -> float:
        """lp(n)."""
        return float(((5 + length) / 6) ** self.penalty)


class Node(NamedTuple):
    """The last token of a hypothesis and the way back to its first."""

    before: Node | None
    token: int
    log_probability: float
    look: Tensor | None


class Open(NamedTuple):
    """A hypothesis that goes on: its row among the prompt's K, its log-probability, its last token."""

    row: int
    total: float
    node: Node | None


@dataclass
class Hypotheses:
    """One prompt's search: the open hypotheses and the pool of finished ones, best first."""

    prompt: int
    open: list[Open]
    pool: list[tuple[float, Ended, Node]] = field(default_factory=list)

    def finish(self, beam: Beam, node: Node, total: float, length: int, ended: Ended) -> None:
        """Into the pool, which keeps the best; of equals the one that came first."""
        self.pool.append((total / beam.divisor(length), ended, node))
        self.pool.sort(key=lambda one: -one[0])
        del self.pool[beam.best :]

    def done(self, beam: Beam, length: int, most: int) -> bool:
        """Whether no open hypothesis can enter the pool: its total only falls, so its best length bounds it."""
        if not self.open:
            return True
        if len(self.pool) < beam.best:
            return False
        total = max(one.total for one in self.open)
        return self.pool[-1][0] >= max(total / beam.divisor(length + 1), total / beam.divisor(most))


def beam_search(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    beam: Beam = Beam(),
    *,
    max_tokens: int = 64,
    stop: Sequence[int] = (),
    source: SourceTexts | None = None,
    images: Tensor | None = None,
    prefill: PrefillOptions = PrefillOptions(),
) -> list[list[Generated]]:
    """For each prompt its best continuations, best first; those cut at `max_tokens` compete with those that stopped."""
    if max_tokens < 1:
        raise WeftError(f"max_tokens {max_tokens} writes nothing: use at least 1")
    context_limit(declared(model).length, prompts, max_tokens, "refuse")
    with eval_mode(model), torch.inference_mode():
        conditioned = condition(model, len(prompts), source, images, prefill.side, prefill.native)
        real = conditioned.memory.token_positions.real if isinstance(conditioned, MemoryConditioned) else None
        search = Search(start_session(conditioned, prefill), beam, max_tokens, frozenset(stop), device_of(model))
        found = search.run(prompts)
    return [[_gather(*one, None if real is None else real[h.prompt]) for one in h.pool] for h in found]


class Search:
    """All prompts' searches in step: prompts x K rows, prompts that are done leave."""

    def __init__(
        self, session: DecodingSession, beam: Beam, max_tokens: int, stop: frozenset[int], device: torch.device
    ) -> None:
        self.session, self.beam, self.max_tokens, self.stop, self.device = session, beam, max_tokens, stop, device

    def run(self, prompts: Sequence[Sequence[int]]) -> list[Hypotheses]:
        """One search a prompt; all prompts are read once, then each gets K rows."""
        searches = [Hypotheses(n, [Open(0, 0.0, None)]) for n in range(len(prompts))]
        live, width = searches, 1
        logits = self.session.begin(prompts)
        self.vocabulary = logits.shape[-1]
        for length in range(1, self.max_tokens + 1):
            totals, index = self._candidates(logits, live, width)
            looks = self.session.alignment
            for n, (one, values, places) in enumerate(zip(live, totals.tolist(), index.tolist(), strict=True)):
                at = None if looks is None else looks[n * width : (n + 1) * width]
                self._extend(one, values, places, length, at)
            alive = [n for n, one in enumerate(live) if not one.done(self.beam, length, self.max_tokens)]
            if length == self.max_tokens or not alive:
                break
            rows = [n * width + one.row for n in alive for one in self._filled(live[n])]
            live, width = [live[n] for n in alive], self.beam.width
            self.session.reorder(torch.tensor(rows, device=self.device))
            tokens = [one.node.token if one.node else 0 for s in live for one in self._filled(s)]
            logits = self.session.advance(torch.tensor(tokens, device=self.device))
        return searches

    def _filled(self, one: Hypotheses) -> list[Open]:
        """Exactly K rows: the first stands in where fewer are open, and is never extended."""
        return one.open + [one.open[0]._replace(total=NEVER)] * (self.beam.width - len(one.open))

    def _candidates(self, logits: Tensor, live: list[Hypotheses], width: int) -> tuple[Tensor, Tensor]:
        """Totals and indices (row x C + token) of each prompt's best extensions, enough that K of them go on."""
        chances = logits.double().log_softmax(-1).unflatten(0, (len(live), width))
        before = [[one.total for one in (self._filled(s) if width > 1 else s.open)] for s in live]
        totals = chances + torch.tensor(before, dtype=torch.float64, device=self.device)[:, :, None]
        wanted = min(self.beam.width * (1 + len(self.stop)), totals[0].numel())
        best = totals.flatten(1).topk(wanted)
        return best.values, best.indices

    def _extend(
        self, one: Hypotheses, totals: list[float], places: list[int], length: int, looks: Tensor | None
    ) -> None:
        """Open hypotheses of one token more; those among the K best that stop, or reach the end, are finished."""
        before, one.open = one.open, []
        for rank, (total, place) in enumerate(zip(totals, places, strict=True)):
            if total == NEVER or len(one.open) == self.beam.width:
                break
            row, token = divmod(place, self.vocabulary)
            node = Node(before[row].node, token, total - before[row].total, None if looks is None else looks[row])
            if token not in self.stop:
                one.open.append(Open(row, total, node))
            elif rank < self.beam.width:
                one.finish(self.beam, node, total, length, "stop")
        if length == self.max_tokens:
            for last in one.open:
                assert last.node is not None
                one.finish(self.beam, last.node, last.total, length, "length")


def _gather(score: float, ended: Ended, node: Node | None, real: Tensor | None) -> Generated:
    nodes: list[Node] = []
    while node is not None:
        nodes.append(node)
        node = node.before
    nodes.reverse()
    kept = nodes[:-1] if ended == "stop" else nodes
    looks = [n.look for n in nodes if n.look is not None]
    alignment = torch.stack(looks)[: len(kept)] if looks else None
    if alignment is not None and real is not None:
        alignment = alignment[:, real]
    return Generated([n.token for n in kept], [n.log_probability for n in kept], ended, score, alignment)
