"""Signs of life: who waits for a process notices that it gives none, and a process notices that the store is gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist

from weft.training.parallel.processes import pulse
from weft.training.parallel.processes.failures import _within
from weft.training.parallel.processes.pulse import ProcessSilent, Pulse


class Clock:
    """A time that passes as it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_process_without_signs_of_life_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pulse, "time", clock)
    store = dist.HashStore()
    waiting = Pulse(store, 1, 10.0, lambda: None)
    waiting.expect_alive(0)
    clock.now = 9.0
    store.add("alive/0", 1)
    waiting.expect_alive(0)
    clock.now = 18.0
    waiting.expect_alive(0)
    clock.now = 19.5
    with pytest.raises(ProcessSilent, match="process 0 gave no sign of life for 10 s"):
        waiting.expect_alive(0)


@pytest.mark.parametrize("beating", [True, False])
def test_a_process_ends_where_its_store_does_not_answer(monkeypatch: pytest.MonkeyPatch, beating: bool) -> None:
    told: list[str] = []
    own = Pulse(dist.HashStore(), 0, 3.0, lambda: told.append("lost"))
    turns = iter(range(100))

    def wait(_: float) -> bool:
        own._beats += beating
        return next(turns, None) is None

    class Ended(Exception):
        """In place of the end of this process."""

    def end(code: int) -> Any:
        raise Ended(code)

    monkeypatch.setattr(own._stopped, "wait", wait)
    monkeypatch.setattr(pulse.os, "_exit", end)
    if beating:
        own._watch()
        assert not told
        return
    with pytest.raises(Ended):
        own._watch()
    assert told == ["lost"]
    assert 18 <= next(turns) <= 21


def test_a_store_that_does_not_answer_counts_as_gone() -> None:
    never = threading.Event()
    assert _within(0.05, never.wait) is None
    assert _within(60.0, lambda: 1 / 0) is None
    assert _within(60.0, lambda: 7) == 7
    never.set()
