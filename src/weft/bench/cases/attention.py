"""Self-attention of one layer against PyTorch's own, in time and memory, as the length N grows.

Batch 1, width 256, 4 heads of 64, float32, projections included. Contestants, with equal weights where they compute
the same (which is checked first):

- raw: one linear map for Q, K, V, F.scaled_dot_product_attention, one linear map out: what the machine allows;
- weft: weft.parts.attention.SelfAttention with AttentionContext.of(x, causal) or without a mask, made in each
  call;
- torch: torch.nn.MultiheadAttention (need_weights=False; causal: is_causal and its float N x N mask, made beforehand);
  up to N = 16,384, because of that mask;
- weft window: SelfAttention that sees causal & window(256): O(N w) instead of O(N^2).

Measured: `forward` (no_grad, eval; up to N = 65,536, without a mask 16,384) and `training` (forward and backward to x
and all weights; up to N = 16,384, without a mask 8,192); the fitted exponent p of time = c N^p over N >= 2,048; and
extra memory in a fresh process (see timing.py): the peak of resident memory during a call less what was resident before
it, that is beyond input and weights. Of that, Q, K, V (3 N x 256 floats) and the output (N x 256) must exist; `beyond`
is what comes on top: heads' values before the last projection (N x 256) while Q, K, V are still held, the kernel's own.

Targets: weft at most 1.05 x raw at N >= 2,048, both tasks and masks; `beyond` at most 150 MB at N = 65,536, forward;
exponent of the window at most 1.1. Speed is never a test: the exit code is 0 in any case.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timing import MEGABYTE, Call, begin, exponent, extra_memory, fresh, interleave, limit, report, table
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import Causal, Window

WIDTH, HEADS, WINDOW = 256, 4, 256
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
LONGEST = {
    ("forward", "causal"): 65536,
    ("forward", "full"): 16384,
    ("training", "causal"): 16384,
    ("training", "full"): 8192,
}
LONGEST_OF_TORCH = 16384
MEMORY_AT = {"forward": (16384, 65536), "training": (8192,)}


class Raw(nn.Module):
    """The same projections around scaled_dot_product_attention, nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """[1, N, D] -> [1, N, D]."""
        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(*heads, is_causal=causal)
        return self.output(y.transpose(1, 2).flatten(-2))


def contestants(mask: str, length: int) -> dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """The modules that run at this length, with equal weights, and how each is called."""
    torch.manual_seed(0)
    causal = mask == "causal"
    raw = Raw()
    weft = SelfAttention(WIDTH, HEADS)
    weft.load_state_dict(raw.state_dict())
    found: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
        "raw": (raw, lambda x: raw(x, causal)),
        "weft": (weft, lambda x: weft(x, AttentionContext.of(x, Causal() if causal else None))),
    }
    if length <= LONGEST_OF_TORCH:
        peer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        names = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
        own = ("qkv.weight", "qkv.bias", "output.weight", "output.bias")
        peer.load_state_dict({name: raw.state_dict()[key] for name, key in zip(names, own, strict=True)})
        square = nn.Transformer.generate_square_subsequent_mask(length) if causal else None
        found["torch"] = (
            peer,
            lambda x: peer(x, x, x, need_weights=False, attn_mask=square, is_causal=causal)[0],
        )
    if causal:
        window = Causal() & Window(WINDOW)
        found["weft window"] = (weft, lambda x: weft(x, AttentionContext.of(x, window)))
    return found


def as_call(module: nn.Module, run: Callable[[Tensor], Tensor], task: str, x: Tensor) -> Call:
    """One forward, or one forward and backward, as a call without arguments."""
    if task == "forward":

        def forward() -> Tensor:
            module.eval()
            with torch.no_grad():
                return run(x)

        return forward

    x = x.detach().requires_grad_()
    gradient = torch.ones_like(x)

    def training() -> None:
        module.train()
        module.zero_grad(set_to_none=True)
        x.grad = None
        run(x).backward(gradient)

    return training


def calls(task: str, mask: str, length: int) -> dict[str, Call]:
    """All contestants of one row of the table."""
    x = torch.randn(1, length, WIDTH)
    return {name: as_call(*found, task, x) for name, found in contestants(mask, length).items()}


def memory(task: str, mask: str, length: int, name: str) -> int:
    """Extra bytes of one call of one contestant; runs in a fresh process."""
    # Thread pools and MKL's buffers exist before the measurement begins.
    as_call(*contestants(mask, 2048)[name], task, torch.randn(1, 2048, WIDTH))()
    return extra_memory(as_call(*contestants(mask, length)[name], task, torch.randn(1, length, WIDTH)))


def check() -> None:
    """All contestants give the same numbers, forward and backward."""
    for mask in ("causal", "full"):
        x = torch.randn(1, 1500, WIDTH, requires_grad=True)
        answers = {}
        for name, (_, run) in contestants(mask, 1500).items():
            (gradient,) = torch.autograd.grad(run(x).square().sum(), x)
            answers[name] = (run(x).detach(), gradient)
        for name, found in answers.items():
            if name != "weft window":
                torch.testing.assert_close(found, answers["raw"], rtol=1e-3, atol=1e-4)


def measure(lengths: list[int], seconds: float, minutes: float) -> list[dict[str, Any]]:
    """One entry per contestant, task, mask and length, short lengths first; none is started after `minutes`."""
    results = []
    started = time.perf_counter()
    for length, task, mask in itertools.product(sorted(lengths), ("forward", "training"), ("causal", "full")):
        if length > LONGEST[task, mask]:
            continue
        if time.perf_counter() - started > 60 * minutes:
            print(f"left out for lack of time (--minutes): {task} {mask} {length}", file=sys.stderr)
            continue
        rounds = interleave(calls(task, mask, length), seconds, most=20, warm=length <= 8192)
        for name in rounds.times:
            entry = {
                "contestant": name,
                "task": task,
                "mask": mask,
                "length": length,
                "value": rounds.best(name),
                "unit": "s",
                "median": rounds.median(name),
                "ratio": rounds.ratio(name, "raw"),
                "paired": rounds.paired(name, "raw"),
                "rounds": len(rounds),
            }
            if length in MEMORY_AT[task]:
                entry["memory"] = fresh(memory, task, mask, length, name) / MEGABYTE
                if task == "forward":
                    entry["beyond"] = entry["memory"] - 4 * length * WIDTH * 4 / MEGABYTE
            results.append(entry)
        print(f"{task} {mask} {length}: {time.perf_counter() - started:.0f} s so far", file=sys.stderr, flush=True)
    order = {(r["task"], r["mask"]): None for r in results}
    return [r for kind in sorted(order) for r in results if (r["task"], r["mask"]) == kind]


def exponents(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fitted growth of each contestant's time, over N >= 2,048."""
    kinds = dict.fromkeys((r["task"], r["mask"], r["contestant"]) for r in results)
    found = []
    for task, mask, name in kinds:
        own = [r for r in results if (r["task"], r["mask"], r["contestant"]) == (task, mask, name)]
        own = [r for r in own if r["length"] >= 2048]
        if len(own) >= 2:
            p = exponent([r["length"] for r in own], [r["value"] for r in own])
            entry = {"contestant": name, "task": task, "mask": mask, "value": p, "unit": "exponent of N"}
            found.append(entry | {"lengths": [r["length"] for r in own]})
    return found


def limits(results: list[dict[str, Any]], growth: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets, with what was reached."""
    found = []
    for r in results:
        if r["contestant"] == "weft" and r["length"] >= 2048:
            what = f"weft, {r['task']} {r['mask']} at {r['length']}: time / raw"
            found.append(limit(what, r["ratio"], 1.05, r["rounds"]))
        if r["contestant"].startswith("weft") and r["length"] == 65536 and "beyond" in r:
            what = f"{r['contestant']}, {r['task']} {r['mask']} at 65536: MB beyond input, QKV and output"
            found.append(limit(what, r["beyond"], 150))
    for g in growth:
        if g["contestant"] == "weft window":
            found.append(limit(f"weft window, {g['task']}: exponent of N", g["value"], 1.1))
    return found


def as_text(results: list[dict[str, Any]], growth: list[dict[str, Any]]) -> str:
    """The tables."""
    rows = []
    for r in results:
        numbers = [
            f"{r['value']:.4f}",
            f"{r['median']:.4f}",
            f"{r['ratio']:.3f}",
            f"{r['paired']:.3f}",
            str(r["rounds"]),
        ]
        more = [f"{r['memory']:.0f}" if "memory" in r else "", f"{r['beyond']:.0f}" if "beyond" in r else ""]
        rows.append([r["contestant"], r["task"], r["mask"], str(r["length"]), *numbers, *more])
    headings = ["contestant", "task", "mask", "N", "best s", "median s", "/ raw", "paired", "rounds", "MB", "MB beyond"]
    curves = [[g["contestant"], g["task"], g["mask"], f"{g['value']:.2f}"] for g in growth]
    return table(headings, rows) + "\n\n" + table(["contestant", "task", "mask", "exponent of N"], curves)


def main() -> None:
    """Parse, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="lengths N to measure")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="time for the rounds per length (at least one round)"
    )
    parser.add_argument("--minutes", type=float, default=6.5, help="start nothing new after this time")
    parser.add_argument("--threads", type=int, help="threads of torch (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of tables")
    options = parser.parse_args()
    begin(options.threads)
    check()
    results = measure(options.lengths, options.seconds, options.minutes)
    growth = exponents(results)
    report(results + growth, limits(results, growth), as_text(results, growth), options.json)


if __name__ == "__main__":
    main()
