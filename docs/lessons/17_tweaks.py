# %% [markdown]
# # 17. Today's tweaks, one at a time
#
# **Lecture topic:** RMSNorm, SwiGLU, mixture of experts, QK-norm, Muon.
#
# Since 2017 the block has been changed in small ways. Each paper says that its change helps. Does it? The only honest
# way to know is an *ablation*: the same model, the same data in the same order, one thing changed, several seeds, and
# error bars.
#
# ## The equation
#
# $$\bar d \pm t_{n-1}\, \frac{s}{\sqrt n}, \qquad d_i = \text{loss with the change} - \text{loss without it, seed } i$$
#
# | tweak | in place of | equation |
# |---|---|---|
# | RMSNorm | LayerNorm | $y = x / \sqrt{\epsilon + \text{mean}\, x^2} \cdot \gamma$ |
# | SwiGLU | MLP with GELU | $(\sigma(x W_1) \cdot x W_2)\, W_3$, hidden width $8D/3$; $\sigma(z) = z / (1 + e^{-z})$ |
# | experts | one MLP | $\sum_{e \in \text{best } A} g_e\, \text{MLP}_e(x)$, $\;p = \text{softmax}(x W_r)$ |
# | QK-norm | nothing | $q, k$ each normalized before $q^T k$ |
# | Muon | AdamW | the update of each matrix is made orthogonal: $G = U S V^T \to U V^T$ |

# %%
import math

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import weft
from weft import lessons
from weft.data.samples import sample
from weft.lessons.learning import learn
from weft.models.build import AnySpec
from weft.parts import experts, feedforward, norms
from weft.training import optimizers

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(norms.rms_norm, feedforward.GatedFeedForward.forward)

# %%
lessons.source(experts.route, experts.Experts.mix)

# %%
lessons.source(optimizers.Muon._momentum, optimizers.Muon.step)

# %% [markdown]
# What does "orthogonal" do to a gradient? A gradient matrix has a few strong directions and many weak ones. Muon
# makes all equally strong. Here are the singular values before and after.

# %%
G = torch.randn(48, 8, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    8, 48, generator=torch.Generator().manual_seed(1)
)
G = G + 0.1 * torch.randn(48, 48, generator=torch.Generator().manual_seed(2))
before = torch.linalg.svdvals(G)
after = torch.linalg.svdvals(optimizers.orthogonalize(G[None])[0])
print("before:", [round(float(s), 2) for s in before[[0, 4, 8, 20, 40]]])
print("after: ", [round(float(s), 2) for s in after[[0, 4, 8, 20, 40]]])

# %% [markdown]
# ## The data and the plain model
#
# Text of Python's standard library, letter by letter. The plain model is the decoder of the lectures: LayerNorm,
# GELU, learned positions, AdamW. Each variant changes one thing. Every seed gives other weights and another order of
# the data; the same seed gives all variants the same order.

# %%
text = sample("stdlib", size=lessons.by_budget(100_000, 1_000_000))
letters = sorted(set(text.train) | set(text.validation))
number = {letter: index for index, letter in enumerate(letters)}
ids = {
    name: torch.tensor([number[c] for c in part]) for name, part in (("train", text.train), ("held", text.validation))
}
LENGTH = 64
plain = weft.preset("decoder").replace(vocabulary=len(letters), length=LENGTH, width=64, layers=3)

RMS = {"kind": "rms"}
VARIANTS: dict[str, tuple[AnySpec, str]] = {
    "plain": (plain, "adamw"),
    "RMSNorm": (plain.replace(norm=RMS), "adamw"),
    "SwiGLU": (plain.replace(feedforward={"kind": "gated"}), "adamw"),
    "experts": (plain.replace(feedforward={"kind": "experts", "experts": 8, "active": 2, "hidden": 86}), "adamw"),
    "QK-norm": (plain.replace(**{"mixer.query_key_norm": RMS}), "adamw"),
    "Muon": (plain, "muon"),
}
counts = {name: sum(p.numel() for p in weft.build(spec).parameters()) for name, (spec, _) in VARIANTS.items()}
print(counts)


# %%
def windows(part: str, rows: int, random: torch.Generator) -> Tensor:
    starts = torch.randint(0, len(ids[part]) - LENGTH - 1, (rows, 1), generator=random)
    return ids[part][starts + torch.arange(LENGTH + 1)]


BALANCE = 0.01  # weight of the loss that keeps experts equally busy


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    out = model(window[:, :-1])
    loss = F.cross_entropy(out.logits.flatten(0, 1), window[:, 1:].flatten())
    return loss + BALANCE * out.auxiliary.get("balance loss", 0.0) if model.training else loss


def held_out(name: str, seed: int, steps: int) -> float:
    """The held-out loss of a variant after training from this seed."""
    spec, optimizer = VARIANTS[name]
    model, random = weft.build(spec, seed=seed), torch.Generator().manual_seed(seed)
    judged = windows("held", 128, torch.Generator().manual_seed(1000))
    curve = learn(
        model,
        lambda _: loss_of(model, windows("train", 16, random)),
        steps,
        lambda: float(loss_of(model, judged)),
        optimizer=optimizer,
        points=1,
    )
    return curve[-1][1]


SEEDS, STEPS = lessons.by_budget(2, 5), lessons.by_budget(40, 2000)
losses = {name: [held_out(name, seed, STEPS) for seed in range(SEEDS)] for name in VARIANTS}

# %% [markdown]
# ## Error bars
#
# The same seed gives all variants the same data, so we compare *pairs*: the difference to the plain model, seed by
# seed. Its mean has a standard error $s / \sqrt{n}$. With $n$ seeds, a difference counts when it is larger than
# $t \cdot s / \sqrt n$, where $t$ is the quantile of Student's distribution for 95 % (12.7 for 2 seeds, 4.30 for 3,
# 2.78 for 5).

# %%
QUANTILE = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}


def difference(name: str) -> tuple[float, float]:
    """Mean difference to the plain model in nats per letter, and half the width of its 95 % interval."""
    pairs = torch.tensor(losses[name]) - torch.tensor(losses["plain"])
    return float(pairs.mean()), QUANTILE[SEEDS] * float(pairs.std()) / math.sqrt(SEEDS)


found = {name: difference(name) for name in VARIANTS if name != "plain"}
print(f"plain: {sum(losses['plain']) / SEEDS:.3f} nats per letter after {STEPS} steps, {SEEDS} seeds")
for name, (mean, half) in found.items():
    verdict = "helps" if mean + half < 0 else "hurts" if mean - half > 0 else "cannot tell"
    print(f"{name:<8} {mean:+.3f} +- {half:.3f}: {verdict}; {counts[name] / counts['plain']:.2f} x the parameters")


# %%
def draw() -> Figure:
    """Differences to the plain model with 95 % intervals."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    names = list(found)
    means, halves = zip(*found.values(), strict=True)
    axes.errorbar(means, range(len(names)), xerr=halves, fmt="o", capsize=4)
    axes.axvline(0, color="gray", linestyle="--")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("held-out loss against the plain model, nats per letter (left is better)")
    return figure


lessons.show(draw(), "Each tweak against the plain model: the mean difference over seeds, with its 95 % interval.")

# %% [markdown]
# Three warnings. First: this is a small model for a few minutes. What helps here may not help at 100 times the size,
# and the other way round: QK-norm is there to keep *large* models stable. Second: one learning rate for all is not
# quite fair; a serious ablation tunes it for each. Third: a difference that is smaller than its interval is *not*
# evidence of no effect.
#
# ## Experts: parameters against compute
#
# Each token passes $A = 2$ of $E = 8$ experts. The parameters of the MLP grow with $E$, the operations with $A$.

# %%
expert_model = weft.build(VARIANTS["experts"][0])
with torch.no_grad():
    busy = expert_model(windows("held", 16, torch.Generator().manual_seed(0))[:, :-1]).auxiliary["routing"]
print("share of the choices by expert, before training:", [round(float(share), 2) for share in busy.mean(0)])

# %% [markdown]
# ## Change something
#
# Measure a variant of your own: rotary positions, squared ReLU, or all tweaks together. Do the gains add up?

# %%
own = plain.replace(feedforward={"kind": "classic", "activation": "squared-relu"})  # change me
VARIANTS["mine"] = (own, "adamw")
print(f"mine: {held_out('mine', 0, STEPS):.3f}, plain: {losses['plain'][0]:.3f} nats per letter, seed 0")

# %% [markdown]
# ## Questions
#
# **17.1** $x = (3, 4)$, $\epsilon = 0$, $\gamma = 1$. What is the first component of RMSNorm$(x)$, to three decimals?

# %%
lessons.check("17.1", ...)

# %% [markdown]
# **17.2** A classic MLP has two matrices, $D \times 4D$ and $4D \times D$. SwiGLU has three, of hidden width $h$.
# Which $h$ gives the same number of weights for $D = 768$?

# %%
lessons.check("17.2", ...)

# %% [markdown]
# **17.3** A mixture of 64 experts, of which 2 are active. By what factor do the weights of the experts outnumber
# those that one token uses?

# %%
lessons.check("17.3", ...)

# %% [markdown]
# ## Claim

# %%
measured = ", ".join(f"{name} {mean:+.3f} +- {half:.3f}" for name, (mean, half) in found.items())
lessons.claim(
    "Muon makes singular values nearly equal that were hundreds of times apart",
    float(after[0] / after[40]) < 3 and float(before[0] / before[40]) > 100,
    f"the first over the 41st: {float(before[0] / before[40]):.0f} before, {float(after[0] / after[40]):.2f} after",
)
lessons.claim("at this size Muon helps by more than its error bar", found["Muon"][0] + found["Muon"][1] < 0, measured)
lessons.claim(
    "RMSNorm in place of LayerNorm changes little: less than 0.05 nats", abs(found["RMSNorm"][0]) < 0.05, measured
)
lessons.claim(
    "SwiGLU of width 8D/3 has as many weights as the MLP, experts have more",
    abs(counts["SwiGLU"] / counts["plain"] - 1) < 0.05 and counts["experts"] > 2 * counts["plain"],
    str(counts),
)
