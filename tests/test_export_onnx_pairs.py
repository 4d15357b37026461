"""Encoder-decoders as ONNX files: onnxruntime gives the same answers at any size."""

from __future__ import annotations

import pytest
import torch

import weft
from runs_on_disk import write_run
from weft.checkpoints.export.export_source import open_export_source
from weft.checkpoints.export.onnx import float32_module, open_session
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.parts.masks import Padding

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
C = 31


def export(tmp_path, spec, task, tokenizer=None, facts=None):
    run = write_run(tmp_path / "run", spec, task, tokenizer, facts)
    made = weft.export(run, "onnx", tmp_path / "out")
    assert made.parity is not None and made.parity < 1e-5
    return float32_module(open_export_source(run)), made


def session(made, file="model.onnx"):
    return open_session(made.path / file)


def letters():
    return train_tokenizer("characters", ["abc def"])


def test_an_encoder_decoder_writes_step_by_step(tmp_path):
    sizes = {"width": 20, "layers": 1, "mixer.heads": 2, "mixer.head_width": 7, "feedforward.hidden": 17, "length": 23}
    spec = weft.preset("t5-small").replace(**sizes, vocabulary=C)
    module, made = export(tmp_path, spec, "translation", letters(), {"longest": [9, 9], "pairs": 3})
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
