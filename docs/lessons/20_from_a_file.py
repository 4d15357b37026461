# %% [markdown]
# # 20. From a file to a model of your own that runs elsewhere
#
# **Lecture topic:** from theory to practice, in 20 minutes.
#
# You have a text file. You want a model that continues it, and you want to use it in other programs. The way: a file,
# training, a look inside, an export, and the same numbers elsewhere.
#
# ## The equation
#
# "The same numbers" is meant literally. A model is a function $f_\theta$. An export is right if the other program
# computes the same function:
#
# $$\max_{t, c} \left| f_\theta(s)_{tc} - g_\theta(s)_{tc} \right| \le \varepsilon$$
#
# with $\varepsilon$ the size of rounding. One transposed matrix, one other epsilon in a norm, and it is not.

# %%
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import weft
from weft import lessons
from weft.checkpoints.export import export_checkpoint
from weft.data.samples import sample

# %% [markdown]
# ## 1. A file
#
# Put your own files here: a book, mails, sources; and a second one that the model never sees, to judge it. If there
# are none, we write them: documentation and sources of Python's standard library.

# %%
file, unseen = Path("book.txt"), Path("unseen.txt")
if not file.exists():
    text = sample("stdlib", size=lessons.by_budget(60_000, 1_000_000))
    file.write_text(text.train, encoding="utf-8")
    unseen.write_text(text.validation, encoding="utf-8")
print(f"{file}: {file.stat().st_size:,} bytes; it begins:\n{file.read_text(encoding='utf-8')[:200]}")

# %% [markdown]
# ## 2. Train
#
# On the command line:
#
#     weft train text book.txt --out runs/book --preset nano-llama --minutes 15
#
# `nano-llama` has the parts of Llama, so that other programs know the architecture. The tenth of the file that comes
# last is held out. In the quick budget we take a very small model and a few steps.

# %%
length: dict[str, Any] = lessons.by_budget({"steps": 60}, {"minutes": 15})
changes = lessons.by_budget({"width": 64, "layers": 2, "feedforward.hidden": 176, "length": 64}, {})
run = weft.train("text", file, out="runs/book", preset="nano-llama", set=changes, **length)
print(run)
tokenizer = run.tokenizer
assert tokenizer is not None

# %% [markdown]
# The folder is the product: weights, tokenizer, metrics, plan, and a report to read. Never a pickle.

# %%
for path in sorted(Path("runs/book").iterdir()):
    print(path.name)

# %% [markdown]
# ## 3. Use it, judge it, check it
#
#     weft predict runs/book "def " --max-tokens 60 --seed 1
#     weft eval runs/book unseen.txt
#     weft laws runs/book

# %%
print(run.predict("def ", max_tokens=60, seed=1, temperature=0.8))

# %%
score = run.evaluate(unseen, limit=lessons.by_budget(10, 100))
print({name: round(score[name], 3) for name in ("loss", "perplexity", "bits_per_byte")})
print("simple methods on the same text:", {name: round(value, 3) for name, value in score["references"].items()})

# %%
report = weft.laws.check(run.module)
print(report.headline)
report.raise_if_broken()

# %% [markdown]
# ## 4. Look inside

# %%
prompt = "def main(self, name"
with weft.watch(run) as seen:
    run.predict(prompt, max_tokens=1, temperature=0)
maps = seen.attention().detach()


def draw(found: Tensor) -> Figure:
    """The heads of the last layer."""
    figure = Figure(figsize=(3 * len(found), 3.2), layout="constrained")
    for head, axes in enumerate(figure.subplots(1, len(found))):
        axes.imshow(found[head], cmap="Blues", vmin=0)
        axes.set_title(f"head {head}", fontsize=10)
        axes.set_xticks(range(len(prompt)), list(prompt), fontsize=7)
        axes.set_yticks(range(len(prompt)), list(prompt), fontsize=7)
    return figure


lessons.show(draw(maps), "What each letter of the prompt looks at, in the heads of the last layer.")

# %% [markdown]
# ## 5. Export, three times
#
#     weft export runs/book --to huggingface --out book-hf
#     weft export runs/book --to gguf --out book-gguf
#     weft export runs/book --to onnx --out book-onnx
#
# Where the other program is installed, its logits are compared with ours before anything is written. If they differ,
# nothing is written. This is the part that decides:

# %%
lessons.source(export_checkpoint._huggingface, export_checkpoint._differ)


# %%
def installed(*packages: str) -> bool:
    """Whether these can be imported here."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


reports = {}
for form in ("huggingface", "gguf", "onnx"):
    if form == "onnx" and not installed("onnx", "onnxscript"):
        print("onnx: skipped, the packages are not installed here: pip install 'weft[onnx]'")
        continue
    reports[form] = made = weft.export(run, form, f"book-{form}")
    compared = (
        f"compared with {made.peer}: {made.parity:.1e}" if made.parity is not None else f"not compared: {made.why}"
    )
    print(f"{form}: {made.path}, {made.architecture}, {made.parameters:,} parameters; {compared}")

# %% [markdown]
# ## 6. The same numbers elsewhere
#
# Do not believe a certificate. Compute the logits yourself, in each program, for the same tokens.

# %%
tokens = torch.tensor([tokenizer.encode(prompt)])
with torch.no_grad():
    ours = run.module(tokens).logits[0]
apart: dict[str, float] = {}
ours_text = run.predict(prompt, max_tokens=24, temperature=0)
texts: dict[str, str] = {}

# %% [markdown]
# **transformers** reads the Hugging Face folder, and the GGUF file as well.

# %%
if installed("transformers"):
    from transformers import AutoModelForCausalLM

    folder = "book-huggingface"
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        apart["transformers"] = float((theirs(tokens).logits[0] - ours).abs().max())
        written = theirs.generate(tokens, max_new_tokens=24, do_sample=False)[0, tokens.shape[1] :]
    texts["transformers"] = tokenizer.decode(written.tolist())
    again: Any = AutoModelForCausalLM.from_pretrained("book-gguf", gguf_file="model.gguf")
    with torch.no_grad():
        apart["transformers, from GGUF"] = float((again(tokens).logits[0] - ours).abs().max())
else:
    print("transformers: skipped, it is not installed here: pip install transformers")

# %% [markdown]
# **onnxruntime** runs the ONNX file. The cache of keys and values goes in and comes out; at first it is empty.

# %%
if installed("onnxruntime") and "onnx" in reports:
    import onnxruntime

    session = onnxruntime.InferenceSession("book-onnx/model.onnx", providers=["CPUExecutionProvider"])
    given = {"tokens": tokens.numpy(), "mask": np.ones(tokens.shape, dtype=np.int64)}
    for one in session.get_inputs():
        if one.name.startswith("past."):
            given[one.name] = np.zeros((1, one.shape[1], 0, one.shape[3]), dtype=np.float32)
    logits = session.run(["logits"], given)[0][0]
    apart["onnxruntime"] = float((torch.from_numpy(logits) - ours).abs().max())
else:
    print("onnxruntime: skipped, it is not installed here: pip install 'weft[onnx]'")

# %% [markdown]
# **llama.cpp** runs the GGUF file.

# %%
if installed("llama_cpp"):
    from weft.checkpoints.export.export_checkpoint import ask_llama_cpp

    apart["llama.cpp"] = float((ask_llama_cpp(Path("book-gguf/model.gguf"), tokens[0]) - ours).abs().max())
else:
    print("llama.cpp: skipped, it is not installed here: pip install llama-cpp-python (compiles for minutes)")

# %%
for name, difference in apart.items():
    print(f"{name:<24} logits differ by at most {difference:.1e} (the largest is {float(ours.abs().max()):.1f})")
print("Weft writes:        ", repr(ours_text))
for name, words in texts.items():
    print(f"{name} writes:", repr(words))

# %% [markdown]
# **vLLM** serves the Hugging Face folder on GPUs. *This was not run here*: it needs a GPU.
#
#     vllm serve book-huggingface
#
# **Ollama** and **llama-cli** take the GGUF file (*not run here either*):
#
#     llama-cli -m book-gguf/model.gguf -p "def "
#
# ## Change something
#
# Export the GGUF file with `type="q8_0"`: 8 bits per weight. How much smaller is the file? How far are the logits
# apart now?

# %%
kind = "q8_0"  # change me
small = weft.export(run, "gguf", f"book-{kind}", type=kind)
print(f"{Path('book-gguf/model.gguf').stat().st_size:,} bytes -> {Path(small.path).stat().st_size:,} bytes")
print(f"logits differ by {small.parity:.2g}, the largest is {small.largest:.2g} ({small.peer})")

# %% [markdown]
# ## Questions
#
# **20.1** A block of Q8_0 holds 32 weights of 8 bits, and one scale of 16 bits. How many bits per weight are that?

# %%
lessons.check("20.1", ...)

# %% [markdown]
# **20.2** A model has a loss of 1.2 nats per character, and each character is one byte. How many bits per byte are
# that, to two decimals?

# %%
lessons.check("20.2", ...)

# %% [markdown]
# **20.3** The preset `nano-llama` with a vocabulary of 100 letters: which share of its parameters is in the
# embedding? Its head is tied: it uses the embedding's own matrix. Give the share in percent, to one decimal.

# %%
lessons.check("20.3", ...)

# %% [markdown]
# ## Claim

# %%
lessons.claim("the model breaks no law", not report.broken, report.headline)
bound = 1e-4 * max(1.0, float(ours.abs().max()))
close = {name: value for name, value in apart.items() if name != "llama.cpp"}
lessons.claim(
    "other programs compute the same logits",
    bool(close) and all(value < bound for value in close.values()),
    ", ".join(f"{name} {value:.1e}" for name, value in apart.items()) or "no other program is installed here",
)
if texts:
    lessons.claim("and write the same text", all(words == ours_text for words in texts.values()), repr(ours_text))
