"""Newer families of decoders against transformers: in float64, step by step with a cache, and what is refused."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import weft
from foreign_folders import FOLDERS, decoder, gemma, neox, opt, yarn
from weft.checkpoints.families import FAMILIES
from weft.checkpoints.families.family import Config
from weft.checkpoints.families.rotary_config import read_rotary, write_rotary
from weft.foundation.errors import WeftError
from weft.inference.fast.native import NativeStack, library
from weft.inference.fast.optimized import optimized
from weft.inference.fast.single_token import SingleTokenStack
from weft.models.decoder import DecoderSpec
from weft.models.position_specs import RotarySpec
from weft.parts.norms import RMSNorm, ZeroCenteredRMSNorm
from weft.parts.outputs import LanguageHead
from weft.parts.relative import YaRN, rotary_frequencies
from weft.tasks.support import losses

NEW = [name for name in FOLDERS if name.startswith(("llama, yarn", "neox", "opt", "phi3", "gemma"))]
LONG = 83  # tokens; more than any window, and more than the first slots of a cache


@contextmanager
def wide():
    """Whatever the other library asks to be float32 becomes float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch.Tensor, "type_as", lambda x, other: x)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(name)` gives their model and our run, each made once."""
    root, kept = tmp_path_factory.mktemp("families"), {}

    def get(name):
        if name not in kept:
            folder = root / f"{len(kept)}"
            theirs = FOLDERS[name](folder)
            kept[name] = theirs, weft.import_checkpoint(folder, root / f"{len(kept)}-run", certificate=False)
        return kept[name]

    return get


def draw(rows, length):
    return torch.randint(4, 250, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", NEW)
def test_logits_in_float64(made, name):
    theirs, run = made(name)
    tokens = draw(2, LONG)
    with wide():
        peer = type(theirs)(theirs.config).eval()
        peer.load_state_dict({key: x.double() for key, x in theirs.state_dict().items()})
        expected = peer(tokens).logits
    ours = weft.build(run.module.spec, dtype=torch.float64)
    ours.load_state_dict(run.module.state_dict())
    torch.testing.assert_close(ours.eval()(tokens).logits, expected, atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", NEW)
def test_steps_with_a_cache_give_the_logits_of_the_whole(made, name):
    """In float64 by the model's own parts and by single-token blocks, in float32 by the native step."""
    theirs, run = made(name)
    tokens = draw(3, LONG)
    exact = weft.build(run.module.spec, dtype=torch.float64).eval()
    exact.load_state_dict(run.module.state_dict())
    native = optimized(run.module)
    assert isinstance(native.stack, NativeStack) or library() is None
    assert type(optimized(exact).stack) is SingleTokenStack
    whole, expected = exact(tokens).logits, theirs(tokens).logits
    for model, logits, within in (
        (exact, whole, 1e-10),
        (optimized(exact), whole, 1e-10),
        (native, expected, 1e-4 * float(expected.abs().max())),
    ):
        state = model.make_state(3)
        with torch.inference_mode():
            steps = [model(tokens[:, :7], state=state).logits]
            steps += [model(tokens[:, t : t + 1], state=state).logits for t in range(7, LONG)]
        torch.testing.assert_close(torch.cat(steps, 1), logits, atol=within, rtol=0)


@pytest.mark.parametrize("name", NEW)
def test_no_law_is_broken(made, name):
    _, run = made(name)
    report = weft.laws.check(run.module)
    assert not [finding for finding in report.findings if finding.verdict == "broken"], str(report)


@pytest.mark.parametrize("name", NEW)
def test_every_weight_counts(made, name):
    """A map that mixes up the rows of any one weight shows in the logits: the comparisons above can fail."""
    _, run = made(name)
    tokens = draw(2, 29)
    with torch.no_grad():
        right = run.module(tokens).logits
        for weight in run.module.parameters():
            kept = weight.clone()
            weight.copy_(kept.roll(1, 0))
            assert (run.module(tokens).logits - right).abs().max() > 1e-3
            weight.copy_(kept)


# --- YaRN ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"factor": 4.0},
        {"factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
        {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.1},
        {"factor": 40.0, "attention_factor": 0.9},
        {"factor": 0.5, "truncate": False},
        {"factor": 4.0, "beta_fast": 1.0, "beta_slow": 1.0},
    ],
    ids=str,
)
def test_yarn_is_that_of_the_other_library(more):
    rope = {"rope_type": "yarn", "rope_theta": 700.0, "original_max_position_embeddings": 53, **more}
    config = transformers.LlamaConfig(
        hidden_size=44, num_attention_heads=2, max_position_embeddings=211, rope_parameters=dict(rope)
    )
    with wide():
        expected, amplitude = ROPE_INIT_FUNCTIONS["yarn"](config)
    spec = read_rotary(Config({"max_position_embeddings": 211, "rope_parameters": rope}))
    scaling = spec.scaling.build()
    found = scaling.frequencies(700.0, 22, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert scaling.amplitude() == pytest.approx(amplitude, abs=1e-12)
    assert read_rotary(Config(write_rotary(spec))) == spec


def test_yarn_keeps_fast_waves_and_stretches_slow_ones():
    like = torch.zeros(1, dtype=torch.float64)
    plain, scaled = rotary_frequencies(1e4, 64, like), YaRN(8.0, 4096).frequencies(1e4, 64, like)
    assert torch.equal(scaled[:8], plain[:8])
    torch.testing.assert_close(scaled[-5:], plain[-5:] / 8, atol=0, rtol=1e-12)
    assert (scaled.diff() < 0).all()
    assert YaRN(8.0, 4096).amplitude() == pytest.approx(0.1 * math.log(8) + 1)


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(folder, out, words, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(WeftError, match=words):
        weft.import_checkpoint(folder, out)
    (folder / "config.json").write_text(json.dumps(config))
    assert not out.exists()


def test_settings_that_change_the_computation_are_refused(tmp_path):
    out = tmp_path / "run"
    neox(tmp_path / "neox")
    scaled = {"rope_theta": 1e4, "partial_rotary_factor": 0.6}
    refused(
        tmp_path / "neox", out, "'dynamic', but Weft reads only", rope_parameters={**scaled, "rope_type": "dynamic"}
    )
    refused(tmp_path / "neox", out, "use_parallel_residual is 'yes'", use_parallel_residual="yes")
    refused(tmp_path / "neox", out, "rotate pairs", rope_parameters={**scaled, "partial_rotary_factor": 0.5})
    opt(tmp_path / "opt")
    refused(tmp_path / "opt", out, "word_embed_proj_dim 21 differs from hidden_size 42", word_embed_proj_dim=21)
    refused(tmp_path / "opt", out, "layer_norm_elementwise_affine", layer_norm_elementwise_affine=False)
    decoder(tmp_path / "phi3", "Phi3", pad_token_id=0)
    longrope = {"rope_type": "longrope", "short_factor": [1.0] * 5, "long_factor": [2.0] * 5, "rope_theta": 1e4}
    refused(tmp_path / "phi3", out, "'longrope', but Weft reads only default", rope_parameters=longrope)
    refused(tmp_path / "phi3", out, "'su', but Weft", rope_scaling={**longrope, "type": "su", "rope_type": "su"})
    yarn(tmp_path / "yarn")
    rope = {"rope_type": "yarn", "rope_theta": 1.0, "factor": 2.0, "original_max_position_embeddings": 31}
    refused(tmp_path / "yarn", out, "YaRN counts turns by powers of the base", rope_parameters=rope)
    refused(tmp_path / "yarn", out, "factor is -2", rope_parameters={**rope, "factor": -2})
    refused(tmp_path / "yarn", out, "partial_rotary_factor to 0.5", partial_rotary_factor=0.5)


def test_settings_of_gemma_that_change_the_computation_are_refused(tmp_path):
    out, folder = tmp_path / "run", tmp_path / "gemma3"
    gemma(folder, "Gemma3")
    rope = {"rope_type": "default", "rope_theta": 1e4}
    refused(folder, out, "use_bidirectional_attention", use_bidirectional_attention=True)
    refused(folder, out, "attn_logit_softcapping to 50", attn_logit_softcapping=50.0)
    refused(folder, out, "a table of full_attention and sliding_attention", rope_parameters=rope)
    refused(folder, out, "'dynamic', but Weft", rope_parameters={"full_attention": {**rope, "rope_type": "dynamic"}})
    refused(folder, out, "a list of 3 times", layer_types=["full_attention"])
    refused(folder, out, "query_pre_attn_scalar is 0", query_pre_attn_scalar=0)
    refused(folder, out, "final_logit_softcapping is -1", final_logit_softcapping=-1)
    refused(folder, out, "hidden_activation is 'tanhshrink'", hidden_activation="tanhshrink")
    refused(folder, out, "no adapter for model_type 'gemma3'", model_type="gemma3")


def test_older_configs_of_gemma_say_the_same():
    """rope_theta, rope_local_base_freq and sliding_window_pattern; missing caps are the family's, null is none."""
    tree = {"model_type": "gemma3_text", "vocab_size": 31, "hidden_size": 12, "intermediate_size": 7, "head_dim": 4}
    tree |= {"num_hidden_layers": 7, "num_attention_heads": 3, "num_key_value_heads": 1, "sliding_window": 5}
    old = {"rope_theta": 777.0, "rope_local_base_freq": 55.0, "sliding_window_pattern": 3}
    spec = FAMILIES["gemma3_text"].read(
        Config(tree | old | {"rope_scaling": {"rope_type": "linear", "factor": 8}}), None
    )
    assert [spec.mixer_of(layer).window for layer in range(7)] == [5, 5, None, 5, 5, None, 5]
    assert spec.positions.base == 777.0 and spec.positions.scaling.factor == 8
    assert spec.mixer[0].rotary == RotarySpec(base=55.0) and spec.mixer[2].rotary is None and spec.head.cap is None
    second = {**tree, "model_type": "gemma2"}
    spec = FAMILIES["gemma2"].read(Config(second), None)
    assert len(spec.mixer) == 2 and spec.mixer[0].score_cap == 50.0 and spec.head.cap == 30.0
    nothing = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    spec = FAMILIES["gemma2"].read(Config(second | nothing), None)
    assert spec.mixer[0].score == "scaled-dot" and spec.head.cap is None


def test_a_zero_centered_norm_starts_at_one():
    norm = ZeroCenteredRMSNorm(7)
    x = torch.randn(3, 7)
    assert torch.equal(norm.gamma, torch.zeros(7)) and torch.equal(norm(x), RMSNorm(7)(x))
    torch.nn.init.normal_(norm.gamma)
    plain = RMSNorm(7)
    plain.gamma.data = 1 + norm.gamma.data
    assert torch.equal(norm(x), plain(x))
    spec = DecoderSpec(vocabulary=31, width=24, layers=1, norm={"kind": "zero-centered-rms"})
    assert torch.equal(weft.build(spec).stack.norm.gamma, torch.zeros(24))


def test_the_loss_of_capped_logits_in_parts_is_that_of_the_whole(monkeypatch):
    """Where the logits are too many for memory they are made a few rows at a time; so are their gradients."""
    spec = DecoderSpec(vocabulary=31, width=24, layers=1, head={"kind": "tied", "cap": 0.1})
    model = weft.build(spec, dtype=torch.float64)
    tokens = torch.randint(31, (2, 13))
    found = []
    for most in (losses.LOGITS_AT_ONCE, 100):
        monkeypatch.setattr(losses, "LOGITS_AT_ONCE", most)
        model.zero_grad()
        loss = losses.language_loss(model, model(tokens[:, :-1]), tokens[:, 1:], 24)
        loss.total.backward()
        found.append((loss.total.detach(), model.embedding.weight.grad.clone()))
    logits = model(tokens[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    for total, grad in found:
        torch.testing.assert_close(total, expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(grad, found[0][1], atol=1e-12, rtol=0)
    assert logits.abs().max() <= 0.1


def test_int8_weights_keep_the_cap(made):
    _, run = made("gemma2")
    rounded = weft.load(run.folder, quantize="int8")
    tokens = draw(2, 13)
    with torch.inference_mode():
        ours, exact = rounded.module(tokens).logits, run.module(tokens).logits
        assert isinstance(rounded.module.head.head, LanguageHead) and ours.abs().max() <= 1.5
        assert 0 < (ours - exact).abs().mean() < 0.05


ODD = (None, -1, 0, 2.5, 1e30, 10**30, "x", "", [], {}, [[1]], {"a": 1}, True, False, float("nan"), 1e-300)


class AllTensors:
    """What a config is read with: every tensor is there, and none is a copy."""

    def has(self, name):
        return True

    def same(self, name, other):
        return False


@pytest.mark.parametrize("name", [*NEW, "bert, masked", "roberta, masked", "bert, score"])
def test_odd_settings_give_a_spec_or_one_sentence(made, name):
    """Each field of a config, and each of its rotary tables, gone or with a value of another kind."""
    theirs, _ = made(name)
    tree = json.loads(theirs.config.to_json_string(use_diff=False))
    family, rope = FAMILIES[tree["model_type"]], tree.get("rope_parameters") or {}
    cases = [{key: value for key, value in tree.items() if key != gone} for gone in tree if gone != "model_type"]
    cases += [{**tree, key: value} for key in tree if key != "model_type" for value in ODD]
    cases += [{**tree, "rope_parameters": {**rope, key: value}} for key in rope for value in ODD]
    inner = [(key, part) for key, part in rope.items() if isinstance(part, dict)]
    for key, part in inner:
        tables = [{**part, field: value} for field in part for value in ODD]
        cases += [{**tree, "rope_parameters": {**rope, key: table}} for table in tables]
    said, read = [], 0
    for case in cases:
        try:
            read += isinstance(family.read(Config(case), AllTensors()).declares().causal, bool)
        except WeftError as error:
            said.append(str(error))
    assert read and len(said) > 30 and not any("\n" in sentence for sentence in said)


def test_a_gguf_file_of_another_family_or_with_yarn_is_refused(tmp_path):
    yarn(tmp_path / "yarn")
    run = weft.import_checkpoint(tmp_path / "yarn", tmp_path / "run", certificate=False)
    with pytest.raises(WeftError, match=r"positions\.scaling yarn"):
        weft.export(run, "gguf", tmp_path / "out")
    neox(tmp_path / "neox")
    run = weft.import_checkpoint(tmp_path / "neox", tmp_path / "other", certificate=False)
    with pytest.raises(WeftError, match="this one is of GPT-NeoX's"):
        weft.export(run, "gguf", tmp_path / "out")


def test_arrangements_have_their_own_weights():
    """Sandwich-norm has two norms per branch; parallel the weights of pre-norm, but another output."""
    sizes = {"vocabulary": 31, "width": 24, "layers": 3, "length": 29}
    keys = {
        name: set(weft.build(DecoderSpec(**sizes, arrangement=name)).state_dict())
        for name in ("pre-norm", "sandwich-norm", "parallel")
    }
    assert keys["pre-norm"] == keys["parallel"]
    added = {key.rsplit(".", 1)[0] for key in keys["sandwich-norm"] - keys["pre-norm"]}
    assert added == {f"stack.blocks.{n}.{part}_output_norm" for n in range(3) for part in ("mixer", "feedforward")}
    models = [weft.build(DecoderSpec(**sizes, arrangement=name)).eval() for name in ("pre-norm", "parallel")]
    models[1].load_state_dict(models[0].state_dict())
    tokens = torch.arange(11)[None]
    assert (models[0](tokens).logits - models[1](tokens).logits).abs().max() > 1e-4
