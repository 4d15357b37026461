"""NaN and infinity: never hidden by a fast path, never answered as if nothing was wrong, never printed as JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import weft
from runs_on_disk import gpt2, llama, write_run
from test_native import VARIANTS, model_of, needs_compiler, tokens_of
from weft.cli.main import app
from weft.cli.terminal import as_json
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import SpecError, WeftError
from weft.inference.decoding.beam import Beam, beam_search
from weft.inference.decoding.generate import generate, next_distribution
from weft.inference.decoding.request import GenerationRequest
from weft.inference.decoding.sampling import Sampling, TokenSampler, choose_each, draw
from weft.inference.decoding.speculative import speculate
from weft.inference.fast.native import NativeStack
from weft.inference.fast.optimized import optimized
from weft.inference.fast.quantize import quantize_model
from weft.training.training_spec import TrainingSpec

NAN, INFINITY = float("nan"), float("inf")
BROKEN = "logits that are not finite"


@torch.inference_mode()
def last_logits(model, text):
    state = model.make_state(text.shape[0])
    for piece in text.split(1, 1):
        found = model(piece, state=state).logits
    return found[:, -1]


@needs_compiler
@pytest.mark.parametrize("number", [NAN, INFINITY])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_native_step_hides_nothing(name, number):
    """Each weight in turn; where torch's own operations give no finite logits, neither may the native step.

    Torch's kernel itself gives 0 for a query that is NaN, where there is no mask: the native step does not.
    """
    text = tokens_of(1, 3)
    for part, weight in model_of(name).named_parameters():
        if part.startswith(("embedding", "head")) or (number == INFINITY and weight.dim() > 1):
            continue
        model = model_of(name)
        with torch.no_grad():
            dict(model.named_parameters())[part].view(-1)[-1] = number
        twin = optimized(model)
        assert isinstance(twin.stack, NativeStack)
        hidden = last_logits(twin, text).isfinite().all() and not last_logits(model, text).isfinite().all()
        assert not hidden, part
        if part.endswith("query_norm.gamma"):
            assert not last_logits(twin, text).isfinite().all(), part


@needs_compiler
@pytest.mark.parametrize("activation", ["relu", "squared-relu"])
def test_nan_stays_nan_in_activations(activation):
    model = model_of("plain", feedforward={"kind": "classic", "activation": activation, "bias": True})
    with torch.no_grad():
        model.stack.blocks[0].feedforward.up.bias[0] = NAN
    assert last_logits(optimized(model), tokens_of(1, 2)).isnan().all()


@needs_compiler
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_nan_passes_through_blocks(kind):
    model = quantize_model(model_of("plain"), kind)
    norm = model.stack.blocks[1].mixer_norm
    with torch.no_grad():
        next(norm.parameters())[3] = NAN
    twin = optimized(model)
    assert isinstance(twin.stack, NativeStack) and last_logits(twin, tokens_of(1, 2)).isnan().all()


def broken_model(number=NAN):
    model = model_of("relu")
    with torch.no_grad():
        model.stack.blocks[0].feedforward.up.weight[0, 0] = number
    return model


@pytest.mark.parametrize("number", [NAN, INFINITY])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"sampling": Sampling(0.8, top_k=5)},
        {"sampling": Sampling(1.0, top_p=0.9, repetition=1.2)},
        {"samples": 2, "sampling": Sampling(1.0), "top": 3, "step_top": 2},
    ],
)
def test_no_token_is_chosen_of_broken_logits(number, more):
    request = GenerationRequest([[1, 2, 3], [5]], max_tokens=4, **more)
    with pytest.raises(WeftError, match=BROKEN):
        generate(broken_model(number), request)
    assert generate(model_of("relu"), request)


def test_beams_distributions_and_speculation_refuse_too():
    request = GenerationRequest([[1, 2, 3]], max_tokens=4)
    with pytest.raises(WeftError, match=BROKEN):
        beam_search(broken_model(), request, Beam(3))
    with pytest.raises(WeftError, match=BROKEN):
        next_distribution(broken_model(), [1, 2])
    with pytest.raises(WeftError, match=BROKEN):
        speculate(broken_model(), request)


def test_each_text_of_a_batch_is_judged():
    logits = torch.zeros(3, 7)
    logits[1, 4] = NAN
    for sampling in (Sampling(0.0), Sampling(1.0)):
        samplers = [TokenSampler(sampling, seed, [1], 7, torch.device("cpu")) for seed in range(3)]
        with pytest.raises(WeftError, match=BROKEN):
            choose_each(logits, samplers)
        logits_of_two = logits[[0, 2]].index_fill(1, torch.tensor([3]), -INFINITY)  # a token that is forbidden
        assert choose_each(logits_of_two, samplers[:2])
    assert int(draw(torch.full((5,), NAN), torch.tensor(0.5))) == 4


@pytest.fixture(scope="module")
def broken_runs(tmp_path_factory):
    """Two runs whose weights have one NaN: a language model and a classifier."""
    place = tmp_path_factory.mktemp("broken")
    tokenizer = train_tokenizer("bytes", [])
    for name, spec in (("llama", llama(tokenizer.vocabulary)), ("gpt2", gpt2(tokenizer.vocabulary))):
        write_run(place / name, spec, tokenizer=tokenizer)
    rows = [f"{word} thing {n}\t{label}" for n in range(30) for word, label in (("good", "yes"), ("bad", "no"))]
    (place / "a.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    small = {"width": 16, "layers": 1, "training.batch": 256, "training.threads": 1}
    weft.train("classification", place / "a.tsv", place / "labels", steps=2, set=small)
    for folder in ("llama", "gpt2", "labels"):
        file = place / folder / "model.safetensors"
        weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
        last = next(name for name in reversed(list(weights)) if "blocks" in name or "stack" in name)
        weights[last].view(-1)[0] = NAN
        save_file(weights, file)
    return place


def test_the_command_says_so_in_a_sentence(broken_runs):
    def call(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 2 and done.stdout == "", (words, done.stdout, done.exception)
        told = [line for line in done.stderr.splitlines() if not line.startswith(("note: ", "evaluating "))]
        assert len(told) == 1 and told[0].startswith("weft: "), done.stderr
        return told[0]

    for name in ("llama", "gpt2"):
        for more in (
            (),
            ("--temperature", "1"),
            ("--beam", "3"),
            ("--json",),
            ("--chat",) if False else ("--top", "3"),
        ):
            assert BROKEN in call("predict", broken_runs / name, "abc", "--max-tokens", "3", *more)
    assert "no finite number" in call("predict", broken_runs / "labels", "good thing", "--json")
    assert "no finite number" in call("eval", broken_runs / "labels", broken_runs / "a.tsv")


def test_json_has_finite_numbers_only():
    tree = {"a": [1.5, NAN, (INFINITY,)], "b": {"c": -INFINITY}, "d": "NaN"}
    assert json.loads(as_json(tree, 2)) == {"a": [1.5, None, [None]], "b": {"c": None}, "d": "NaN"}
    assert as_json({"é": 1}) == '{"é": 1}'


@pytest.mark.parametrize("value", [INFINITY, NAN, -INFINITY])
def test_options_are_finite(value, tmp_path):
    for name in ("rate", "matrix_rate", "weight_decay", "clip", "lora_alpha"):
        with pytest.raises(SpecError, match=f"{name}.*finite number"):
            TrainingSpec(**{name: value})
    with pytest.raises(SpecError, match="finite number"):
        weft.preset("nano-gpt").replace(**{"norm.epsilon": value})
    words = ["train", "text", "sample:markov", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*words, "--set", f"training.rate={json.dumps(value)}"])
    assert done.exit_code == 2 and "finite number" in done.stderr and not (tmp_path / "run").exists()


def test_vectors_that_are_not_finite_are_refused():
    from weft.runs.run import _expect_finite

    for value in (NAN, [1.0, [INFINITY]], {"a": {"b": NAN}}):
        with pytest.raises(WeftError, match="no finite number"):
            _expect_finite(value, "its answer")
    _expect_finite([1, 2.5, "nan", None, {"a": np.float64(3)}], "its answer")
    assert math.isfinite(1.0)
