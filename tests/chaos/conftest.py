"""Fixtures of work that something happens to."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft

SMALL = {
    "width": 16,
    "layers": 1,
    "mixer.heads": 2,
    "length": 32,
    "training.batch": 256,
    "training.threads": 1,
    "training.checkpoint_every": 2,
    "training.evaluate_every": 5,
    "data.tokenizer": "bytes",
}
TEXT = "she sells sea shells by the sea shore; the shells she sells are sea shells.\n"


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "book.txt"
    file.write_text(TEXT * 100)
    return file


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of Llama's kind, that can be exported."""
    place = tmp_path_factory.mktemp("trained")
    (place / "book.txt").write_text(TEXT * 50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CACHE", str(place / "cache"))
        changes = {**SMALL, "training.checkpoint_every": 50}
        weft.train("text", place / "book.txt", place / "run", preset="nano-llama", steps=2, set=changes, device="cpu")
    return place / "run"
