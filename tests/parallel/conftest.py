"""Fixtures of trainings that something happens to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_processes import Stage, stage


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of one process that nothing happens to."""
    with stage(tmp_path_factory.mktemp("undisturbed")) as made:
        made.go()
        command = made.train("run")
        assert command.ended() == 0, command.said
        return made.losses("run")
