"""The effect of the scale: statistics against plain computations, training that repeats, and the picture."""

from __future__ import annotations

import json
import math

import pytest
import torch

import weft
from weft.cli.main import app
from weft.foundation.errors import WeftError
from weft.inspection.analysis import scale
from weft.inspection.analysis.scale import head_width_of, jacobian_norm, scale_curves, scale_statistics
from weft.inspection.pictures.look import look_at_spec
from weft.inspection.pictures.look_options import LookOptions


def test_the_norm_of_the_jacobian_is_that_of_autograd():
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    for row, norm in zip(scores, jacobian_norm(scores.softmax(-1)), strict=True):
        J = torch.autograd.functional.jacobian(lambda e: e.softmax(-1), row)
        assert float(norm) == pytest.approx(float(J.norm()), abs=1e-10)
    assert float(jacobian_norm(torch.eye(3, dtype=torch.float64))[0]) == 0.0
    equal = torch.full((11,), 1 / 11, dtype=torch.float64)
    assert float(jacobian_norm(equal)) == pytest.approx(math.sqrt(1 / 11 - 1 / 121))


def test_without_the_scale_the_variance_is_the_width_and_attention_is_sharp():
    found = scale_statistics((1, 13, 211), keys=31, rows=300)
    assert found.variance.shape == (2, 3)
    for place, width in enumerate(found.widths):
        assert float(found.variance[0, place]) == pytest.approx(1, rel=0.1)
        assert float(found.variance[1, place]) == pytest.approx(width, rel=0.1)
    # At D_K = 1 the scale is 1.
    assert float(found.largest[0, 0]) == float(found.largest[1, 0])
    assert float(found.largest[1, 2]) > 0.8 > 0.3 > float(found.largest[0, 2])
    assert float(found.entropy[1, 2]) < 0.5 < 2.0 < float(found.entropy[0, 2]) < math.log(31)
    assert float(found.jacobian[1, 2]) < float(found.jacobian[0, 2]) < float(found.jacobian[1, 1])
    again = scale_statistics((211,), keys=31, rows=300)
    assert torch.equal(again.variance[:, 0], found.variance[:, 2])


def test_training_curves_repeat_and_learn_faster_with_the_scale(monkeypatch):
    monkeypatch.setattr(scale, "EXAMPLES", 500)
    told: list[float] = []
    found = scale_curves(64, 18, seed=1, progress=lambda share, _: told.append(share))
    assert found.steps[0] == 0 and found.steps[-1] == 18 and found.losses.shape == (2, len(found.steps))
    assert told == sorted(told) and told[-1] == 1.0
    assert float(found.losses[0, -1]) < float(found.losses[1, -1]) < float(found.losses[1, 0])
    assert torch.equal(found.losses[:, :4], scale_curves(64, 3, seed=1).losses)
    with pytest.raises(WeftError, match="choose 1 to"):
        scale_curves(64, 0)


def test_the_picture_of_a_preset(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "EXAMPLES", 300)
    picture = look_at_spec(weft.preset("nano-gpt"), "nano-gpt", LookOptions(kind="scale", steps=2))
    assert [panel.kind for panel in picture.panels] == ["plot", "plot", "table", "table", "plot"]
    model = picture.panels[3]
    assert model.rows == ("layer 0", "layer 1", "layer 2", "layer 3")
    assert picture.write(tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    # Too large to build, and another score than q.k: what can be said without is shown, and what is not is named.
    large = look_at_spec(weft.preset("gpt3-175b"), "gpt3-175b", LookOptions(kind="scale", steps=0))
    assert len(large.panels) == 3 and "too many to build" in large.left_out[0] and "--steps" in large.left_out[1]
    spec = weft.preset("nano-gpt").replace(**{"mixer.score": "additive"})
    assert "additive is no softmax of q.k" in look_at_spec(spec, "x", LookOptions(kind="scale", steps=0)).left_out[0]


def test_head_width():
    assert head_width_of(weft.preset("gpt2")) == 64
    with pytest.raises(WeftError, match="no attention with heads"):
        head_width_of(weft.preset("nano-gru-dot"))


@pytest.fixture
def cli(capsys, monkeypatch):
    """`cli("look", ...)` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app([str(word) for word in words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


def test_the_command(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(scale, "EXAMPLES", 300)
    out = tmp_path / "scale.html"
    code, told, _ = cli("look", "nano-gpt", "--kind", "scale", "--steps", "1", "--out", out, "--json")
    assert code == 0 and json.loads(told)["path"] == str(out) and out.stat().st_size > 10_000
    for arguments, words in [
        (("nano-gpt", "hello"), "nano-gpt is not a run"),
        (("nano-gpt", "--kind", "attention"), "nano-gpt is not a run"),
        (("nano-gpt", "hello", "--kind", "scale"), "leave 'hello' out"),
        ((tmp_path,), "there is no input"),
        (("nano-gtp", "--kind", "scale"), "did you mean nano-gpt"),
    ]:
        code, _, error = cli("look", *arguments)
        assert code == 2 and words in error.replace("\n", " ")
