"""Start-up: a command loads what it needs only, and the stored estimates of presets are what is computed."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from weft.models.estimates import estimate
from weft.models.plain_presets import PLAIN
from weft.models.presets import preset, presets
from weft.models.stored_estimates import FILE, read_estimate, stored_estimate, stored_presets

HEAVY = ("matplotlib", "numpy", "sacrebleu", "scipy", "tokenizers", "torch", "transformers")
COMPILER = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.onnx", "matplotlib", "transformers")
SCRIPT = """
import runpy, sys
names = sys.argv.pop(1).split(",")
try:
    runpy.run_module("weft", run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
print("LOADED", code, *(name for name in names if name in sys.modules), file=sys.stderr)
"""


def loaded(names, *command):
    """Which of these packages a finished command has loaded."""
    call = [sys.executable, "-c", SCRIPT, ",".join(names), *command]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    code, *found = done.stderr.rpartition("LOADED ")[2].split()
    assert code in ("0", "None"), done.stderr
    return found


@pytest.mark.parametrize(
    "command",
    [("--help",), ("train", "--help"), ("show",), ("show", "gpt2"), ("show", "nano-moe", "--json")],
    ids=" ".join,
)
def test_help_and_presets_load_nothing_heavy(command):
    assert loaded(HEAVY, *command) == []


def test_tokens_of_a_run_load_no_torch():
    assert "torch" not in loaded(("torch", "tokenizers"), "tokens", "sample:dates-run", "3 May 1999")


@pytest.mark.parametrize(
    "command",
    [("predict", "sample:dates-run", "3 May 1999"), ("laws", "nano-gpt"), ("show", "gpt2", "--length", "99")],
    ids=" ".join,
)
def test_commands_that_compute_load_no_compiler_and_no_drawing(command):
    assert "torch" in loaded(("torch",), *command)
    assert loaded(COMPILER, *command) == []


def _fresh(name):
    spec = preset(name)
    everywhere = not getattr(spec, "dropout", 0.0)
    return {
        "estimate": asdict(estimate(spec)),
        "declares": spec.declares().to_tree(),
        "everywhere": everywhere,
        "plain": name in PLAIN,
    }


def test_stored_estimates_are_those_computed():
    trees = {name: json.loads(json.dumps(_fresh(name))) for name in presets()}
    if os.environ.get("WEFT_FREEZE"):
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(tree, separators=(',', ':'))}" for name, tree in trees.items()
        )
        FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    assert stored_presets() == presets()
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    wrong = [name for name in presets() if stored[name] != trees[name]]
    assert not wrong, "changed: WEFT_FREEZE=1 pytest tests/test_start.py"


@pytest.mark.parametrize("name", ["gpt2", "nano-moe", "t5-small", "mistral-7b", "vaswani-base"])
def test_a_stored_estimate_comes_back_whole(name):
    found = stored_estimate(name)
    assert found is not None
    assert found.estimate == estimate(preset(name))
    assert found.everywhere == (name != "vaswani-base")
    assert found.declares == preset(name).declares().to_tree()


def test_what_is_stored_shows_a_change_of_any_number():
    tree = json.loads(json.dumps(_fresh("gpt2")["estimate"]))
    tree["groups"][0]["products"][0]["columns"] += 1
    assert read_estimate(tree) != estimate(preset("gpt2"))
