"""A run written by version 1 still loads, and says what it said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import weft
from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.foundation.errors import SpecError

OLD = Path(__file__).parent / "frozen" / "run-1"


def test_an_old_run_loads_and_answers_as_it_did():
    run = weft.load(OLD)
    said = json.loads((OLD / "said.json").read_text())
    assert run.predict(said["prompt"], temperature=0.0, max_tokens=12) == said["answer"]
    assert sum(w.numel() for w in run.module.parameters()) == said["parameters"]
    assert run.task.name == "text" and run.tokenizer.vocabulary == said["vocabulary"]


def test_a_run_from_the_future_is_refused(tmp_path):
    shutil.copytree(OLD, tmp_path / "run")
    tree = json.loads((tmp_path / "run" / "spec.json").read_text())
    (tmp_path / "run" / "spec.json").write_text(json.dumps(tree | {"version": RunSpec.VERSION + 1}))
    with pytest.raises(SpecError, match="upgrade Weft"):
        weft.load(tmp_path / "run")


def test_older_trees_are_brought_up_to_date(monkeypatch):
    monkeypatch.setattr(RunSpec, "VERSION", 2)
    monkeypatch.setattr(RunSpec, "MIGRATIONS", {1: lambda tree: tree | {"seed": tree["seed"] + 7}})
    assert RunFolder(OLD).read_spec().seed == 7


def test_a_model_spec_and_its_weights_must_fit(tmp_path):
    shutil.copytree(OLD, tmp_path / "run")
    tree = json.loads((tmp_path / "run" / "spec.json").read_text())
    tree["model"]["width"] = 24
    (tmp_path / "run" / "spec.json").write_text(json.dumps(tree))
    with pytest.raises(weft.WeftError, match=r"does not fit spec\.json"):
        weft.load(tmp_path / "run")
