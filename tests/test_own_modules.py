"""Modules of the user's own: trained, resumed, loaded, guarded and looked at as Weft's models; code is never stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import weft
from own_modules import (
    LeakyGPT,
    MaskedPool,
    MeanGRU,
    MeanPool,
    NormedConv,
    SmallViT,
    TiedLSTM,
    TinyGPT,
    needs_depth,
    wide,
)
from weft.cli.main import app
from weft.foreign.user_module import ModuleInterface
from weft.foreign.wrap_module import wrap_module
from weft.foundation.errors import WeftError
from weft.inference.decoding.generate import generate
from weft.inference.decoding.request import GenerationRequest
from weft.inspection.pictures.look import look
from weft.parts.masks import Documents, Real
from weft.tasks.registry import task_named, trainable_tasks
from weft.training.guards import TrainingError
from weft.training.reporting import Reporter

TEXT = "the quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 60
FILE = Path(__file__).parent / "own_modules.py"
OPTIONS = {"data.context": 19, "training.batch": 133, "training.threads": 1, "training.checkpoint_every": 5}
PLAIN = {"training.threads": 1, "training.guard": False}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text(TEXT)


def train(tmp_path, module, name="run", steps=13, **more):
    return weft.train("text", tmp_path / "book.txt", tmp_path / name, module=module, steps=steps, set=OPTIONS, **more)


def wrapped(module, vocabulary=29, length=19, seed=0):
    return wrap_module(module, ModuleInterface.of_language(vocabulary, length), seed).eval()


def test_a_run_holds_weights_by_their_own_names_and_no_code(tmp_path):
    run = train(tmp_path, TinyGPT)
    spec = json.loads((tmp_path / "run" / "spec.json").read_text())["model"]
    assert spec["family"] == "module" and spec["name"] == "TinyGPT" and spec["sizes"]["length"] == 19
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert spec["tensors"] == {name: list(tensor.shape) for name, tensor in weights.items()}
    plain = TinyGPT(spec["vocabulary"], 19)
    plain.load_state_dict(weights)  # without Weft
    tokens = torch.tensor([run.tokenizer.encode("the dog")])
    assert torch.equal(plain.eval()(tokens), run.module(tokens).logits)
    assert "TinyGPT" in repr(run) and "TinyGPT" in run._repr_html_()
    again = weft.load(tmp_path / "run", module=TinyGPT)
    assert again.predict("the ", max_tokens=5) == run.predict("the ", max_tokens=5)
    assert again.evaluate(tmp_path / "book.txt")["loss"] == run.evaluate(tmp_path / "book.txt")["loss"]


def test_without_its_code_or_with_other_code_a_run_is_refused_by_name(tmp_path):
    train(tmp_path, TinyGPT, steps=1)
    for given, words in (
        (None, r"module of your own, TinyGPT, .*--module file.py:factory"),
        (LeakyGPT, "of class TinyGPT, but LeakyGPT was given"),
        (wide, r"token.weight is \[\d+, 15\], but \[\d+, 12\] in the run"),
        (3, "not 3"),
        (needs_depth, r"needs depth, but this task can only give vocabulary, length.*lambda vocabulary, length"),
    ):
        with pytest.raises(WeftError, match=words):
            weft.load(tmp_path / "run", module=given)
    with pytest.raises(WeftError, match="not quantized"):
        weft.load(tmp_path / "run", quantize="int8", module=TinyGPT)
    own = {**OPTIONS, "width": 12, "layers": 1, "mixer.heads": 2}
    weft.train("text", tmp_path / "book.txt", tmp_path / "weft", steps=1, set=own)
    with pytest.raises(WeftError, match="leave --module out"):
        weft.load(tmp_path / "weft", module=TinyGPT)


class StopAfter(Reporter):
    """Pulls the plug once a checkpoint lies behind."""

    def on_evaluation(self, step, loss, better):
        if step >= 8:
            raise RuntimeError("killed")


@pytest.mark.parametrize("module", [TinyGPT, TiedLSTM])
def test_killed_and_resumed_it_ends_in_the_same_bits(tmp_path, module):
    train(tmp_path, module, "whole")
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path, module, "broken", reporter=StopAfter())
    with pytest.raises(WeftError, match=r"--module file\.py:factory"):
        weft.train("text", tmp_path / "book.txt", tmp_path / "broken", resume=True)
    weft.train("text", tmp_path / "book.txt", tmp_path / "broken", resume=True, module=module)
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    states = [max((tmp_path / name / "training").iterdir()) for name in ("whole", "broken")]
    one, other = (load_file(state) for state in states)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_factory_follows_the_seed_and_a_module_is_copied_with_its_weights(tmp_path):
    one, same, other = (wrapped(TinyGPT, seed=seed).module.head.weight for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    mine = TinyGPT(37, 19)
    before = mine.head.weight.clone()
    assert torch.equal(wrapped(mine).module.head.weight, before)
    found = train(tmp_path, wrapped(mine).module, steps=2)  # more logits than letters: the others are cut off
    assert torch.equal(mine.head.weight, before) and found.module.declares().vocabulary < 37
    assert not torch.equal(found.module.module.head.weight, before)


def test_the_guard_stops_a_module_that_sees_what_follows(tmp_path):
    with pytest.raises(TrainingError, match="step 0: the model breaks the law of causality"):
        train(tmp_path, LeakyGPT)
    laws = weft.laws.check(wrapped(LeakyGPT))
    assert [finding.law for finding in laws.broken] == ["causality", "all lengths"]
    assert not weft.laws.check(wrapped(TinyGPT)).broken


@pytest.mark.parametrize("module", [TinyGPT, TiedLSTM])
def test_generation_reads_the_text_again_and_company_changes_nothing(module):
    model = wrapped(module).double()
    prompts = [[3, 5, 7], [11], [2, 3, 5, 7, 11, 13]]
    together = generate(model, GenerationRequest(prompts, max_tokens=7))
    for prompt, found in zip(prompts, together, strict=True):
        text = list(prompt)
        for token in found.tokens:
            logits = model(torch.tensor([text])).logits[0, -1]
            assert token == int(logits.argmax())
            text.append(token)
    sampled = GenerationRequest([prompts[0]], max_tokens=5, samples=3)
    assert len({tuple(text.tokens) for text in generate(model, sampled)}) == 1  # greedy: alike, after a reorder


def test_a_state_holds_the_texts_and_can_take_tokens_back():
    model = wrapped(TinyGPT).double()
    tokens = torch.tensor([[3, 5, 7, 11, 13]])
    whole, state = model(tokens).logits, model.make_state(1)
    parts = [model(tokens[:, part], state=state).logits for part in (slice(0, 2), slice(2, 5))]
    assert torch.allclose(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    other = state.copy()
    state.rollback(3)
    assert torch.allclose(model(tokens[:, 2:], state=state).logits, parts[1], rtol=0, atol=1e-10)
    assert other.texts == state.texts and not state.can_take_back(6)
    with pytest.raises(WeftError, match="takes no mask such as"):
        model(tokens, mask=Documents(torch.zeros(1, 5, dtype=torch.long)))


def test_the_cache_of_a_known_library_is_used():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=19, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    model = wrapped(transformers.GPT2LMHeadModel(config)).double()
    assert model.declares().cached and model.declares().vocabulary == 29
    lengths = []
    model.module.register_forward_pre_hook(
        lambda _, given, named: lengths.append((*given, *named.values())[0].shape[1]), with_kwargs=True
    )
    cached = generate(model, GenerationRequest([[3, 5, 7]], max_tokens=5))
    assert lengths == [3, 1, 1, 1, 1]
    model.cached = None
    assert generate(model, GenerationRequest([[3, 5, 7]], max_tokens=5))[0].tokens == cached[0].tokens


@pytest.mark.parametrize("module", [MeanPool, MaskedPool])
def test_padding_is_hidden_by_the_modules_own_mask_or_left_out(module):
    model = wrap_module(module, ModuleInterface.of_texts(29, 3, 19)).double().eval()
    assert model.form.mask == ("key_padding_mask" if module is MaskedPool else None)
    rows = [[3, 5, 7, 11, 13], [2, 3], [17, 19], [5, 7, 11]]
    tokens, real = torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, 5, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)], real[number, : len(row)] = torch.tensor(row), True
    found = model(tokens, mask=Real(real)).logits
    for number, row in enumerate(rows):
        assert torch.allclose(found[number], model(torch.tensor([row])).logits[0], rtol=0, atol=1e-10)
    found.sum().backward()
    assert torch.equal(model.module.embed.weight.grad.norm(dim=1) > 0, torch.isin(torch.arange(29), tokens[real]))


@pytest.mark.parametrize(
    ("task", "data", "module"),
    [
        ("classification", "labels.csv", MeanPool),
        ("images", "images.npz", SmallViT),
        ("images", "images.npz", NormedConv),
        ("sequences", "sample:films", MeanGRU),
    ],
)
def test_tasks_whose_call_is_as_simple_take_a_module(tmp_path, monkeypatch, task, data, module):
    monkeypatch.chdir(tmp_path)
    rows = [f"word{n % 7} and word{n % 5}{' again' * (n % 3)},{'ab'[n % 2]}" for n in range(40)]
    Path("labels.csv").write_text("\n".join(["text,label", *rows]))
    pixels = np.random.default_rng(0).integers(0, 255, (40, 11, 11), dtype=np.uint8)
    np.savez("images.npz", images=pixels, labels=np.arange(40) % 3)
    Image.fromarray(pixels[0]).save("one.png")
    run = weft.train(task, data, tmp_path / "run", module=module, steps=2, set={"training.threads": 1})
    again = weft.load(tmp_path / "run", module=module)
    assert again.evaluate(data) == run.evaluate(data) and 0 <= again.evaluate(data)["accuracy"] <= 1
    if module is SmallViT:
        picture = look(again, "one.png")
        assert picture.panels[0].maps.shape[-2:] == (3, 3)


def test_other_tasks_and_options_of_the_model_are_refused_before_anything_is_read(tmp_path):
    taking = [name for name in trainable_tasks() if task_named(name).takes_module]
    assert taking == ["classification", "images", "sequences", "text"]
    for task, more, words in (
        ("translation", {}, "task translation takes no module of your own: --module goes with classification, images"),
        ("text", {"preset": "nano-gpt"}, "--preset nano-gpt: a module of your own is built and laid out by your code"),
        ("text", {"set": {"layers": 2}}, "layers: a module of your own"),
        ("text", {"set": {"training.recompute": True}}, "training.recompute: a module of your own"),
        ("text", {"set": {"data.isolate": True}}, "not told where documents begin"),
        ("text", {"base": "elsewhere"}, "--from elsewhere: a module"),
    ):
        with pytest.raises(WeftError, match=words):
            weft.train(task, "sample:", tmp_path / "run", module=TinyGPT, steps=1, **more)
    assert not (tmp_path / "run").exists()


class TooFew(MeanPool):
    """Answers per text where answers per token are needed."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary, 5)


class Fails(TinyGPT):
    def forward(self, tokens):
        raise ValueError("no such thing\nand more")


def test_a_module_that_answers_otherwise_is_refused_with_shapes():
    with pytest.raises(WeftError, match=r"TooFew answers \[2, 7\] by \[2, 5\], .*needs logits \[B, T, 29\]"):
        wrapped(TooFew)
    with pytest.raises(WeftError, match=r"Fails fails when called with tokens \[2, 7\]: ValueError: no such thing; it"):
        wrapped(Fails)
    with pytest.raises(WeftError, match="no weights to train"):
        wrapped(torch.nn.Identity)
    with pytest.raises(WeftError, match="gives a int"):
        wrapped(lambda: 3)


def test_the_same_option_on_all_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place, run = f"{FILE}:TinyGPT", str(tmp_path / "run")

    def weft_command(*words):
        return CliRunner().invoke(app, list(words))

    trained = weft_command(
        "train", "text", "book.txt", "--module", place, "--out", run, "--steps", "3",
        *(word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")),
    )  # fmt: skip
    assert trained.exit_code == 0 and f"--module {place}" in trained.output.replace("\n", "")
    for words in (
        ("predict", run, "the ", "--max-tokens", "3"),
        ("eval", run, "book.txt"),
        ("look", run, "the dog", "--out", "look.html"),
        ("laws", run),
    ):
        refused, found = weft_command(*words), weft_command(*words, "--module", place)
        assert refused.exit_code == 2 and "--module file.py:factory" in refused.output, words
        assert found.exit_code == 0, (words, found.output)
        assert ("keeps no cache" in found.output) == (words[0] == "predict")
    assert weft_command("laws", "--module", place).exit_code == 2  # its factory needs a vocabulary
    assert "give one of them" in weft_command("laws", "nano-gpt", "--module", place).output
    assert "TinyGPT" in weft_command("show", run).output
