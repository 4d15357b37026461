"""Runs and training states written by version 1 are still read, and answer as they did."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

import weft
from weft.checkpoints.run_folder import RunFolder, RunSpec
from weft.foundation.errors import SpecError
from weft.foundation.files.tensor_files import write_tensors
from weft.models.build import read_spec

OLD = Path(__file__).parent / "frozen" / "run-1"
DIGESTS = {
    "model.safetensors": "c8287c999e30cf9b61facb734cb4543a3c8ac3ec79cedf562ba23acde15e7897",
    "said.json": "8e1d404c7748258db728a1e04c2b669867fe5fe7d85bc0c0283b26fc9abe6efd",
    "spec.json": "9edaa7967491f2dd42c158c424845ddda2c3949b5172b30a5cb28ee636334a7a",
    "tokenizer.json": "bf1cffbad3f1fa6af63c7917fbd86dae23000b334e848c55d789ce5a55f4e074",
}
RECURRENT = {
    "version": 1,
    "family": "recurrent-seq2seq",
    "vocabulary": 23,
    "width": 7,
    "hidden": 5,
    "two_ways": False,
    "initialisation": {"scheme": "normal", "std": 0.03},
}


def test_the_old_run_is_the_one_that_version_1_wrote():
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in OLD.iterdir()} == DIGESTS


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


def old_run(folder: Path, **changes: object) -> RunFolder:
    folder.mkdir()
    tree = {"version": 1, "task": "translation", "seed": 3, "sources": ["a.tsv"], "model": RECURRENT, **changes}
    (folder / "spec.json").write_text(json.dumps(tree))
    return RunFolder(folder)


def test_fields_of_version_1_are_read_by_their_new_names(tmp_path):
    spec = old_run(
        tmp_path / "run",
        data={"tokeniser": "words", "vocabulary": 311},
        facts={"normalise": True, "classes": ["optimiser", "tokeniser"], "names": {"normalise": "tokeniser"}},
        training={"optimiser": "adamw", "steps": 13},
    ).read_spec()
    assert spec.version == RunSpec.VERSION and (spec.task, spec.seed, spec.sources) == ("translation", 3, ("a.tsv",))
    assert spec.data == {"tokenizer": "words", "vocabulary": 311}
    assert spec.training == {"optimizer": "adamw", "steps": 13}
    # The values are the user's own: classes that are called so keep their names.
    assert spec.facts["normalize"] is True and "normalise" not in spec.facts
    assert spec.facts["classes"] == ["optimiser", "tokeniser"] and spec.facts["names"] == {"normalise": "tokeniser"}


def test_models_of_version_1_are_built_with_their_new_names(tmp_path):
    model = read_spec(old_run(tmp_path / "run").read_spec().model)
    assert model.bidirectional is False and (model.initialization.scheme, model.initialization.std) == ("normal", 0.03)
    assert not {"two_ways", "initialisation"} & model.to_tree().keys()
    tree = json.loads((OLD / "spec.json").read_text())["model"]
    mixer = {"kind": "recurrence", "cell": "gru", "two_ways": True}
    encoder = weft.preset("nano-encoder").to_tree()
    old = encoder | {"version": 1, "depth": 0.25, "mixer": [mixer], "initialisation": tree["initialisation"]}
    del old["stochastic_depth"], old["initialization"]
    stack = read_spec(old)
    assert stack.stochastic_depth == 0.25 and stack.initialization.zero_residual is True
    assert stack.mixer[0].bidirectional is True
    assert read_spec(stack.to_tree()) == stack


def test_trees_of_this_version_do_not_know_the_old_names(tmp_path):
    new = {name: value for name, value in RECURRENT.items() if name != "initialisation"} | {"version": 2}
    with pytest.raises(SpecError, match="two_ways"):
        read_spec(new)
    kept = old_run(tmp_path / "run", version=2, data={"tokeniser": "words"}).read_spec()
    assert kept.data == {"tokeniser": "words"}


def test_a_training_state_of_version_1_is_read(tmp_path):
    folder = old_run(tmp_path / "run")
    (folder.path / "training").mkdir()
    tensors = {
        "weight.head.optimiser.weight": torch.arange(6.0).reshape(2, 3),
        "optimiser.0.head.optimiser.weight.exp_avg": torch.full((2, 3), 0.5),
        "optimiser.1.head.bias.step": torch.tensor(7.0),
        "average.head.bias": torch.ones(3),
    }
    note = {"weft": json.dumps({"step": 7, "best": 1.25})}
    write_tensors(folder.path / "training" / "state-00000007.safetensors", tensors, note)
    found = folder.read_snapshot()
    assert found is not None and found.step == 7 and found.facts == {"best": 1.25}
    # Only the prefix is renamed: a module may be called so.
    names = {name: "optimizer" + name[9:] if name.startswith("optimiser.") else name for name in tensors}
    assert found.tensors.keys() == set(names.values())
    assert all(torch.equal(found.tensors[new], tensors[old]) for old, new in names.items())
