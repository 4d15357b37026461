"""What happens to a training over processes when one fails, is killed, hangs, or is told to stop."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from elastic_processes import Stage, is_running, wait_until

pytestmark = pytest.mark.parallel
NOISE = re.compile(
    r"torch/distributed|debug_logger|destroy_process_group|resource_tracker|\[W\d|\[E\d|Exception ignored"
)


@pytest.mark.parametrize(
    ("fault", "code", "sentence"),
    [
        ("vanished", 2, r"^weft: rank 1 of 2: cannot read or write \S+vanished.bin: No such file or directory"),
        ("user", 2, "^weft: rank 1 of 2: 65 tokens, but the positions hold 64$"),
        ("bug", 1, "^(.rank1.: )?ValueError: a bug of the user's model\n(.rank1.: )?rank 1 of 2$"),
    ],
)
def test_a_failure_of_one_process_is_told_once_and_ends_all(here: Stage, fault: str, code: int, sentence: str) -> None:
    command = here.train("run", "--processes", "2", HELD_FAULT=fault)
    assert command.ended() == code, command.said
    assert len(re.findall(sentence, command.errors, re.MULTILINE)) == 1, command.errors
    assert command.errors.count("reading book.txt") == 1, "started again"
    assert command.errors.count("Traceback") == (fault == "bug")
    assert fault == "bug" or not NOISE.search(command.errors), command.errors


def test_an_error_before_processes_meet_is_told_once(here: Stage) -> None:
    command = here.start(
        ["-m", "weft", "train", "text", "book.txt", "--out", "run", "--module", "none.py:Model", "--processes", "2"]
    )
    assert command.ended() == 2, command.said
    assert re.findall("^weft: .*", command.errors, re.MULTILINE) == [
        "weft: there is no file none.py: give its path from the current folder"
    ]


def test_a_killed_process_is_named_and_all_start_again(here: Stage, undisturbed: dict[int, float]) -> None:
    command = here.train("run", "--processes", "2")
    pids = here.held(2)
    os.kill(pids[1], signal.SIGKILL)
    here.go()
    assert command.ended() == 0, command.said
    assert command.errors.count("weft: rank 0 of 2: process 1 was killed") == 1, command.errors
    assert re.search("continuing from step (5|10)\n", command.errors)
    assert here.losses("run") == pytest.approx(undisturbed, abs=1e-10, rel=0)
    assert not NOISE.search(command.errors), command.errors


def test_a_hanging_process_is_named_and_all_start_again(here: Stage, undisturbed: dict[int, float]) -> None:
    command = here.train("run", "--processes", "3", "--timeout", "10")
    pids = here.held(3)
    os.kill(pids[2], signal.SIGSTOP)
    here.go()
    assert command.ended() == 0, command.said
    told = re.findall("^weft: rank .*", command.errors, re.MULTILINE)
    assert len(told) == 1 and "process 2 was killed, or did not answer for 0:00:10" in told[0], command.errors
    assert here.losses("run") == pytest.approx(undisturbed, abs=1e-10, rel=0)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("number", "after"), [(signal.SIGINT, ["--processes", "3"]), (signal.SIGTERM, [])], ids=["ctrl-c", "sigterm"]
)
def test_a_stopped_training_goes_on_with_another_number_of_processes(
    here: Stage, undisturbed: dict[int, float], number: signal.Signals, after: list[str]
) -> None:
    command = here.train("run", "--processes", "2")
    pids = here.held(2)
    os.killpg(command.pid, number)
    wait_until(lambda: all(map(_was_told, pids)), "the signal at the processes")
    here.go()
    assert command.ended() == 130, command.said
    assert command.errors.count("continue with: weft train text book.txt") == 1
    assert command.errors.count("weft: stopped") == 1, command.errors
    assert "Traceback" not in command.errors and not NOISE.search(command.errors), command.errors
    assert not any(map(is_running, pids))
    # Held in step 12; that somebody asked to stop is agreed with the shares of step 13, the last one.
    assert here.states("run") == ["state-00000013.safetensors"]
    command = here.train("run", "--resume", *after)
    assert command.ended() == 0, command.said
    assert "continuing from step 13" in command.errors
    assert here.losses("run") == pytest.approx(undisturbed, abs=1e-10, rel=0)


def _was_told(pid: int) -> bool:
    """Whether no signal to stop waits for the process; by then its handler has run, as it polls in Python."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = [int(value, 16) for value in re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.MULTILINE)]
    return not any(pending)


def test_orphans_end_with_their_agent(here: Stage) -> None:
    command = here.train("run", "--processes", "2")
    pids = here.held(2)
    os.kill(command.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), "the end of the orphans")
