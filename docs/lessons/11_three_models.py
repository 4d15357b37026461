# %% [markdown]
# # 11. Encoder, decoder, encoder-decoder
#
# **Lecture topic:** one block, three models.
#
# All transformers are stacks of the same block. They differ in three things: who may look at whom, what comes in, and
# what is asked.
#
# ## The equation
#
# $$Y = \text{softmax}\!\left( \frac{Q K^T}{\sqrt{D_K}} + M \right) V$$
#
# | model | mask | question | example |
# |---|---|---|---|
# | encoder | none: all see all | one answer per sequence, or one per token | classify, tag |
# | decoder | $M_{ij} = -\infty$ for $j > i$ | $p(x_{t+1} \mid x_1, \dots, x_t)$ at every $t$ | continue a text |
# | encoder-decoder | source: none; target: causal | $p(y_{t+1} \mid y_1, \dots, y_t,\; x_1, \dots, x_S)$ | translate |
#
# In the encoder-decoder each decoder block has three parts: masked self-attention, attention to *all* encoder states
# (queries from the target, keys and values from the source), and the MLP.

# %%
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import weft
from weft import lessons
from weft.data.samples import sample
from weft.data.samples.text import ALPHABET, stationary_distribution, transition_probabilities
from weft.figures.charts.curves import curve_figure
from weft.inspection.analysis.reach import gradient_reach
from weft.lessons.learning import Curve, learn
from weft.models.build import AnySpec
from weft.models.decoder import Decoder
from weft.models.encoder import Encoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.parts.block import PostNorm
from weft.parts.masks import Causal, Everything

print(Everything().grid(5).int(), Causal().grid(5).int(), sep="\n")

# %% [markdown]
# ## The part of Weft that is the equation
#
# One block serves all three. Where there is a source, `cross` looks at it. An encoder and a decoder have no `cross`.

# %%
lessons.source(PostNorm.forward)

# %%
lessons.source(Encoder.forward, Decoder.forward, EncoderDecoder.forward)

# %% [markdown]
# ## Three models, three pictures of what is seen
#
# The gradient of output $t$ with respect to input $s$ is zero where $t$ cannot see $s$. Rows are outputs, columns
# inputs.

# %%
LENGTH, LETTERS = 12, len(ALPHABET)
small = {"width": 64, "layers": 2, "mixer.heads": 4}
encoder_spec = weft.preset("encoder").replace(
    **small,
    length=32,
    class_token=False,
    input={"kind": "tokens", "vocabulary": LETTERS + 1},
    output={"kind": "per-token", "classes": LETTERS},
)
decoder_spec = weft.preset("decoder").replace(**small, length=32, vocabulary=LETTERS + 1)
pair_spec = weft.preset("encoder-decoder").replace(**small, length=32, vocabulary=LETTERS + 1)

text = torch.randint(0, LETTERS, (LENGTH,), generator=torch.Generator().manual_seed(0))
seen = {
    "encoder": gradient_reach(weft.build(encoder_spec), text).matrix,
    "decoder": gradient_reach(weft.build(decoder_spec), text).matrix,
    "encoder-decoder: the target's rows, the source's columns": gradient_reach(
        weft.build(pair_spec), text, source=text.flip(0)
    ).matrix,
}


def draw(maps: dict[str, Tensor]) -> Figure:
    """Where the gradient is not zero."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, (name, matrix) in zip(figure.subplots(1, len(maps)), maps.items(), strict=True):
        axes.imshow((matrix > 0).float(), cmap="Blues", vmin=0, vmax=1)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("input s")
        axes.set_ylabel("output t")
    return figure


lessons.show(draw(seen), "Which inputs each output depends on, in an encoder, a decoder and an encoder-decoder.")

# %% [markdown]
# ## Does it pay to see both sides?
#
# `sample:markov` is a text whose letters are drawn by known probabilities $P(c \mid a, b)$ from the two letters
# before. So we can compute how well a letter can be guessed at all:
#
# $$H_\text{left} = H(c \mid a, b), \qquad H_\text{both} = H(c \mid a, b,\; d, e)$$
#
# Here $d, e$ are the two letters *after* $c$. By Bayes' rule,
# $p(c \mid a, b, d, e) \propto P(c \mid a, b)\, P(d \mid b, c)\, P(e \mid c, d)$. The decoder can never go below
# $H_\text{left}$. The encoder may: it sees both sides.

# %%
P = transition_probabilities(0)
pairs = stationary_distribution(P)
joint = np.einsum("ab,abc,bcd,cde->abcde", pairs, P, P, P)
given = joint / np.where((total := joint.sum(2, keepdims=True)) > 0, total, 1.0)
left = sample("markov", size=lessons.by_budget(60_000, 200_000))
assert left.best is not None
H_left = left.best.value
H_both = float(-(joint * np.log(np.where(given > 0, given, 1.0))).sum())
print(f"H_left = {H_left:.3f}, H_both = {H_both:.3f}, ln {LETTERS} = {math.log(LETTERS):.3f} nats per letter")

# %%
MASKED = LETTERS  # the token that hides a letter from the encoder
parts = {
    name: torch.tensor([ALPHABET.index(c) for c in part])
    for name, part in (("train", left.train), ("held", left.validation))
}


def windows(part: str, rows: int, random: torch.Generator, length: int = 32) -> Tensor:
    """Random windows of the text [rows, length]."""
    starts = torch.randint(0, len(parts[part]) - length, (rows, 1), generator=random)
    return parts[part][starts + torch.arange(length)]


def decoder_loss(model: nn.Module, window: Tensor) -> Tensor:
    """Every letter from those before it, all at once; the first two have too little before them to count."""
    logits = model(window[:, :-1]).logits[..., :LETTERS]
    return F.cross_entropy(logits[:, 1:].flatten(0, 1), window[:, 2:].flatten())


def encoder_loss(model: nn.Module, window: Tensor, every: int = 5) -> Tensor:
    """Every fifth letter is hidden, and guessed from those around it."""
    hidden = torch.zeros_like(window, dtype=torch.bool)
    hidden[:, 2:-2:every] = True
    logits = model(window.masked_fill(hidden, MASKED)).logits
    return F.cross_entropy(logits[hidden], window[hidden])


def train(spec: AnySpec, loss_of: Callable[..., Tensor]) -> Curve:
    """Held-out loss by step."""
    model, random = weft.build(spec), torch.Generator().manual_seed(1)
    held = windows("held", 256, torch.Generator().manual_seed(2))
    return learn(
        model,
        lambda _: loss_of(model, windows("train", 32, random)),
        lessons.by_budget(120, 4000),
        lambda: float(loss_of(model, held)),
    )


curves = {
    "decoder: left side": train(decoder_spec, decoder_loss),
    "encoder: both sides": train(encoder_spec, encoder_loss),
}
print({name: round(curve[-1][1], 3) for name, curve in curves.items()})
lessons.show(
    curve_figure(curves, "Held-out loss, nats per letter", known=(H_left, "H_left: the least of any decoder")),
    "The decoder stays above the entropy rate; the encoder, which sees both sides, goes below it.",
)

# %% [markdown]
# The encoder guesses better. But it cannot *write*: to write, each letter must be drawn before the next is known.
# That is what the mask is for. See lesson 18 for what happens to a decoder that sees the other side by mistake.
#
# ## Encoder-decoder: read all, then write
#
# The task: read some letters, write them backwards. The first letter to write is the last one read. A decoder alone
# could do it too, with the source before the target. Here the source has a model of its own, which sees it whole.

# %%
START = LETTERS


def reverse_batch(rows: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sources [B, S], what the decoder reads (a start token, then the letters so far), and what it is to write."""
    length = int(torch.randint(4, 11, (), generator=random))
    letters = torch.randint(0, LETTERS, (rows, length), generator=random)
    target = letters.flip(1)
    return letters, torch.cat((torch.full((rows, 1), START), target[:, :-1]), 1), target


def reverse_loss(model: nn.Module, source: Tensor, given: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(model(source, given).logits.flatten(0, 1), target.flatten())


reverser, random = weft.build(pair_spec), torch.Generator().manual_seed(3)
held_pairs = [reverse_batch(64, torch.Generator().manual_seed(100 + n)) for n in range(4)]


def exact() -> float:
    """Share of the held-out sources that are reversed without a mistake."""
    right = [(reverser(s, g).logits.argmax(-1) == t).all(1).float().mean() for s, g, t in held_pairs]
    return float(torch.stack(right).mean())


accuracy = learn(
    reverser,
    lambda _: reverse_loss(reverser, *reverse_batch(64, random)),
    lessons.by_budget(150, 3000),
    exact,
)
print(f"reversed without a mistake: {accuracy[-1][1]:.1%}")

# %% [markdown]
# Where does the decoder look in the source while it writes? It should go backwards: an anti-diagonal.

# %%
source, target_given, _ = held_pairs[0]
with weft.watch(reverser) as watched, torch.no_grad():
    reverser(source[:1], target_given[:1])
cross = torch.stack([watched.attention(layer, kind="cross").mean(0) for layer in range(2)])


def draw_cross(maps: Tensor) -> Figure:
    """Cross-attention, the mean of the heads of each layer."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    for layer, (axes, matrix) in enumerate(zip(figure.subplots(1, len(maps)), maps, strict=True)):
        axes.imshow(matrix, cmap="Blues", vmin=0)
        axes.set_title(f"layer {layer}", fontsize=10)
        axes.set_xlabel("letter read")
        axes.set_ylabel("letter written")
    return figure


lessons.show(
    draw_cross(cross), "Where each written letter looks in the source: backwards, from the last letter to the first."
)

# %% [markdown]
# ## Change something
#
# The task may be another one. Predict the picture of cross-attention, then train the model on it: go back to the cell
# of `reverse_batch` and put `letters` or `letters.sort(1).values` in place of `letters.flip(1)`. Which of the three
# tasks needs no knowledge of places at all?

# %%
tasks = {"copy": text, "reverse": text.flip(-1), "sort": text.sort().values}
chosen = "sort"  # change me
print("".join(ALPHABET[c] for c in text), "->", "".join(ALPHABET[c] for c in tasks[chosen]))

# %% [markdown]
# ## Questions
#
# **11.1** A text of 10 tokens. How many of the 100 entries of the attention matrix of a decoder may be other than
# zero?

# %%
lessons.check("11.1", ...)

# %% [markdown]
# **11.2** The original transformer has 6 encoder and 6 decoder blocks. How many attentions does it have in all, each
# of several heads?

# %%
lessons.check("11.2", ...)

# %% [markdown]
# **11.3** Its width is $D = 512$, each linear map has a bias, and each LayerNorm has a scale and a shift. How many
# more parameters has a decoder block than an encoder block?

# %%
lessons.check("11.3", ...)

# %% [markdown]
# ## Claim

# %%
upper = {name: float(matrix.triu(1).max()) for name, matrix in seen.items()}
lessons.claim(
    "the decoder sees nothing ahead; the encoder sees all; the target sees the whole source",
    upper["decoder"] == 0 and all(bool((matrix > 0).all()) for name, matrix in seen.items() if name != "decoder"),
    f"largest gradient from ahead: {', '.join(f'{name} {value:.2g}' for name, value in upper.items())}",
)

# %%
reached = {name: curve[-1][1] for name, curve in curves.items()}
measured = f"H_left {H_left:.3f}, H_both {H_both:.3f}; " + ", ".join(f"{n} {v:.3f}" for n, v in reached.items())
lessons.claim(
    "the decoder comes near H_left and not below it",
    abs(reached["decoder: left side"] - H_left) < 0.1 and not left.best.beaten_by(reached["decoder: left side"]),
    measured,
)
lessons.claim(
    "the encoder guesses better than any decoder could, and not better than H_both",
    H_both - 0.05 < reached["encoder: both sides"] < H_left - 0.02,
    measured,
)

# %%
lessons.claim("the encoder-decoder reverses", accuracy[-1][1] > 0.9, f"{accuracy[-1][1]:.1%} without a mistake")
