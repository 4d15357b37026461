# %% [markdown]
# # 18. Laws: break a model on purpose, and catch it
#
# **Lecture topic:** masks, autoregression, and what may depend on what.
#
# A language model is trained on every position at once. Output $i$ predicts token $i+1$, so it must not see token
# $i+1$. One wrong index in the mask, and it does. Nothing crashes. The loss becomes *better*. The model is worthless.
#
# ## The equation
#
# Such a mistake breaks a law that can be written down:
#
# $$D_{ij} = \max_c \left| f(x)_{ic} - f(x^{(j)})_{ic} \right| = 0 \quad \text{for all } j > i$$
#
# Here $x^{(j)}$ is the text $x$ with another token at place $j$. $D_{ij}$ says how much output $i$ depends on input
# $j$. Causality means that everything above the diagonal of $D$ is *exactly* zero. Not small: zero. Equal shapes
# round equally.
#
# In this lesson you write a small GPT in plain PyTorch, break it in eight ways, and let the checker find out.

# %%
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from weft import lessons
from weft.data.samples import sample
from weft.data.samples.text import ALPHABET
from weft.figures.charts.curves import curve_figure
from weft.laws import Report, check, dependence
from weft.laws.probe import Probe

# %% [markdown]
# ## A model of your own
#
# This is a GPT as you would write it. It knows nothing of Weft. `visible` is its mask.


# %%
class Attention(nn.Module):
    """softmax(Q K^T / sqrt(D_K) + M) V in two heads."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def visible(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).tril()

    def weights(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.visible(scores.shape[-1]), float("-inf")).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        A = self.weights(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5)
        return self.output((A @ v).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """z' = MSA(LN(z)) + z, z = MLP(LN(z')) + z'."""

    def __init__(self, width: int, attention: type[nn.Module], norm: type[nn.Module]) -> None:
        super().__init__()
        self.attention, self.attention_norm, self.mlp_norm = attention(width), norm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, z: Tensor) -> Tensor:
        z = self.attention(self.attention_norm(z)) + z
        return self.mlp(self.mlp_norm(z)) + z


class TinyGPT(nn.Module):
    """Two blocks. A fault is planted in the second one, by another attention or another norm."""

    def __init__(self, attention: type[nn.Module] = Attention, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        width = 32
        self.token, self.place = nn.Embedding(len(ALPHABET), width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, Attention, nn.LayerNorm), Block(width, attention, norm)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            z = block(z)
        return self.head(self.norm(z))


torch.manual_seed(0)
example = torch.randint(0, len(ALPHABET), (2, 9))
sound = check(TinyGPT(), example, causal=True)
print(sound)

# %% [markdown]
# The laws that the model declares hold. What cannot be tested is said to be untestable, never to hold.
#
# ## The part of Weft that is the equation
#
# $D$ comes from two batched forwards. Copy $j$ of the text has another token at place $j$. The law looks above the
# diagonal, in evaluation and in training mode.

# %%
lessons.source(Probe.dependence)

# %%
lessons.source(dependence.causality)

# %% [markdown]
# ## Eight faults
#
# Each has been shipped by somebody. Each is one line.


# %%
class NoMask(Attention):
    def visible(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool)


class MaskOffByOne(Attention):
    def visible(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).tril(1)


class MaskUpsideDown(Attention):
    def visible(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).triu()


class MaskAfterSoftmax(Attention):
    """The weights of the future are removed, but the softmax has already been divided by them."""

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1) * self.visible(scores.shape[-1])


class SoftmaxOverQueries(Attention):
    def weights(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.visible(scores.shape[-1]), -1e4).softmax(-2).tril()


class NoMaskInTraining(Attention):
    def visible(self, length: int) -> Tensor:
        seen = torch.ones(length, length, dtype=torch.bool)
        return seen if self.training else seen.tril()


class NormOverTime(nn.LayerNorm):
    """A mean over the text, where it should be over the features of one token."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(1, keepdim=True))


class NormOverBatch(nn.LayerNorm):
    """A mean over the batch: the answer to you depends on who else asks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0, keepdim=True))


# The fault, the law that must break, and the part that must be blamed.
FAULTS: dict[str, tuple[nn.Module, str, str]] = {
    "no mask": (TinyGPT(NoMask), "causality", "blocks.1.attention"),
    "mask off by one": (TinyGPT(MaskOffByOne), "causality", "blocks.1.attention"),
    "mask upside down": (TinyGPT(MaskUpsideDown), "causality", "blocks.1.attention"),
    "mask after the softmax": (TinyGPT(MaskAfterSoftmax), "causality", "blocks.1.attention"),
    "softmax over queries": (TinyGPT(SoftmaxOverQueries), "causality", "blocks.1.attention"),
    "no mask in training": (TinyGPT(NoMaskInTraining), "causality", "blocks.1.attention"),
    "norm over time": (TinyGPT(norm=NormOverTime), "causality", "blocks.1.attention_norm"),
    "norm over the batch": (TinyGPT(norm=NormOverBatch), "batch independence", "blocks.1.attention_norm"),
}
reports = {name: check(fault[0], example, causal=True) for name, fault in FAULTS.items()}
for name, (_module, law, _part) in FAULTS.items():
    finding = reports[name][law]
    print(f"{name:<23} {law}: {finding.verdict}, {finding.evidence}")
    print(f"{'':<23} blame: {finding.blame}; likely cause: {finding.cause}\n")

# %% [markdown]
# Every fault is caught, the guilty part is named, and mostly the cause is guessed right.
#
# The pictures show $D$. Dark means that output $i$ (row) depends on input $j$ (column). Sound is a lower triangle.


# %%
def draw(named: dict[str, Report]) -> Figure:
    """The dependency matrices, where anything above zero is drawn: small leaks are leaks."""
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    for axes, (name, report) in zip(figure.subplots(2, 4).flat, named.items(), strict=False):
        D = torch.tensor(report.dependence)
        axes.imshow(torch.where(D > 0, D.clamp(min=1e-9).log10().add(10).clamp(min=2), 0.0), cmap="Blues", vmin=0)
        axes.set_title(name, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.supxlabel("input j")
    figure.supylabel("output i")
    return figure


shown = [name for name in reports if name != "norm over the batch"]
lessons.show(
    draw({"sound": sound, **{name: reports[name] for name in shown}}),
    "What each output (row) depends on (column): a lower triangle if sound; marks above the diagonal are leaks.",
)

# %% [markdown]
# "No mask in training" looks sound here: this picture is of evaluation. The law also looks in training mode, and
# finds it.
#
# ## Why the loss does not tell you
#
# `sample:markov` is a text of an invented language. Its letters are drawn by known probabilities, so the least
# possible loss is known: the entropy rate. No honest model can go below it. Train the sound model and the one that is
# off by one.


# %%
text = sample("markov", size=lessons.by_budget(60_000, 200_000))
best = text.best
assert best is not None
ids = {
    split: torch.tensor([ALPHABET.index(c) for c in part])
    for split, part in (("train", text.train), ("held", text.validation))
}


def batch(split: str, rows: int, random: torch.Generator, length: int = 32) -> tuple[Tensor, Tensor]:
    """Inputs and next letters [rows, length]."""
    starts = torch.randint(0, len(ids[split]) - length - 1, (rows, 1), generator=random)
    window = ids[split][starts + torch.arange(length + 1)]
    return window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(model: nn.Module, steps: int) -> list[tuple[float, float]]:
    """Held-out loss by step."""
    random = torch.Generator().manual_seed(1)
    held = batch("held", 64, torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    curve: list[tuple[float, float]] = []
    for step in range(steps + 1):
        if step % max(1, steps // 20) == 0:
            with torch.no_grad():
                curve.append((step, float(loss_of(model, *held))))
        optimizer.zero_grad()
        loss_of(model, *batch("train", 32, random)).backward()
        optimizer.step()
    return curve


torch.manual_seed(0)
models = {"sound": TinyGPT(), "mask off by one": TinyGPT(MaskOffByOne)}
curves = {name: train(model, lessons.by_budget(500, 3000)) for name, model in models.items()}
lessons.show(
    curve_figure(curves, "Loss on held-out text, nats per letter", known=(best.value, "entropy rate")),
    "The sound model approaches the entropy rate from above; the leaking one goes below it, which is impossible.",
)

# %% [markdown]
# The broken model goes below the entropy rate, on text that it has never seen. It has not learned the language. It
# copies the answer, which stands in front of it. When it generates, there is no answer yet to copy.


# %%
@torch.no_grad()
def generate(model: nn.Module, letters: int = 60) -> str:
    """Sampled letter by letter: nothing is in front of the model but what it wrote."""
    tokens, random = ids["held"][None, :4], torch.Generator().manual_seed(3)
    for _ in range(letters - 4):
        chances = model(tokens[:, -32:])[:, -1].softmax(-1)
        tokens = torch.cat((tokens, torch.multinomial(chances, 1, generator=random)), 1)
    return "".join(ALPHABET[token] for token in tokens[0])


for name, model in models.items():
    written = torch.tensor([[ALPHABET.index(c) for c in generate(model, 64)]])
    with torch.no_grad():
        judged = float(loss_of(models["sound"], written[:, :32], written[:, 1:33]))
    print(f"{name:<16} {generate(model)!r}  ({judged:.2f} nats per letter by the sound model)")

# %% [markdown]
# Weft's own training looks at these laws at step 0 and at every checkpoint, and stops. That is the *leak guard*.
#
# ## Change something
#
# Write an attention of your own below: a window of four tokens, a mask that depends on the content, whatever you
# like. Predict $D$ first. Then run the cell.


# %%
class Mine(Attention):
    def visible(self, length: int) -> Tensor:
        near = torch.ones(length, length, dtype=torch.bool).triu(-3)  # change me
        return near.tril()


mine = check(TinyGPT(Mine), example, causal=True)
print(mine["causality"].verdict, "-", mine["causality"].evidence)

# %% [markdown]
# ## Questions
#
# **18.1** The first block is causal. The second block sees its own token and three before, as above. How many tokens
# back does the output of the two blocks depend on at most: "3", "6", or "all"?

# %%
lessons.check("18.1", ...)

# %% [markdown]
# **18.2** The mask of the second block is off by one, that of the first is right. How many entries above the diagonal
# of the 13 x 13 matrix $D$ are not zero?

# %%
lessons.check("18.2", ...)

# %% [markdown]
# **18.3** If the masks of *both* blocks are off by one, how many tokens ahead can an output look?

# %%
lessons.check("18.3", ...)

# %% [markdown]
# ## Claim
#
# The sound model breaks nothing. Each of the eight faults breaks its law, and the right part is blamed. Held-out loss
# is no help: the broken model is better than is possible.

# %%
caught = [
    name
    for name, (_module, law, part) in FAULTS.items()
    if reports[name][law].verdict == "broken" and reports[name][law].blame == part
]
lessons.claim("the sound model breaks no law", not sound.broken, sound.headline)
lessons.claim(
    "each fault breaks its law, and the right part is blamed",
    len(caught) == len(FAULTS),
    f"{len(caught)} of {len(FAULTS)}: {', '.join(caught)}",
)

# %%
last = {name: curve[-1][1] for name, curve in curves.items()}
measured = f"entropy rate {best.value:.3f}, " + ", ".join(f"{name} {loss:.3f}" for name, loss in last.items())
lessons.claim(
    "the sound model comes within 0.1 nats of the entropy rate, and does not beat it",
    last["sound"] < best.value + 0.1 and not best.beaten_by(last["sound"]),
    measured,
)
lessons.claim(
    "the leaking model beats the best possible loss by far", last["mask off by one"] < 0.7 * best.value, measured
)
