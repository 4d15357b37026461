# %% [markdown]
# # 3. Attention cures the bottleneck, and aligns for free
#
# **Lecture topic:** Sequence to sequence with attention.
#
# Lesson 2 squeezed a sentence through one vector. Now the decoder may look back at the whole source at every step, and
# chooses where. Nobody tells it where to look: it learns that from translations alone. What it looks at is an
# *alignment* of the two sentences, which we get for free.
#
# ## The equation
#
# $$
# e_{t,i} = f_{\mathrm{att}}(s_{t-1}, h_i), \qquad a_{t,i} = \frac{\exp e_{t,i}}{\sum_j \exp e_{t,j}}, \qquad
# c_t = \sum_i a_{t,i} \, h_i, \qquad s_t = g(y_{t-1}, s_{t-1}, c_t)
# $$
#
# with the additive score $f_{\mathrm{att}}(s, h) = v^T \tanh(W s + U h)$ of Bahdanau et al. (2015).

# %%
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft import lessons
from weft.data.samples import sample
from weft.figures.charts.alignments import alignment_figure
from weft.inspection.analysis.alignment import alignment_error_rate
from weft.models.output import Output
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq, RecurrentSeq2SeqSpec
from weft.parts.scores import additive

torch.manual_seed(0)
random.seed(0)

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(additive, RecurrentSeq2Seq._before)

# %% [markdown]
# ## Run it: dates
#
# "the twenty-first of march, 1987" becomes "1987-03-21". The same recurrent model is trained twice, for the same number
# of steps: with attention, and with one vector. It reads and writes characters.

# %%
Pair = tuple[str, str]
PAD, START, STOP = 0, 1, 2


class Translator:
    """Pairs of texts as numbers, and a recurrent model that learns them."""

    def __init__(self, pairs: list[Pair], split: Callable[[str], list[str]], attention: str, width: int = 64) -> None:
        self.pairs, self.split = pairs, split
        self.tokens = [
            "",
            "<start>",
            "<stop>",
            *sorted({token for pair in pairs for text in pair for token in split(text)}),
        ]
        self.numbers = {token: number for number, token in enumerate(self.tokens)}
        spec = RecurrentSeq2SeqSpec(
            vocabulary=len(self.tokens), width=width, hidden=width, attention=attention, wiring="before"
        )
        self.model: nn.Module = weft.build(spec, seed=0)

    def encode(self, texts: list[str]) -> Tensor:
        """Numbers with a stop token, padded to the longest [B, N]; unknown tokens are left out."""
        rows = [[self.numbers[t] for t in self.split(text) if t in self.numbers] + [STOP] for text in texts]
        longest = max(map(len, rows))
        return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])

    def __call__(self, source: Tensor, wanted: Tensor) -> Output:
        """Teacher forcing: the decoder reads what it should have written."""
        given = torch.cat((torch.full((len(wanted), 1), START), wanted[:, :-1]), 1)
        output: Output = self.model(source, given, source_mask=source != PAD)
        return output

    def loss(self, step: int) -> Tensor:
        some = random.sample(self.pairs, 64)
        wanted = self.encode([target for _, target in some])
        logits = self(self.encode([source for source, _ in some]), wanted).logits
        return cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)

    def right(self, pairs: list[Pair]) -> tuple[float, float]:
        """Share of tokens, and of whole targets, that are right."""
        wanted = self.encode([target for _, target in pairs])
        with torch.no_grad():
            found = self(self.encode([source for source, _ in pairs]), wanted).logits.argmax(-1)
        hits = (found == wanted) | (wanted == PAD)
        return hits[wanted != PAD].float().mean().item(), hits.all(1).float().mean().item()

    def align(self, source: str, target: str) -> Tensor:
        """Attention of each token of the target over those of the source, [T, S]; the stop tokens are left out."""
        with torch.no_grad():
            output = self(self.encode([source]), self.encode([target]))
        return output.auxiliary["alignment"][0, :-1, :-1]

    def picture(self, source: str, target: str) -> Figure:
        return alignment_figure(self.align(source, target), self.split(source), self.split(target))

    def write(self, source: str, most: int = 40) -> list[str]:
        """The likeliest token, again and again."""
        written: list[int] = []
        with torch.no_grad():
            while len(written) < most:
                best = int(self(self.encode([source]), torch.tensor([[*written, PAD]])).logits[0, -1].argmax())
                if best == STOP:
                    break
                written.append(best)
        return [self.tokens[number] for number in written]


STEPS = lessons.by_budget(quick=240, full=900)
dates = sample("dates", size=8000)
train, held = ([(pair.source.lower(), pair.target) for pair in part] for part in (dates.train, dates.validation[:300]))

models = {name: Translator(train, list, kind) for name, kind in {"one vector": "none", "attention": "additive"}.items()}
right = {}
for name, one in models.items():
    lessons.fit(one.model, one.loss, STEPS, rate=4e-3)
    right[name] = one.right(held)
    print(f"{name:11} {right[name][0]:.0%} of the characters right, {right[name][1]:.0%} of the dates")

# %% [markdown]
# ## Alignment for free
#
# Each row is a character written; dark cells are the characters that it looked at.

# %%
lessons.show(
    models["attention"].picture("the twenty-first of march, 1987", "1987-03-21"),
    "Which letters of the source each character of the date looks at",
)

# %% [markdown]
# The sample knows which source characters determine each character of the answer. So we can count: how often does the
# model look most at a wrong place? This share is the *alignment error rate*.

# %%
rates = [
    alignment_error_rate(models["attention"].align(pair.source.lower(), pair.target), pair.alignment)
    for pair in dates.validation[:300]
]
chance = [
    alignment_error_rate(torch.rand(len(pair.target), len(pair.source)), pair.alignment)
    for pair in dates.validation[:300]
]
error, random_error = sum(rates) / len(rates), sum(chance) / len(chance)
print(f"alignment error rate {error:.2f}; looking at random {random_error:.2f}")

# %% [markdown]
# ## English and French: monotone, but for "zone économique européenne"
#
# English puts adjectives before the noun, French after it. The lecture's sentence is in no training example. Words are
# harder than characters: the map is flat at first, then a diagonal, and the turn comes last. It takes the full budget;
# a quick run shows how it begins.


# %%
def split_words(text: str) -> list[str]:
    """Words and marks, in small letters."""
    return re.findall(r"\w+['’]?|[^\w\s]", text.lower())


sentences = sample("french", size=lessons.by_budget(quick=2000, full=20_000))
french = Translator(
    [(pair.source, pair.target) for pair in sentences.train],
    split_words,
    "additive",
    lessons.by_budget(quick=64, full=128),
)
FRENCH_STEPS = lessons.by_budget(quick=40, full=4000)
lessons.fit(french.model, french.loss, FRENCH_STEPS, rate=4e-3)
lecture = sentences.validation[0]
print(lecture.source, "->", " ".join(french.write(lecture.source)))
lessons.show(
    french.picture(lecture.source, lecture.target), f"English across, French down, after {FRENCH_STEPS} training steps"
)

# %% [markdown]
# ## A real corpus, if you have one
#
# Set `WEFT_LESSONS_PAIRS` to a table of sentence pairs (.tsv), and this cell trains on it in the full budget.

# %%
pairs = os.environ.get("WEFT_LESSONS_PAIRS", "")
if pairs and Path(pairs).is_file() and lessons.is_full():
    own = weft.train("translation", pairs, out="runs/pairs", preset="nano-gru-additive", minutes=30)
    print(own.evaluate(pairs, limit=500))
else:
    print("no corpus given, or the quick budget: skipped")

# %% [markdown]
# ## Change something
#
# Write a date as you like. The model has seen English and Italian.

# %%
MINE = "il primo maggio 1999"  # change me

for name, one in models.items():
    print(f"{name:11} {MINE} -> {''.join(one.write(MINE))}")

# %% [markdown]
# ## Questions
#
# **3.1** A source has $S$ = 30 states and the decoder writes $T$ = 10 tokens. How many scores $e_{t,i}$ are computed?

# %%
lessons.check("3.1", ...)

# %% [markdown]
# **3.2** All scores of a step are equal. What is the context $c_t$ then: "the mean of the states", "the last state", or
# "zero"?

# %%
lessons.check("3.2", ...)

# %% [markdown]
# **3.3** Write the context: `f(e, h)` for scores `e [T, S]` and states `h [S, D]`, which returns `c [T, D]`.

# %%
lessons.check("3.3", ...)

# %% [markdown]
# ## Claim
#
# With attention the model learns faster, and its weights are an alignment that nobody taught it.

# %%
lessons.claim(
    "after the same steps attention writes more dates right than one vector, and looks at the right characters",
    right["attention"][1] > right["one vector"][1] and error < 0.6 * random_error,
    f"whole dates right {right['attention'][1]:.0%} with attention, {right['one vector'][1]:.0%} with one vector; "
    f"alignment error {error:.2f}, at random {random_error:.2f}",
)
