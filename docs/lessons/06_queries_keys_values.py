# %% [markdown]
# # 6. Queries, keys and values, and why $1/\sqrt{D_K}$
#
# **Lecture topic:** Self-attention with weights: queries, keys, values; the scale.
#
# In lesson 5 a vector had three jobs at once: it asked, it was compared, and it was averaged. Here each job gets a
# matrix of its own, and these matrices are learned. Then one small factor, $1/\sqrt{D_K}$, decides whether learning
# starts well.
#
# ## The equation
#
# $$
# Q = X W_Q, \quad K = X W_K, \quad V = X W_V, \qquad Z = \mathrm{softmax}\!\left(\frac{Q K^T}{\sqrt{D_K}}\right) V
# $$
#
# $W_Q$ and $W_K$ are $D \times D_K$, $W_V$ is $D \times D_V$; $D_K$ and $D_V$ are free to choose.

# %%
import math

import matplotlib.pyplot as plt
import torch

from weft import lessons
from weft.figures.charts.curves import curve_figure
from weft.inspection.analysis.scale import WAYS, scale_curves, scale_statistics
from weft.parts.attention import SelfAttention
from weft.parts.score import weigh
from weft.parts.scores import dot, scaled_dot

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation
#
# The projections, the scaled score, and the softmax.

# %%
lessons.source(SelfAttention.project, scaled_dot, weigh)

# %% [markdown]
# ## Run it: the lecture's numbers
#
# One query, two keys of width $D_K = 3$, two values.

# %%
q = torch.tensor([[10.0, 1.0, 1.0]])
K = torch.tensor([[10.0, 1.0, 1.0], [9.0, 5.0, 4.0]])
V = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

scores = dot(q, K)
scaled = scaled_dot(q, K)
A = weigh(scaled)
print("q.k            ", scores[0].tolist())
print("q.k / sqrt(3)  ", [round(x, 1) for x in scaled[0].tolist()])
print("softmax        ", [round(x, 2) for x in A[0].tolist()])
print("weighted values", [[round(x, 2) for x in row] for row in (A[0, :, None] * V).tolist()])
print("sum            ", [round(x, 2) for x in (A @ V)[0].tolist()])

# %% [markdown]
# ## Why the scale
#
# Let the numbers in $q$ and $k$ be independent, with mean 0 and variance 1. Then $q^T k$ is a sum of $D_K$ products,
# each of variance 1: its variance is $D_K$. Large scores make the softmax *sharp*: one weight near 1, all others near
# 0. And a sharp softmax has no gradient, because its Jacobian is
#
# $$\frac{\partial a_i}{\partial e_j} = a_i (\delta_{ij} - a_j) \;\longrightarrow\; 0 .$$
#
# Divided by $\sqrt{D_K}$ the variance is 1, whatever $D_K$ is.

# %%
found = scale_statistics(widths=(1, 4, 16, 64, 256, 1024), rows=lessons.by_budget(quick=32, full=256))
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
shown = (("variance of the scores", found.variance), ("largest weight", found.largest), ("Jacobian", found.jacobian))
for axis, (name, values) in zip(axes, shown, strict=True):
    for way, curve in zip(WAYS, values, strict=True):
        axis.plot(found.widths, curve, marker="o", label=way)
    axis.set(xscale="log", xlabel="$D_K$", title=name)
axes[0].set(yscale="log")
axes[0].legend()
lessons.show(figure, "Variance, largest of 64 weights, and size of the softmax's Jacobian, with and without the scale")

# %% [markdown]
# ## What it does to training
#
# The same small model, trained twice on dates ("14 May 1998" to "1998-05-14"); only the factor differs.

# %%
WIDTH = 256  # change me: the width of queries and keys
STEPS = lessons.by_budget(quick=6, full=600)
curves = scale_curves(WIDTH, STEPS)
named = {
    way: list(zip(map(float, curves.steps), row.tolist(), strict=True))
    for way, row in zip(WAYS, curves.losses, strict=True)
}
lessons.show(
    curve_figure(named, f"one head, D_K = {WIDTH}", y_label="validation loss"),
    "Validation loss while training, with and without the scale",
)

# %% [markdown]
# ## Change something
#
# `WIDTH` in the cell above is yours. At 4 the factor hardly matters; at 1,024 it does. And here: how sharp does
# attention start, without the scale?

# %%
for width in (4, 64, 1024):  # change me
    q, k = torch.randn(1, width), torch.randn(100, width)
    print(f"D_K = {width:4}: largest weight {weigh(dot(q, k)).max():.2f}, scaled {weigh(scaled_dot(q, k)).max():.2f}")

# %% [markdown]
# ## Questions
#
# **6.1** The numbers in $q$ and $k$ are independent with variance 1, and $D_K = 64$. What is the standard deviation of
# $q^T k$?

# %%
lessons.check("6.1", ...)

# %% [markdown]
# **6.2** Two scores differ by 3 before the scale. With $D_K = 9$, what weight does the larger one get, of the two?

# %%
lessons.check("6.2", ...)

# %% [markdown]
# **6.3** Write `Z = f(X, W_Q, W_K, W_V)` for one sequence `X [N, D]`, without using Weft.

# %%
lessons.check("6.3", ...)

# %% [markdown]
# ## Claim
#
# The scale keeps the variance at 1 and the gradient alive, and the model that has it learns faster.

# %%
last = curves.losses[:, -1].tolist()
variance = found.variance[:, -1].tolist()
jacobian = found.jacobian[:, -1].tolist()
lessons.claim(
    "with the scale, scores have variance 1, the softmax keeps its gradient, and the loss is lower",
    math.isclose(variance[0], 1.0, rel_tol=0.1) and jacobian[0] > 2 * jacobian[1] and last[0] < last[1],
    f"at D_K = 1024: variance {variance[0]:.2f} and {variance[1]:.0f}, Jacobian {jacobian[0]:.3f} and "
    f"{jacobian[1]:.3f}; after {STEPS} steps loss {last[0]:.2f} with the scale and {last[1]:.2f} without",
)
