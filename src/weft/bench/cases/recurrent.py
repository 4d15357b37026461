"""`weft bench recurrent`: a training step of recurrent seq2seq with attention, against torch's own nn.GRU and nn.LSTM.

Sources and targets of mixed length, padded; teacher forcing, cross-entropy over real target tokens, fused AdamW for
both; the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.bench.contest import BenchOptions, Contest, Entry, Work
from weft.bench.models.torch_seq2seq import TorchSeq2Seq
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult
from weft.bench.running.turns import hold_contests
from weft.models.recurrent_seq2seq import RecurrentSeq2SeqSpec
from weft.parts.masks import Real

SIZES = {"rows": 32, "source": 24, "target": 24, "vocabulary": 2000, "width": 128, "hidden": 256}
TINY = {"rows": 3, "source": 5, "target": 7, "vocabulary": 23, "width": 8, "hidden": 6}
KINDS = tuple((cell, wiring) for wiring in ("before", "after") for cell in ("gru", "lstm"))
IGNORED, CHECKED = -100, 3


def contests(options: BenchOptions) -> tuple[list[Contest], tuple[str, ...]]:
    """One contest per cell and place of the attention."""
    peers, missing = choose_peers(options.peers, ("torch",))
    sizes = TINY if options.quick else SIZES
    found = []
    for cell, wiring in KINDS[:1] if options.quick else KINDS:
        arguments = {"cell": cell, "wiring": wiring, "sizes": sizes}
        entries = [Entry("weft", "weft.bench.cases.recurrent:step_work", arguments | {"who": "weft"})]
        entries += [
            Entry(peer, "weft.bench.cases.recurrent:step_work", arguments | {"who": peer}, peer=peer) for peer in peers
        ]
        amount = int((batch_of(sizes)[3] - 1).sum())
        name = f"{cell}, attention {wiring} the step"
        found.append(Contest(name, tuple(entries), "target tokens", amount, limits=False))
    return found, missing


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    found, missing = contests(options)
    return hold_contests("recurrent", found, missing, options, report)


def batch_of(sizes: dict[str, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources [B, S], their lengths, targets [B, T + 1], their lengths; padding is 0."""
    made = torch.Generator().manual_seed(1)
    found = []
    for longest in (sizes["source"], sizes["target"] + 1):
        lengths = torch.randint(longest // 2, longest + 1, (sizes["rows"],), generator=made)
        lengths[0] = longest
        tokens = torch.randint(3, sizes["vocabulary"], (sizes["rows"], longest), generator=made)
        tokens[torch.arange(longest) >= lengths[:, None]] = 0
        found += [tokens, lengths]
    source, source_lengths, target, target_lengths = found
    return source, source_lengths, target, target_lengths


# --- in the contestants' processes -----------------------------------------------------------------------------------


def step_work(who: str, cell: str, wiring: str, sizes: dict[str, int]) -> Work:
    """A training step of Weft's model, or of torch's with the same weights."""
    source, lengths, target, target_lengths = batch_of(sizes)
    labels = target[:, 1:].masked_fill(torch.arange(1, target.shape[1]) >= target_lengths[:, None], IGNORED)
    score: Any = "additive" if wiring == "before" else "bilinear"
    spec = RecurrentSeq2SeqSpec(
        vocabulary=sizes["vocabulary"], width=sizes["width"], hidden=sizes["hidden"],
        cell=cell, wiring=wiring, attention=score,
    )  # fmt: skip
    model: Any = weft.build(spec, seed=0)
    if who == "weft":
        seen = Real(torch.arange(source.shape[1]) < lengths[:, None])
        real = Real(torch.arange(target.shape[1] - 1) < (target_lengths - 1)[:, None])

        def logits() -> Tensor:
            return model(source, target[:, :-1], source_mask=seen, mask=real).logits

    else:
        peer = TorchSeq2Seq(cell, wiring, sizes["vocabulary"], sizes["width"], sizes["hidden"]).copy_weights(model)
        model = peer

        def logits() -> Tensor:
            return peer(source, lengths, target[:, :-1])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> Tensor:
        loss = F.cross_entropy(logits().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Work(step, lambda: {"losses": [float(step()) for _ in range(CHECKED)]})
