# %% [markdown]
# # 19. Many machines
#
# **Lecture topic:** training where one machine is not enough.
#
# A batch is too slow for one processor, or a model too large for one memory. Then many share the work.
#
# ## The equation
#
# The loss of a batch is a mean over its examples. So its gradient is a mean of gradients. Give each of $n$ processes
# a part of the batch, let each compute its gradient, and average:
#
# $$\nabla \frac1B \sum_{b=1}^{B} \ell_b
# = \frac1n \sum_{r=1}^{n} \Big( \frac{n}{B} \sum_{b \in \text{part } r} \nabla \ell_b \Big)$$
#
# This is *data parallelism* (DDP). Every process has the whole model, and all take the same step. It is not an
# approximation: one process or many, the loss is the same, up to rounding.
#
# The average is computed by an *all-reduce*. In a ring each process sends
#
# $$2\, \frac{n - 1}{n}\, M \text{ bytes}$$
#
# for gradients of $M$ bytes: hardly more for 1,000 processes than for 10.

# %%
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import weft
from weft import lessons
from weft.models.cluster import communication, failures
from weft.models.cluster.cluster_plan import plan_cluster
from weft.models.cluster.device_memory import SIZES, state_memory
from weft.models.cluster.device_table import device_table, read_cluster

# %% [markdown]
# ## A mean of gradients is the gradient of the mean

# %%
model = weft.build(
    weft.preset("nano-llama").replace(vocabulary=50, width=32, layers=2, **{"feedforward.hidden": 88}),
    dtype=torch.float64,
)
batch = torch.randint(0, 50, (8, 17), generator=torch.Generator().manual_seed(0))


def gradient(part: Tensor) -> Tensor:
    """The gradient of the mean loss on some texts, as one vector."""
    loss = F.cross_entropy(model(part[:, :-1]).logits.flatten(0, 1), part[:, 1:].flatten())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


whole = gradient(batch)
parts = [gradient(part) for part in batch.chunk(4)]
apart = float((torch.stack(parts).mean(0) - whole).abs().max())
print(f"the mean of four gradients and the gradient of the whole batch differ by {apart:.1e}")

# %% [markdown]
# ## An all-reduce in a ring, by hand
#
# Four processes stand in a ring. Each vector is cut into four pieces. In three steps each process sends one piece to
# its right neighbor, who adds it: then each holds one piece of the sum. In three more steps the finished pieces
# travel around.


# %%
def ring_all_reduce(vectors: list[Tensor]) -> tuple[list[Tensor], int]:
    """(what each process holds in the end, bytes that each has sent)."""
    n = len(vectors)
    pieces = [list(vector.clone().chunk(n)) for vector in vectors]
    sent = 0
    for step in range(n - 1):  # reduce-scatter: add
        moving = [pieces[rank][(rank - step) % n].clone() for rank in range(n)]
        for rank in range(n):
            place = (rank - 1 - step) % n
            pieces[rank][place] = pieces[rank][place] + moving[(rank - 1) % n]
        sent += moving[0].numel() * moving[0].element_size()
    for step in range(n - 1):  # all-gather: copy
        moving = [pieces[rank][(rank + 1 - step) % n].clone() for rank in range(n)]
        for rank in range(n):
            pieces[rank][(rank - step) % n] = moving[(rank - 1) % n]
        sent += moving[0].numel() * moving[0].element_size()
    return [torch.cat(own) for own in pieces], sent


size = whole.numel() // 4 * 4
reduced, sent = ring_all_reduce([part[:size] for part in parts])
expected = communication.all_reduce_bytes(size * 8, 4)
ring_apart = max(float((own / 4 - whole[:size]).abs().max()) for own in reduced)
print(f"each process sent {sent:,} bytes; the formula says {expected:,.0f}; the mean differs by {ring_apart:.1e}")

# %% [markdown]
# ## The part of Weft that is the equation
#
# torch.distributed does the sending. Weft says what is divided, and what a process holds.

# %%
lessons.source(communication.all_reduce_bytes, communication.reduce_scatter_bytes, state_memory)

# %% [markdown]
# ## Two real processes
#
# The same training twice: by one process, and by two that speak with each other over a local network. In float64, so
# that rounding is out of the way. On many machines `torchrun` starts the same command on each.

# %%
Path("book.txt").write_text("the quick brown fox jumps over the lazy dog, and the dog sleeps in the sun.\n" * 400)
SETTINGS = ["width=16", "layers=1", "length=32", "training.batch=256", "training.precision=float64"]


def train_with(processes: int, steps: int) -> list[float]:
    """Held-out losses of a run by so many processes."""
    words = [sys.executable, "-m", "weft", "train", "text", "book.txt", "--out", f"runs/{processes}"]
    words += ["--preset", "nano-gpt", "--steps", str(steps), "--set", f"training.evaluate_every={max(1, steps // 5)}"]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    words += ["--processes", str(processes)] if processes > 1 else []
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows = [json.loads(line) for line in Path(f"runs/{processes}/metrics.jsonl").read_text().splitlines()]
    return [row["validation"] for row in rows if "validation" in row]


steps = lessons.by_budget(10, 100)
one, two = train_with(1, steps), train_with(2, steps)
process_apart = max(abs(a - b) for a, b in zip(one, two, strict=True))
print(f"losses by one process: {[round(loss, 4) for loss in one][:6]}")
print(f"losses by two:         {[round(loss, 4) for loss in two][:6]}")
print(f"largest difference: {process_apart:.1e}")

# %% [markdown]
# ## What if the model does not fit?
#
# Training with Adam in mixed precision takes 16 bytes per parameter: weights (2), gradients (2), and in 32 bit a copy
# of the weights and two moments (12). GPT-3 has 175 billion parameters. DDP puts all of it on every device. *Fully
# sharded* data parallelism (FSDP) gives each of $n$ devices $1/n$ of everything, and gathers each block when it is
# needed.

# %%
PARAMETERS = sum(weight.numel() for weight in weft.build("gpt3-175b", device="meta").parameters())
shards = [1, 8, 64, 512, 1024]
held = {n: sum(state_memory(PARAMETERS, SIZES["bf16"], n)) / 2**30 for n in shards}
for n, gib in held.items():
    print(f"{n:>5} devices: {gib:>9,.1f} GiB each")


def draw() -> Figure:
    """Memory per device against the number of devices, with the memory of one."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.loglog(shards, list(held.values()), "o-", label="FSDP: weights, gradients, moments")
    axes.axhline(held[1], color="tab:red", linestyle=":", label="DDP: all of it, everywhere")
    axes.axhline(80, color="gray", linestyle="--", label="a device of 80 GB")
    axes.set_xlabel("devices")
    axes.set_ylabel("GiB per device")
    axes.legend(fontsize=8)
    return figure


lessons.show(draw(), "GPT-3 in training: memory per device, against the number of devices that share it.")

# %% [markdown]
# ## A plan for GPT-3
#
# Layouts mix data parallelism, sharding, and *tensor parallelism* (some heads and hidden units of each layer per
# device). `weft plan` costs them all. It is an estimate: nothing is run.
#
#     weft plan gpt3-175b --devices 1024xA100-80 --tokens 300B

# %%
cluster = read_cluster("1024xA100-80", device_table())  # change me
plan = plan_cluster(weft.preset("gpt3-175b"), cluster, tokens=300_000_000_000)
best = plan.best
print(best.layout)
print(f"memory per device: {best.memory.total / 2**30:.0f} GiB")
print(f"step: {best.time.total:.1f} s, {plan.steps:,} steps, {plan.days(best):.0f} days, MFU {plan.mfu(best):.0%}")
print(f"sent by each device per step: {sum(best.sent.values()) / 2**30:.1f} GiB")

# %% [markdown]
# ## Things break
#
# If one device fails every few years, one of 1,024 fails every few days or hours. A checkpoint every $t$ seconds
# costs $C/t$ of the time, and each failure loses $t/2$ on average. The best $t$ is $\sqrt{2 C M}$, where $M$ is the
# time between failures (Young 1974).

# %%
C, M = 60.0, 6 * 3600.0
times = torch.logspace(1.5, 4.5, 400)
lost = C / times + times / (2 * M)
best_by_search, best_by_formula = float(times[lost.argmin()]), failures.young_interval(C, M)
print(f"searched: {best_by_search:,.0f} s; formula: {best_by_formula:,.0f} s; lost at best: {float(lost.min()):.1%}")
print("for the plan above:", plan.failures)

# %% [markdown]
# ## Change something
#
# Plan for your own cluster: go back to the cell of the plan, and change the devices to `8xRTX4090` and the model to
# `gpt2`. When does the plan choose tensor parallelism? Run `train_with(3, steps)`: does the loss change?
#
# ## Questions
#
# **19.1** A model of 7 billion parameters, trained with Adam in mixed precision, 16 bytes per parameter. How many
# devices of 80 GB ($80 \cdot 10^9$ bytes) does its state need at least, activations not counted?

# %%
lessons.check("19.1", ...)

# %% [markdown]
# **19.2** 8 processes all-reduce gradients of 1,000,000 bytes in a ring. How many bytes does each send?

# %%
lessons.check("19.2", ...)

# %% [markdown]
# **19.3** A checkpoint takes 50 seconds, and some device fails every 10,000 seconds. After how many seconds should
# the next checkpoint be written?

# %%
lessons.check("19.3", ...)

# %% [markdown]
# ## Claim

# %%
lessons.claim("the mean of gradients is the gradient of the mean", apart < 1e-12, f"largest difference {apart:.1e}")
lessons.claim(
    "a ring all-reduce sends 2 (n - 1) / n of the payload, and gives the mean",
    sent == expected and ring_apart < 1e-12,
    f"{sent:,} bytes, {expected:,.0f} by the formula",
)
lessons.claim(
    "one process and two have the same losses",
    len(one) > 1 and process_apart < 1e-9,
    f"{len(one)} losses, largest difference {process_apart:.1e}",
)
lessons.claim(
    "the formula for checkpoints finds the best interval",
    abs(best_by_search / best_by_formula - 1) < 0.05,
    f"{best_by_search:,.0f} s against {best_by_formula:,.0f} s",
)
