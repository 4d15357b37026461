"""Vision and series as ONNX files: onnxruntime gives the same answers at any size."""

from __future__ import annotations

import pytest
import torch

import weft
from runs_on_disk import write_run
from weft.checkpoints.export.export_source import open_export_source
from weft.checkpoints.export.onnx import float32_module, open_session

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def export(tmp_path, spec, task, tokenizer=None, facts=None):
    run = write_run(tmp_path / "run", spec, task, tokenizer, facts)
    made = weft.export(run, "onnx", tmp_path / "out")
    assert made.parity is not None and made.parity < 1e-5
    return float32_module(open_export_source(run)), made


def session(made, file="model.onnx"):
    return open_session(made.path / file)


def test_pictures(tmp_path):
    spec = weft.preset("nano-vit").replace(
        width=20, layers=1, image=14, patch=7, channels=3, classes=3, **{"mixer.heads": 2}
    )
    facts = {"classes": ["a", "b", "c"], "side": 14, "mean": [0.5] * 3, "deviation": [0.5] * 3, "augmentation": []}
    module, made = export(tmp_path, spec, "images", facts=facts)
    images = torch.randn(5, 3, 14, 14)
    with torch.no_grad():
        expected = module(images).logits
    assert torch.allclose(session(made)({"images": images})["logits"], expected, atol=1e-5)


def test_a_series_of_any_number_of_patches(tmp_path):
    spec = weft.preset("nano-series").replace(width=20, layers=1, channels=2, patch=3, length=11, **{"mixer.heads": 2})
    facts = {
        "columns": ["a", "b"],
        "mean": [0, 0],
        "deviation": [1, 1],
        "context": 33,
        "patch": 3,
        "borders": [9],
        "digest": "",
    }
    module, made = export(tmp_path, spec, "forecast", facts=facts)
    values = torch.randn(3, 21, 2)
    with torch.no_grad():
        expected = module(values).logits
    assert torch.allclose(session(made)({"values": values})["logits"], expected, atol=1e-5)
