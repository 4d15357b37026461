"""Fine-tuning: a run is trained on, whole or by low-rank adapters that are merged in the end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import weft
from weft.checkpoints.run_folder import RunFolder
from weft.cli.main import app
from weft.foundation.errors import WeftError
from weft.parts.lora import AdaptedLinear, adapt, adapters, merge, merged, merged_state
from weft.parts.quantized import quantize
from weft.tasks.registry import task_named
from weft.training.optimizers import build_optimizers
from weft.training.reporting import Reporter

R, ALPHA = 3, 7.0
SMALL = {
    "width": 20, "layers": 2, "mixer.heads": 2, "length": 19,
    "training.batch": 133, "training.threads": 1, "training.guard": False,
}  # fmt: skip
FAST = {name: value for name, value in SMALL.items() if name.startswith("training.")}
MODELS = {
    "nano-gpt": {"width": 20, "layers": 2, "mixer.heads": 2, "length": 19, "vocabulary": 13},
    "t5-small": {
        "width": 20, "layers": 1, "mixer.heads": 2, "mixer.head_width": 5, "length": 19, "vocabulary": 13,
        "feedforward.hidden": 17,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "first.txt").write_text("the quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 40)
    (tmp_path / "second.txt").write_text("the lazy dog jumps over the brown fox; quick, the fox sleeps.\n" * 40)


def learned(module: nn.Module) -> nn.Module:
    """Adapters as after some training."""
    for _, part in adapters(module):
        nn.init.normal_(part.second)
    return module


def build(name: str) -> nn.Module:
    return weft.build(weft.preset(name).replace(**MODELS[name])).double().eval()


def ask(module: nn.Module) -> torch.Tensor:
    tokens = torch.randint(0, 13, (2, 11), generator=torch.Generator().manual_seed(1))
    return module(tokens, tokens[:, :5]).logits if hasattr(module, "decode") else module(tokens).logits


def test_the_formula():
    linear = nn.Linear(5, 7).double()
    part = AdaptedLinear(linear, R, ALPHA)
    nn.init.normal_(part.second)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    W = linear.weight + ALPHA / R * part.second @ part.first
    assert torch.allclose(part(x), x @ W.T + linear.bias, atol=1e-12)
    assert part.first.shape == (R, 5) and part.second.shape == (7, R)


@pytest.mark.parametrize("name", MODELS)
def test_an_adapted_model_begins_as_it_was_and_merged_equals_unmerged(name):
    module = build(name)
    before, keys = ask(module), set(module.state_dict())
    adapt(module, R, ALPHA)
    assert torch.allclose(ask(module), before, atol=1e-12)
    unmerged = ask(learned(module))
    assert (unmerged - before).abs().max() > 1e-3
    state = merged_state(module)
    with merged(module):
        assert torch.allclose(ask(module), unmerged, atol=1e-10)
        assert all(torch.equal(merged_state(module)[key], state[key]) for key in keys)
    assert torch.allclose(ask(module), unmerged, atol=1e-12)
    fresh = build(name)
    fresh.load_state_dict(state)
    assert torch.allclose(ask(merge(module)), unmerged, atol=1e-10)
    assert torch.allclose(ask(fresh), ask(module), atol=1e-12) and set(module.state_dict()) == keys
    assert all(weight.requires_grad for weight in module.parameters())


def test_every_linear_map_inside_blocks_is_adapted_and_nothing_else_learns():
    module = adapt(build("t5-small"), R)
    inside = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and ".blocks." in name]
    assert [name for name, _ in adapters(module)] == inside and len(inside) == 2 + 5 + 2 * 2
    trained = {id(w) for o in build_optimizers(module, "adamw") for group in o.param_groups for w in group["params"]}
    assert trained == {id(weight) for _, part in adapters(module) for weight in (part.first, part.second)}
    names = {name.rpartition(".")[2] for name, weight in module.named_parameters() if weight.requires_grad}
    assert names == {"first", "second"}


def test_the_seed_decides_what_is_drawn():
    drawn = [adapt(build("nano-gpt"), R, seed=seed).state_dict() for seed in (1, 1, 2)]
    name = "stack.blocks.1.mixer.qkv.first"
    assert torch.equal(drawn[0][name], drawn[1][name]) and not torch.equal(drawn[0][name], drawn[2][name])
    assert drawn[0][name].std().item() == pytest.approx(20**-0.5, rel=0.4)


def test_a_model_without_linear_maps_in_blocks_is_refused():
    with pytest.raises(WeftError, match="no linear maps"):
        adapt(nn.Linear(3, 3), R)
    with pytest.raises(WeftError, match="rank 0"):
        adapt(build("nano-gpt"), 0)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    (folder / "first.txt").write_text("the quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 40)
    weft.train("text", folder / "first.txt", folder / "run", steps=12, set=SMALL)
    return folder / "run"


def tune(tmp_path, first, name="run", steps=9, reporter=None, resume=False, **changes):
    more = {} if resume else {"set": FAST | changes, "steps": steps}
    base = None if resume else first
    return weft.train(
        "text", tmp_path / "second.txt", tmp_path / name, base=base, resume=resume, reporter=reporter, **more
    )


def test_a_run_is_trained_on_with_its_model_tokenizer_and_weights(tmp_path, first):
    run = tune(tmp_path, first, steps=1, **{"training.rate": 1e-9})
    before = weft.load(first)
    assert run.spec.model == before.spec.model and run.spec.base == str(first)
    assert (run.folder / "tokenizer.json").read_text() == (first / "tokenizer.json").read_text()
    kept, own = load_file(first / "model.safetensors"), load_file(run.folder / "model.safetensors")
    assert all(torch.allclose(own[name], kept[name], atol=1e-6) for name in kept)
    losses = [one.evaluate(tmp_path / "second.txt")["loss"] for one in (tune(tmp_path, first, "more", 9), before)]
    assert losses[0] < losses[1] - 0.1


def test_only_adapters_learn_and_the_run_is_an_ordinary_one(tmp_path, first):
    run = tune(tmp_path, first, **{"training.lora": R, "training.lora_alpha": ALPHA})
    before, snapshot = load_file(first / "model.safetensors"), RunFolder(run.folder).read_snapshot()
    assert snapshot is not None
    for name, weight in before.items():
        assert torch.equal(snapshot.tensors[f"weight.{name}"], weight), name
    own = load_file(run.folder / "model.safetensors")
    assert set(own) == set(before) and not adapters(run.module)
    changed = {name for name in own if not torch.equal(own[name], before[name])}
    assert changed == {name for name in own if ".blocks." in name and own[name].dim() == 2}
    name = "stack.blocks.0.mixer.qkv"
    A, B = snapshot.tensors[f"weight.{name}.first"], snapshot.tensors[f"weight.{name}.second"]
    assert torch.allclose(own[f"{name}.weight"], before[f"{name}.weight"] + ALPHA / R * B @ A, atol=1e-6)
    assert run.evaluate(tmp_path / "second.txt")["loss"] < weft.load(first).evaluate(tmp_path / "second.txt")["loss"]


class StopAfter(Reporter):
    def __init__(self, step):
        self.step = step

    def on_evaluation(self, step, loss, best):
        if step >= self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("changes", [{}, {"training.lora": R, "training.ema": 0.9}], ids=["full", "adapters"])
@pytest.mark.parametrize("last", [1, 6])
def test_what_is_trained_on_resumes_to_the_same_bits(tmp_path, first, changes, last):
    often = {"training.evaluate_every": 3, "training.checkpoint_every": 3, "dropout": 0.1}
    tune(tmp_path, first, "whole", **often, **changes)
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, first, "broken", reporter=StopAfter(last), **often, **changes)
    assert (RunFolder(tmp_path / "broken").read_snapshot() is None) == (last == 1)
    tune(tmp_path, first, "broken", resume=True)
    one, other = (RunFolder(tmp_path / name).read_snapshot() for name in ("whole", "broken"))
    assert one is not None and other is not None and set(one.tensors) == set(other.tensors)
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path, first):
    def refused(words, task="text", **more):
        with pytest.raises(WeftError, match=words):
            weft.train(task, tmp_path / "second.txt", tmp_path / "out", **({"base": first, "steps": 1} | more))

    refused("is a run of task text, but the task is translation", task="translation")
    refused("leave --preset out", preset="gpt2")
    refused("layers: the weights of", set={"layers": 3})
    refused("data.tokenizer was decided", set={"data.tokenizer": "bytes"})
    refused("give it with --from", set={"training.lora": 2}, base=None)
    refused("is not a run folder", base=tmp_path / "nowhere")
    assert not (tmp_path / "out" / "spec.json").exists()


def test_the_command(tmp_path, first):
    order = ["train", "text", str(tmp_path / "second.txt"), "--out", str(tmp_path / "out"), "--from", str(first)]
    more = ["--lora", "2", "--steps", "1", "--set", "training.guard=false", "--json"]
    result = CliRunner().invoke(app, [*order, *more])
    found = json.loads(result.stdout)
    assert found["steps"] == 1 and found["run"] == str(tmp_path / "out")
    tree = json.loads((tmp_path / "out" / "spec.json").read_text())
    assert tree["base"] == str(first) and tree["training"]["lora"] == 2 and tree["training"]["optimizer"] == "adamw"
    refused = CliRunner().invoke(app, [*order[:5], "--lora", "2", "--steps", "1"])
    assert refused.exit_code == 2


KEPT = {
    "translation": ("longest",),
    "classification": ("classes", "lexicon"),
    "tagging": ("tags", "lexicon"),
    "images": ("classes", "side", "mean", "deviation"),
    "captions": ("side", "longest"),
    "forecast": ("columns", "mean", "deviation", "context", "patch"),
    "sequences": ("classes", "channels", "length", "preparation"),
}
OPTIONS = {"captions": {"size": 8, "held_out": 0.3}, "forecast": {"horizon": 3, "context": 12, "patch": 4}}


def write_data(name: str, folder: Path, seed: int) -> list[str]:
    """A little data of each task; another seed gives other texts and numbers of the same kind."""
    random, file = np.random.default_rng(seed), folder / f"{name}-{seed}"
    word = "abcde"[seed] * 2
    if name == "forecast":
        steps = random.normal(size=(90, 2)).cumsum(0)
        file = file.with_suffix(".csv")
        file.write_text("a,b\n" + "".join(f"{x:.3f},{y:.3f}\n" for x, y in steps))
    elif name == "sequences":
        file = file.with_suffix(".npz")
        np.savez(file, x=random.normal(size=(24, 7, 3)), y=np.arange(24) % 2)
    elif name == "images":
        file = file.with_suffix(".npz")
        np.savez(file, x=random.integers(0, 256, (24, 6, 6), dtype=np.uint8), y=np.arange(24) % 2)
    elif name == "captions":
        for number in range(10):
            Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{seed}-{number}.png")
        rows = "".join(f"{seed}-{n}.png,a {word} of {n % 3}\n" for n in range(10))
        file = file.with_suffix(".csv")
        file.write_text("image,caption\n" + rows)
    elif name == "tagging":
        file = file.with_suffix(".conll")
        file.write_text("".join(f"the D\n{word} N\nruns V\n\n" for _ in range(12)))
    else:
        file = file.with_suffix(".tsv")
        labels = ("yes", "no") if name == "classification" else ("der Hund", "die Katze")
        file.write_text("".join(f"the {word} {n}\t{labels[n % 2]}\n" for n in range(24)))
    return [str(file)]


@pytest.mark.parametrize("name", KEPT)
def test_each_task_keeps_what_it_learned_before(tmp_path, name):
    kind = task_named(name)
    options = kind.Options(**OPTIONS.get(name, {}))
    before = kind.prepare(write_data(name, tmp_path, 0), options, 0, tmp_path).task
    after = kind.prepare(write_data(name, tmp_path, 1), options, 5, tmp_path, before)
    facts = [json.loads(json.dumps(task.facts())) for task in (before, after.task)]
    assert all(facts[0][field] == facts[1][field] for field in KEPT[name])
    assert len(after.train) > len(after.validation) > 0
    if before.tokenizer is not None:
        assert after.task.tokenizer is before.tokenizer


def test_data_of_another_kind_are_named(tmp_path):
    def refused(name, words, rows):
        kind = task_named(name)
        options = kind.Options(**OPTIONS.get(name, {}))
        before = kind.prepare(write_data(name, tmp_path, 0), options, 0, tmp_path).task
        other = tmp_path / f"other{'.csv' if name == 'forecast' else '.tsv'}"
        other.write_text(rows)
        with pytest.raises(WeftError, match=words):
            kind.prepare([str(other)], options, 0, tmp_path, before)

    refused("forecast", "column", "a,c\n" + "1,2\n" * 90)


def test_int8_takes_the_adapters_in():
    module = learned(adapt(build("nano-gpt").float(), R, ALPHA))
    before = ask(module)
    rounded = ask(quantize(module))
    assert (rounded - before).abs().max() < 0.1 * before.abs().max()
