"""`weft bench train`: a training step of GPTs in three sizes, and the peak of memory at 124 million weights.

All begin with the same weights and see the same tokens; the losses of the first steps are compared. Each step is:
forward, cross-entropy, backward, gradients clipped at norm 1, AdamW (fused for the peers). Weft steps as `weft train`
does; with its default optimizer, Muon, it is a row of its own. Floating-point operations are those of the model: 6 N
per token and attention to the keys that a causal mask leaves; what is computed again is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.contest import BenchOptions, Contest, Entry, Work
from weft.bench.models.gpt2 import GPT2, GPTShape, transformers_gpt2, weft_gpt2, x_transformers_gpt
from weft.bench.models.plain_gpt import PlainGPT
from weft.bench.peers import choose_peers
from weft.bench.results import CaseResult, ResultTable
from weft.bench.running.memory import peak_memory
from weft.bench.running.turns import call_once, hold_contests_and_memory
from weft.checkpoints.run_folder import RunFolder
from weft.tasks.support.splits.split import Batch, Split
from weft.tasks.text import TextOptions, TextTask
from weft.training.loop import Loop
from weft.training.planning.plan import TrainingPlan
from weft.training.training_spec import TrainingSpec

PEERS = ("plain", "transformers", "x-transformers")
RATE, DECAY, CLIP, BETAS, EPSILON = 1e-3, 0.1, 1.0, (0.9, 0.95), 1e-10
CHECKED = 3  # steps whose losses are compared
SIZES = {  # name: (shape, length, batch)
    "4x128 T64 B12": (GPTShape(4, 128, 4, 65, 64), 64, 12),
    "6x384 T256 B16": (GPTShape(6, 384, 6, 65, 256), 256, 16),
    "GPT-2 124M T512 B2": (GPT2, 512, 2),
}
QUICK = {"quick 1x8 T7 B2": (GPTShape(1, 8, 2, 17, 7), 7, 2)}
TOLERANCES = {"float32": 1e-3, "bf16": 2e-2}
Step = Callable[[], Tensor]


def contests(options: BenchOptions) -> tuple[list[Contest], tuple[str, ...]]:
    """The contests, and sentences about peers that are missing."""
    peers, missing = choose_peers(options.peers, PEERS)
    found = []
    for name, (shape, length, batch) in (QUICK if options.quick else SIZES).items():
        arguments = arguments_of(shape, length, batch, options)
        entries = entries_of(arguments, peers, options.compiled)
        found.append(
            Contest(
                name, entries, "tokens", batch * length, cost=shape.training_cost(batch, length),
                shapes=shape.products(batch * length), notes=NOTES, tolerance=TOLERANCES[options.precision],
            )
        )  # fmt: skip
    return found, missing


def arguments_of(shape: GPTShape, length: int, batch: int, options: BenchOptions) -> dict[str, Any]:
    """What every contestant is told."""
    return {"shape": shape.to_tree(), "length": length, "batch": batch, "precision": options.precision}


NOTES = (
    "x-transformers has no biases outside its feed-forward: only its first loss is compared",
    "the same precision for all; `weft train` alone takes bf16 where the processor has units for it: --precision bf16",
)


def entries_of(arguments: dict[str, Any], peers: Sequence[str], compiled: bool) -> tuple[Entry, ...]:
    """Weft with both optimizers, and the peers; with `compiled` each also through torch.compile."""
    place = "weft.bench.cases.train:"
    ways = {"": {}, ", compiled": {"compiled": True}} if compiled else {"": {}}
    found = []
    for words, more in ways.items():
        own = arguments | more
        found.append(Entry(f"weft, AdamW{words}", f"{place}weft_step", own | {"optimizer": "adamw"}))
        found.append(Entry(f"weft, Muon{words}", f"{place}weft_step", own | {"optimizer": "muon"}))
        for peer in peers:
            name = f"{'plain GPT' if peer == 'plain' else peer}{words}"
            found.append(Entry(name, f"{place}peer_step", own | {"peer": peer}, peer=peer))
    return tuple(found)


def run(options: BenchOptions, report: Callable[[str], None]) -> CaseResult:
    """Measure the case."""
    found, missing = contests(options)
    return hold_contests_and_memory("train", found, missing, options, report, memory_table)


def memory_table(options: BenchOptions, report: Callable[[str], None]) -> ResultTable:
    """Peak memory of a training at 124 million weights, each contestant in a process of its own."""
    peers, _ = choose_peers(options.peers, PEERS)
    shape, length, batch = next(iter(QUICK.values())) if options.quick else (GPT2, 1024, 4)
    arguments = arguments_of(shape, length, batch, options) | {"memory": True}
    found = {
        entry.name: call_once(entry, options.threads, report)
        for entry in entries_of(arguments, peers, False)
        if "Muon" not in entry.name and not (options.quick and entry.peer)
    }
    first = found["weft, AdamW"].get("peak MB", math.nan)
    rows, values = [], []
    for name, numbers in found.items():
        peak = numbers.get("peak MB", math.nan)
        share = first / peak if peak else math.nan  # what is tiny may take no page more
        rows.append((name, str(numbers["failure"]) if "failure" in numbers else f"{peak:,.0f}", f"{share:.2f}"))
        values.append({"contestant": name, **numbers, "weft as a share of it": share})
    title = f"peak memory of training, {shape.layers} layers x {shape.width}, context {length}, batch {batch}"
    notes = ("resident memory above what was resident before the model was made; each with weights of its own",)
    return ResultTable(title, ("contestant", "MB", "weft as a share of it"), tuple(rows), notes, tuple(values))


# --- in the contestants' processes -----------------------------------------------------------------------------------


class RandomTokens(Split):
    """Rows of random tokens, the same for every contestant: example n always is the same row."""

    def __init__(self, vocabulary: int, length: int, rows: int) -> None:
        made = torch.Generator().manual_seed(0)
        self.rows = torch.randint(vocabulary, (rows, length + 1), generator=made)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        return self.rows[:, 1:].numel()

    def batch(self, examples: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        rows = self.rows[list(examples)]
        return Batch({"tokens": rows[:, :-1]}, rows[:, 1:], rows[:, 1:].numel(), rows[:, 1:].numel())

    def batches(self, size: int, seed: int | None, epoch: int = 0) -> Sequence[Sequence[int]]:
        """One batch of all rows: what is measured is the step, not the reading."""
        return [range(len(self.rows))]


def weft_loop(model: nn.Module, split: RandomTokens, optimizer: Any, precision: Any) -> Loop:
    """The loop of `weft train`, at a constant rate."""
    training = TrainingSpec(
        optimizer=optimizer, precision=precision, rate=RATE, weight_decay=DECAY, clip=CLIP,
        warmup=0.0, decay=0.0, guard=False,
    )  # fmt: skip
    far = 10**9
    plan = TrainingPlan(
        steps=far, batch=split.tokens, evaluate_every=far, evaluate_tokens=far, checkpoint_every=far,
        threads=torch.get_num_threads(), parameters=0, tokens=0, epochs=0.0, memory=0,
    )  # fmt: skip
    task = TextTask(TextOptions(), None)  # type: ignore[arg-type]  # the loss needs no tokenizer
    return Loop(task, model.train(), split, split, training, plan, RunFolder(Path("unused")))


def weft_step(
    shape: dict[str, int], length: int, batch: int, precision: str, optimizer: str, compiled: bool = False,
    memory: bool = False,
) -> Work:  # fmt: skip
    """A step as `weft train` takes it."""

    def make(own: GPTShape) -> Step:
        loop = weft_loop(weft_gpt2(own), RandomTokens(own.vocabulary, length, batch), optimizer, precision)
        if compiled:
            loop.compile()

        def step() -> Tensor:
            loss, _ = loop.one_step()
            loop.step += 1
            return loss

        return step

    return as_work(make, GPTShape(**shape), memory, every_loss=optimizer == "adamw")


def peer_step(
    shape: dict[str, int], length: int, batch: int, precision: str, peer: str, compiled: bool = False,
    memory: bool = False,
) -> Work:  # fmt: skip
    """A step of another library with fused AdamW; `peer`: plain, transformers or x-transformers."""

    def make(own: GPTShape) -> Step:
        module, loss_of = peer_module(peer, own, copied=not memory)
        module.train()
        loss_of = torch.compile(loss_of) if compiled else loss_of
        rows = RandomTokens(own.vocabulary, length, batch).rows
        tokens, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        weights = list(module.parameters())
        groups = [
            {"params": [w for w in weights if w.dim() >= 2], "weight_decay": DECAY},
            {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON, fused=True)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = loss_of(tokens, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(weights, CLIP)
            optimizer.step()
            return loss.detach()

        return step

    return as_work(make, GPTShape(**shape), memory, every_loss=peer != "x-transformers")


def peer_module(
    peer: str, shape: GPTShape, copied: bool = True
) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """(the module, its mean loss of tokens and labels), with Weft's weights if `copied`."""
    model = weft_gpt2(shape) if copied else None
    if peer == "plain":
        plain = PlainGPT(shape.layers, shape.width, shape.heads, shape.vocabulary, shape.length)
        return (plain if model is None else plain.copy_weights(model)), plain
    module = (transformers_gpt2 if peer == "transformers" else x_transformers_gpt)(model, shape)

    def loss(tokens: Tensor, labels: Tensor) -> Tensor:
        logits = module(tokens)
        logits = logits.logits if peer == "transformers" else logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return module, loss


def as_work(make: Callable[[GPTShape], Step], shape: GPTShape, memory: bool, every_loss: bool) -> Work:
    """Steps as work that is timed and checked, or as one measurement of peak memory."""
    if memory:
        tiny = replace(shape, layers=1, width=2 * shape.heads, vocabulary=7)
        make(tiny)()  # torch loads modules and libraries at the first step of an optimizer
        return peak_memory(lambda: make(shape))
    step = make(shape)

    def check() -> dict[str, list[float]]:
        losses = [float(step()) for _ in range(CHECKED)]
        return {"first loss": losses[:1], **({"losses": losses} if every_loss else {})}

    return Work(step, check)
