"""`weft plan`: tables and JSON that say they are estimates, devices of the user, one sentence for every error."""

from __future__ import annotations

import json

import pytest

from weft.cli.commands.plan import in_count, in_time, read_count
from weft.cli.main import app
from weft.models.cluster.candidates import EFFICIENCY
from weft.models.cluster.device_table import Device, device_table


@pytest.fixture
def run(capsys, monkeypatch):
    """`run("gpt2", "--devices", "8xH100")` gives (exit code, stdout, stderr)."""
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            app(["plan", *words], prog_name="weft")
        return stopped.value.code or 0, *capsys.readouterr()

    return call


def test_tables_of_a_plan(run):
    code, out, err = run("llama-2-7b", "--devices", "64xH100", "--tokens", "2T", "--batch", "4M")
    assert (code, err) == (0, "")
    for words in (
        "llama-2-7b on 64xH100: 6,738,415,616 parameters",
        "2T tokens",
        "`weft train --parallel` trains with dp (ddp), fsdp and tp",
        "Recommended layout: fsdp=64",
        "Pipeline parallelism (pp) is not offered.",
        "12 bytes per parameter, / 64",
        "and of the loss, for",
        "update",
        "at once",
        "of 72.00 GB usable, 80 GB in all",
        "reduce-scatter",
        "MFU",
        "checkpoint every",
        "device hours",
        "does not fit",
        "reaches 0.45 (--efficiency)",
    ):
        assert words in out, words
    assert max(map(len, out.splitlines())) <= 120


def test_help_says_what_it_is_and_names_all_devices(run):
    code, out, _ = run("--help")
    assert code == 0
    flat = " ".join(out.split())
    assert "nothing is run. `weft train --parallel` trains with these layouts" in flat
    assert "pipeline parallelism is not offered" in flat
    assert f"[default: {EFFICIENCY}]" in flat
    assert all(name in flat for name in device_table())


def test_one_device_communicates_nothing(run):
    out = run("nano-gpt", "--devices", "h100")[1]
    assert "nano-gpt on 1xH100" in out and "Communication: none" in out
    assert "Note: a step of" in out


def test_plan_as_json(run):
    code, out, err = run("gpt2", "--devices", "8xA100-80", "--tokens", "1.5B", "--length", "512", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert "nothing is run" in found["estimate"] and "not offered" in found["estimate"]
    assert (found["parameters"], found["tokens"], found["length"]) == (124_439_808, 1_500_000_000, 512)
    assert found["layout"] == {"dp": 8, "fsdp": 1, "tp": 1}
    state = [found["memory"][part] for part in ("weights", "gradients", "optimizer")]
    assert sum(state) == 16 * 124_439_808
    assert found["communication"] == {"all-reduce": 124_439_808 * 2 * 14 // 8, "reduce-scatter": 0, "all-gather": 0}
    assert found["payload"] == {"all-reduce": 124_439_808 * 2, "reduce-scatter": 0, "all-gather": 0}
    assert [one["payload"] for one in found["collectives"]] == [124_439_808 * 2]
    assert found["batch"] == found["sequences"] * 512 == 2**19
    assert found["steps"] == -(-1_500_000_000 // 2**19)
    assert found["device_hours"] == pytest.approx(found["days"] * 24 * 8)
    assert {"precision": "bf16", "efficiency": 0.45}.items() <= found["assumptions"].items()
    assert found["runners_up"] and found["failures"]["interval"] > 0 and found["reasons"]


def test_half_the_efficiency_doubles_the_computing(run):
    seconds = [
        json.loads(run("gpt2", "--devices", "1xH100", "--json", "--efficiency", share)[1])["step_seconds"]["computing"]
        for share in ("0.4", "0.2")
    ]
    assert seconds[1] == pytest.approx(2 * seconds[0])


def test_a_device_without_bf16_takes_fp16(run):
    assert json.loads(run("gpt2", "--devices", "8xV100", "--json")[1])["assumptions"]["precision"] == "fp16"
    found = json.loads(run("gpt2", "--devices", "8xV100", "--precision", "FP32", "--json")[1])
    assert found["memory"]["optimizer"] == 8 * 124_439_808


OWN = """
[Mine]
like = "H100"
memory_gb = 96
[Its-Sister]
like = "Mine"
devices_per_node = 4
[H100]
like = "H100"
memory_gb = 70
"""


def test_devices_of_the_user(run, tmp_path):
    file = tmp_path / "gpus.toml"
    file.write_text(OWN, encoding="utf-8")
    table = device_table(file)
    assert (table["Mine"].memory_gb, table["Mine"].devices_per_node) == (96, 8)
    assert (table["Its-Sister"].memory_gb, table["Its-Sister"].devices_per_node) == (96, 4)
    assert table["Mine"].tflops == table["H100"].tflops == device_table()["H100"].tflops
    assert (table["H100"].memory_gb, device_table()["H100"].memory_gb) == (70, 80)
    code, out, err = run("gpt2", "--devices", "4xmine", "--devices-file", str(file), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["devices"]["memory_gb"] == 96
    assert "of 86.40 GB usable, 96 GB in all" in run("gpt2", "--devices", "4xMine", "--devices-file", str(file))[1]


def test_the_built_in_table():
    table = device_table()
    assert {"A100-40", "A100-80", "H100", "H200", "B200", "L40S", "V100", "RTX4090"} <= set(table)
    for name, device in table.items():
        assert isinstance(device, Device) and len(device.sources) >= 2, name
        assert device.tflops["fp32"] <= device.tflops["fp16"], name
        assert device.link_between_gb_per_second < device.link_within_gb_per_second, name
    a100 = table["A100-80"]
    assert (a100.tflops["bf16"], a100.memory_gb, a100.memory_gb_per_second) == (312, 80, 2039)


BROKEN = {
    "broken.toml": ("[Mine", "is not TOML"),
    "loose.toml": ("memory_gb = 3", "'memory_gb' stands outside of a device"),
    "unknown.toml": ('[Mine]\nlike = "H100"\nmemry_gb = 3', "did you mean memory_gb?"),
    "missing.toml": ("[Mine]\nmemory_gb = 3", "device Mine: Device needs the field"),
    "negative.toml": ('[Mine]\nlike = "H100"\nmemory_gb = -3', "memory_gb"),
    "infinite.toml": ('[Mine]\nlike = "H100"\nmemory_gb = inf', "memory_gb"),
    "absent-like.toml": ('[Mine]\nlike = "H10"', "did you mean H100"),
    "circle.toml": ('[Mine]\nlike = "Other"\n[Other]\nlike = "Mine"', "leads back to itself"),
    "list-like.toml": ("[Mine]\nlike = [3]", "like = [3]"),
    "precision.toml": ('[Mine]\nlike = "H100"\ntflops = { int8 = 3 }', "tflops"),
    "binary.toml": (b"\xff\xfe\x00", "not UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_of_devices_is_one_sentence(run, tmp_path, name):
    content, words = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = run("gpt2", "--devices", "8xMine", "--devices-file", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("weft: ") and err.count("\n") == 1
    assert words in err and name in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gpt2", "--devices", "8xH10"], "did you mean H100"),
        (["gpt2", "--devices", "8xTPUv9"], "Known are V100, A100-40"),
        (["gpt2", "--devices", "8xA100"], "did you mean A100-40 or A100-80?"),
        (["gpt2", "--devices", "0xH100"], "0 devices, but a plan is for 1 to 1,000,000"),
        (["gpt2", "--devices", "-3xH100"], "-3 devices"),
        (["gpt2", "--devices", "9999999999xH100"], "9,999,999,999 devices"),
        (["gpt2", "--devices", ""], "write it as 64xH100"),
        (["gpt2", "--devices", "8 x"], "is not a number and a device"),
        (["gpt2", "--devices", "８×Ｈ100"], "there is no such device"),
        (["gpt-2", "--devices", "8xH100"], "did you mean gpt2"),
        (["gpt2", "--devices", "8xH100", "--tokens", "abc"], "--tokens 'abc' is not a number of tokens"),
        (["gpt2", "--devices", "8xH100", "--tokens", "0"], "--tokens '0'"),
        (["gpt2", "--devices", "8xH100", "--tokens", "-3B"], "--tokens '-3B'"),
        (["gpt2", "--devices", "8xH100", "--tokens", "inf"], "--tokens 'inf'"),
        (["gpt2", "--devices", "8xH100", "--batch", "1,5,Q"], "--batch '1,5,Q'"),
        (["gpt2", "--devices", "8xH100", "--batch", "100"], "less than one sequence of 1,024"),
        (["gpt2", "--devices", "8xH100", "--length", "0"], "length 0"),
        (["gpt2", "--devices", "8xH100", "--efficiency", "0"], "efficiency 0"),
        (["gpt2", "--devices", "8xH100", "--efficiency", "nan"], "efficiency nan"),
        (["gpt2", "--devices", "8xH100", "--efficiency", "45"], "efficiency 45"),
        (["gpt2", "--devices", "8xH100", "--precision", "int3"], "choose from bf16, fp16, tf32, fp32"),
        (["gpt2", "--devices", "8xV100", "--precision", "bf16"], "V100 has no peak FLOP/s for bf16"),
        (["gpt2", "--devices", "8192xH100"], "a batch of 512 sequences of 1,024 tokens feeds at most 2,048"),
        (["gpt2", "--devices", "1000000xH100", "--batch", "9T"], "leaves no time to train"),
        (["gpt3-175b", "--devices", "8xH100"], "64xH100 would do"),
        (["gpt2", "--devices", "8xH100", "--devices-file", "absent.toml"], "cannot read absent.toml"),
    ],
)
def test_user_errors_are_one_sentence(run, words, sentence):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.startswith("weft: ") and err.count("\n") == 1


def test_counts_as_users_write_them():
    written = {
        "300B": 3 * 10**11,
        "1.5T": 15 * 10**11,
        "4m": 4 * 10**6,
        "2e9": 2 * 10**9,
        "1_000": 1000,
        "1,000 k": 10**6,
    }
    assert {words: read_count("--tokens", words) for words in written} == written
    assert [in_count(n) for n in (3 * 10**11, 15 * 10**11, 2_488_796_160, 700)] == ["300B", "1.5T", "2.489B", "700"]
    assert [in_time(s) for s in (0.0123, 1.5, 119, 7300, 200_000)] == [
        "12.3 ms",
        "1.5 s",
        "119.0 s",
        "2.0 h",
        "2.3 days",
    ]


def test_a_run_can_be_planned(run):
    code, out, err = run("sample:dates-run", "--devices", "8xRTX4090")
    assert (code, err) == (0, "")
    assert "Recommended layout" in out
