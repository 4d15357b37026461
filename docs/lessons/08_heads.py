# %% [markdown]
# # 8. Heads, and what they learn
#
# **Lecture topic:** Heads.
#
# One attention gives each token one weighted mean. But a word may need two things at once: "it" wants to know which
# noun it stands for *and* whether the adjective fits. So attention comes in heads: $H$ small copies that look at the
# same tokens with their own queries, keys and values. This lesson trains two small models and looks at their heads.
#
# ## The equation
#
# $$
# \mathrm{head}_h = \mathrm{softmax}\!\left(\frac{Q_h K_h^T}{\sqrt{D_H}}\right) V_h, \qquad
# Z = [\mathrm{head}_1; \dots; \mathrm{head}_H] \, W_O, \qquad D_H = D / H
# $$
#
# In practice this is four matrix products: one for all queries, keys and values together, $Q K^T$, $A V$, and the
# output projection.

# %%
import random

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft import lessons
from weft.data.samples import sample
from weft.data.samples.classification import BAD, GOOD, NEGATIONS, PLAIN, THINGS
from weft.models.encoder import EncoderSpec, PerTokenSpec, PooledSpec, TokensSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec
from weft.models.position_specs import LearnedSpec
from weft.parts.attention import SelfAttention

torch.manual_seed(0)
random.seed(0)

# %% [markdown]
# ## The part of Weft that is the equation
#
# Splitting into heads is a view of the same numbers; merging concatenates them and applies $W_O$.

# %%
lessons.source(SelfAttention.project, SelfAttention.split, SelfAttention.merge)

# %% [markdown]
# ## Run it: what does "it" stand for?
#
# "The animal didn't cross the street because it was too *tired*": it is the animal. "... too *wide*": it is the street.
# The model reads the sentence and names the noun at the word "it".

# %%
Example = tuple[list[str], str]  # words, answer
STEPS = lessons.by_budget(quick=250, full=2500)
HEADS, WIDTH = 4, 64


class Words:
    """Words as numbers; 0 is padding."""

    def __init__(self, texts: list[list[str]]) -> None:
        self.numbers = {word: n for n, word in enumerate(sorted({word for text in texts for word in text}), start=1)}

    def encode(self, texts: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Numbers [B, T] and which of them are real [B, T]."""
        longest = max(map(len, texts))
        rows = [[self.numbers.get(word, 0) for word in text] + [0] * (longest - len(text)) for text in texts]
        tokens = torch.tensor(rows)
        return tokens, torch.tensor([[True] * len(text) + [False] * (longest - len(text)) for text in texts])


pronouns = sample("pronouns")
nouns = [tag for tag in pronouns.classes if tag != "O"]
train, held = (
    [(list(words), next(tag for tag in tags if tag != "O")) for words, tags in part]
    for part in (pronouns.train, pronouns.validation)
)
words = Words([text for text, _ in train + held])

reader = weft.build(
    EncoderSpec(
        input=TokensSpec(vocabulary=len(words.numbers) + 1),
        length=32,
        width=WIDTH,
        layers=2,
        mixer=AttentionSpec(heads=HEADS),
        feedforward=ClassicSpec(hidden=2 * WIDTH),
        positions=LearnedSpec(),
        output=PerTokenSpec(classes=len(nouns)),
    ),
    seed=0,
)


def answers(model: nn.Module, examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Logits at the word "it", and the right nouns."""
    tokens, real = words.encode([text for text, _ in examples])
    places = torch.tensor([text.index("it") for text, _ in examples])
    logits = model(tokens, mask=real).logits[torch.arange(len(examples)), places]
    return logits, torch.tensor([nouns.index(noun) for _, noun in examples])


curve = lessons.fit(reader, lambda step: cross_entropy(*answers(reader, random.sample(train, 64))), STEPS)
with torch.no_grad():
    logits, right = answers(reader, held[:300])
accuracy = (logits.argmax(-1) == right).float().mean().item()
print(f"loss {curve[0][1]:.2f} -> {curve[-1][1]:.2f}; right on held-out sentences: {accuracy:.0%}")

# %% [markdown]
# Now look. `weft.watch` records what attention does, without changing it. The rows below are the heads; each shows
# where "it" looks.


# %%
def looks_of_it(text: list[str]) -> Tensor:
    """Attention of "it" in the last layer, [heads, words]."""
    tokens, real = words.encode([text])
    with torch.no_grad(), weft.watch(reader) as seen:
        reader(tokens, mask=real)
    return seen.attention(layer=-1, rows=text.index("it"))


pair = ["the animal didn't cross the street because it was too " + end for end in ("tired", "wide")]
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
for axis, sentence in zip(axes, pair, strict=True):
    shown = sentence.split()
    axis.imshow(looks_of_it(shown), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(len(shown)), shown, rotation=60, ha="right")
    axis.set_yticks(range(HEADS), [f"head {h + 1}" for h in range(HEADS)])
    with torch.no_grad():
        axis.set_title("it = " + nouns[int(answers(reader, [(shown, nouns[0])])[0].argmax())])
lessons.show(figure, "Where each head of the last layer looks from 'it', for 'too tired' and for 'too wide'")

# %% [markdown]
# One head is usually enough to tell. We choose it on training sentences: the head that looks more at the noun that is
# meant than at the other one, most often. Then we count on held-out sentences.


# %%
def finds_noun(examples: list[Example]) -> Tensor:
    """Share of sentences in which each head looks more at the right noun than at the other, [heads]."""
    found = torch.zeros(HEADS)
    for text, noun in examples:
        look = looks_of_it(text)
        other = next(word for word in text if word in nouns and word != noun)
        found += (look[:, text.index(noun)] > look[:, text.index(other)]).float()
    return found / len(examples)


COUNT = lessons.by_budget(quick=60, full=300)
chosen = int(finds_noun(train[:COUNT]).argmax())
share = finds_noun(held[:COUNT])[chosen].item()
print(f"head {chosen + 1} looks more at the right noun in {share:.0%} of held-out sentences")

# %% [markdown]
# ## "not terrible"
#
# "The film was not terrible" is positive. A bag of words is lost: each word is as often in positive as in negative
# sentences. "terrible" has to meet "not" before the sentence is judged. We look at the *first* layer: does the word of
# opinion look at its negation?

# %%
every = [
    (f"the {thing} was {frame.format(word)}".split(), "positive" if good != negated else "negative")
    for thing in THINGS
    for frames, negated in ((NEGATIONS, True), (PLAIN, False))
    for frame in frames
    for good, opinions in ((True, GOOD), (False, BAD))
    for word in opinions
]
random.shuffle(every)
kept, read = every[:400], every[400:]
labels = ["negative", "positive"]
vocabulary = Words([text for text, _ in every])
critic = weft.build(
    EncoderSpec(
        input=TokensSpec(vocabulary=len(vocabulary.numbers) + 1),
        length=40,
        width=WIDTH,
        layers=2,
        mixer=AttentionSpec(heads=HEADS),
        feedforward=ClassicSpec(hidden=2 * WIDTH),
        positions=LearnedSpec(),
        output=PooledSpec(pool="mean", classes=2),
    ),
    seed=0,
)


def judged(model: nn.Module, examples: list[Example]) -> tuple[Tensor, Tensor]:
    tokens, real = vocabulary.encode([text for text, _ in examples])
    return model(tokens, mask=real).logits, torch.tensor([labels.index(label) for _, label in examples])


curve = lessons.fit(critic, lambda step: cross_entropy(*judged(critic, random.sample(read, 64))), STEPS)
with torch.no_grad():
    logits, right = judged(critic, kept[:400])
fair = (logits.argmax(-1) == right).float().mean().item()
print(f"right on held-out sentences: {fair:.0%}; a bag of words: about half")

# %%
text = ["the", "film", "was", "not", "terrible", "at", "all"]
tokens, real = vocabulary.encode([text])
with torch.no_grad(), weft.watch(critic) as seen:
    critic(tokens, mask=real)
looks = seen.attention(layer=0)
figure, axes = plt.subplots(1, HEADS, figsize=(11, 3.2), layout="constrained", sharey=True)
for head, axis in enumerate(axes):
    axis.imshow(looks[head], cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(len(text)), text, rotation=90)
    axis.set_yticks(range(len(text)), text)
    axis.set(title=f"head {head + 1}")
print("'terrible' looks at 'not' by head:", [round(x, 2) for x in looks[:, 4, 3].tolist()])
lessons.show(figure, "The first layer's heads on 'not terrible': who looks (down) at whom (across)")

# %% [markdown]
# ## Change something
#
# Write a sentence of your own. The nouns that the model knows are animals and ways; adjectives such as hungry or icy.

# %%
MINE = "the dog turned away from the river as it was too icy"  # change me

with torch.no_grad():
    print(MINE, "-> it =", nouns[int(answers(reader, [(MINE.split(), nouns[0])])[0].argmax())])

# %% [markdown]
# ## Questions
#
# **8.1** Attention of width $D$ = 512 has 1 head of width 512. How many *more* weights does it have with 8 heads of
# width 64?

# %%
lessons.check("8.1", ...)

# %% [markdown]
# **8.2** How many bytes do the attention weights $A$ of one layer take for $N$ = 100,000 tokens and $H$ = 64 heads in
# 16 bit, if they are stored?

# %%
lessons.check("8.2", ...)

# %% [markdown]
# **8.3** Write `f(x, H)`, which splits `x [N, D]` into heads `[H, N, D / H]`.

# %%
lessons.check("8.3", ...)

# %% [markdown]
# ## Claim
#
# Heads learn things that we can name: one of them resolves the pronoun.

# %%
lessons.claim(
    "one head, chosen on training sentences, looks more at the noun that is meant on held-out ones",
    share > 0.85 and accuracy > 0.9,
    f"{share:.0%} of {COUNT} held-out sentences; the model names the right noun in {accuracy:.0%}",
)
