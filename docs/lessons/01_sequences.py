# %% [markdown]
# # 1. Sequences, and one set of weights for all lengths
#
# **Lecture topic:** Sequences.
#
# A sequence is a list of vectors in an order: words of a text, numbers in time, patches of an image, places of a
# particle in space. Sequences have different lengths. A network for sequences must work for all of them, with one set
# of weights. This lesson shows three ways to do it, and what each of them can see.
#
# ## The equation
#
# A sequence of $N$ vectors of width $D$ is a matrix $X \in \mathbb{R}^{N \times D}$. A layer maps it to another one,
#
# $$Y = f_\theta(X), \qquad f_\theta: \mathbb{R}^{N \times D} \to \mathbb{R}^{N \times D} \quad \text{for every } N,$$
#
# and the weights $\theta$ do not depend on $N$. There are three classic ways:
#
# $$
# \begin{aligned}
# \text{recurrence:} \quad & h_t = f(x_t, h_{t-1}) \\
# \text{convolution:} \quad & y_t = \sum_{o=0}^{k-1} W_o \, x_{t-o} \\
# \text{attention:} \quad & y_t = \sum_{s} a_{ts} \, W_V x_s, \qquad \sum_s a_{ts} = 1
# \end{aligned}
# $$

# %%
import matplotlib.pyplot as plt
import torch

from weft import lessons
from weft.data.samples import sample
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.convolution import Convolution
from weft.parts.embeddings import patchify
from weft.parts.masks import Causal
from weft.parts.recurrence import Recurrence, rnn_step

torch.manual_seed(0)
D = 16

# %% [markdown]
# ## The part of Weft that is the equation
#
# One step of the recurrence, and the convolution over the whole sequence at once. Attention has its own lessons, from
# lesson 4 on.

# %%
lessons.source(rnn_step, Convolution._convolve)

# %% [markdown]
# ## Many things are sequences
#
# Each of these becomes a matrix with one row per element.

# %%
text = "one set of weights"
letters = torch.nn.functional.one_hot(torch.tensor([ord(letter) for letter in text]), 128).float()

walk = torch.randn(200, 3).cumsum(0)  # a particle's Brownian motion in 3-D

image = torch.linspace(0, 1, 28 * 28).reshape(1, 1, 28, 28)
patches = patchify(image, 7)[0]

movement = torch.as_tensor(sample("skeletons", size=10).train.values[0]).flatten(1)

for name, sequence in {"text": letters, "walk": walk, "image": patches, "movement": movement}.items():
    print(f"{name:9} N = {sequence.shape[0]:3}, D = {sequence.shape[1]}")

# %% [markdown]
# ## Run it: three layers, any length, the same weights

# %%
layers: dict[str, torch.nn.Module] = {
    "recurrence": Recurrence(D, "rnn"),
    "convolution": Convolution(D, kernel=3),
    "attention": SelfAttention(D, heads=1),
}


def run(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The layer on one sequence [N, D], where no output may look at later inputs."""
    return layer(x[None], AttentionContext.of(x[None], Causal()))[0]


for name, layer in layers.items():
    weights = sum(parameter.numel() for parameter in layer.parameters())
    shapes = [tuple(run(layer, torch.randn(N, D)).shape) for N in (1, 10, 1000)]
    print(f"{name:12} {weights:5} weights, outputs {shapes}")

# %% [markdown]
# Nothing in the weights knows the length. The layers differ in what an output can see. We measure it: how much does
# output $t$ change with input $s$? The picture shows the size of the gradient $\partial y_t / \partial x_s$. All three
# layers here are *causal*: nothing above the diagonal, no look into the future.


# %%
def influence(layer: torch.nn.Module, N: int = 24) -> torch.Tensor:
    """|d y_t / d x_s| for all pairs [N, N]."""
    x = torch.randn(N, D)
    jacobian = torch.autograd.functional.jacobian(lambda x: run(layer, x), x)  # [N, D, N, D]
    return torch.as_tensor(jacobian).pow(2).sum((1, 3)).sqrt()


figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, (name, layer) in zip(axes, layers.items(), strict=True):
    axis.imshow(influence(layer).log10().clamp(min=-6), cmap="Blues")
    axis.set(title=name, xlabel="input s", ylabel="output t")
lessons.show(figure, "What each output can see: influence of input s on output t, logarithmic, by kind of layer")

# %% [markdown]
# - **Recurrence** sees everything before, but the influence fades: it passes through every step between.
# - **Convolution** sees the last $k$ inputs, and nothing else.
# - **Attention** sees everything before in one step, near or far.
#
# ## Change something
#
# Make the convolution's kernel larger, or stack layers. How far does it see now?

# %%
KERNEL, LAYERS = 3, 2  # change me


def stack(x: torch.Tensor, kernel: int = KERNEL, depth: int = LAYERS) -> torch.Tensor:
    """Causal convolutions, one after the other."""
    for _ in range(depth):
        x = run(Convolution(D, kernel), x)
    return x


x = torch.randn(40, D, requires_grad=True)
gradient = torch.autograd.grad(stack(x)[-1].sum(), x)[0].abs().sum(1)
print(f"the last output sees {int((gradient > 0).sum())} inputs")

# %% [markdown]
# ## Questions
#
# **1.1** One of the layers above has 1,000 weights for sequences of 10 elements. How many does it have for sequences
# of 1,000 elements?

# %%
lessons.check("1.1", ...)

# %% [markdown]
# **1.2** Stack causal convolutions with kernel 3. How many layers does it take until output 100 sees input 1?

# %%
lessons.check("1.2", ...)

# %% [markdown]
# **1.3** Write a function that takes an image `[height, width]` and a size `P`, and returns its square patches as a
# sequence `[N, P * P]`, row by row. (`height` and `width` are multiples of `P`.)

# %%
lessons.check("1.3", ...)  # for example: lessons.check("1.3", my_function)

# %% [markdown]
# ## Claim
#
# One set of weights serves all lengths: a causal layer gives the first elements the same outputs, however long the
# sequence is that follows.

# %%
lengths = lessons.by_budget(quick=(8, 64, 512), full=(8, 64, 512, 4096))
longest = torch.randn(lengths[-1], D)
worst = 0.0
with torch.no_grad():
    for layer in layers.values():
        whole = run(layer, longest)
        for N in lengths:
            worst = max(worst, float((run(layer, longest[:N]) - whole[:N]).abs().max()))
lessons.claim(
    "the same weights give the same outputs at every length",
    worst < 1e-5,
    f"largest difference {worst:.1e} over lengths {lengths}",
)
