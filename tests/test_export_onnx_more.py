"""Encoders, encoder-decoders, vision and series as ONNX files: onnxruntime gives the same answers at any size."""

from __future__ import annotations

import json

import pytest
import torch

import weft
from runs_on_disk import write_run
from weft.data.tokenisers import train_tokeniser
from weft.parts.masks import Padding

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
C = 31


def export(tmp_path, spec, task, tokeniser=None, facts=None):
    run = write_run(tmp_path / "run", spec, task, tokeniser, facts)
    made = weft.export(run, "onnx", tmp_path / "out")
    assert made.parity is not None and made.parity < 1e-5
    return weft.build(spec), made, {name: tensor for name, tensor in _weights(run).items()}


def _weights(run):
    from safetensors.torch import load_file

    return load_file(run / "model.safetensors")


def session(made, file="model.onnx"):
    from weft.checkpoints.export_onnx import open_session

    return open_session(made.path / file)


def ready(spec, weights):
    module = weft.build(spec).eval()
    module.load_state_dict(weights)
    return module


def letters():
    return train_tokeniser("characters", ["abc def"])


def test_an_encoder_of_bert_shape_with_padding(tmp_path):
    sizes = {"width": 20, "layers": 1, "mixer.heads": 2, "feedforward.hidden": 17, "length": 23}
    spec = weft.preset("bert-base").replace(**sizes, **{"input.vocabulary": C, "output.classes": 3, "output.hidden": 20})
    facts = {"classes": ["a", "b", "c"], "reading": "tokens"}
    _, made, weights = export(tmp_path, spec, "classification", letters(), facts)
    tokens, lengths = torch.randint(0, C, (3, 11)), torch.tensor([11, 4, 7])
    mask = (torch.arange(11) < lengths[:, None]).long()
    with torch.no_grad():
        expected = ready(spec, weights)(tokens, mask=Padding(lengths)).logits
    assert torch.allclose(session(made)({"tokens": tokens, "mask": mask})["logits"], expected, atol=1e-5)
    assert json.loads((made.path / "model.json").read_text())["classes"] == ["a", "b", "c"]


def test_sentence_vectors(tmp_path):
    sizes = {"width": 20, "layers": 1, "mixer.heads": 2, "feedforward.hidden": 17, "length": 23}
    spec = weft.preset("minilm-l6").replace(**sizes, **{"input.vocabulary": C, "output.hidden": None})
    facts = {"pool": "mean", "normalise": True, "length": 23}
    run = write_run(tmp_path / "run", spec, "embedding", letters(), facts)
    made = weft.export(run, "onnx", tmp_path / "out")
    loaded = weft.load(run)
    rows = [loaded.tokeniser.encode(text) for text in ("abc", "def abc")]
    tokens = torch.tensor([rows[0] + [0] * 4, rows[1]])
    mask = torch.tensor([[1] * 3 + [0] * 4, [1] * 7])
    found = session(made)({"tokens": tokens, "mask": mask})["vectors"]
    assert torch.allclose(found, loaded.embed(["abc", "def abc"]), atol=1e-5)


def test_words_and_convolutions_in_rows_of_one_length(tmp_path):
    spec = weft.preset("nano-encoder").replace(
        width=20, layers=2, length=23, mixer=[{"kind": "convolution", "kernel": 3}, {"kind": "attention", "heads": 2}],
        input={"kind": "words", "vocabulary": C, "characters": 13, "longest": 5, "character_width": 7, "kernel": 3},
        output={"kind": "pooled", "pool": "mean", "classes": 3},
    )  # fmt: skip
    _, made, weights = export(tmp_path, spec, "classification", facts={"classes": ["a", "b", "c"], "reading": "words"})
    words = torch.cat((torch.randint(0, C, (3, 7, 1)), torch.randint(0, 13, (3, 7, 5))), 2)
    with torch.no_grad():
        expected = ready(spec, weights)(words).logits
    assert torch.allclose(session(made)({"tokens": words})["logits"], expected, atol=1e-5)


def test_pictures(tmp_path):
    spec = weft.preset("nano-vit").replace(width=20, layers=1, image=14, patch=7, channels=3, classes=3, **{"mixer.heads": 2})
    facts = {"classes": ["a", "b", "c"], "side": 14, "mean": [0.5] * 3, "deviation": [0.5] * 3, "augmentation": []}
    _, made, weights = export(tmp_path, spec, "images", facts=facts)
    images = torch.randn(5, 3, 14, 14)
    with torch.no_grad():
        expected = ready(spec, weights)(images).logits
    assert torch.allclose(session(made)({"images": images})["logits"], expected, atol=1e-5)


def test_an_encoder_decoder_writes_step_by_step(tmp_path):
    sizes = {"width": 20, "layers": 1, "mixer.heads": 2, "mixer.head_width": 7, "feedforward.hidden": 17, "length": 23}
    spec = weft.preset("t5-small").replace(**sizes, vocabulary=C)
    _, made, weights = export(tmp_path, spec, "translation", letters(), {"longest": [9, 9], "pairs": 3})
    module = ready(spec, weights)
    source, target, lengths = torch.randint(0, C, (2, 9)), torch.randint(0, C, (2, 6)), torch.tensor([9, 5])
    mask = (torch.arange(9) < lengths[:, None]).long()
    with torch.no_grad():
        expected = module(source, target, source_mask=Padding(lengths)).logits
    memory = session(made, "encoder.onnx")({"source": source, "source_mask": mask})["memory"]
    ask = session(made, "decoder.onnx")
    past = {f"past.0.{name}": torch.zeros(2, 2, 0, 7) for name in ("keys", "values")}
    for step in range(6):
        given = {"target": target[:, step : step + 1], "memory": memory, "source_mask": mask, **past}
        found = ask(given)
        assert torch.allclose(found["logits"][:, 0], expected[:, step], atol=1e-5)
        past = {f"past.0.{name}": found[f"present.0.{name}"] for name in ("keys", "values")}


def test_a_series_of_any_number_of_patches(tmp_path):
    spec = weft.preset("nano-series").replace(width=20, layers=1, channels=2, patch=3, length=11, **{"mixer.heads": 2})
    facts = {"columns": ["a", "b"], "mean": [0, 0], "deviation": [1, 1], "context": 33, "patch": 3, "borders": [9], "digest": ""}
    _, made, weights = export(tmp_path, spec, "forecast", facts=facts)
    values = torch.randn(3, 21, 2)
    with torch.no_grad():
        expected = ready(spec, weights)(values).logits
    assert torch.allclose(session(made)({"values": values})["logits"], expected, atol=1e-5)
