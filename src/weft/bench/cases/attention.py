"""`weft bench attention`: self-attention of one layer against PyTorch's own, forward and training, causal and full.

Batch 1, width 256, 4 heads of 64, float32, projections included, equal weights:

- raw: one linear map for Q, K, V, F.scaled_dot_product_attention, one linear map out: what the machine allows;
- weft: weft.parts.attention.SelfAttention, whose context and mask are made in each call;
- torch: torch.nn.MultiheadAttention (need_weights=False; causal: is_causal and its float N x N mask, made beforehand).

A table adds the memory of one forward at N = 65,536 beyond what must exist: Q, K, V (3 N x 256 floats) and the output
(N x 256). How time grows with N, and with a window, is `weft bench growth`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.contest import BenchOptions, Contest, Cost, Entry, Work
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult, ResultTable
from weft.bench.running.memory import extra_memory
from weft.bench.running.turns import call_once, hold_contests_and_memory
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal, Window

WIDTH, HEADS, WINDOW = 256, 4, 256
LENGTHS, LONGEST = (2048, 4096, 8192), 65536
PLACE = "weft.bench.cases.attention:"
CHECKED = 32


def contests(options: BenchOptions) -> tuple[list[Contest], tuple[str, ...]]:
    """One contest per length, task and mask."""
    peers, missing = choose_peers(options.peers, ("torch",))
    found = []
    for length in (64,) if options.quick else LENGTHS:
        for task in ("forward", "training"):
            for mask in ("causal", "full"):
                arguments = {"task": task, "mask": mask, "length": length}
                entries = [Entry("weft", f"{PLACE}layer_work", arguments | {"name": "weft"})]
                if peers:
                    entries += [
                        Entry(name, f"{PLACE}layer_work", arguments | {"name": name}, peer="torch")
                        for name in ("raw", "torch")
                    ]
                cost = Cost(flops=_flops(length, mask == "causal") * (1 if task == "forward" else 3))
                name = f"{task} {mask} N={length}"
                shapes = ((length, 3 * WIDTH, WIDTH), (length, WIDTH, WIDTH))
                found.append(
                    Contest(name, tuple(entries), "tokens", length, cost=cost, shapes=shapes, limits=not options.quick)
                )
    return found[:1] if options.quick else found, missing


def _flops(length: int, causal: bool) -> float:
    """Projections 8 D^2 per token, and 4 D per query and key that it may look at."""
    keys = (length + 1) / 2 if causal else length
    return length * (8.0 * WIDTH * WIDTH + 4 * WIDTH * keys)


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    found, missing = contests(options)
    return hold_contests_and_memory("attention", found, missing, options, report, memory_table)


def memory_table(options: BenchOptions, report: Callable[[str], None]) -> ResultTable:
    """Memory of one causal forward at the longest length, beyond input, Q, K, V and output."""
    length = 512 if options.quick else LONGEST
    rows, values = [], []
    for name in ("weft",) if options.quick else ("weft", "weft window", "raw"):
        entry = Entry(name, f"{PLACE}memory_work", {"name": name, "length": length})
        found = call_once(entry, options.threads, report)
        beyond = found.get("MB", math.nan) - 4 * length * WIDTH * 4 / 1e6
        rows.append((name, str(found.get("failure", f"{found.get('MB', 0.0):,.0f}")), f"{beyond:,.0f}"))
        values.append({"contestant": name, "length": length, **found, "MB beyond": beyond})
    return ResultTable(
        f"memory of one causal forward, N = {length:,}", ("contestant", "MB", "MB beyond QKV and output"), tuple(rows),
        values=tuple(values),
    )  # fmt: skip


# --- in the contestants' processes -----------------------------------------------------------------------------------


class Raw(nn.Module):
    """The same projections around scaled_dot_product_attention, nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """[1, N, D] -> [1, N, D]."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.output(y.transpose(1, 2).flatten(-2))


def layer(name: str, mask: str, length: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """(the module, how it is called), all with the same weights."""
    torch.manual_seed(0)
    raw, causal = Raw(), mask == "causal"
    if name == "raw":
        return raw, lambda x: raw(x, causal)
    if name == "torch":
        peer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
        own = ("qkv.weight", "qkv.bias", "output.weight", "output.bias")
        peer.load_state_dict({name: raw.state_dict()[key] for name, key in zip(names, own, strict=True)})
        square = nn.Transformer.generate_square_subsequent_mask(length) if causal else None
        return peer, lambda x: peer(x, x, x, need_weights=False, attn_mask=square, is_causal=causal)[0]
    module = SelfAttention(WIDTH, HEADS)
    module.load_state_dict(raw.state_dict())
    seen: Any = Causal() & Window(WINDOW) if name == "weft window" else Causal() if causal else None
    return module, lambda x: module(x, AttentionContext.of(x, seen))


def layer_work(name: str, task: str, mask: str, length: int) -> Work:
    """One forward without gradients, or one forward and backward to x and all weights."""
    module, call = layer(name, mask, length)
    x = torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(0))
    if task == "forward":
        module.eval()

        def forward() -> Tensor:
            with torch.no_grad():
                return call(x)

        return Work(forward, lambda: {"outputs": _some(forward())})
    x.requires_grad_()
    gradient = torch.ones_like(x)
    module.train()

    def training() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        call(x).backward(gradient)

    def check() -> dict[str, list[float]]:
        training()
        assert x.grad is not None
        return {"outputs": _some(call(x)), "gradients": _some(x.grad)}

    return Work(training, check)


def memory_work(name: str, length: int) -> Work:
    """Peak memory of one causal forward."""
    module, call = layer(name, "causal", length)
    module.eval()

    def forward(n: int) -> None:
        with torch.no_grad():
            call(torch.ones(1, n, WIDTH))

    forward(min(length, 2048))  # thread pools and MKL's buffers exist before the measurement
    x = torch.ones(1, length, WIDTH)

    def run() -> dict[str, float]:
        with torch.no_grad():
            return {"MB": extra_memory(lambda: call(x)) / 1e6}

    return Work(run)


def _some(values: Tensor) -> list[float]:
    """Numbers spread over a tensor."""
    flat = values.detach().flatten()
    return flat[:: max(1, len(flat) // CHECKED)][:CHECKED].tolist()
