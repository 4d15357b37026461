"""Decoders as ONNX files: onnxruntime gives the same logits, in one go, token by token, and with padding."""

from __future__ import annotations

import builtins
import json

import pytest
import torch
from typer.testing import CliRunner

import weft
from runs_on_disk import gpt2, llama, write_run
from weft.checkpoints.export import export_checkpoint as exporting
from weft.checkpoints.export.onnx_graphs import expect_exportable
from weft.cli.main import app
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.foundation.errors import WeftError

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
C = 53
CASES = {
    "llama, window": lambda: llama(C, layers=1, **{"mixer.window": 5}),
    "gpt2, experts": lambda: gpt2(
        C, layers=1, feedforward={"kind": "experts", "experts": 3, "active": 2, "hidden": 17}
    ),
}


@pytest.fixture(scope="module", params=CASES)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    spec = CASES[request.param]()
    run = write_run(folder / "run", spec, tokenizer=train_tokenizer("characters", ["abc def"]))
    made = weft.export(run, "onnx", folder / "out")
    return weft.load(run).module, made


def begin(made):
    from weft.checkpoints.export.onnx import open_session

    return open_session(made.path / "model.onnx")


def empty(module, batch):
    past = {}
    for layer, block in enumerate(module.stack.blocks):
        for name, size in (("keys", block.mixer.head_width), ("values", block.mixer.value_width)):
            past[f"past.{layer}.{name}"] = torch.zeros(batch, block.mixer.key_heads, 0, size)
    return past


def forward(found):
    return {name.replace("present", "past", 1): tensor for name, tensor in found.items() if name != "logits"}


def test_the_state_goes_in_and_comes_out(exported):
    module, made = exported
    ask = begin(made)
    names = json.loads((made.path / "model.json").read_text())["files"]["model.onnx"]
    assert names["inputs"][:2] == ["tokens", "mask"] and names["outputs"][0] == "logits"
    tokens = torch.randint(0, C, (3, 11))
    with torch.no_grad():
        expected = module(tokens).logits
    whole = ask({"tokens": tokens, "mask": torch.ones_like(tokens), **empty(module, 3)})
    assert torch.allclose(whole["logits"], expected, atol=1e-5)
    past, seen = empty(module, 3), 0
    for piece in tokens.split([4, 1, 1, 3, 1, 1], 1):
        seen += piece.shape[1]
        found = ask({"tokens": piece, "mask": torch.ones(3, seen, dtype=torch.long), **past})
        assert torch.allclose(found["logits"], expected[:, seen - piece.shape[1] : seen], atol=1e-5)
        past = forward(found)
    assert all(torch.allclose(past[name], forward(whole)[name], atol=1e-5) for name in past)


def test_padding_changes_nothing(exported):
    module, made = exported
    ask = begin(made)
    short, long = torch.randint(0, C, (1, 4)), torch.randint(0, C, (1, 9))
    tokens = torch.cat((torch.cat((torch.zeros(1, 5, dtype=torch.long), short), 1), long))
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    found = ask({"tokens": tokens, "mask": mask, **empty(module, 2)})
    with torch.no_grad():
        assert torch.allclose(found["logits"][:1, 5:], module(short).logits, atol=1e-5)
        assert torch.allclose(found["logits"][1:], module(long).logits, atol=1e-5)
        more = torch.randint(0, C, (2, 1))
        grown = torch.cat((mask, torch.ones(2, 1, dtype=torch.long)), 1)
        after = ask({"tokens": more, "mask": grown, **forward(found)})["logits"]
        assert torch.allclose(after[:1, 0], module(torch.cat((short, more[:1]), 1)).logits[:, -1], atol=1e-5)
    assert torch.isfinite(found["logits"]).all()


def test_the_file_tells_what_it_holds(exported):
    module, made = exported
    tree = json.loads((made.path / "model.json").read_text())
    assert made.parity is not None and made.parity < 1e-5 and made.peer == "onnxruntime"
    assert tree["task"] == "text" and tree["model"] == module.spec.to_tree() and tree["ids"]["stops"] == [2]
    assert sorted(path.name for path in made.path.iterdir()) == [
        "model.json", "model.onnx", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    import onnx

    inputs = onnx.load(made.path / "model.onnx").graph.input
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in inputs
    }
    assert axes["tokens"] == ["batch", "length"] and axes["mask"] == ["batch", "past + length"]
    assert axes["past.0.keys"][::2] == ["batch", "past"]


def test_what_has_no_graph_is_refused_by_name(tmp_path):
    for name, words in {"nano-rnn": "mixer is 'recurrence'", "nano-gru-dot": "family is 'recurrent-seq2seq'"}.items():
        spec = weft.preset(name).replace(width=8, vocabulary=C)
        run = write_run(tmp_path / name, spec, tokenizer=train_tokenizer("characters", ["abc"]))
        with pytest.raises(WeftError, match=words):
            weft.export(run, "onnx", tmp_path / "out")
    small = {"width": 8, "layers": 1, "mixer.heads": 2, "vocabulary": C, "positions": {"kind": "learned"}}
    for words, changes in {
        "source is 'vectors', but ONNX is written for tokens": {"source": {"kind": "vectors"}},
        "mixer is 'convolution', but ONNX": {"encoder.mixer": {"kind": "convolution"}},
    }.items():
        with pytest.raises(WeftError, match=words):
            expect_exportable(weft.preset("nano-seq2seq").replace(**small, **changes))
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named_with_the_remedy(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", gpt2(C), tokenizer=train_tokenizer("characters", ["abc"]))
    known = builtins.__import__

    def without(name, *rest, **more):
        if name == "onnxscript":
            raise ImportError(name=name)
        return known(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    result = CliRunner().invoke(app, ["export", str(run), "--to", "onnx", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and "pip install 'weft[onnx]'" in result.stderr


def test_answers_that_differ_are_refused(tmp_path, monkeypatch):
    from weft.checkpoints.export import onnx as export_onnx

    run = write_run(tmp_path / "run", gpt2(C), tokenizer=train_tokenizer("characters", ["abc"]))
    monkeypatch.setattr(export_onnx, "write_onnx", lambda run, out: ["model.onnx"])
    monkeypatch.setattr(export_onnx, "compare_onnx", lambda run, out: (0.1, 2.0))
    with pytest.raises(WeftError, match=r"onnxruntime differ by 0\.1"):
        weft.export(run, "onnx", tmp_path / "out")
    monkeypatch.setattr(export_onnx, "compare_onnx", lambda run, out: None)
    assert "not installed" in str(weft.export(run, "onnx", tmp_path / "out").why)
    assert exporting.EXPORT_FORMATS == ("huggingface", "gguf", "onnx")
