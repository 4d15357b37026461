"""kill -9 at random moments, by seed: nothing is lost, and what is resumed is the same in every bit."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from disturbed import KILLS, contents, kill_often, run, timed

import weft
from conftest import SMALL, TEXT
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.checkpoints.run_folder import RunFolder
from weft.data.stores.token_store import open_token_store
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.runs.batch_prediction import predict_to_file

pytestmark = pytest.mark.chaos
REPORT: dict[str, int] = {}


@pytest.fixture(autouse=True, scope="module")
def _told():
    yield
    print()
    for name, started in REPORT.items():
        print(f"{name}: {KILLS} times killed while it worked, of {started} begun; nothing lost")


def train(book: Path, out: Path, **more):
    changes = {**SMALL, **more.pop("changes", {})}
    begun = (out / "spec.json").exists()
    return weft.train("text", book, out, steps=40, set={} if begun else changes, resume=begun, device="cpu", **more)


@pytest.mark.parametrize("every", [2, 1])
def test_training_and_checkpointing(book, tmp_path, every):
    changes = {"training.checkpoint_every": every}
    longest = timed(lambda: train(book, tmp_path / "whole", changes=changes), tmp_path)
    broken = tmp_path / "broken"

    def check():
        state = RunFolder(broken).read_snapshot()
        if (broken / "model.safetensors").exists():
            weft.load(broken)
        assert state is None or state.step % every == 0

    name = f"training, a checkpoint every {every} steps"
    work = partial(train, book, broken, changes=changes)
    REPORT[name] = kill_often(work, tmp_path, name, longest, lambda: shutil.rmtree(broken), check)
    but = ("report.html", "plan.json")
    assert contents(broken, but) == contents(tmp_path / "whole", but)
    plans = [json.loads((tmp_path / folder / "plan.json").read_text()) for folder in ("whole", "broken")]
    assert plans[0]["steps"] == plans[1]["steps"]
    assert not [path for path in broken.rglob(".*") if path.name.endswith(".new")]


def test_tokenizing(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT * 20_000)
    tokenizer = train_tokenizer("words", [TEXT])

    def work(cache):
        return lambda: open_token_store([tmp_path / "book.txt"], tokenizer, tmp_path / cache)

    longest = timed(work("whole"), tmp_path)

    def complete():
        """What is in place is whole; files that are being written have other names."""
        found = contents(tmp_path / "broken")
        assert {name: digest for name, digest in found.items() if ".new" not in name}.items() <= whole.items()

    whole, broken = contents(tmp_path / "whole"), tmp_path / "broken"
    begin = partial(shutil.rmtree, broken)
    REPORT["tokenizing"] = kill_often(work("broken"), tmp_path, "tokenizing", longest, begin, complete)
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole") != {}
    assert not [path for path in (tmp_path / "broken").iterdir() if path.name.endswith(".new")]


@pytest.mark.parametrize("to", ["huggingface", "gguf"])
def test_exporting_and_importing(trained, tmp_path, to):
    def export(out):
        weft.export(trained, to, out, certificate=False)

    longest = timed(lambda: export(tmp_path / "whole"), tmp_path)
    out, whole = tmp_path / "out", contents(tmp_path / "whole")

    def complete():
        """Killed after the folder was in its place: it is whole, and the work begins anew."""
        if out.exists():
            assert contents(out) == whole
            shutil.rmtree(out)

    kill = partial(kill_often, place=tmp_path)
    REPORT[f"exporting to {to}"] = kill(
        partial(export, out), name=f"export {to}", longest=longest, again=partial(shutil.rmtree, out), check=complete
    )
    source = next((tmp_path / "whole").glob("*.gguf"), tmp_path / "whole")

    def take(out):
        convert_checkpoint(source, out, certified=False)

    longest = timed(lambda: take(tmp_path / "taken"), tmp_path)
    taken, back = contents(tmp_path / "taken", ("import.json",)), tmp_path / "back"

    def same():
        if back.exists():
            assert contents(back, ("import.json",)) == taken
            shutil.rmtree(back)

    REPORT[f"importing from {to}"] = kill(
        partial(take, back), name=f"import {to}", longest=longest, again=partial(shutil.rmtree, back), check=same
    )
    same()
    complete()
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert left == [], left


def test_predicting_to_a_file(trained, tmp_path):
    rows = "".join(f"shell {n}\n" for n in range(400))
    (tmp_path / "asked.csv").write_text("text\n" + rows)
    opened = weft.load(trained)

    def work(out):
        from weft.data.readers.tables import TableOptions

        return lambda: predict_to_file(
            opened, opened.task.open_rows(tmp_path / "asked.csv", TableOptions()), tmp_path / out, {"max_tokens": 3}
        )

    longest, broken = timed(work("whole.csv"), tmp_path), tmp_path / "broken.csv"

    def complete():
        assert not broken.exists() or broken.read_bytes() == (tmp_path / "whole.csv").read_bytes()

    name = "predicting to a file"
    REPORT[name] = kill_often(work("broken.csv"), tmp_path, name, longest, broken.unlink, complete)
    assert (tmp_path / "broken.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".partial", ".progress")]


def test_the_test_would_notice(book, tmp_path):
    """A run that lost its steps is not the same."""
    for name, seed in (("one", 1), ("other", 2)):
        ended = run(lambda name=name, seed=seed: train(book, tmp_path / name, seed=seed), tmp_path)
        assert ended.code == 0, ended
    assert contents(tmp_path / "one", ("report.html",)) != contents(tmp_path / "other", ("report.html",))
