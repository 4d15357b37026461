"""A score, a position, a law and a family of checkpoints from another package: one class or function each.

The package is a temporary distribution, found by its entry points in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import weft
from foreign_folders import gpt2
from plugins import write_distribution

CODE = '''
"""A package that adds one kind of each sort."""
import dataclasses
from typing import Literal

import torch
from torch import nn

from weft.checkpoints.families import gpt2
from weft.foundation.matrix_products import MatrixProduct
from weft.laws import Finding
from weft.models.position_specs import PositionSpec
from weft.parts.relative import AttentionPosition
from weft.parts.scores import Score
from weft.parts.token_positions import distances


class NearScore(Score):
    """e_ij = -g |q_i - k_j|^2, g learned."""

    kind = "near"
    formula = "e_ij = -g |q_i - k_j|^2"

    def __init__(self, query_width, key_width, heads=1):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(0.25))

    def forward(self, query, key):
        return -self.g * (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)

    def matrix_products(self, widths, view, heads=1):
        return (MatrixProduct("distances", "|q - k|^2", view.queries, widths[1], view.seen, heads),)


class Slope(AttentionPosition):
    def __init__(self, slope):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def bias(self, query, queries, keys):
        return -(self.slope * distances(queries, keys).abs())[:, None].to(query.dtype)


class SlopeSpec(PositionSpec):
    kind: Literal["slope"] = "slope"
    slope: float = 0.5

    def build_attention(self, heads, head_width, causal):
        return Slope(self.slope)


def few_parameters(probe):
    count = sum(p.numel() for p in probe.subject.module.parameters())
    return Finding("few parameters", "holds" if count < 10_000_000 else "broken", f"{count:,} parameters")


def divides_by_zero(probe):
    return 1 / 0


FAMILY = dataclasses.replace(gpt2.FAMILY, name="Toy", types=("toy",), architectures=("ToyModel",))
'''
POINTS = {
    "weft.scores": {"near": "toys:NearScore"},
    "weft.positions": {"slope": "toys:SlopeSpec"},
    "weft.laws": {"few parameters": "toys:few_parameters"},
    "weft.families": {"toy": "toys:FAMILY"},
}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """`command("train", ...)` runs weft in a new process in which the package is installed; `with_it=False`: not."""
    folder = write_distribution(tmp_path_factory.mktemp("toys"), "toys", {"toys": CODE}, POINTS)
    cache = tmp_path_factory.mktemp("cache")

    def call(*words, with_it=True, fails=False):
        path = os.pathsep.join([str(folder)] * with_it + [os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "WEFT_CACHE": str(cache), "COLUMNS": "200"}
        line = [sys.executable, *(words if words[0] == "-c" else ("-m", "weft", *words))]
        done = subprocess.run(list(map(str, line)), env=environment, capture_output=True, text=True, check=False)
        assert bool(done.returncode) is fails, done.stderr
        return done.stderr if fails else done.stdout

    return call


def test_a_score_and_a_position_train_show_explain_and_reload(command, tmp_path):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("the cat sat on the mat and the dog sat on the cat. " * 40)
    kinds = ("--set", "mixer.score=near", "--set", "positions.kind=slope", "--set", "positions.slope=0.75")
    command("train", "text", text, "--out", run, "--preset", "nano-gpt", "--steps", 2, "--set", "layers=1", *kinds)
    shown = json.loads(command("show", run, "--length", "13", "--json"))
    (distances,) = (row for row in shown["products"] if row["name"] == "distances")
    assert not any(row["name"] == "Q K^T" for row in shown["products"])
    assert distances["formula"] == "|q - k|^2" and distances["flops"] > 0
    page = tmp_path / "look.html"
    command("look", run, "the cat sat", "--explain", "--out", page)
    assert "e_ij = -g |q_i - k_j|^2" in page.read_text()
    code = (
        f"import weft; run = weft.load({str(run)!r}); mixer = run.module.stack.blocks[0].mixer; "
        "print(mixer.score.kind, type(run.module.stack.position).__name__, run.module.spec.positions.slope, "
        "float(mixer.score.g) != 0.25)"
    )
    assert command("-c", code).split() == ["near", "Slope", "0.75", "True"]
    verdicts = {row["law"]: row["verdict"] for row in json.loads(command("laws", run, "--json"))["laws"]}
    assert "broken" not in verdicts.values() and verdicts["causality"] == verdicts["shift invariance"] == "holds"
    assert verdicts["backend equality"] == "holds"
    # Without the package the run is refused in one sentence; the folder names no code.
    assert "there is no score 'near': choose one of scaled-dot" in command("show", run, with_it=False, fails=True)
    assert "toys" not in (run / "spec.json").read_text()


def test_a_law_is_checked_with_the_others(command):
    rows = {row["law"]: row for row in json.loads(command("laws", "nano-gpt", "--json"))["laws"]}
    assert rows["few parameters"]["verdict"] == "holds" and "parameters" in rows["few parameters"]["evidence"]
    assert list(rows)[-1] == "few parameters" and rows["causality"]["verdict"] == "holds"


def test_a_bug_in_a_law_of_another_package_is_an_error(tmp_path, monkeypatch):
    points = {"weft.laws": {"faulty": "toys_faulty:divides_by_zero", "empty": "toys_faulty:Slope"}}
    monkeypatch.syspath_prepend(str(write_distribution(tmp_path, "faulty", {"toys_faulty": CODE}, points)))
    model = weft.build("nano-gpt")
    with pytest.raises(weft.WeftError, match=r"the law 'faulty' itself fails \(ZeroDivisionError: division by zero\)"):
        weft.laws.check(model, laws=("causality", "faulty"))
    with pytest.raises(weft.WeftError, match="mend or uninstall the package that adds it"):
        weft.laws.check(model)
    monkeypatch.setattr("weft.laws.checker.LAWS._loaded", {"faulty": lambda probe: "fine"})
    with pytest.raises(weft.WeftError, match=r"the law 'faulty' gives a str: return a weft\.laws\.Finding"):
        weft.laws.check(model, laws=("faulty",))


def test_a_family_of_checkpoints_imports_its_folders(command, tmp_path):
    folder, run = tmp_path / "theirs", tmp_path / "run"
    gpt2(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "toy", "architectures": ["ToyModel"]}))
    made = json.loads(command("import", folder, "--out", run, "--json"))
    assert made["family"] == "Toy" and made["task"] == "text"
    assert json.loads(command("show", run, "--json"))["parameters"] == made["parameters"]
    said = command("import", folder, "--out", tmp_path / "other", with_it=False, fails=True)
    assert "there is no adapter for model_type 'toy'" in said and not (tmp_path / "other").exists()
