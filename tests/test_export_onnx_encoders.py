"""Encoders as ONNX files: onnxruntime gives the same answers at any size."""

from __future__ import annotations

import pytest
import torch

import weft
from runs_on_disk import write_run
from weft.checkpoints.export.export_source import open_export_source
from weft.checkpoints.export.onnx import float32_module, open_session
from weft.data.tokenizers.tokenizer import train_tokenizer

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


def test_sentence_vectors(tmp_path):
    sizes = {"width": 20, "layers": 1, "mixer.heads": 2, "feedforward.hidden": 17, "length": 23}
    spec = weft.preset("minilm-l6").replace(**sizes, **{"input.vocabulary": C, "output.hidden": None})
    facts = {"pool": "mean", "normalize": True, "length": 23}
    run = write_run(tmp_path / "run", spec, "embedding", letters(), facts)
    made = weft.export(run, "onnx", tmp_path / "out")
    loaded = weft.load(run)
    rows = [loaded.tokenizer.encode(text) for text in ("abc", "def abc")]
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
    module, made = export(tmp_path, spec, "classification", facts={"classes": ["a", "b", "c"], "reading": "words"})
    words = torch.cat((torch.randint(0, C, (3, 7, 1)), torch.randint(0, 13, (3, 7, 5))), 2)
    words[0, 1:, 3:], words[1, 2, 1:] = 0, 0  # short words, and one without characters
    with torch.no_grad():
        expected = module(words).logits
    assert torch.allclose(session(made)({"tokens": words})["logits"], expected, atol=1e-5)
