# %% [markdown]
# # 16. From O(N^2) to O(N)
#
# **Lecture topic:** the cost of attention; FlashAttention.
#
# Attention compares each of $N$ queries with each of $N$ keys. The weights $A$ of $H$ heads are $H N^2$ numbers. For
# $N = 100{,}000$ and $H = 64$ in 16 bit these are $1.28 \cdot 10^{12}$ bytes, 1,192 GiB. No device holds them.
#
# ## The equation
#
# But nobody needs $A$. We need $Y = \text{softmax}(E)\, V$. A softmax can be computed while its scores come in
# blocks, one after the other. For one query, keep three things: the largest score so far $m$, the sum $l$, and the
# output $y$.
#
# $$m' = \max(m, \max_j e_j), \qquad l' = l\, e^{m - m'} + \sum_j e^{e_j - m'}, \qquad
# y' = y\, e^{m - m'} + \sum_j e^{e_j - m'}\, v_j$$
#
# At the end the output is $y / l$. It is *exact*: no approximation. Memory is $O(N)$. Time is still $O(N^2)$.

# %%
import math
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from weft import lessons
from weft.lessons.costs import cost_of, exponent
from weft.parts import online_softmax
from weft.parts.attention_context import AttentionContext
from weft.parts.kernels import explicit
from weft.parts.linear_attention import chunked
from weft.parts.masks import Causal, Window
from weft.parts.online_softmax import online_softmax_attention
from weft.parts.scores import ScaledDot

print(f"{64 * 100_000**2 * 2:.3g} bytes = {64 * 100_000**2 * 2 / 2**30:,.0f} GiB")

# %% [markdown]
# ## By hand: a softmax in two blocks
#
# Five scores and five values. First all at once. Then three, and then two, with what was kept of the three.

# %%
e, v = torch.tensor([2.0, 5.0, 1.0, 7.0, 3.0]), torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
print("all at once:", float(e.softmax(0) @ v))

m, total, y = torch.tensor(-math.inf), torch.tensor(0.0), torch.tensor(0.0)
for scores, values in ((e[:3], v[:3]), (e[3:], v[3:])):
    largest = torch.maximum(m, scores.max())
    p, shrink = torch.exp(scores - largest), torch.exp(m - largest)
    m, total, y = largest, total * shrink + p.sum(), y * shrink + p @ values
    print(
        f"after a block: m = {float(m):.0f}, l = {float(total):.4f}, y = {float(y):.4f}, y / l = {float(y / total):.4f}"
    )

# %% [markdown]
# ## The part of Weft that is the equation
#
# `weft.parts.online_softmax` is FlashAttention to be read: forward and backward, in plain PyTorch. In the backward
# pass the weights of each block are computed again, from the scores and the kept $L = m + \log l$. (In daily work a
# compiled kernel does the same.)

# %%
lessons.source(online_softmax._OnlineSoftmax)

# %% [markdown]
# ## Exact, also its gradients


# %%
def inputs(length: int, width: int = 32, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, keys and values [1, 1, N, D]."""
    random = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, length, width, generator=random, dtype=dtype) for _ in range(3)]


def causal(length: int) -> AttentionContext:
    return AttentionContext.of(torch.empty(1, length, 1), Causal())


def stored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The weights as a whole in memory."""
    return explicit(q, k, v, causal(q.shape[2]), ScaledDot())[0]


def online(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A block of keys at a time."""
    return online_softmax_attention(q, k, v, causal(q.shape[2]))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's compiled kernel."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention: without the softmax, another function, and O(N) in time as well."""
    return chunked(F.elu(q) + 1, F.elu(k) + 1, v)[0]


results = {}
for name, attend in {"stored": stored, "online": online}.items():
    given = [x.requires_grad_() for x in inputs(300, dtype=torch.float64)]
    out = attend(*given)
    results[name] = [out.detach(), *torch.autograd.grad(out.square().sum(), given)]
apart = max(float((a - b).abs().max()) for a, b in zip(results["stored"], results["online"], strict=True))
print(f"output and three gradients differ by at most {apart:.1e} in float64")

# %% [markdown]
# ## Memory, measured
#
# The kernel of the operating system counts the pages that a call touches at its peak, beyond what was there before.
# We double $N$ and look. The method that stores $A$ stops where $A$ would take gigabytes.

# %%
LENGTHS = lessons.by_budget((1024, 2048, 4096, 8192, 16384), (1024, 2048, 4096, 8192, 16384, 32768, 65536))
STORED_UP_TO = lessons.by_budget(4096, 8192)
METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "stored": stored,
    "online": online,
    "fused": fused,
    "linear attention": linear,
}
memory: dict[str, list[float]] = {}
seconds: dict[str, list[float]] = {}
for name, call in METHODS.items():
    call(*inputs(256))  # what is made at the first call is not counted
    lengths = [length for length in LENGTHS if name != "stored" or length <= STORED_UP_TO]
    costs = [cost_of(partial(call, *inputs(length)), repeats=1) for length in lengths]
    seconds[name], memory[name] = ([cost[kind] for cost in costs] for kind in (0, 1))
    print(
        f"{name:<17} N = {lengths[-1]:>6,}: {memory[name][-1]:>8.1f} MiB, {seconds[name][-1]:>7.2f} s; "
        f"exponents: memory {exponent(lengths, memory[name]):.2f}, time {exponent(lengths, seconds[name]):.2f}"
    )


# %%
def draw() -> Figure:
    """Memory and time against N, both axes logarithmic: the slope is the exponent."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, found, label in zip(
        figure.subplots(1, 2), (memory, seconds), ("MiB beyond inputs", "seconds, once"), strict=True
    ):
        for name, points in found.items():
            axes.loglog(LENGTHS[: len(points)], points, "o-", label=name, base=2)
        axes.set_xlabel("N")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    axes.legend()
    return figure


lessons.show(draw(), "Peak memory and time of one causal attention of one head, width 32, against the length N.")

# %% [markdown]
# *Stored* quadruples with each doubling of $N$. *Online* and *fused* double. In time, all three quadruple: the
# comparisons are still made. To be $O(N)$ in time too, one must compare less (a window, below) or leave out the
# softmax (linear attention, lesson 15). Both are other functions.
#
# ## A window: fewer pairs
#
# A query that sees only $w$ keys makes $N w$ comparisons. Masks compose, and say how many pairs they show.

# %%
for length in (500, 1_000, 2_000):
    pairs = {repr(mask): int(mask.grid(length).sum()) for mask in (Causal(), Causal() & Window(64))}
    print(f"N = {length:,}:", ", ".join(f"{name} {count:,} pairs" for name, count in pairs.items()))
print(Causal() & Window(3))

# %% [markdown]
# ## Change something
#
# The block of keys may have any size. Small blocks take less memory, and more steps. Find the size that is fastest on
# your machine.

# %%
blocks = (16, 64, 256, 1024)  # change me
q, k, v = inputs(lessons.by_budget(1024, 8192))
for block in blocks:
    with torch.no_grad():
        start = time.perf_counter()
        online_softmax_attention(q, k, v, causal(q.shape[2]), block=block)
    print(f"blocks of {block:>4}: {time.perf_counter() - start:.3f} s")

# %% [markdown]
# ## Questions
#
# **16.1** How many bytes are the weights $A$ of one head for $N = 65{,}536$ in float32? Give the number of GiB.

# %%
lessons.check("16.1", ...)

# %% [markdown]
# **16.2** In the example by hand, what is $l$ after both blocks, to four decimals? Could you have known it without
# the first $l$?

# %%
lessons.check("16.2", ...)

# %% [markdown]
# **16.3** A model decodes one token after the other with a cache of keys and values. By what factor does the cache
# grow, if the text becomes twice as long: 1, 2 or 4?

# %%
lessons.check("16.3", ...)

# %% [markdown]
# ## Claim

# %%
slopes = {name: exponent(LENGTHS[: len(memory[name])], memory[name]) for name in METHODS}
measured = ", ".join(f"{name} N^{slopes[name]:.2f} (at last {memory[name][-1]:.0f} MiB)" for name in METHODS)
lessons.claim("the online softmax is exact, gradients included", apart < 1e-10, f"largest difference {apart:.1e}")
lessons.claim(
    "memory grows with N^2 where weights are stored, and with N where they are not",
    slopes["stored"] > 1.7 and all(slopes[name] < 1.3 for name in ("online", "fused")),
    measured,
)
whole = LENGTHS[-1] ** 2 * 4 / 2**20
lessons.claim(
    f"at N = {LENGTHS[-1]:,} the online softmax takes less than a tenth of what the weights alone would take",
    memory["online"][-1] < whole / 10,
    f"{memory['online'][-1]:,.0f} MiB against {whole:,.0f} MiB",
)
