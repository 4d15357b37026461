# %% [markdown]
# # 15. Recurrence, convolution, attention, linear attention
#
# **Lecture topic:** four ways to mix a sequence; path length, cost, and what is remembered.
#
# A block mixes *between* tokens, then works *within* each token. The second part is always the same. For the first
# there are four classics.
#
# ## The equation
#
# $$\underbrace{h_t = f(x_t, h_{t-1})}_\text{recurrence} \qquad
# \underbrace{y_t = \sum_{o<k} W_o\, x_{t-o}}_\text{convolution} \qquad
# \underbrace{y_t = \sum_{j \le t} \text{softmax}_j(q_t^T k_j)\, v_j}_\text{attention} \qquad
# \underbrace{y_t = \sum_{j \le t} \phi(q_t)^T \phi(k_j)\, v_j}_\text{linear attention}$$
#
# | mixer | path from $x_1$ to $y_N$ | steps one after the other | operations |
# |---|---|---|---|
# | recurrence | $N$ steps | $N$ | $N D^2$ |
# | convolution | $N / (k - 1)$ layers | 1 | $k N D^2$ |
# | attention | 1 | 1 | $N^2 D$ |
# | linear attention | 1 | 1 | $N D^2 / H$ |
#
# A long path is a long way for the gradient. Linear attention leaves out the softmax. Then the product associates:
# $(Q K^T) V = Q (K^T V)$, and a running matrix $S_t = S_{t-1} + \phi(k_t) v_t^T$ is all that it remembers.
#
# In Weft the mixer is one field of a model's spec. Everything else stays the same. So we can compare.

# %%
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import weft
from weft import lessons
from weft.inspection.analysis.reach import gradient_reach
from weft.lessons.costs import Cost, cost_of, exponent
from weft.lessons.learning import learn
from weft.models.decoder import Decoder
from weft.parts import convolution, linear_attention, recurrence, scores
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.convolution import Convolution
from weft.parts.linear_attention import LinearAttention
from weft.parts.masks import Causal
from weft.parts.recurrence import Recurrence

MIXERS: dict[str, dict[str, Any]] = {
    "recurrence": {"kind": "recurrence", "cell": "gru"},
    "convolution": {"kind": "convolution", "kernel": 7},
    "attention": {"kind": "attention", "heads": 2, "bias": False},
    "linear attention": {"kind": "linear-attention", "heads": 2},
}


def build(mixer: str, layers: int = 2, width: int = 32, vocabulary: int = 17) -> Decoder:
    """A decoder with this mixer; all else is equal. No positions: order is known by mixing alone."""
    model = weft.build(
        weft.preset("nano-gpt").replace(
            vocabulary=vocabulary,
            length=65_536,
            width=width,
            layers=layers,
            mixer=(MIXERS[mixer],),
            positions={"kind": "none"},
            initialization={"scheme": "fan-in"},
        )
    )
    assert isinstance(model, Decoder)
    return model


# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(recurrence.gru_update, convolution.Convolution._convolve)

# %%
lessons.source(scores.scaled_dot, linear_attention.parallel, linear_attention.chunked)

# %% [markdown]
# Linear attention has three faces. In parallel, in chunks, and step by step they give the same numbers.

# %%
q, k, v = torch.rand(3, 1, 2, 50, 16, dtype=torch.float64)
faces = [
    linear_attention.parallel(q, k, v),
    linear_attention.chunked(q, k, v, chunk=8)[0],
    linear_attention.recurrent(q, k, v)[0],
]
faces_apart = max(float((face - faces[0]).abs().max()) for face in faces)
print(f"three faces of linear attention differ by at most {faces_apart:.1e}")

# %% [markdown]
# ## How many layers until the first token is seen?
#
# We add layers until the last of 40 outputs depends on the first input: until the gradient is not zero.

# %%
DISTANCE = 40
line = torch.randint(0, 17, (DISTANCE,), generator=torch.Generator().manual_seed(0))


def layers_needed(mixer: str) -> int:
    """The fewest layers by which the first token reaches the last output."""
    return next(n for n in range(1, 20) if float(gradient_reach(build(mixer, n), line).matrix[-1, 0]) > 0)


needed = {mixer: layers_needed(mixer) for mixer in MIXERS}
print(needed)

# %% [markdown]
# ## How far does the gradient reach?
#
# One layer, not yet trained. We measure how strongly an output depends on an input, by their distance.

# %%
reach_text = torch.randint(0, 17, (64,), generator=torch.Generator().manual_seed(1))
reach = {mixer: gradient_reach(build(mixer, 1), reach_text).by_distance() for mixer in MIXERS}
for mixer, by_distance in reach.items():
    print(f"{mixer:<17}", [f"{float(by_distance[d] / by_distance[1]):.1e}" for d in (1, 5, 10, 20, 40, 60)])

# %% [markdown]
# The recurrence forgets exponentially before it has learned to keep. The convolution sees exactly nothing beyond its
# kernel. Both kinds of attention see far and near alike.
#
# ## Time, memory, and what is kept while writing
#
# Time and memory of one mixer for growing $N$; then the numbers that a model keeps to write one more token (its
# state).

# %%
LENGTHS = lessons.by_budget((512, 1024, 2048, 4096), (1024, 2048, 4096, 8192, 16384, 32768))
PARTS: dict[str, nn.Module] = {
    "recurrence": Recurrence(64),
    "convolution": Convolution(64, 7),
    "attention": SelfAttention(64, 1),
    "linear attention": LinearAttention(64, 1),
}


def cost(part: nn.Module, length: int) -> Cost:
    """Of one forward over N tokens."""
    x = torch.randn(1, length, 64)
    return cost_of(lambda: part(x, AttentionContext.of(x, Causal())), repeats=3)


def kept_numbers(mixer: str, length: int) -> int:
    """How many numbers the state holds after so many tokens."""
    model = build(mixer)
    state = model.make_state()
    with torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.long), state=state)
    total = 0
    for own in state.layers:
        if (tensors := getattr(own, "tensors", None)) is not None:
            total += sum(tensor.numel() for tensor in tensors)
        elif (keys := getattr(own, "keys", None)) is not None:
            total += 2 * keys.shape[1] * length * keys.shape[3]
    return total


measured_costs = {mixer: [cost(part, length) for length in LENGTHS] for mixer, part in PARTS.items()}
seconds = {mixer: [found.seconds for found in row] for mixer, row in measured_costs.items()}
memory = {mixer: [found.mib for found in row] for mixer, row in measured_costs.items()}
STATE_LENGTHS = (128, 256, 512, 1024)
states = {mixer: [kept_numbers(mixer, length) for length in STATE_LENGTHS] for mixer in MIXERS}

# %% [markdown]
# ## Long recall, with a known optimum
#
# The task: the first token is one of eight letters. Then come tokens of noise. At the end a question mark: which was
# the letter? The best possible accuracy is 100 %; whoever guesses has 12.5 %.

# %%
LETTERS, ASK = 8, 16
DISTANCES = lessons.by_budget((8, 32), (8, 32, 128))


def recall_batch(length: int, rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts [B, N] and the letter asked for [B]."""
    letter = torch.randint(0, LETTERS, (rows, 1), generator=random)
    noise = torch.randint(LETTERS, ASK, (rows, length - 2), generator=random)
    return torch.cat((letter, noise, torch.full((rows, 1), ASK)), 1), letter[:, 0]


def recall(mixer: str, length: int) -> float:
    """Accuracy on new texts after training."""
    model, random = build(mixer), torch.Generator().manual_seed(0)
    texts, letters = recall_batch(length, 256, torch.Generator().manual_seed(1))

    def loss(_: int) -> Tensor:
        given, wanted = recall_batch(length, 32, random)
        return F.cross_entropy(model(given).logits[:, -1], wanted)

    def accuracy() -> float:
        return float((model(texts).logits[:, -1].argmax(-1) == letters).float().mean())

    return learn(model, loss, lessons.by_budget(80, 1200), accuracy, points=1)[-1][1]


recalled = {mixer: [recall(mixer, length) for length in DISTANCES] for mixer in MIXERS}

# %% [markdown]
# ## One table

# %%
head = ("mixer", "layers needed", "gradient, far", "time", "memory", "state", f"recall over {DISTANCES[-1]}")
rows = [
    (
        mixer,
        str(needed[mixer]),
        f"{float(reach[mixer][50] / reach[mixer][1]):.0e}",
        f"N^{exponent(LENGTHS, seconds[mixer]):.2f}",
        f"N^{exponent(LENGTHS, memory[mixer]):.2f}",
        f"N^{exponent(STATE_LENGTHS, states[mixer]):.0f}",
        f"{recalled[mixer][-1]:.0%}",
    )
    for mixer in MIXERS
]
for row in (head, *rows):
    print("".join(f"{cell:<18}" for cell in row))

# %% [markdown]
# ## One picture


# %%
def draw() -> Figure:
    """Gradient by distance, time, state, and recall."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    (far, spent), (kept, right) = figure.subplots(2, 2)
    for mixer in MIXERS:
        far.semilogy((reach[mixer] / reach[mixer][1]).clamp(min=1e-12).where(reach[mixer] > 0, torch.nan), label=mixer)
        spent.loglog(LENGTHS, seconds[mixer], "o-", base=2)
        kept.loglog(STATE_LENGTHS, states[mixer], "o-", base=2)
        right.semilogx(DISTANCES, recalled[mixer], "o-", base=2)
    right.axhline(1 / LETTERS, color="gray", linestyle="--")
    for axes, title, below in (
        (far, "gradient reach, against distance 1", "distance"),
        (spent, "seconds of one forward", "N"),
        (kept, "numbers kept while writing", "N"),
        (right, "recall: accuracy (dashed: guessing)", "distance"),
    ):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(below)
        axes.grid(alpha=0.3)
    far.legend(fontsize=8)
    return figure


lessons.show(
    draw(), "Four mixers: how far the gradient reaches, time, memory while writing, and recall over a distance."
)

# %% [markdown]
# ## Change something
#
# A pattern of mixers may repeat over the layers. Many of today's models are such hybrids. Does this one see the first
# of 40 tokens? Why might it be a good idea?

# %%
pattern = ("convolution", "attention")  # change me
hybrid = weft.build(build("attention").spec.replace(mixer=tuple(MIXERS[mixer] for mixer in pattern)))
print(pattern, "see the first token:", float(gradient_reach(hybrid, line).matrix[-1, 0]) > 0)

# %% [markdown]
# ## Questions
#
# **15.1** A convolution of kernel 5. How many layers does it need until output 41 depends on input 1?

# %%
lessons.check("15.1", ...)

# %% [markdown]
# **15.2** A model of width 512 has 12 layers of attention. How many numbers does its cache of keys and values hold
# after 1,000 tokens?

# %%
lessons.check("15.2", ...)

# %% [markdown]
# **15.3** The same with linear attention in 8 heads, and sums $z$ of one number per feature. Count $S$ and $z$.

# %%
lessons.check("15.3", ...)

# %% [markdown]
# ## Claim

# %%
lessons.claim(
    "the three faces of linear attention are equal", faces_apart < 1e-12, f"largest difference {faces_apart:.1e}"
)
lessons.claim(
    "attention needs one layer to see 39 tokens back, a convolution of kernel 7 needs seven",
    needed["attention"] == needed["linear attention"] == 1 and needed["convolution"] == 7,
    str(needed),
)
lessons.claim(
    "before training the gradient of a recurrence dies out with distance, that of attention does not",
    float(reach["recurrence"][50] / reach["recurrence"][1]) < 1e-3
    and float(reach["attention"][50] / reach["attention"][1]) > 0.05,
    ", ".join(f"{mixer} {float(reach[mixer][50] / reach[mixer][1]):.1e}" for mixer in MIXERS),
)

# %%
slopes = {mixer: exponent(LENGTHS, seconds[mixer]) for mixer in MIXERS}
grows = {mixer: states[mixer][-1] / states[mixer][0] for mixer in MIXERS}
lessons.claim(
    "the time of attention grows faster than that of linear attention, and only its state grows with the text",
    slopes["attention"] > slopes["linear attention"] + 0.3
    and grows["attention"] == 8
    and all(grows[mixer] == 1 for mixer in MIXERS if mixer != "attention"),
    ", ".join(f"{mixer} N^{slopes[mixer]:.2f}" for mixer in MIXERS),
)
lessons.claim(
    "attention recalls over every distance; a convolution guesses beyond its reach of 13 tokens",
    min(recalled["attention"]) > 0.95 and recalled["convolution"][0] > 0.95 and max(recalled["convolution"][1:]) < 0.25,
    "; ".join(f"{mixer}: " + ", ".join(f"{value:.0%}" for value in recalled[mixer]) for mixer in MIXERS),
)
