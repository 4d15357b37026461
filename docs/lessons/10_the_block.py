# %% [markdown]
# # 10. The block: residuals, norms, and an MLP
#
# **Lecture topic:** The transformer block.
#
# Attention only averages. A block adds what is missing: an MLP that works on each token, residual connections that
# carry the input past both, and a norm that keeps the numbers in range. *Where* the norm stands decides how deep a
# stack can be trained.
#
# ## The equation
#
# $$
# \begin{aligned}
# \text{post-norm:} \quad & Z = \mathrm{LN}(\mathrm{MSA}(X) + X), & \tilde X &= \mathrm{LN}(\mathrm{MLP}(Z) + Z) \\
# \text{pre-norm:} \quad & z' = \mathrm{MSA}(\mathrm{LN}(z)) + z, & z &= \mathrm{MLP}(\mathrm{LN}(z')) + z'
# \end{aligned}
# $$
#
# The MLP is $D \to 4D \to D$ with a ReLU or GELU between. A transformer is a stack of such blocks.

# %%
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft import lessons
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LinearHeadSpec, NoNormSpec
from weft.models.position_specs import LearnedSpec
from weft.parts.attention import SelfAttention
from weft.parts.block import PostNorm, PreNorm
from weft.parts.feedforward import FeedForward
from weft.parts.norms import LayerNorm

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(PreNorm, PostNorm, FeedForward)

# %% [markdown]
# ## Run it: why attention alone is not enough
#
# Stack attention without anything else, and all tokens become the same: each layer is one more average. We measure how
# far tokens are from their mean, by layer.


# %%
def spread(x: Tensor) -> float:
    """How far tokens are from their mean, compared with their length."""
    return float((x - x.mean(1, keepdim=True)).norm() / x.norm())


D, N, DEPTH = 32, 20, 12
x0 = torch.randn(4, N, D)
curves: dict[str, list[float]] = {}
with torch.no_grad():
    x = x0
    curves["attention alone"] = [spread(x)]
    for _ in range(DEPTH):
        layer = SelfAttention(D, 4)
        x = layer(x)
        curves["attention alone"].append(spread(x))
    for name, kind in {"pre-norm block": PreNorm, "post-norm block": PostNorm}.items():
        x = x0
        curves[name] = [spread(x)]
        for _ in range(DEPTH):
            x = kind(SelfAttention(D, 4), FeedForward(D), lambda: LayerNorm(D))(x)
            curves[name].append(spread(x))

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, values in curves.items():
    axis.plot(values, marker="o", markersize=3, label=name)
axis.set(yscale="log", xlabel="layer", ylabel="spread of the tokens")
axis.legend()
lessons.show(figure, "Attention alone makes all tokens equal within a few layers; blocks with residuals do not")

# %% [markdown]
# ## Depth against trainability
#
# We train stacks of different depth for the same number of steps on a task that needs one look back: predict the letter
# that followed the last occurrence of the present letter. Post-norm scales every residual path at every layer, so the
# gradient shrinks or grows with depth. Pre-norm leaves a straight path from the loss to the first layer.

# %%
LETTERS, LENGTH = 12, 24
DEPTHS = lessons.by_budget(quick=(1, 4, 12), full=(1, 2, 4, 8, 16, 32))
STEPS = lessons.by_budget(quick=120, full=1500)
SEEDS = lessons.by_budget(quick=(0,), full=(0, 1, 2))
RATE = lessons.by_budget(quick=4e-3, full=2e-3)


def draw(rows: int = 32) -> Tensor:
    """Letters in a random but fixed order of succession per row: a -> f -> c -> a -> f -> c ..."""
    ring = torch.rand(rows, LETTERS).argsort(1)[:, : LETTERS // 2]
    times = -(-(LENGTH + 1) // ring.shape[1])
    return ring.repeat(1, times)[:, : LENGTH + 1]


def next_loss(model: nn.Module, step: int = 0) -> Tensor:
    letters = draw()
    logits = model(letters[:, :-1]).logits
    return cross_entropy(logits[:, LETTERS // 2 :].flatten(0, 1), letters[:, LETTERS // 2 + 1 :].flatten())


def deep(depth: int, arrangement: str, norm: bool = True, seed: int = 0) -> nn.Module:
    spec = DecoderSpec(
        vocabulary=LETTERS,
        length=LENGTH,
        width=D,
        layers=depth,
        mixer=AttentionSpec(heads=4),
        feedforward=ClassicSpec(hidden=2 * D),
        positions=LearnedSpec(),
        arrangement="pre-norm" if arrangement == "pre-norm" else "post-norm",
        head=LinearHeadSpec(),
        initialization=InitializationSpec(scheme="xavier", embedding=1.0),
    )
    return weft.build(spec if norm else spec.replace(norm=NoNormSpec()), seed=seed)


KINDS = {"pre-norm": True, "post-norm": True, "residuals without a norm": False}
results: dict[str, list[float]] = {name: [] for name in KINDS}
for name, has_norm in KINDS.items():
    for depth in DEPTHS:
        reached = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            model = deep(depth, name, has_norm, seed)
            lessons.fit(model, partial(next_loss, model), STEPS, RATE)
            with torch.no_grad():
                reached.append(float(next_loss(model).nan_to_num(9.0, 9.0).clamp(max=9.0)))
        results[name].append(sum(reached) / len(reached))
        print(f"{name:26} {depth:2} layers: loss {results[name][-1]:.2f}")

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, values in results.items():
    axis.plot(DEPTHS, values, marker="o", label=name)
axis.axhline(torch.tensor(float(LETTERS)).log().item(), color="0.5", linestyle=":", label="guessing")
axis.set(xscale="log", xlabel="layers", ylabel=f"loss after {STEPS} steps", xticks=DEPTHS, xticklabels=DEPTHS)
axis.legend(fontsize=8)
lessons.show(figure, "Loss after the same training, by depth: pre-norm trains at every depth, post-norm does not")

# %% [markdown]
# ## Change something
#
# A pre-norm block can do nothing at all: set its two output matrices to zero, and it is the identity. That is why one
# can stack many. A post-norm block cannot: its last step is a norm.

# %%
SCALE = 0.0  # change me: 1.0 leaves the random matrices as they are

for kind in (PreNorm, PostNorm):
    attention, mlp = SelfAttention(D, 4), FeedForward(D)
    block = kind(attention, mlp, lambda: LayerNorm(D))
    with torch.no_grad():
        for weight in (*attention.output.parameters(), *mlp.down.parameters()):
            weight.mul_(SCALE)
        print(f"{kind.__name__:9} changes its input by {(block(x0) - x0).abs().max().item():.3f}")

# %% [markdown]
# ## Questions
#
# **10.1** How many weights (without biases and norms) has a block of width $D$ = 512 with an MLP of $4D$? Six matrix
# products; count the matrices that are learned.

# %%
lessons.check("10.1", ...)

# %% [markdown]
# **10.2** Which arrangement can be the identity, "pre-norm" or "post-norm"?

# %%
lessons.check("10.2", ...)

# %% [markdown]
# **10.3** Write the pre-norm block as a function `f(z, msa, mlp, ln)`; `msa`, `mlp` and `ln` are functions (the same
# `ln` serves twice).

# %%
lessons.check("10.3", ...)

# %% [markdown]
# ## Claim
#
# Attention alone collapses; a stack of pre-norm blocks trains at every depth, and at the largest one better than
# post-norm.

# %%
last = {name: values[-1] for name, values in results.items()}
lessons.claim(
    f"at {DEPTHS[-1]} layers pre-norm reaches a lower loss than post-norm; attention alone makes tokens equal",
    last["pre-norm"] < 0.7 * last["post-norm"]
    and last["pre-norm"] < 1.5 * results["pre-norm"][1] + 0.3
    and curves["attention alone"][-1] < 0.05 * curves["attention alone"][0],
    ", ".join(f"{name} {value:.2f}" for name, value in last.items())
    + f" at {DEPTHS[-1]} layers; spread after {DEPTH} layers of attention {curves['attention alone'][-1]:.0e}",
)
