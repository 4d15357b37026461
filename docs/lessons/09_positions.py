# %% [markdown]
# # 9. Positions: who extrapolates?
#
# **Lecture topic:** Order.
#
# Attention sees a set (lesson 5). To tell "cats to dogs" from "dogs to cats" a model must be told where a token stands.
# There are two ways: add a vector to each token at the first layer, or change the scores by the distance of two tokens.
# They differ most where it hurts: on texts that are longer than any in training.
#
# ## The equation
#
# $$
# \begin{aligned}
# \text{learned:} \quad & x_t + P_t, \qquad P \in \mathbb{R}^{n \times D} \text{ a table} \\
# \text{sinusoidal:} \quad & x_t + p_t, \qquad p_{t,2i} = \sin(t \, \omega_i), \; p_{t,2i+1} = \cos(t \, \omega_i) \\
# \text{relative:} \quad & e_{ij} = q_i^T (k_j + a_{j-i}) / \sqrt{D_K} \\
# \text{rotary:} \quad & e_{ij} = (R_i q_i)^T (R_j k_j) / \sqrt{D_K}, \qquad R_t \text{ turns by } t \, \omega_i \\
# \text{ALiBi:} \quad & e_{ij} = q_i^T k_j / \sqrt{D_K} - m_h |i - j|
# \end{aligned}
# $$
#
# with the frequencies $\omega_i = 10000^{-2i/D}$.

# %%
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft import WeftError, lessons
from weft.data.samples import sample
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LinearHeadSpec
from weft.models.position_specs import (
    AlibiSpec,
    AnyPositionSpec,
    LearnedSpec,
    NoPositionsSpec,
    RelativeVectorsSpec,
    RotarySpec,
    SinusoidalSpec,
)
from weft.parts.positions import sinusoids
from weft.parts.relative import Alibi, RelativeVectors, Rotary, rotate_pairs

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(sinusoids, rotate_pairs, Rotary.angles, RelativeVectors.bias, Alibi.bias)

# %% [markdown]
# ## Run it: what the vectors look like

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
p = sinusoids(torch.arange(100), 64)
axes[0].imshow(p.T, cmap="RdBu", aspect="auto")
axes[0].set(title="sinusoidal vectors", xlabel="position t", ylabel="dimension")
axes[1].imshow(p @ p.T, cmap="Blues")
axes[1].set(title="their products $p_s^T p_t$", xlabel="t", ylabel="s")
lessons.show(figure, "Sinusoidal positions: slow and fast waves; near positions are similar, whatever their number")

# %% [markdown]
# ## Train short, read long
#
# A small language model on text, letter by letter, with each kind of position. In training no text is longer than 32
# letters, and most are shorter. Then we let it read up to 128 and measure the loss by position.

# %%
SHORT, LONG = lessons.by_budget(quick=(32, 128), full=(128, 1024))
STEPS = lessons.by_budget(quick=220, full=4000)
WIDTH, LAYERS = lessons.by_budget(quick=(64, 2), full=(128, 4))
text = sample("stdlib", size=lessons.by_budget(quick=200_000, full=1_000_000))
letters = sorted(set(text.train) | set(text.validation))
codes = {letter: number for number, letter in enumerate(letters)}
train, held = (torch.tensor([codes[letter] for letter in part]) for part in (text.train, text.validation))


def windows(data: Tensor, rows: int, length: int) -> Tensor:
    """Random stretches of the text, [rows, length + 1]."""
    starts = torch.randint(len(data) - length - 1, (rows, 1))
    return data[starts + torch.arange(length + 1)]


def some_length() -> int:
    """Short texts are common, long ones rare."""
    return max(4, int(SHORT * torch.rand(()).item() ** 3) + 1)


def loss_in(model: nn.Module, step: int = 0) -> Tensor:
    length = some_length()
    rows = windows(train, 1024 // length, length)
    return cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())


KINDS: dict[str, AnyPositionSpec] = {
    "none": NoPositionsSpec(),
    "learned": LearnedSpec(),
    "sinusoidal": SinusoidalSpec(),
    "relative": RelativeVectorsSpec(reach=16),
    "rotary": RotarySpec(),
    "ALiBi": AlibiSpec(),
}


def language_model(positions: AnyPositionSpec) -> nn.Module:
    spec = DecoderSpec(
        vocabulary=len(letters),
        length=SHORT if isinstance(positions, LearnedSpec) else 4096,
        width=WIDTH,
        layers=LAYERS,
        mixer=AttentionSpec(heads=4),
        feedforward=ClassicSpec(hidden=2 * WIDTH),
        positions=positions,
        head=LinearHeadSpec(),
        initialization=InitializationSpec(scheme="fan-in", embedding=1.0),
    )
    return weft.build(spec, seed=0)


models = {}
for name, positions in KINDS.items():
    torch.manual_seed(0)
    models[name] = language_model(positions)
    curve = lessons.fit(models[name], partial(loss_in, models[name]), STEPS)
    print(f"{name:10} training loss {curve[-1][1]:.2f}")

# %%
TEXTS = lessons.by_budget(quick=128, full=512)
longest = windows(held, TEXTS, LONG)


def by_position(model: nn.Module, length: int) -> Tensor:
    """Mean loss at each position, [length]."""
    with torch.no_grad():
        logits = model(longest[:, :length]).logits
    losses = cross_entropy(logits.flatten(0, 1), longest[:, 1 : length + 1].flatten(), reduction="none")
    return losses.view(TEXTS, length).mean(0)


try:
    by_position(models["learned"], SHORT + 1)
except WeftError as error:
    print("learned, one letter more:", error)

found = {name: by_position(model, SHORT if name == "learned" else LONG) for name, model in models.items()}
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, losses in found.items():
    bins = losses.view(-1, 8).mean(1)
    axis.plot(4 + 8 * torch.arange(len(bins)), bins, marker="o", markersize=3, label=name)
axis.axvspan(SHORT, LONG, color="0.93")
axis.set(xlabel="position (gray: longer than in training)", ylabel="loss, nats per letter")
axis.legend(fontsize=8)
lessons.show(figure, "Loss by position: who stays low beyond the lengths of training")

# %% [markdown]
# ## Why late learned positions are poor
#
# Each row of the table learns only from texts that are at least so long. Long texts are rare, so late rows see few
# examples. ALiBi has nothing to learn about single positions. The gap between the two shows what the late rows lack.

# %%
lengths = torch.tensor([some_length() for _ in range(5000)])
share = torch.tensor([(lengths > place).float().mean().item() for place in range(SHORT)])
gap = found["learned"] - found["ALiBi"][:SHORT]
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
axes[0].bar(range(SHORT), share)
axes[0].set(xlabel="position", ylabel="share of training texts")
axes[1].plot(2 + 4 * torch.arange(SHORT // 4), gap.view(-1, 4).mean(1), marker="o")
axes[1].axhline(0, color="0.5")
axes[1].set(xlabel="position", ylabel="loss, learned less ALiBi")
lessons.show(figure, "Late positions are rare in training, and learned vectors do worse there")

# %% [markdown]
# ## Change something
#
# Relative, rotary and ALiBi positions depend on distances only: shift the whole text, and nothing changes. Try it for
# each kind: the same letters, once at positions 0, 1, 2, ... and once from `SHIFT` on.

# %%
SHIFT, KIND = 100, "rotary"  # change me: none, sinusoidal, relative, rotary, ALiBi

rows = windows(held, 1, 24)
with torch.no_grad():
    here = models[KIND](rows, positions=torch.arange(25)).logits
    there = models[KIND](rows, positions=torch.arange(25) + SHIFT).logits
print(f"{KIND}: shifted by {SHIFT}, logits change by up to {(here - there).abs().max().item():.2g}")

# %% [markdown]
# ## Questions
#
# **9.1** A model has a table of 64 learned positions. How many tokens can it read at most?

# %%
lessons.check("9.1", ...)

# %% [markdown]
# **9.2** Which of "sinusoidal" and "rotary" gives the same attention when the whole text is shifted by 100 positions?

# %%
lessons.check("9.2", ...)

# %% [markdown]
# **9.3** Write `f(t, D)`: the sinusoidal vector of position $t$, with $D$ even.

# %%
lessons.check("9.3", ...)

# %% [markdown]
# ## Claim
#
# Positions by distance with nothing new to learn far away (ALiBi, clipped relative vectors) read on beyond the lengths
# of training. Rotary ones as they are do not, learned ones cannot, and their late rows are poor.

# %%
inside, beyond = slice(SHORT // 2, SHORT), slice(LONG // 2, LONG)
rise = {
    name: float(losses[beyond].mean() - losses[inside].mean()) for name, losses in found.items() if name != "learned"
}
early, late = float(gap[: SHORT // 2].mean()), float(gap[SHORT // 2 :].mean())
lessons.claim(
    "far beyond training ALiBi and relative vectors keep their loss, rotary and sinusoidal ones do not; learned ones "
    "are poorest at their late positions",
    max(rise["ALiBi"], rise["relative"]) < 0.15 < min(rise["rotary"], rise["sinusoidal"]) and late > early,
    "loss far beyond against within: "
    + ", ".join(f"{name} {value:+.2f}" for name, value in rise.items())
    + f"; learned less ALiBi {early:+.2f} at early positions, {late:+.2f} at late ones",
)
