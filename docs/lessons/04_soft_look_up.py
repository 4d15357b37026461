# %% [markdown]
# # 4. Attention is a soft look-up
#
# **Lecture topic:** Attention in general; scores.
#
# A key-value store finds the key that equals a query and returns its value. Attention does the same, softly: it
# compares the query with *all* keys and returns a weighted mean of *all* values. So it has a gradient and can learn
# what to look for. This lesson looks up films, then trains six scores side by side and sees where each one fails.
#
# ## The equation
#
# $$
# e_j = f(q, k_j), \qquad a_j = \frac{\exp e_j}{\sum_i \exp e_i}, \qquad y = \sum_j a_j \, v_j
# $$
#
# The score $f$ can be
#
# $$
# \begin{aligned}
# \text{dot:} \quad & q^T k & \text{scaled dot:} \quad & q^T k / \sqrt{D_K} \\
# \text{bilinear:} \quad & q^T W k & \text{additive:} \quad & v^T \tanh(W q + U k) \\
# \text{linear layer:} \quad & w^T [q; k] & \text{linear attention:} \quad & a_j = q^T k_j / \sqrt{D_K}
# \end{aligned}
# $$
#
# The last one leaves out the softmax.

# %%
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from weft import lessons
from weft.data.samples import film_catalog
from weft.inspection.pictures.lookup import look_up
from weft.parts.lookup import soft_lookup
from weft.parts.scores import Additive, LinearDot, additive, bilinear, build_score, concatenated, dot, scaled_dot

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation
#
# The look-up itself, then the scores.

# %%
lessons.source(soft_lookup, dot, scaled_dot, bilinear, additive, concatenated, LinearDot.weigh)

# %% [markdown]
# ## Run it: a film catalog
#
# A wish is the query. A film's attributes are its key. What the catalog says of the film is its value. Hard look-up
# gives the best film alone; soft look-up mixes all films by their weights. The temperature divides the scores.

# %%
WISH = {"romance": 0.9, "action": -0.5, "music": 0.3}
catalog = film_catalog()

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
for place, temperature in enumerate((0.1, 0.5, 2.0)):
    found = look_up(catalog, WISH, temperature)
    bars = [number + 0.25 * place for number in range(len(catalog.names))]
    axis.bar(bars, found.soft[1], width=0.25, label=f"temperature {temperature}")
axis.set_xticks(range(len(catalog.names)), catalog.names, rotation=30, ha="right")
axis.set_ylabel("weight $a_j$")
axis.legend()
best = look_up(catalog, WISH)
print("hard look-up:", best.best, dict(zip(catalog.facts, best.hard[0].tolist(), strict=True)))
print("soft look-up:", {fact: round(float(x), 1) for fact, x in zip(catalog.facts, best.soft[0], strict=True)})
lessons.show(figure, "Weights of a soft look-up: low temperatures come close to the hard one, high ones mix all films")

# %% [markdown]
# ## Six scores, three worlds
#
# Each world has a wish $q$ and eight films with keys $k_j$ and random values $v_j$. The model must return the value of
# the *right* film. What is right differs:
#
# - **same words**: the film with the largest $q^T k_j$. Wishes and films use the same attributes.
# - **other words**: the same, but films are described in another vocabulary: $k_j$ has passed an unknown matrix.
# - **nearest**: the film at the smallest distance $|q - k_j|$. A film with more of everything is not better.
#
# The additive score gets a constant 1 beside the wish. Without it $e(-q, -k) = -e(q, k)$, since tanh is odd. But here
# the right film stays right when all signs are turned around, so it could learn nothing at all.

# %%
FILMS, WIDTH, VALUES, BATCH, CONSTANT = 8, 5, 16, 256, 1.0
OTHER_WORDS = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0]
SCORES = {
    "dot": "dot",
    "scaled dot": "scaled-dot",
    "bilinear": "bilinear",
    "additive": "additive",
    "linear layer": "concatenated",
    "linear attention": "linear",
}


def draw(world: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Wishes [B, 1, D], keys [B, N, D], values [B, N, V] and the number of the right film [B]."""
    q, k = torch.rand(BATCH, 1, WIDTH) * 2 - 1, torch.rand(BATCH, FILMS, WIDTH) * 2 - 1
    fit = -(q - k).norm(dim=-1) if world == "nearest" else (q * k).sum(-1)
    keys = k @ OTHER_WORDS if world == "other words" else k
    values = 3 * nn.functional.normalize(torch.randn(BATCH, FILMS, VALUES), dim=-1)
    return q, keys, values, fit.argmax(-1)


class LookUp(nn.Module):
    """y = sum_j a_j v_j for one kind of score; a learned number makes the scores sharper."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.constant = kind == "additive"
        self.score = Additive(WIDTH + 1, WIDTH, hidden=32) if self.constant else build_score(kind, WIDTH, WIDTH)
        self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.constant:
            q = torch.cat((q, CONSTANT * torch.ones_like(q[..., :1])), -1)
        a = self.score.weigh(self.sharpness * self.score(q[:, None], k[:, None]))[:, 0]
        return (a @ v)[:, 0], a


def nearness(y: Tensor, v: Tensor) -> Tensor:
    """-|y - v_j|^2 for each film's value, [B, N]."""
    return -(y[:, None] - v).square().sum(-1)


def loss_in(model: LookUp, world: str, step: int) -> Tensor:
    """Small where the value returned is nearest to that of the right film."""
    q, k, v, right = draw(world)
    return nn.functional.cross_entropy(nearness(model(q, k, v)[0], v), right)


def accuracy(model: LookUp, world: str) -> float:
    """How often the value nearest to y is that of the right film."""
    with torch.no_grad():
        q, k, v, right = draw(world)
        found = nearness(model(q, k, v)[0], v).argmax(-1)
    return (found == right).float().mean().item()


STEPS = lessons.by_budget(quick=400, full=5000)
WORLDS = ("same words", "other words", "nearest")
table = torch.zeros(len(SCORES), len(WORLDS))
for row, kind in enumerate(SCORES.values()):
    for column, world in enumerate(WORLDS):
        model = LookUp(kind)
        lessons.fit(model, partial(loss_in, model, world), STEPS, rate=0.02)
        table[row, column] = sum(accuracy(model, world) for _ in range(8)) / 8

figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
axis.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
axis.set_xticks(range(len(WORLDS)), WORLDS)
axis.set_yticks(range(len(SCORES)), list(SCORES))
for row in range(len(SCORES)):
    for column in range(len(WORLDS)):
        shade = "white" if table[row, column] > 0.6 else "black"
        axis.text(column, row, f"{table[row, column]:.0%}", ha="center", va="center", color=shade)
lessons.show(figure, "How often each trained score finds the right film; guessing finds 12 %")

# %% [markdown]
# - **dot** and **scaled dot** have nothing to learn: perfect if both sides use the same words, lost if not.
# - **bilinear** learns the dictionary between the two vocabularies, $W$. The widths $D_Q$ and $D_K$ may even differ.
# - **additive** has a hidden layer. It can also learn "not too much of it", which no $q^T W k$ can say.
# - **linear layer** fails everywhere: $w^T[q; k] = w_q^T q + w_k^T k$, and the softmax over $j$ ignores what is
#   constant in $j$. The wish has no say at all.
# - **linear attention** finds the direction but cannot close on one film: without the softmax nothing gets sharp.
#
# ## Change something
#
# With more films linear attention blurs more: try 2, then 32. And take the constant 1 from the additive score.

# %%
FILMS, CONSTANT = 2, 0.0  # change me

for name in ("linear attention", "additive"):
    model = LookUp(SCORES[name])
    lessons.fit(model, partial(loss_in, model, "same words"), STEPS, rate=0.02)
    print(f"{name} among {FILMS} films, constant {CONSTANT}: {accuracy(model, 'same words'):.0%}")
FILMS, CONSTANT = 8, 1.0

# %% [markdown]
# ## Questions
#
# **4.1** Three films have the scores 2, 1 and 0, and the temperature is 0.5. What weight does the first one get?

# %%
lessons.check("4.1", ...)

# %% [markdown]
# **4.2** One of the six gives the same weights whatever the wish is. Which? Answer with its name in the table.

# %%
lessons.check("4.2", ...)

# %% [markdown]
# **4.3** Write the additive score: `f(q, K, W, U, v)` for one query `q [D_Q]` and keys `K [S, D_K]`, with `W [F, D_Q]`,
# `U [F, D_K]`, `v [F]`. It returns `[S]`.

# %%
lessons.check("4.3", ...)

# %% [markdown]
# ## Claim
#
# Scores differ in what they can say: a dot product needs shared words, a bilinear one learns the words, only the
# additive one judges nearness, and a linear layer ignores the query.

# %%
same, other, near = (dict(zip(SCORES, table[:, column].tolist(), strict=True)) for column in range(3))
lessons.claim(
    "dot fails in other words, bilinear does not; additive beats bilinear at nearness; the linear layer fails always",
    same["dot"] > 0.8
    and other["dot"] < 0.5
    and other["bilinear"] > 0.9
    and near["additive"] > near["bilinear"] + 0.1
    and max(same["linear layer"], other["linear layer"], near["linear layer"]) < 0.4,
    f"dot {same['dot']:.0%} and {other['dot']:.0%} in other words, bilinear {other['bilinear']:.0%}; nearness: "
    f"additive {near['additive']:.0%}, bilinear {near['bilinear']:.0%}; linear layer {same['linear layer']:.0%}",
)
