# %% [markdown]
# # 7. Masks, and other priors on W
#
# **Lecture topic:** Self-attention: masks and other structure on the weights W.
#
# Attention lets every token look at every token. Often we know better. A language model must not see the next word. A
# padded batch holds tokens that are none. A node of a graph has neighbors. All this is said by a mask: a matrix of who
# may look at whom, applied before the softmax.
#
# ## The equation
#
# $$
# W = \mathrm{softmax}\!\left(\frac{Q K^T}{\sqrt{D_K}} + M\right), \qquad
# M_{ij} = \begin{cases} 0 & \text{if } i \text{ may look at } j \\ -\infty & \text{if not} \end{cases}
# $$
#
# For a causal mask $M_{ij} = -\infty$ where $j > i$. Since $\exp(-\infty) = 0$, hidden keys get weight 0, and each row
# still sums to 1 over what it sees. In Weft a mask is a rule of positions, True where a query may look.

# %%
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft import lessons
from weft.models.decoder import DecoderSpec
from weft.models.part_specs import AttentionSpec
from weft.models.position_specs import LearnedSpec
from weft.parts.attention import SelfAttention, parameter_free_attention
from weft.parts.attention_context import AttentionContext
from weft.parts.masks import BlockSparse, Causal, Documents, Everything, Graph, Mask, Prefix, Window
from weft.parts.relative import Alibi
from weft.parts.score import weigh
from weft.parts.token_positions import TokenPositions

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation
#
# The softmax with hidden pairs; two rules; and a softer prior, which adds a number in place of $-\infty$.

# %%
lessons.source(weigh, Causal.allows, Window.allows, Alibi)

# %% [markdown]
# ## Run it: what masks look like
#
# Masks compose: `Causal() & Window(4)`.

# %%
N = 16
ring = torch.eye(N).roll(1, 1) + torch.eye(N).roll(-1, 1) + torch.eye(N)
masks: dict[str, Mask] = {
    "everything": Everything(),
    "causal": Causal(),
    "causal & window(4)": Causal() & Window(4),
    "prefix(5)": Prefix(5),
    "blocks of 4": BlockSparse(4, near=0, shared=1),
    "graph: a ring": Graph(ring),
}

X = torch.randn(1, N, 8)
figure, axes = plt.subplots(2, 3, figsize=(8, 5.4), layout="constrained")
for axis, (name, mask) in zip(axes.flat, masks.items(), strict=True):
    axis.imshow(parameter_free_attention(0.5 * X, mask)[1][0], cmap="Blues", vmin=0, vmax=0.5)
    axis.set(title=name, xticks=[], yticks=[])
lessons.show(figure, "Attention weights of the same vectors under six masks; hidden pairs have weight 0")

# %% [markdown]
# ## Why a mask saves time: every position trains at once
#
# With a causal mask, output $t$ depends on inputs up to $t$ only. So one pass over a text gives the loss of *every*
# next word. The naive loop over prefixes gives the same numbers, slowly.

# %%
spec = DecoderSpec(vocabulary=20, length=32, width=32, layers=2, mixer=AttentionSpec(heads=2), positions=LearnedSpec())
model = weft.build(spec, seed=0).eval()
text = torch.randint(20, (1, 24))
with torch.no_grad():
    at_once = model(text).logits[0]
    one_by_one = torch.stack([model(text[:, : t + 1]).logits[0, -1] for t in range(24)])
print("largest difference:", (at_once - one_by_one).abs().max().item())

# %% [markdown]
# ## What happens without it
#
# We train a small language model on random letters, where nothing can be predicted: the best loss is
# $\log 20 \approx 3.00$. A model without the mask reaches less, because it *sees* the letter that it should predict.
# On its own it would be useless. Weft's laws find this in a second.


# %%
class Peeking(nn.Module):
    """A language model of two layers; `mask` says what a position may see."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.embedding, self.place, self.head = nn.Embedding(20, 32), nn.Embedding(32, 32), nn.Linear(32, 20)
        self.layers = nn.ModuleList([SelfAttention(32, 2) for _ in range(2)])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.place.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = x + layer(x, AttentionContext.of(x, self.mask))
        return torch.as_tensor(self.head(x))


def next_letter_loss(model: nn.Module, step: int) -> Tensor:
    letters = torch.randint(20, (64, 17))
    return cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())


losses, verdicts = {}, {}
STEPS = lessons.by_budget(quick=250, full=2000)
for name, mask in {"causal": Causal(), "no mask": Everything()}.items():
    peeking = Peeking(mask)
    curve = lessons.fit(peeking, partial(next_letter_loss, peeking), STEPS)
    report = weft.laws.check(peeking, torch.randint(20, (1, 12)), vocabulary=20, causal=True)
    losses[name], verdicts[name] = curve[-1][1], report["causality"].verdict
    print(f"{name:8} loss {losses[name]:.2f} (honest best 3.00), law of causality: {verdicts[name]}")

# %% [markdown]
# ## Other priors
#
# A mask is the hardest prior: never. A softer one *prefers*. ALiBi subtracts a number that grows with distance, so near
# tokens count more:
# $e_{ij} = q_i^T k_j / \sqrt{D_K} - m_h |i - j|$, with a slope $m_h$ per head.

# %%
prior = Alibi(heads=4).bias(
    torch.zeros(1, 4, N, 8), TokenPositions.run(0, N, X.device), TokenPositions.run(0, N, X.device)
)
figure, axes = plt.subplots(1, 4, figsize=(9, 2.5), layout="constrained")
for head, axis in enumerate(axes):
    axis.imshow(weigh(prior)[0, head], cmap="Blues", vmin=0)
    axis.set(title=f"head {head + 1}", xticks=[], yticks=[])
lessons.show(figure, "What ALiBi alone makes of equal scores: each head prefers near keys at its own rate")

# %% [markdown]
# ## Change something
#
# Build a mask of your own with `&`, `|` and `~`, and print it.

# %%
mine = Causal() & (Window(3) | BlockSparse(4, near=0, shared=1))  # change me
positions = TokenPositions.run(0, 12, X.device)
for row in mine.allows(positions, positions)[0]:
    print(" ".join("■" if seen else "·" for seen in row.tolist()))

# %% [markdown]
# Two texts in one row, so that no place is wasted: `Documents` keeps them apart.

# %%
two_texts = torch.tensor([[0] * 7 + [1] * 5])
packed = TokenPositions.of_documents(two_texts)
for row in (Causal() & Documents(two_texts)).allows(packed, packed)[0]:
    print(" ".join("■" if seen else "·" for seen in row.tolist()))

# %% [markdown]
# ## Questions
#
# **7.1** How many pairs may look under a causal mask, for $N$ = 100 tokens?

# %%
lessons.check("7.1", ...)

# %% [markdown]
# **7.2** A stack of 6 layers, each with `Causal() & Window(4)`: a token sees itself and 3 before it. How many tokens
# can the last output depend on?

# %%
lessons.check("7.2", ...)

# %% [markdown]
# **7.3** Write a function of $N$ that returns the mask [N, N] (True = may look) of a model that fills gaps: all tokens
# see all others, but no token sees itself.

# %%
lessons.check("7.3", ...)

# %% [markdown]
# ## Claim
#
# A causal mask makes training on all positions at once equal to the loop over prefixes; without it a model learns to
# peek, and the law of causality says so.

# %%
same = float((at_once - one_by_one).abs().max())
lessons.claim(
    "one pass equals the loop; a model without the mask beats what is possible, and its law is broken",
    same < 1e-5
    and losses["causal"] > 2.95
    and losses["no mask"] < 2.5
    and verdicts == {"causal": "holds", "no mask": "broken"},
    f"difference {same:.0e}; loss {losses['causal']:.2f} with the mask, {losses['no mask']:.2f} without; {verdicts}",
)
