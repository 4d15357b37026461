"""How waiting threads wait: chosen by whether the cores are free now, whatever the load was a minute ago."""

from __future__ import annotations

import os

import pytest

from weft.cli import core_probe, environment
from weft.cli.core_probe import received_share, share_beside, usable_cores
from weft.cli.environment import WAIT_POLICY, choose_for_this_machine, choose_wait_policy, computes_for_long

STAT = "cpu  1 2 3\ncpu0 1 2 3\nctxt 318656\nprocesses 6906\nprocs_running {running}\nprocs_blocked 0\n"


@pytest.mark.parametrize(("share", "load", "sleeps"), [(0.97, 99.0, False), (0.86, 0.0, False), (0.66, 0.0, True)])
def test_the_probe_wins_over_the_load_average(share, load, sleeps):
    found: dict[str, str] = {}
    sentence = choose_wait_policy(found, 3, share, load)
    assert f"a probe got {share:.0%} of 3 cores" in sentence and ("sleep" in sentence) is sleeps
    assert found == ({WAIT_POLICY: "PASSIVE"} if sleeps else {})


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT"])
def test_the_users_own_setting_wins_and_nothing_is_tried(monkeypatch, name):
    for other in environment.USERS_OWN:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "7")
    monkeypatch.setattr(environment, "received_share", lambda cores: pytest.fail("tried"))
    before = dict(os.environ)
    assert choose_for_this_machine(["train", "text"]) == f"waiting threads: {name}=7, as set by the user"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("line", "long"),
    [
        ("train text book.txt --out run", True),
        ("--verbose predict run", True),
        ("demo", True),
        ("train text --help", False),
        ("serve runs/a", True),
        ("predict -h", False),
        ("--help", False),
        ("", False),
        ("show gpt2", False),
        ("plan gpt2", False),
    ],
)
def test_only_commands_that_compute_for_long_try_the_cores(monkeypatch, line, long):
    for name in environment.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    asked = []
    monkeypatch.setattr(environment, "received_share", lambda cores: asked.append(cores) or 1.0)
    assert computes_for_long(line.split()) is long
    assert ("a probe got" in choose_for_this_machine(line.split())) is long
    assert asked == [usable_cores()] * long


def test_where_nothing_is_known_of_the_cores_the_load_average_decides(monkeypatch):
    for name in environment.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "received_share", lambda cores: None)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0), raising=False)
    assert "sleep" in choose_for_this_machine(["train"]) and os.environ[WAIT_POLICY] == "PASSIVE"
    monkeypatch.delenv(WAIT_POLICY)


def test_many_cores_are_judged_by_the_processes_that_run(monkeypatch, tmp_path):
    monkeypatch.setattr(core_probe, "PROC_STAT", tmp_path / "stat")
    assert received_share(64, 0.0) is None  # no such file
    for running, share in ((1, 1.0), (0, 1.0), (17, 0.8), (65, 0.5)):
        (tmp_path / "stat").write_text(STAT.format(running=running))
        assert received_share(64, 0.0) == share
    numbers = iter((1, 3) * 5)
    assert share_beside(3, lambda: STAT.format(running=next(numbers)), 0.0) == 0.75


@pytest.mark.parametrize("text", ["", "cpu 1 2 3\n", "procs_running\n", "procs_running many\n"])
def test_a_stat_file_without_the_number_tells_nothing(text):
    assert share_beside(3, lambda: text, 0.0) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_processes_that_use_the_cores_end_and_tell_their_share():
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    assert 0.0 < received_share(2, 0.01) <= 1.0
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert files is None or len(os.listdir("/proc/self/fd")) == files


def test_no_fork_no_answer(monkeypatch):
    def refused():
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refused, raising=False)
    assert received_share(2, 0.01) is None
    monkeypatch.delattr(os, "fork")
    assert received_share(2, 0.01) is None
