# %% [markdown]
# # 14. Everything is a token
#
# **Lecture topic:** sequences of all kinds: text, images, numbers, bodies in motion, sound, graphs, sets.
#
# A transformer is not about language. It is about sequences of vectors.
#
# ## The equation
#
# A block takes vectors $x_1, \dots, x_T$ of width $D$. It does not know what they were. So whatever can be cut into
# pieces, and each piece mapped to $D$ numbers, can be given to a transformer:
#
# $$x_t = W\,\text{piece}_t + b, \qquad \text{for symbols } x_t = E_{s_t}$$
#
# Only this first map and the last one depend on the kind of data. In this lesson *one* block, with one set of
# weights, reads seven kinds of data. Then models learn them, and we compare with what is possible at best.

# %%
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import weft
from weft import lessons
from weft.data.readers.sounds import log_mel
from weft.data.samples import BONES, SAMPLE_RATE, ReferenceScore, sample
from weft.parts import embeddings
from weft.parts.attention import SelfAttention
from weft.parts.attention_context import AttentionContext
from weft.parts.block import PreNorm
from weft.parts.embeddings import PatchEmbedding, SeriesEmbedding, TokenEmbedding, VectorEmbedding
from weft.parts.feedforward import FeedForward
from weft.parts.masks import Causal, Everything, Graph, Mask
from weft.parts.norms import LayerNorm

# %% [markdown]
# ## The part of Weft that is the equation
#
# Four maps are enough: a look-up for symbols, and one linear map each for vectors, patches of a series, and patches
# of an image.

# %%
lessons.source(embeddings.TokenEmbedding.look_up, embeddings.SeriesEmbedding, embeddings.PatchEmbedding.forward)

# %% [markdown]
# ## One example of each kind
#
# All data are made here, by Weft's built-in samples.

# %%
WIDTH = 64
torch.manual_seed(0)
scene = sample("scenes", size=9).train
words = sorted({word for text in scene.texts for word in text.split()})
path = sample("brownian3d", size=400).train.values
body = sample("skeletons", size=9).train.values[1]
wave = sample("tones", size=9).train.values[0][:, 0]
sound = log_mel(wave, SAMPLE_RATE)
graph = sample("nodes", size=9).train[0]
question, answer = sample("sets", size=9).train[0]

image = torch.tensor(scene.pixels[:1]).permute(0, 3, 1, 2) / 255
caption = torch.tensor([[words.index(word) for word in scene.texts[0].split()]])
colors = torch.tensor([[sorted(set(graph.nodes)).index(name) for name in graph.nodes]])
numbers = torch.tensor([[int(word) for word in question.split()[1:]]])
print(f"caption: {scene.texts[0]!r}; set: {question!r} -> {answer}; motion: {body.shape}; sound: {sound.shape}")

# %%
patches, cells = PatchEmbedding(8, 3, WIDTH)(image)
written = TokenEmbedding(len(words), WIDTH)(caption)
tokens: dict[str, Tensor] = {
    "text": written,
    "image": patches,
    "image + text": torch.cat((patches, written), 1),
    "Brownian motion in 3-D": SeriesEmbedding(8, 3, WIDTH)(torch.tensor(path[:96], dtype=torch.float32)[None]),
    "a body in motion": VectorEmbedding(body.shape[1], WIDTH)(torch.tensor(body)[None]),
    "sound": VectorEmbedding(sound.shape[1], WIDTH)(torch.tensor(sound)[None]),
    "graph": TokenEmbedding(2, WIDTH)(colors),
    "set": TokenEmbedding(10, WIDTH)(numbers),
}
neighbors = torch.tensor(graph.adjacency)
masks: dict[str, Mask] = {
    "text": Causal(),
    "image + text": Causal(),
    "Brownian motion in 3-D": Causal(),
    "graph": Graph(neighbors),
}
block = PreNorm(SelfAttention(WIDTH, 4), FeedForward(WIDTH), lambda: LayerNorm(WIDTH)).double()
mixed: dict[str, Tensor] = {}
for name, x in tokens.items():
    mask = masks.get(name, Everything())
    with torch.no_grad():
        mixed[name] = block(x.double(), AttentionContext.of(x.double(), mask))
    print(f"{name:<23} {x.shape[1]:>3} tokens of width {x.shape[2]}, mask: {mask!r:.20}")


# %%
def draw() -> Figure:
    """An image, a path, a body, a sound and a graph, as they are before they become tokens."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    picture = figure.add_subplot(2, 3, 1)
    picture.imshow(image[0].permute(1, 2, 0))
    picture.set_title(f"{patches.shape[1]} patches")
    picture.axis("off")
    space = figure.add_subplot(2, 3, 2, projection="3d")
    space.plot(*path[:96].T)
    space.set_title("12 pieces of 8 steps")
    skeleton = figure.add_subplot(2, 3, 3, projection="3d")
    for number, frame in enumerate(body[::12]):
        joints = frame.reshape(-1, 3) + np.array([1.5 * number, 0, 0])
        for a, b in BONES:
            skeleton.plot(*joints[[a, b]].T, color=matplotlib.colormaps["viridis"](number / 5))
    skeleton.set_title(f"{len(body)} frames of 18 joints")
    spectrum = figure.add_subplot(2, 3, 4)
    spectrum.imshow(sound.T, aspect="auto", origin="lower")
    spectrum.set_title(f"{len(sound)} frames of {sound.shape[1]} log-mel numbers")
    links = figure.add_subplot(2, 3, 5)
    links.imshow(neighbors, cmap="Blues")
    links.set_title("a graph is a mask over its 12 nodes")
    heads = figure.add_subplot(2, 3, 6)
    heads.axis("off")
    heads.text(0, 0.5, f"a set is tokens without positions:\n{question}\n-> {answer}", fontsize=11)
    return figure


lessons.show(draw(), "Before they become tokens: an image, a path in space, a body in motion, a sound, a graph, a set.")

# %% [markdown]
# ## What the kind of data changes: the mask and the positions
#
# - **A set** has no order. Give no positions. Then permuting the inputs permutes the outputs, and nothing else
#   happens.
# - **A graph** says who sees whom. It *is* the mask. A node does not depend on nodes that are not its neighbors.
# - **Image and text in one sequence**: each word sees the patches before it, and the words before it.

# %%
order = torch.randperm(numbers.shape[1], generator=torch.Generator().manual_seed(0))
as_set = tokens["set"].double()
with torch.no_grad():
    permuted = block(as_set[:, order], AttentionContext.of(as_set))
equivariance = float((mixed["set"][:, order] - permuted).abs().max())

nodes = tokens["graph"].double().detach().requires_grad_()
seen_by = AttentionContext.of(nodes, Graph(neighbors))
(slope,) = torch.autograd.grad(block(nodes, seen_by)[0, 0].square().sum(), nodes)
felt = slope[0].abs().sum(-1) > 0
allowed = Graph(neighbors).grid(len(neighbors))[0] | (torch.arange(len(neighbors)) == 0)
print(f"set: permuted inputs permute outputs, to {equivariance:.1e}")
print("graph: node 0 depends on nodes", felt.nonzero().flatten().tolist())

# %% [markdown]
# ## Learn them, and compare with what is possible
#
# Each sample comes with its best possible score, and mostly with the score of whoever ignores the structure (the
# *shortcut*). Brownian motion is the strictest teacher: its steps are independent. Nobody can forecast better than
# "it stays where it is", with an error of $h \sigma^2$ after $h$ steps. A model that does better has a leak.
#
# The quick budget learns two of them for a few steps, which is not enough. The full budget learns all.

# %%
LEARNED = {
    "brownian3d": ("forecast", "steps in space"),
    "sets": ("classification", "numbers of a set"),
    "nodes": ("classification", "nodes of a graph"),
    "skeletons": ("sequences", "frames of a body"),
    "tones": ("sequences", "frames of a sound"),
    "shapes": ("images", "patches of an image"),
    "questions": ("captions", "patches and words"),
}
QUICK = {"width": 32, "layers": 1, "training.guard": False}
results: dict[str, tuple[float, ReferenceScore, float | None]] = {}


def score_of(run: weft.Run, name: str, metric: str) -> float:
    """On held-out data; the errors of forecasts in the units of the data."""
    if metric != "mse":
        return float(run.evaluate(f"sample:{name}", limit=lessons.by_budget(60, 400))[metric])
    errors = run.evaluate(f"sample:{name}")["rmse_by_column"]
    return float(sum(error**2 for error in errors.values()) / len(errors))


for name in lessons.by_budget(("brownian3d", "nodes"), tuple(LEARNED)):
    task, pieces = LEARNED[name]
    how: dict[str, Any] = {"minutes": 2} if lessons.is_full() else {"steps": 8, "set": QUICK}
    run = weft.train(task, f"sample:{name}", out=f"runs/{name}", **how)
    found = sample(name)
    assert found.best is not None
    best, shortcut = found.best, None if found.shortcut is None else found.shortcut.value
    score = score_of(run, name, best.metric)
    results[name] = score, best, shortcut
    beside = "" if shortcut is None else f", without the structure {shortcut:.3f}"
    print(f"{pieces:<20} {best.metric} {score:.3f}, best possible {best.value:.3f}{beside}")

# %% [markdown]
# ## Change something
#
# How long is the sequence? Change the size of the patches, and the length that a block must compare each with each.

# %%
patch = 8  # change me
pieces, cells = PatchEmbedding(patch, 3, WIDTH)(image)
print(f"patches of {patch} x {patch}: {pieces.shape[1]} tokens, {pieces.shape[1] ** 2:,} pairs")

# %% [markdown]
# Then bring data of your own. Each of these lines starts from a file and ends with a picture:
#
#     weft train forecast measurements.csv --out runs/numbers --minutes 5
#     weft train sequences sounds/ --out runs/sounds --minutes 5      # a folder of .wav files per class
#     weft train classification graphs.jsonl --out runs/graphs --minutes 5
#     weft look runs/sounds sounds/bell/1.wav --out bell.html
#
# ## Questions
#
# **14.1** An image of 48 x 48 pixels in patches of 8 x 8, then a caption of 9 words, in one sequence. How many
# tokens?

# %%
lessons.check("14.1", ...)

# %% [markdown]
# **14.2** In that sequence, with a causal mask, how many tokens does the last word see, itself included?

# %%
lessons.check("14.2", ...)

# %% [markdown]
# **14.3** Brownian motion in one dimension, steps of variance 1. What is the least possible mean squared error of a
# forecast, averaged over 1 to 24 steps ahead?

# %%
lessons.check("14.3", ...)

# %% [markdown]
# ## Claim

# %%
shapes = {name: tuple(y.shape) == tuple(tokens[name].shape) for name, y in mixed.items()}
lessons.claim(
    "one block reads all kinds", all(shapes.values()), ", ".join(f"{n} T={y.shape[1]}" for n, y in mixed.items())
)
lessons.claim("a set has no order", equivariance < 1e-12, f"largest difference {equivariance:.1e}")
lessons.claim(
    "a node sees its neighbors and itself, nobody else",
    bool((felt == allowed).all()),
    f"node 0 depends on {felt.nonzero().flatten().tolist()}",
)

# %%
measured = "; ".join(
    f"{name}: {best.metric} {score:.3f} of {best.value:.3f}" for name, (score, best, _) in results.items()
)
lessons.claim(
    "no model beats the best possible score",
    not any(best.beaten_by(score) for score, best, _ in results.values()),
    measured,
)
error, least, _ = results["brownian3d"]
lessons.claim(
    "a forecast of Brownian motion comes within a quarter of the best possible", error < 1.25 * least.value, measured
)
lessons.claim(
    "models that see the structure beat those that do not",
    all(score > shortcut for score, _, shortcut in results.values() if shortcut is not None),
    measured,
)
