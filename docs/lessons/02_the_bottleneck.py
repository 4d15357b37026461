# %% [markdown]
# # 2. Recurrent translation, and its bottleneck
#
# **Lecture topic:** Sequence to sequence with recurrence.
#
# An encoder reads a sentence word by word and keeps a summary in one vector. A decoder writes the translation from that
# vector. One vector of fixed size for a sentence of any length: this is the bottleneck. We measure it with the simplest
# translation there is: copying. Nothing has to be understood, everything has to be remembered.
#
# ## The equation
#
# $$
# h_t = f(x_t, h_{t-1}), \qquad c = h_T, \qquad s_t = g(y_{t-1}, s_{t-1}, c)
# $$
#
# The encoder's last state $h_T$ is the context $c$. It is the same for every step of the decoder. With attention the
# decoder gets a context of its own at every step, from *all* states of the encoder:
#
# $$
# c_t = \sum_i a_{t,i} \, h_i, \qquad a_{t,i} = \mathrm{softmax}_i \; e(s_t, h_i)
# $$

# %%
import math
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from weft import lessons
from weft.models.encoder_decoder import EncoderDecoderSpec
from weft.models.part_specs import AttentionSpec, ClassicSpec, InitializationSpec, LinearHeadSpec
from weft.models.position_specs import SinusoidalSpec
from weft.models.recurrent_seq2seq import RecurrentSeq2Seq, RecurrentSeq2SeqSpec
from weft.parts.recurrence import gru_update

torch.manual_seed(0)

# %% [markdown]
# ## The part of Weft that is the equation
#
# One step of the recurrence (a GRU); the decoder with one context for all steps; the decoder with a context per step.

# %%
lessons.source(gru_update, RecurrentSeq2Seq._plain, RecurrentSeq2Seq._after)

# %% [markdown]
# ## Run it: three models learn to copy
#
# The sample: random letters, to be copied. The three models differ only in what the decoder sees of the source: one
# vector; a weighted mean of all encoder states; the same in a transformer. Lengths in training go up to `LONGEST`. The
# evaluation asks for every letter of the copy, given the letters before it.

# %%
LETTERS, START, STOP = 16, 16, 17
HIDDEN = lessons.by_budget(quick=64, full=128)
LONGEST = lessons.by_budget(quick=24, full=1000)
STEPS = lessons.by_budget(quick=320, full=6000)
TOKENS = lessons.by_budget(quick=768, full=4096)  # letters per batch
BACKWARDS = False


def draw(length: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source [B, S]; target as the decoder reads it, and as it shall write it, [B, S + 1]."""
    source = torch.randint(LETTERS, (rows, length))
    target = source.flip(1) if BACKWARDS else source
    start, stop = torch.full((rows, 1), START), torch.full((rows, 1), STOP)
    return source, torch.cat((start, target), 1), torch.cat((target, stop), 1)


def some_length() -> int:
    """A length up to `LONGEST`; short ones as often as long ones, on a logarithmic scale."""
    return round(math.exp(torch.rand(()).item() * math.log(LONGEST)))


def copy_loss(model: nn.Module, step: int) -> Tensor:
    length = some_length()
    source, given, wanted = draw(length, max(2, TOKENS // length))
    return cross_entropy(model(source, given).logits.flatten(0, 1), wanted.flatten())


def accuracy(model: nn.Module, length: int, rows: int = 16) -> float:
    """Share of right letters at this length."""
    with torch.no_grad():
        source, given, wanted = draw(length, rows)
        found = model(source, given).logits.argmax(-1)
    return (found == wanted)[:, :-1].float().mean().item()


recurrent = RecurrentSeq2SeqSpec(vocabulary=LETTERS + 2, width=HIDDEN, hidden=HIDDEN, length=2048)
SPECS: dict[str, Any] = {
    "one vector": recurrent.replace(attention="none"),
    "attention": recurrent.replace(attention="bilinear", wiring="after"),
    "transformer": EncoderDecoderSpec(
        vocabulary=LETTERS + 2,
        length=2048,
        width=HIDDEN,
        layers=2,
        mixer=AttentionSpec(heads=4),
        feedforward=ClassicSpec(hidden=2 * HIDDEN),
        positions=SinusoidalSpec(),
        head=LinearHeadSpec(),
        initialization=InitializationSpec(scheme="fan-in", embedding=1.0),
    ),
}

models: dict[str, nn.Module] = {}
for name, spec in SPECS.items():
    models[name] = weft.build(spec, seed=0)
    curve = lessons.fit(
        models[name], partial(copy_loss, models[name]), STEPS, rate=4e-3 if name != "transformer" else 2e-3
    )
    print(f"{name:12} loss {curve[0][1]:.2f} -> {curve[-1][1]:.2f}")

# %%
PLACES = [n for n in (2, 4, 8, 12, 16, 24, 50, 100, 200, 500, 1000) if n <= max(LONGEST, 100)]
scores = {name: [accuracy(model, n) for n in PLACES] for name, model in models.items()}

figure, axis = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, values in scores.items():
    axis.plot(PLACES, values, marker="o", label=name)
axis.axvspan(LONGEST, PLACES[-1], color="0.93", label="longer than in training")
axis.axhline(1 / LETTERS, color="0.5", linestyle=":", label="guessing")
axis.set(xscale="log", xlabel="length of the sequence", ylabel="right letters", ylim=(0, 1.03))
axis.legend(fontsize=8)
lessons.show(figure, "Share of letters copied right, by length: one vector, attention, transformer")

# %% [markdown]
# With one vector the accuracy falls as soon as the sequence holds more than the vector can keep. With attention the
# encoder keeps one vector *per letter*, so nothing has to be squeezed. (Lengths that were never seen in training are
# another problem: lesson 9.)
#
# ## Change something
#
# Let the model write the letters backwards. The last letter read is then the first one to write. Does one vector do
# better, and why?

# %%
BACKWARDS = True  # change me

again = weft.build(SPECS["one vector"], seed=0)
lessons.fit(again, partial(copy_loss, again), STEPS, rate=4e-3)
half = PLACES[len(PLACES) // 2 - 1]
backwards = accuracy(again, half)
BACKWARDS = False
print(f"one vector, {half} letters: {backwards:.0%} backwards, {accuracy(models['one vector'], half):.0%} forwards")

# %% [markdown]
# ## Questions
#
# **2.1** A source has 1,000 letters, and $h_t$ has 128 numbers. How many numbers can the decoder see of the source,
# without attention?

# %%
lessons.check("2.1", ...)

# %% [markdown]
# **2.2** And with attention to all states of the encoder, if it has one direction?

# %%
lessons.check("2.2", ...)

# %% [markdown]
# **2.3** Through how many steps $f$ and $g$ does the gradient pass from the first letter written ($s_1$) to the
# *first* letter read ($x_1$), without attention, if the source has $T$ = 10 letters? Count every encoder step and the
# decoder step.

# %%
lessons.check("2.3", ...)

# %% [markdown]
# ## Claim
#
# One vector is a bottleneck: long sequences are lost in it, and attention removes it.

# %%
far = PLACES.index(LONGEST)
lessons.claim(
    f"at {LONGEST} letters the model with attention copies far more than the one with a single vector",
    scores["attention"][far] > scores["one vector"][far] + 0.3,
    ", ".join(f"{name} {values[far]:.0%}" for name, values in scores.items()) + f" at {LONGEST} letters",
)
