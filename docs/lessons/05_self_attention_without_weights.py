# %% [markdown]
# # 5. Self-attention without weights
#
# **Lecture topic:** Self-attention.
#
# The simplest self-attention has nothing to learn. Every vector of a sequence is replaced by a weighted mean of all
# vectors; the weights say how similar they are. Small as it is, it shows three properties that every attention layer
# starts from: who looks at whom, what outputs can be, and that a sequence is only a *set* here.
#
# ## The equation
#
# $$
# w'_{ij} = x_i^T x_j, \qquad w_{ij} = \frac{\exp w'_{ij}}{\sum_j \exp w'_{ij}}, \qquad y_i = \sum_j w_{ij} \, x_j
# $$
#
# Or, all at once: $W = \mathrm{softmax}(X X^T)$ row by row, and $Y = W X$.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import normalize

from weft import lessons
from weft.parts.attention import parameter_free_attention

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(parameter_free_attention)

# %% [markdown]
# ## Run it
#
# Twelve random vectors of length 2 in 32 dimensions. Each row of $W$ sums to 1: $W$ is *row-stochastic*.

# %%
N, D = 12, 32
X = 2 * normalize(torch.randn(1, N, D), dim=-1)
Y, W = parameter_free_attention(X)
print("rows sum to", W[0].sum(-1).min().item(), "to", W[0].sum(-1).max().item())

figure, axis = plt.subplots(figsize=(4, 3.4), layout="constrained")
axis.imshow(W[0], cmap="Blues", vmin=0, vmax=1)
axis.set(xlabel="j (is looked at)", ylabel="i (looks)")
lessons.show(figure, "The weights W: every vector looks mostly at itself, so the diagonal is dark")

# %% [markdown]
# **Diagonal dominance.** A vector is most similar to itself: $x_i^T x_i = |x_i|^2$ is the largest of its row when all
# have the same length. So every token looks mostly at itself.
#
# **Convex hull.** Weights are positive and sum to 1. So each $y_i$ lies between the inputs: in their convex hull. In
# two dimensions we can see it. We apply the layer again and again: the points can only move inward.

# %%
points = torch.randn(1, 30, 2)
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), sharex=True, sharey=True, layout="constrained")
now = points
for times, axis in enumerate(axes):
    axis.scatter(*points[0].T.numpy(), s=12, color="0.8")
    axis.scatter(*now[0].T.numpy(), s=12, color="#0969da")
    axis.set(title=f"after {times} layers")
    now, _ = parameter_free_attention(now)
lessons.show(figure, "Inputs in gray, outputs in blue: each layer of plain averaging pulls the points together")

# %% [markdown]
# This is why a transformer needs more than attention: lesson 10 adds an MLP and residuals.
#
# **A set, not a sequence.** Permute the inputs, and the outputs are permuted in the same way; nothing else changes.
# "She prefers cats to dogs" and "she prefers dogs to cats" have the same words, so each word gets the same output.

# %%
words = ["she", "prefers", "cats", "to", "dogs"]
other = ["she", "prefers", "dogs", "to", "cats"]
vectors = dict(zip(words, torch.randn(len(words), 8), strict=True))
first, _ = parameter_free_attention(torch.stack([vectors[word] for word in words])[None])
second, _ = parameter_free_attention(torch.stack([vectors[word] for word in other])[None])
for word in words:
    gap = (first[0, words.index(word)] - second[0, other.index(word)]).abs().max().item()
    print(f"{word:8} output differs between the two sentences by {gap:.1e}")

# %% [markdown]
# ## Change something
#
# Let the vectors be longer or shorter. Long ones look only at themselves; short ones at all alike.

# %%
LENGTHS = (0.1, 1.0, 2.0, 3.0, 5.0)  # change me

for length in LENGTHS:
    _, W = parameter_free_attention(length * normalize(torch.randn(1, 50, D), dim=-1))
    print(f"length {length:4}: mean weight on the diagonal {W[0].diagonal().mean().item():.3f}")

# %% [markdown]
# ## Questions
#
# **5.1** All vectors of a sequence of 20 are the same vector. How large is each weight?

# %%
lessons.check("5.1", ...)

# %% [markdown]
# **5.2** Write the layer yourself: a function from `X [N, D]` to `Y [N, D]`, without using Weft.

# %%
lessons.check("5.2", ...)

# %% [markdown]
# **5.3** Find a sequence of two vectors in which the first one does *not* look mostly at itself. Answer with a list of
# two lists of numbers, `[[...], [...]]`.

# %%
lessons.check("5.3", ...)

# %% [markdown]
# ## Claim
#
# Self-attention without weights keeps its outputs between its inputs, and treats a sequence as a set.

# %%
trials = lessons.by_budget(quick=50, full=2000)
outside, moved = 0.0, 0.0
random = np.random.default_rng(0)
for _trial in range(trials):
    size = (1, int(random.integers(2, 30)), int(random.integers(1, 40)))
    X = torch.as_tensor(random.normal(size=size))
    Y, _ = parameter_free_attention(X)
    order = torch.as_tensor(random.permutation(size[1]))
    outside = max(outside, float((Y - X.amax(1, True)).max()), float((X.amin(1, True) - Y).max()))
    moved = max(moved, float((parameter_free_attention(X[:, order])[0] - Y[:, order]).abs().max()))
lessons.claim(
    "outputs stay within the range of the inputs, and permuted inputs give permuted outputs",
    outside < 1e-9 and moved < 1e-9,
    f"largest step outside {max(outside, 0):.1e}, largest change by order {moved:.1e}, over {trials} sequences",
)
