"""`weft bench`: turns, checks, disturbances and failures, with contestants that compute next to nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from weft.bench.contest import BenchOptions, Contest, Cost, Entry, Work
from weft.bench.peers import PEERS, choose_peers
from weft.bench.reporting.page import page_html
from weft.bench.reporting.saved import read_results, results_tree
from weft.bench.reporting.text import case_text, in_seconds
from weft.bench.results import (
    CaseResult,
    ContestResult,
    ResultTable,
    Standing,
    disagreement,
    fit_exponent,
    paired_ratio,
)
from weft.bench.running import process
from weft.bench.running.contestant import take_turn
from weft.bench.running.disturbance import cores_of_others, find_disturbances, quartiles
from weft.bench.running.turns import chosen, hold_contest
from weft.foundation.errors import WeftError

HERE = "test_bench:"
OPTIONS = BenchOptions(rounds=3, seconds=0.0, threads=1, quick=True)


# --- contestants, made in processes of their own ---------------------------------------------------------------------


def writes(name: str, path: str, number: float = 1.0) -> Work:
    """Adds its name to a file at each call; gives `number` to compare."""

    def run() -> dict[str, float]:
        with Path(path).open("a") as file:
            file.write(name)
        return {"calls": 1.0}

    return Work(run, lambda: {"loss": [number, 2.0], f"own {name}": [number]})


def crashes(name: str, path: str, after: int, hard: bool = False) -> Work:
    """Fails at a call, with an exception or without a word of Python."""
    made = writes(name, path)
    left = [after]

    def run() -> dict[str, float]:
        left[0] -= 1
        if left[0] < 0:
            if hard:
                print("the library's last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("first line\nno memory for 3 GB")
        return made.run()

    return Work(run, made.check)


def interrupts(path: str, holder: int, at: int) -> Work:
    """Tells its process id, then sends Ctrl-C to who holds the contest at a call, which takes long."""
    Path(path).write_text(str(os.getpid()))
    left = [at]

    def run() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(holder, signal.SIGINT)
            time.sleep(60)

    return Work(run)


@pytest.fixture(autouse=True)
def _findable(monkeypatch):
    """Contestants' processes import this file."""
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture
def listens_to_ctrl_c():
    """A shell starts programs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def entry(name: str, path: Path, make: str = "writes", peer: str | None = None, **arguments) -> Entry:
    return Entry(name, HERE + make, {"name": name, "path": str(path), **arguments}, peer=peer)


def contest(*entries: Entry, **more) -> Contest:
    return Contest("letters", entries, "letters", limits=False, **more)


# --- turns -----------------------------------------------------------------------------------------------------------


def test_contestants_take_turns_in_an_order_that_rotates(tmp_path):
    path = tmp_path / "calls"
    found = hold_contest(
        contest(*(entry(name, path, peer="torch" if name == "c" else None) for name in "abc")), OPTIONS
    )
    # One call each to warm up, then rounds from the first, the second and the third on.
    assert path.read_text() == "abc" + "abc" + "bca" + "cab"
    assert [len(one.seconds) for one in found.standings] == [3, 3, 3]
    assert [ratio.against for ratio in found.ratios()] == ["c", "c"]
    assert not found.interrupted and found.standings[0].values == [{"calls": 1.0}] * 3


def test_who_computes_something_else_is_named_and_not_timed(tmp_path):
    path = tmp_path / "calls"
    wrong = entry("b", path, peer="torch", number=1.01)
    found = hold_contest(contest(entry("a", path), wrong, entry("c", path, number=1.0005)), OPTIONS)
    assert found.standings[1].failure == "computes something else: loss 1.01, a 1 (tolerance 0.001)"
    assert "b" not in path.read_text() and found.ratios() == []
    text = case_text(CaseResult("letters", [found]))
    assert "failed: computes something else" in text and found.standings[2].failure == ""


@pytest.mark.parametrize("hard", [False, True])
def test_a_crash_is_one_line_and_the_others_go_on(tmp_path, hard):
    path = tmp_path / "calls"
    bad = entry("b", path, "crashes", peer="torch", after=2, hard=hard)
    found = hold_contest(contest(entry("a", path), bad), OPTIONS)
    last = "ended by SIGKILL: the library's last words" if hard else "ValueError: no memory for 3 GB"
    assert found.standings[1].failure == last
    assert len(found.standings[0].seconds) == 3 and found.standings[0].failure == ""
    assert path.read_text().count("b") == 2


def test_what_cannot_be_made_is_one_line_too(tmp_path):
    lost = Entry("b", HERE + "nothing_here", peer="torch")
    found = hold_contest(contest(entry("a", tmp_path / "calls"), lost), OPTIONS)
    assert found.standings[1].failure.startswith("AttributeError: module 'test_bench' has no attribute")


def test_ctrl_c_ends_all_and_keeps_complete_rounds(tmp_path, listens_to_ctrl_c):
    first, second = (tmp_path / name for name in ("a", "b"))
    entries = [
        Entry(path.name, HERE + "interrupts", {"path": str(path), "holder": os.getpid(), "at": at})
        for path, at in ((first, 0), (second, 4))
    ]
    found = hold_contest(contest(*entries), BenchOptions(rounds=1000, seconds=0.0, threads=1, quick=True))
    # The second one's fourth call is its turn in the third round, where the first had had its own.
    assert found.interrupted and [len(one.seconds) for one in found.standings] == [2, 2]
    for path in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_contestants_that_wait_sleep_and_have_equal_threads(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    made = process.environment_of(Entry("a", "x:y", environment={"OWN": "1"}), 3)
    assert "OMP_WAIT_POLICY" not in made
    assert (made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"], made["OWN"]) == ("3", "3", "1")


def test_a_turn_gives_times_and_the_last_numbers():
    calls = []
    found = take_turn(Work(lambda: calls.append(1) or {"calls": len(calls)}), 5)
    assert len(calls) == 5 and found["values"] == {"calls": 5} and found["seconds"] > 0


# --- what is a result ------------------------------------------------------------------------------------------------


def standing(name: str, *seconds: float, peer: str | None = None, others: float | None = 0.0) -> Standing:
    made = Entry(name, "x:y", peer=peer)
    return Standing(made, Cost(flops=2e9), 10.0, list(seconds), [others] * len(seconds), [0.0] * len(seconds))


@pytest.mark.parametrize(
    ("seconds", "others", "waiting", "said"),
    [
        ([1.0, 1.0, 1.02], [0.05, 0.1, 0.1], [0.0], ()),
        ([1.0, 1.0, 1.0], [0.4, 0.4, 0.4], [0.0], ("others used 0.4 cores",)),
        ([1.0, 1.0, 1.0], [None, None, None], [0.0], ()),
        ([1.0, 1.2, 1.4, 1.6], [0.0], [0.0], ("quartiles spread by 23 %",)),
        ([1.0, 1.0], [0.0], [0.03, 0.05], ("waiting contestants used 0.04 cores",)),
        ([1.0, 2.0, 3.0], [0.5], [0.0], ("others used 0.5 cores", "quartiles spread by 50 %")),
    ],
)
def test_when_a_measurement_is_disturbed(seconds, others, waiting, said):
    assert find_disturbances(seconds, others, waiting) == said


def test_cores_of_others_are_all_time_but_the_contest_s_own():
    assert cores_of_others(3.0, 2.0, 2.0) == 0.5
    assert cores_of_others(1.0, 1.2, 2.0) == 0.0
    assert cores_of_others(None, 1.0, 2.0) is None
    assert quartiles([3.0, 1.0, 2.0]) == (1.5, 2.0, 2.5) and quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_ratios_are_medians_over_paired_rounds():
    own, other = standing("weft", 1.0, 1.05, 1.1), standing("peer", 2.2, 2.1, 2.53, peer="torch")
    found = paired_ratio(own, other)
    assert found.value == pytest.approx(2.2) and (found.low, found.high) == pytest.approx((2.0, 2.3))
    assert found.words == "weft is 2.20 x as fast as peer (2.00 to 2.30)"


def test_a_disturbed_row_gives_no_number_and_json_keeps_the_times():
    made = Contest("one", (), "tokens", 10.0)
    rows = [standing("weft", 1.0, 1.0, others=0.4), standing("slow", 9.0, 9.0, peer="torch")]
    rows.append(standing("fast", 2.0, 2.0, peer="plain"))
    result = ContestResult(made, rows, {"float32 GFLOP/s": 10.0})
    [ratio] = result.ratios()
    assert ratio.against == "fast" and ratio.value is None
    assert ratio.words == "weft against fast: no ratio, weft disturbed: others used 0.4 cores"
    text = case_text(CaseResult("one", [result]))
    line = next(line for line in text.splitlines() if line.startswith("weft "))
    assert line.split() == ["weft", "disturbed:", "others", "used", "0.4", "cores"]
    assert "10 % of float32 GFLOP/s" in next(line for line in text.splitlines() if line.startswith("fast"))
    tree = json.loads(json.dumps(result.to_tree()))
    first = tree["contestants"][0]
    assert first["seconds"] == [1.0, 1.0] and first["disturbed"] == ["others used 0.4 cores"]
    assert tree["ratios"][0]["value"] is None and tree["contestants"][2]["share"]["value"] == pytest.approx(0.1)
    assert set(tree) >= {"contest", "unit", "tolerance", "limits", "contestants", "ratios", "interrupted"}


def test_results_are_read_again_as_they_were(tmp_path):
    made = Contest("one", (), "tokens", 10.0, reference="weft", notes=("a note",))
    rows = [standing("weft", 1.0, 1.0), standing("peer", 2.0, 2.1, peer="torch")]
    rows[1].values, rows[0].numbers = [{"peak": 1.0}], {"loss": [2.0]}
    table = ResultTable("peaks", ("a", "b"), (("x", "1"),), ("why",), ({"a": "x", "b": 1.0},))
    result = CaseResult("case", [ContestResult(made, rows, {"float32 GFLOP/s": 10.0})], [table], ("lost",))
    tree = {"machine": {"cores": 2}, "cases": [result.to_tree()]}
    (tmp_path / "a.json").write_text(json.dumps(tree))
    [again], machine = read_results(tmp_path / "a.json")
    assert again.to_tree() == json.loads(json.dumps(result.to_tree())) and machine == {"cores": 2}
    assert case_text(again) == case_text(result)
    (tmp_path / "b.json").write_text('{"cases": 3}')
    with pytest.raises(WeftError, match=r"b.json holds no results of `weft bench --json`"):
        read_results(tmp_path / "b.json")


def test_json_has_a_flat_row_per_contestant_and_the_limits():
    rows = [standing("weft", 1.0, 1.0), standing("peer", 2.0, 2.0, peer="torch"), standing("far", 3.0, others=0.4)]
    contest = ContestResult(Contest("one", (), "tokens", 10.0), rows, {"memory GB/s": 5.0, "7 x 3 GFLOP/s": 1.0})
    other = ContestResult(Contest("two", (), "s"), [standing("alone", 7.0)], {"memory GB/s": 6.0})
    tree = json.loads(json.dumps(results_tree([CaseResult("case", [contest, other])], {"cores": 2})))
    assert tree["limits"] == {"memory GB/s": 6.0} and tree["machine"] == {"cores": 2} and len(tree["cases"]) == 1
    weft, peer, far, alone = tree["results"]
    assert (weft["contestant"], weft["value"], weft["unit"], weft["ratio"]) == ("weft", 10.0, "tokens/s", 2.0)
    assert weft["against"] == "peer" and peer["ratio"] is None and peer["value"] == 5.0
    assert far["value"] is None and far["ratio"] is None and far["reason"] == "others used 0.4 cores"
    assert (alone["value"], alone["unit"], alone["ratio"], alone["case"]) == (7.0, "s", None, "case")


def test_who_fails_has_no_part_in_ratios():
    rows = [standing("weft", 1.0), standing("peer", 0.1, peer="torch"), standing("other", 3.0, peer="plain")]
    rows[1].failure = "gone"
    assert [r.against for r in ContestResult(Contest("one", (), "x"), rows).ratios()] == ["other"]
    reference = Contest("one", (), "x", reference="other")
    assert [(r.name, r.value) for r in ContestResult(reference, rows).ratios()] == [("weft", 3.0), ("peer", None)]


def test_numbers_that_must_agree():
    first, second = standing("a"), standing("b")
    first.numbers, second.numbers = {"loss": [2.0, 4.0]}, {"loss": [2.0, 4.01], "own": [7.0]}
    assert disagreement(second, first, 0.01) == ""
    assert disagreement(second, first, 0.001) == "computes something else: loss 4.01, a 4 (tolerance 0.001)"
    second.numbers = {"loss": [2.0, float("nan")]}
    assert "loss nan" in disagreement(second, first, 0.01)
    second.numbers = {"loss": [2.0]}
    assert "1 numbers for loss, a 2" in disagreement(second, first, 0.01)


def test_exponents_and_units():
    assert fit_exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert [in_seconds(x) for x in (2.0, 0.0123, 4.5e-5, 7e-8)] == ["2 s", "12.3 ms", "45 us", "70 ns"]


# --- peers, cases, pages ---------------------------------------------------------------------------------------------


def test_missing_peers_are_named_with_their_install_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "llama_cpp" else object())
    peers, missing = choose_peers(None, ("transformers", "llama.cpp"))
    assert peers == ("transformers",)
    assert missing == (
        "llama.cpp is not installed: pip install llama-cpp-python (compiles for about ten minutes), "
        "or all peers: pip install 'weft[bench]'",
    )
    assert choose_peers(("transformers",), ("transformers", "llama.cpp")) == (("transformers",), ())
    with pytest.raises(WeftError, match="no peer 'jax': choose from plain"):
        choose_peers(("jax",), ("transformers",))


def test_every_peer_is_in_the_extra():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extra = next(line for line in text.splitlines() if line.startswith("bench = "))
    dependencies = text[text.index("dependencies = [") : text.index("]", text.index("dependencies = ["))]
    for peer in PEERS.values():
        assert peer.package is None or f'"{peer.package}>=' in extra + dependencies
    dev = text[text.index("dev = [") : text.index("]", text.index("dev = ["))]
    assert "llama" not in dev


def test_sizes_choose_contests():
    made = [Contest(name, (), "x") for name in ("4x128 T64", "6x384 T256")]
    assert [one.name for one in chosen(made, ("4x128",))] == ["4x128 T64"] and chosen(made, ()) == made
    with pytest.raises(WeftError, match="no contest is named '7x7': choose from 4x128 T64, 6x384 T256"):
        chosen(made, ("7x7",))


def test_the_page_is_self_contained():
    import xml.etree.ElementTree as ElementTree

    rows = [standing("weft <b>", 1.0, 1.0), standing("peer", 2.0, 2.0, peer="torch")]
    result = CaseResult("one & two", [ContestResult(Contest("first", (), "tokens"), rows)], missing=("x is missing",))
    html = page_html([result], {"cores": 2, "versions": {"torch": "2"}})
    assert "weft &lt;b&gt;" in html and "x is missing" in html and "2.00 x as fast" in html
    assert "<script" not in html and "src=" not in html and "<link" not in html
    svg = html[html.index("<svg") : html.index("</svg>") + 6]
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_a_stopped_run_prints_what_was_measured(monkeypatch, capsys):
    from weft.bench import registry
    from weft.cli.commands.bench import Pages, run_cases

    done = CaseResult("startup", [ContestResult(Contest("one", (), "s"), [standing("weft", 1.0)], interrupted=True)])
    done.interrupted, before = True, signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(registry, "run_case", lambda *_: done)
    with pytest.raises(typer.Exit) as stopped:
        run_cases(["startup", "train"], OPTIONS, True, Pages())
    assert stopped.value.exit_code == 130 and signal.getsignal(signal.SIGTERM) == before
    [found] = json.loads(capsys.readouterr().out)["cases"]
    assert found["interrupted"] and found["contests"][0]["contestants"][0]["seconds"] == [1.0]


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "bench", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment
    )


def test_the_command_lists_cases_and_refuses_what_is_not_there():
    out = call()
    from weft.bench.registry import CASES

    assert out.returncode == 0 and [line.split()[0] for line in out.stdout.splitlines()[: len(CASES)]] == list(CASES)
    out = call("nonsense")
    assert out.returncode == 2 and "there is no case 'nonsense': choose from train" in out.stderr
    out = call("train", "--peers", "jax")
    assert out.returncode == 2 and "there is no peer 'jax'" in out.stderr
