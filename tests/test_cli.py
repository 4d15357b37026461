"""The command line: help without torch, one sentence and an exit code for every error, JSON alone on stdout."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

import weft
from weft.cli import terminal
from weft.cli.app import CLOSED_PIPE
from weft.cli.environment import WAIT_POLICY, choose_wait_policy
from weft.cli.main import app

COMMANDS = (
    "show",
    "plan",
    "demo",
    "laws",
    "train",
    "eval",
    "compare",
    "predict",
    "chat",
    "tokens",
    "look",
    "lookup",
    "import",
    "export",
)


@pytest.fixture
def run(capsys, monkeypatch):
    """`run("show", "gpt2")` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app(list(words), prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


def test_help_and_version_need_no_torch():
    code = f"""
import sys
from weft.cli.environment import WAIT_POLICY, choose_wait_policy
from weft.cli.main import app
for words in [["--help"], ["--version"], []] + [[name, "--help"] for name in {COMMANDS!r}]:
    try:
        app(words, prog_name="weft")
    except SystemExit as stopped:
        assert not stopped.code, words
slow = {{"torch", "numpy"}} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"weft {weft.__version__}" in done.stdout


def test_importing_weft_changes_no_environment_and_loads_no_torch():
    code = """
import os, sys, threading
os.getloadavg = lambda: (99.0, 99.0, 99.0)
before = dict(os.environ)
import weft
assert dict(os.environ) == before
assert "torch" not in sys.modules
import weft.cli.main
assert dict(os.environ) == before
"""
    environment = {name: value for name, value in os.environ.items() if name != WAIT_POLICY}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("load", "given", "found", "sentence"),
    [
        (99.0, None, "PASSIVE", "waiting threads sleep (OMP_WAIT_POLICY=PASSIVE): load average 99.00 on"),
        (0.0, None, None, "waiting threads spin: load average 0.00 on"),
        (99.0, "ACTIVE", "ACTIVE", "OMP_WAIT_POLICY=ACTIVE, as set by the user"),
    ],
)
def test_the_command_lets_threads_sleep_on_a_busy_machine(load, given, found, sentence):
    code = f"""
import os, sys
os.getloadavg = lambda: ({load},) * 3
sys.argv = ["weft", "--verbose", "show", "nano-gpt", "--length", "7", "--json"]  # computed anew, by torch
from weft.cli.main import run
try:
    run()
finally:
    print("found", os.environ.get("OMP_WAIT_POLICY"), file=sys.stderr)
"""
    environment = {name: value for name, value in os.environ.items() if name != WAIT_POLICY}
    environment |= {} if given is None else {WAIT_POLICY: given}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["family"] == "decoder"
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("weft: ") and sentence in first and last == f"found {found}"
    assert "weft: torch" in done.stderr


def test_the_wait_policy_without_a_probe():
    environment: dict[str, str] = {}
    assert "tells no load average" in choose_wait_policy(environment, 3, None, None) and environment == {}
    assert "on 7 cores" in choose_wait_policy(environment, 7, None, 3.4) and environment == {}
    assert "sleep" in choose_wait_policy(environment, 7, None, 3.6) and environment == {WAIT_POLICY: "PASSIVE"}


def test_verbose_ends_with_its_command(run, monkeypatch):
    monkeypatch.delenv(WAIT_POLICY, raising=False)
    code, _, err = run("--verbose", "show", "nano-gpt")
    assert code == 0 and "threads" in err
    log = logging.getLogger("weft")
    assert not log.handlers and not log.isEnabledFor(logging.INFO)
    assert run("show", "nano-gpt")[2] == ""


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_each_help_has_an_example(run, words):
    code, out, _ = run(*words, "--help")
    assert code == 0
    assert f"  weft {' '.join(words)}".rstrip() in out
    assert "Examples:" in out


def test_weft_alone_prints_its_help(run):
    assert run()[:2] == run("--help")[:2]


def test_show_prints_the_numbers_of_the_lecture(run):
    code, out, err = run("show", "gpt2")
    assert (code, err) == (0, "")
    for words in ("124,439,808", "blocks x 12", "12 x [1024 x 64] [64 x 1024] -> [1024 x 1024]", "474.7 MiB", "FLOP"):
        assert words in out
    assert out.count("mixer_norm") == 1
    assert "one layer; never stored" in out and "fused: the mask is a flag" in out


def test_show_says_where_attention_weights_are_stored(run, tmp_path):
    spec = weft.preset("nano-gpt").replace(**{"mixer.dropout": 0.1, "length": 512})
    file = tmp_path / "dropped.json"
    file.write_text(spec.to_json())
    out = run("show", str(file))[1]
    assert "one layer; stored in training" in out
    assert "training  fused: the mask is a flag; with dropout torch stores A, which is small" in out
    out = run("show", str(file), "--length", "3000")[1]
    assert "never stored" in out and "blocked: with dropout torch stores A, and 3000 x 3000 pairs are many" in out


def test_a_narrow_terminal_leaves_out_what_follows_from_the_rest(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run("show", "gpt2")[1]
    assert "12 x [1024 x 64] [64 x 1024] " in out and " -> " not in out
    assert max(map(len, out.splitlines())) <= 80


def test_show_counts_active_experts_and_notes_long_texts(run):
    assert "12,879,925,248 active per token" in run("show", "mixtral-8x7b")[1]
    assert "Note: 5,000 tokens, but the learned positions hold 1,024" in run("show", "gpt2", "--length", "5000")[1]
    assert "tokens in the blocks 257" in run("show", "nano-encoder")[1]
    assert "state" not in run("show", "vit-b16")[1]


def test_show_as_json(run):
    code, out, err = run("show", "gpt2", "--json", "--length", "100")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["parameters"], found["family"], found["length"]) == (124_439_808, "decoder", 100)
    assert found["memory"]["weights_float32"] == 4 * 124_439_808
    assert [product["name"] for product in found["products"]][:2] == ["fused QKV", "Q K^T"]
    assert found["flops"]["training_per_token"] == pytest.approx(3 * found["flops"]["forward_per_token"], rel=1e-6)
    assert found["declares"]["causal"] is True
    assert found["parts"]["kind"] == "Decoder"


def test_show_lists_all_presets(run, monkeypatch):
    rows = json.loads(run("show", "--json")[1])
    assert [row["preset"] for row in rows] == weft.presets()
    assert {"preset": "gpt2", "family": "decoder", "parameters": 124_439_808} in rows
    monkeypatch.setattr("weft.models.presets.presets", lambda: ["gpt2", "mixtral-8x7b"])
    assert "46,702,792,704" in run("show")[1]


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_show_reads_a_spec_file(run, tmp_path, suffix):
    spec = weft.preset("nano-gpt").replace(layers=1)
    path = tmp_path / f"my [model].{suffix}"
    path.write_text(spec.to_json() if suffix == "json" else spec.to_toml(), encoding="utf-8")
    code, out, _ = run("show", str(path), "--json")
    assert code == 0
    assert json.loads(out)["layers"] == 1
    assert "[model]" in run("show", str(path))[1].replace("\n", "")


BROKEN = {
    "broken.json": ("{", "is not JSON"),
    "list.json": ("[]", "a spec is a table"),
    "broken.toml": ("family = ", "is not TOML"),
    "empty.toml": ("", "family None is unknown"),
    "unknown.json": ('{"family": "decoder", "color": 3}', "no field 'color'"),
    "clash.json": ('{"family": "decoder", "width": 7}', "does not divide"),
    "binary.json": (b"\xff\xfe\x00", "not UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_spec_file_is_one_sentence(run, tmp_path, name):
    content, words = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = run("show", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("weft: ") and err.count("\n") == 1
    assert words in err and name in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["show", "nonsense"],
            "there is no preset 'nonsense', no folder of a run, and a spec file ends in .json or .toml: `weft show`",
        ),
        (["show", "gpt-2"], "did you mean gpt2"),
        (["show", "absent.json"], "cannot read absent.json"),
        (["show", "gpt2", "--length", "-3"], "length -3"),
        (["show", "gpt2", "--length", "0", "--json"], "length 0"),
        (["demo", "--seconds", "0"], "choose more than 0"),
        (["demo", "--seconds", "nan"], "choose more than 0"),
    ],
)
def test_user_errors_are_one_sentence(run, words, sentence):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.startswith("weft: ") and err.count("\n") == 1


@pytest.mark.parametrize("words", [["nonsense"], ["show", "--color"], ["show", "gpt2", "x", "--length"]])
def test_usage_errors_exit_with_2(run, words):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert words[-1] in err and "Traceback" not in err


def test_debug_shows_the_traceback(run, monkeypatch):
    monkeypatch.setenv("WEFT_DEBUG", "1")
    code, _, err = run("show", "nonsense")
    assert code == 2
    assert "Traceback" in err and err.rstrip().splitlines()[-1].startswith("weft: there is no preset")


def test_a_closed_pipe_is_silent():
    weft_show = [sys.executable, "-m", "weft", "show", "gpt2"]
    with subprocess.Popen(weft_show, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == CLOSED_PIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w", encoding="utf-8") as full:
        weft_show = [sys.executable, "-m", "weft", "show", "nano-gpt", "--json"]
        done = subprocess.run(weft_show, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("weft: cannot read or write the output") and done.stderr.count("\n") == 1


def test_the_largest_preset_needs_little_memory_and_no_compiler():
    code = """
import resource, sys
from weft.cli.environment import WAIT_POLICY, choose_wait_policy
from weft.cli.main import app
try:
    app(["show", "gpt3-175b", "--json"], prog_name="weft")
except SystemExit as stopped:
    assert not stopped.code
if sys.platform == "darwin":
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
else:  # there ru_maxrss is also that of the process which started this one
    peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
assert peak < 1e9, peak
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == 174_604_259_328


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (4 * 124_439_808, "474.7 MiB"),
        (64 * 10**10 * 2, "1,192 GiB"),
    ],
)
def test_bytes_as_people_read_them(count, words):
    assert terminal.in_bytes(count) == words


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal.progress("training") as report:
        report(0.5, "half")
        report(1.0, "loss 2.00")
    out, err = capsys.readouterr()
    assert out == ""
    assert "training" in err and "loss 2.00" in err and "━" in err


def test_flops_and_bars_as_people_read_them():
    assert terminal.in_flops(284_812_800) == "284.8 MFLOP"
    assert terminal.in_flops(999) == "999 FLOP"
    assert terminal.bars([("a", 0.5), ("bc", 0.0)], width=4) == " a  50.0% ██\nbc   0.0%"
