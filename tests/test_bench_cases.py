"""Every case of `weft bench` once, in tiny sizes: its contestants are made, agree, and take their turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from weft.bench.cases.train import peer_module
from weft.bench.contest import BenchOptions
from weft.bench.models.gpt2 import GPTShape, weft_gpt2
from weft.bench.registry import CASES, run_case
from weft.bench.results import CaseResult
from weft.foundation.errors import WeftError

PEERS = {"train": ("plain",), "decode": ("transformers",), "prefill": ("llama.cpp",)}


@pytest.mark.parametrize("name", CASES)
def test_every_case_runs(name, tmp_path):
    options = BenchOptions(
        peers=PEERS.get(name), rounds=1, seconds=0.0, threads=1, quick=True, out=str(tmp_path / "runs")
    )
    found = run_case(name, options, lambda _: None)
    assert found.contests or found.tables
    for contest in found.contests:
        assert [(one.name, one.failure) for one in contest.standings if one.failure] == []
        assert all(len(one.seconds) == 1 for one in contest.standings)
    for table in found.tables:
        assert table.rows and all(len(row) == len(table.headings) for row in table.rows)
        assert not any("failure" in value for value in table.values), table.values
    json.dumps(found.to_tree())


def test_the_command_gives_one_json_value_and_a_page(tmp_path):
    page = tmp_path / "bench.html"
    words = ["startup", "--quick", "--json", "--html", str(page)]
    out = subprocess.run(
        [sys.executable, "-m", "weft", "bench", *words], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True,
    )  # fmt: skip
    tree = json.loads(out.stdout)
    assert set(tree) == {"results", "limits", "machine", "cases"} and tree["cases"][0]["case"] == "startup"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_quality_measures_each_row_once(tmp_path, monkeypatch):
    from weft.bench.cases import quality

    calls = []

    def measure(name, row, data, out, minutes, seed):
        calls.append((name, seed, minutes))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"row": name, "seed": seed, "minutes": minutes, "score": 0.5 + seed, "seconds": 60.0}

    monkeypatch.setattr(quality, "measure", measure)
    options = BenchOptions(sizes=("shakespeare", "sst2"), seeds=(0, 1), data=str(tmp_path), out=str(tmp_path / "runs"))
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("a")
    [table] = quality.run(options, lambda _: None).tables
    assert calls == [("shakespeare", 0, 2), ("shakespeare", 1, 2)]
    assert table.rows == (("shakespeare", "2", "60", "2", "loss 1.0000 (0.5000 to 1.5000)", "<= 1.53"),)
    assert table.notes == (f"sst2 is skipped: there is no {tmp_path}/sst2/train.tsv; give --data DIR",)
    quality.run(options, lambda _: None)
    assert len(calls) == 2
    stopped = quality.run(replace(options, again=True), lambda _: None)
    assert stopped.interrupted and calls[2] == ("shakespeare", 0, 2)
    assert len((tmp_path / "runs" / "results.jsonl").read_text().splitlines()) == 2
    with pytest.raises(WeftError, match="no row 'nonsense'"):
        quality.run(replace(options, sizes=("nonsense",)), lambda _: None)


def test_learning_from_little_draws_examples_once_per_seed(tmp_path, monkeypatch):
    from weft.bench.cases import quality

    (tmp_path / "sst2").mkdir()
    rows = [f"text {number}\t{number % 2}" for number in range(300)]
    (tmp_path / "sst2" / "train.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "sst2" / "dev.tsv").write_text("a\t1\n")
    row, drawn = quality.ROWS["little-50"], []
    for seed in (0, 0, 1):
        quality.draw_examples(row, tmp_path, tmp_path, seed)
        drawn.append(quality.drawn_file(row, tmp_path, seed).read_text().splitlines())
    assert drawn[0] == drawn[1] != drawn[2] and len(set(drawn[2])) == 50 and set(drawn[2]) < set(rows)
    words = quality.command(row, tmp_path, tmp_path / "little-50-0", 1.5, 0)
    assert words[2] == str(quality.drawn_file(row, tmp_path, 0)) and "--from" in words
    found = {"accuracy": 0.7, "references": {"bag of bigrams": 0.6, "always 1": 0.5}}

    def measure(name, row, data, out, minutes, seed):
        return {"row": name, "seed": seed, "minutes": minutes, "score": 0.7, "seconds": 9.0, **found}

    monkeypatch.setattr(quality, "measure", measure)
    options = BenchOptions(sizes=("little",), data=str(tmp_path), out=str(tmp_path / "runs"))
    [table] = quality.run(options, lambda _: None).tables
    assert [line[0] for line in table.rows] == list(quality.LITTLE) and len(table.rows) == 9
    cells = dict(zip((line[0] for line in table.rows), (line[4] for line in table.rows), strict=True))
    assert cells["little-50"] == "accuracy 0.7000; bag of bigrams 0.6000"
    assert cells["little-50-scratch"] == "accuracy 0.7000"  # its simple methods are measured on other data


def test_growth_compares_exponents_with_theory():
    from weft.bench.cases.growth import explained, fitted
    from weft.bench.growth.axes import AXES, sizes_of
    from weft.bench.growth.explanations import CALLS, MEMORY, TIME

    assert CALLS.keys() == AXES.keys() and TIME.keys() | MEMORY.keys() <= AXES.keys()
    axis = AXES["length, window of 256"]
    sizes = (1024, 2048, 4096)
    found = {f"seconds {N}": 1e-6 * N**1.5 for N in sizes} | {f"bytes {N}": 8.0 * N for N in sizes}
    value = fitted(axis, sizes, found)
    assert value["exponent"] == pytest.approx(1.5) and value["theory"] == pytest.approx(1.0)
    assert value["memory exponent"] == pytest.approx(1.0) == value["memory theory"]
    assert len(explained(axis, value)) == 1 and explained(axis, value)[0].startswith("length, window of 256, time: ")
    assert "used 0.50 cores" in explained(axis, value | {"others": 0.5})[0]
    assert sizes_of(AXES["bytes of text, bpe"], False, 2e9)[-2:] == (2**30, 2_000_000_000)
    assert sizes_of(axis, False, 2e9) == axis.sizes


def test_growth_page_joins_axes_of_several_files(tmp_path):
    from weft.bench.cases.growth import fitted, growth_table
    from weft.bench.growth.axes import AXES
    from weft.bench.growth.page import write_growth
    from weft.bench.reporting.saved import read_results

    sizes = (1024, 4096)

    def saved(name, seconds):
        found = {f"seconds {N}": seconds * N for N in sizes} | {f"bytes {N}": 1e3 * N for N in sizes}
        value = fitted(AXES[name], sizes, found) | {"command": f"weft bench growth --size {name}"}
        tree = {
            "machine": {"cores": 3, "processor": "P"},
            "cases": [CaseResult("growth", tables=[growth_table([value])]).to_tree()],
        }
        path = tmp_path / f"{name}-{seconds}.json"
        path.write_text(json.dumps(tree))
        return read_results(path)

    files = [
        saved("length, window of 256", 1.0),
        saved("length, causal attention", 2e-3),
        saved("length, window of 256", 1e-3),
    ]
    page = tmp_path / "page.md"
    write_growth([case for cases, _ in files for case in cases], files[0][1], page)
    text = page.read_text()
    assert "| length, window of 256 | 1,024 to 4,096 | 1.02 s to 4.1 s | 1.00 | 1.00 | 1.02 MB to 4.1 MB |" in text
    assert text.count("## Length, window of 256") == 1 and text.index("causal") < text.index("window")
    assert "| 4,096 | 8.19 s | 1.00 |" in text and "\n    weft bench growth --size length, causal attention\n" in text
    assert "**Time**: " in text and "P, 3 cores" in text
    with pytest.raises(WeftError, match="no axis of growth was measured"):
        write_growth([CaseResult("train")], {}, page)


def test_growth_measures_texts_once_and_removes_them(tmp_path, monkeypatch):
    import tempfile

    from weft.bench.growth.measured_axis import axis_work

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = axis_work("bytes of text, characters", [10_007], "both").run()
    assert sorted(found) == ["bytes 10007", "processor seconds 10007", "seconds 10007"]
    assert found["seconds 10007"] > 0 and not [*tmp_path.iterdir()]


def test_made_texts_have_the_size_asked_for(tmp_path):
    from weft.bench.growth.made_text import write_text_of_size

    path = write_text_of_size(tmp_path / "text", 10_007)
    assert path.stat().st_size == 10_007 and len(set(path.read_text().split())) > 500


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@torch.no_grad()
def test_peers_compute_what_weft_computes(double):
    shape = GPTShape(2, 12, 3, 17, 7)
    model = weft_gpt2(shape).double()
    rows = torch.randint(17, (2, 8))
    wanted = torch.nn.functional.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
    for peer in ("plain", "transformers", "x-transformers"):
        module, loss = peer_module(peer, shape)
        if peer == "plain":
            module.double().copy_weights(model)
            assert float(loss(rows[:, :-1], rows[:, 1:])) == pytest.approx(float(wanted), rel=1e-10)
        else:
            assert float(loss(rows[:, :-1], rows[:, 1:])) == pytest.approx(float(wanted), rel=1e-5)


def test_operations_are_those_of_the_estimate():
    """6 N per token and causal attention, against the products that `weft show` counts without a causal discount."""
    from weft.models.estimates import estimate

    shape = GPTShape(3, 24, 2, 101, 16)
    found = shape.training_cost(1, 16).flops
    full = estimate(weft_gpt2(shape).spec, 16).flops_forward * 3
    attention = 3 * 4 * 3 * 24 * 16 * 16
    vectors = 6 * 16 * (3 * 13 * 24 + 2 * 24)  # biases and norms, which the estimate does not count
    assert found == pytest.approx(full - attention + attention * 17 / 32 + vectors)
