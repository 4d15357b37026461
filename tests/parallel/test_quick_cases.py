"""Three of the trainings of `test_same_numbers`, with two processes: what every run of the tests proves."""

from __future__ import annotations

from pathlib import Path

from cases import cases, write_cases, write_data
from test_same_numbers import expect_same, run_all

WANTED = (("ddp", "experts"), ("fsdp", "encoder-decoder"), ("tp=2", "decoder"))
QUICK = [next(case for case in cases() if case.name.startswith(f"2:{layout}-{model}-")) for layout, model in WANTED]


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    write_data(tmp_path)
    write_cases(tmp_path / "cases.json", QUICK)
    run_all(tmp_path, None)
    run_all(tmp_path, 2)
    for case in QUICK:
        expect_same(tmp_path / "one" / case.name, tmp_path / "many" / case.name)
