"""What comes from others is data: no reader runs it, no command asks a network for it."""

from __future__ import annotations

import ast
import io
import os
import pickle
import re
import tomllib
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from file_readers import READERS
from weft.foundation.errors import WeftError

SOURCE = Path(weft.__file__).parent
# Modules of the standard library that run what they read, or that reach out.
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "joblib", "socket", "urllib", "http", "ftplib", "ssl"}
# A free port of this machine, for the processes of one training.
ALLOWED = {
    ("training/parallel/processes/launch.py", "socket"),
    ("training/parallel/world.py", "socket"),
    ("serving/serve.py", "socket"),
    ("serving/web/connections.py", "http"),
    ("serving/web/server.py", "socket"),
}


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def bombs(mark: Path) -> list[bytes]:
    """Pickles in every protocol and in every wrapping that a program might open by itself."""
    objects = np.array([Bomb(mark)], dtype=object)
    array, arrays, saved = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, objects, allow_pickle=True)
    names = ("images", "labels", "x", "y", "lengths")
    np.savez(arrays, **dict.fromkeys(names, objects))
    torch.save({"a": Bomb(mark)}, saved)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(mark)))
        archive.writestr("archive/version", "3")
    plain = [pickle.dumps({"model": Bomb(mark)}, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    return [*plain, array.getvalue(), arrays.getvalue(), saved.getvalue(), packed.getvalue()]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_no_reader_runs_a_pickle(reader, tmp_path):
    mark, path = tmp_path / "ran", tmp_path / reader.file
    for content in bombs(mark):
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reader.read(path)
            except WeftError as error:
                told = str(error)
                assert "\n" not in told, told
        assert not mark.exists()
    for content in reader.seeds():
        path.write_bytes(content)
        reader.read(path)
    pickle.loads(bombs(mark)[0])
    assert mark.exists()  # the bombs are live


def files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if "bench" not in path.relative_to(SOURCE).parts]


def test_the_package_has_no_way_to_run_what_it_reads():
    """Neither unpickling nor eval; torch.load and numpy.load only in their safe way."""
    found = []
    for path in files():
        name = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                for module in modules:
                    if module.split(".")[0] in FORBIDDEN and (name, module) not in ALLOWED:
                        found.append((name, module))
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in ("eval", "exec", "compile") and called != "compile":
                found.append((name, called))
            if called == "torch.load" and given.get("weights_only") != "True":
                found.append((name, called))
            if called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
                found.append((name, called))
    assert found == []


def test_every_package_is_pinned_and_reviewed():
    """A package that is added without a line in docs/PINS.md, or without a pin, is noticed."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    review = (root / "docs" / "PINS.md").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w.-]+)==[\w.]+$", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pinned = {name.lower().replace("_", "-") for name in pins}
    needed = [re.split("[<>=]", one)[0] for one in project["dependencies"]]
    others = [re.split("[<>=]", one)[0] for many in project["optional-dependencies"].values() for one in many]
    assert [name for name in needed if f"| {name} |" not in review] == []
    assert [name for name in others if name not in review] == []
    assert [name for name in (*needed, *others) if name not in pinned | {"llama-cpp-python"}] == []
