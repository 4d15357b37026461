"""Names on the Hugging Face hub: fetched from a fake endpoint on loopback, into a cache of the test's own."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import save_file

import weft
from weft.data import hub
from weft.data.hub import local_model, local_sources
from weft.data.readers.files import DataError
from weft.data.tokenizers.tokenizer import train_tokenizer

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """`files` by kind and name; whatever is fetched is noted."""

    files: ClassVar[dict[str, dict[str, bytes]]] = {}
    fetched: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        self.send(*(self.about(path) if path.startswith("api/") else self.file(path, body)), body)

    def about(self, path):
        """What a repository is, or which files it has."""
        kind, org, name, *_ = [*path.removeprefix("api/").split("/"), "", "", ""]
        known = self.files.get(f"{kind}/{org}/{name}")
        if known is None:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if "/tree/" in path:
            files = [
                {"type": "file", "path": file, "size": len(data), "oid": _etag(data)} for file, data in known.items()
            ]
            return 200, json.dumps(files).encode(), {}
        siblings = [{"rfilename": file} for file in known]
        tree = {"id": f"{org}/{name}", "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        return 200, json.dumps(tree).encode(), {}

    def file(self, path, body):
        home, _, rest = path.partition("/resolve/")
        name = rest.split("/", 1)[1]
        data = self.files[home if home.startswith("datasets/") else f"models/{home}"][name]
        if body:
            self.fetched.append(name)
        return 200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{_etag(data)}"'}

    def send(self, status, data, headers, body):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(FakeHub, "files", {})
    monkeypatch.setattr(FakeHub, "fetched", [])
    yield FakeHub
    server.shutdown()
    server.server_close()
    thread.join()


def _write_gpt2(folder):
    """A GPT-2 of one layer with random weights, as the library's own folders are."""
    tokenizer, D, length = train_tokenizer("bytes", []), 6, 11
    shapes = {"wte.weight": (tokenizer.vocabulary, D), "wpe.weight": (length, D)}
    for norm in ("ln_f", "h.0.ln_1", "h.0.ln_2"):
        shapes |= {f"{norm}.weight": (D,), f"{norm}.bias": (D,)}
    products = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, 4 * D), "mlp.c_proj": (4 * D, D)}
    for name, shape in products.items():
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[1:]}
    folder.mkdir()
    random = torch.Generator().manual_seed(0)
    weights = {f"transformer.{name}": torch.randn(shape, generator=random) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": tokenizer.vocabulary}
    sizes = {"n_positions": length, "n_embd": D, "n_layer": 1, "n_head": 2, "eos_token_id": tokenizer.stop}
    (folder / "config.json").write_text(json.dumps(config | sizes))
    tokenizer.save(folder / "tokenizer.json")


def test_a_model_by_its_name(endpoint, tmp_path, monkeypatch):
    _write_gpt2(tmp_path / "folder")
    files = {file.name: file.read_bytes() for file in (tmp_path / "folder").iterdir()}
    unwanted = {
        "pytorch_model.bin": b"pickle",
        "modeling.py": b"code",
        "onnx/model.onnx": b"x",
        "old/model.safetensors": b"x",
    }
    endpoint.files["models/acme/tiny"] = files | unwanted | {"1_Pooling/config.json": b"{}"}
    run = weft.import_checkpoint("acme/tiny", out=tmp_path / "run", certificate=False)
    assert set(endpoint.fetched) == {*files, "1_Pooling/config.json"}
    same = weft.import_checkpoint(tmp_path / "folder", out=tmp_path / "same", certificate=False)
    assert run.predict("ab", max_tokens=5) == same.predict("ab", max_tokens=5)
    # From the cache, without a network; and a local path of that name wins.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert local_model("acme/tiny").name == COMMIT
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert str(local_model("acme/tiny")) == "acme/tiny"


def test_data_by_its_name(endpoint, tmp_path, monkeypatch):
    words = (("good", 1), ("bad", 0))
    rows = [{"text": f"the {word} film", "label": label} for word, label in words for _ in range(7)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    endpoint.files["datasets/acme/films"] = {
        "train.jsonl": lines,
        "test.jsonl": b"".join(lines.splitlines(True)[::2]),
        "german/train.jsonl": lines,
        "README.md": b"?",
        "load.py": b"code",
    }
    [file] = local_sources(["hf:acme/films/german"])
    assert file.endswith("german/train.jsonl") and endpoint.fetched == ["german/train.jsonl"]
    assert [path.rsplit("/", 1)[1] for path in local_sources(["hf:acme/films:test"])] == ["test.jsonl"]
    assert not {"README.md", "load.py"} & set(endpoint.fetched)
    changes = {"data.validation": "hf:acme/films:test", "data.vocabulary": 50, "training.guard": False}
    run = weft.train("classification", "hf:acme/films/german", out=tmp_path / "run", steps=1, set=changes)
    assert run.spec.sources == ("hf:acme/films/german",) and run.task.classes == ("0", "1")
    assert run.evaluate("hf:acme/films:test")["examples"] == 7
    with pytest.raises(DataError, match=r"hf:acme/films:dev: no file belongs to dev, it has"):
        local_sources(["hf:acme/films:dev"])
    assert local_sources(["sample:", "a.csv"]) == ["sample:", "a.csv"]


def test_what_is_said_without_it(endpoint, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"there is no model acme/none on the Hugging Face hub, or it is private"):
        local_model("acme/none")
    with pytest.raises(DataError, match=r"is no name on the Hugging Face hub: write org/name"):
        local_model("hf:a b/c")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port discard: nobody answers
    with pytest.raises(
        DataError, match=r"acme/none is not in the cache.*or fetch it elsewhere \(hf download acme/none\)"
    ):
        local_model("acme/none")
    assert str(local_model("no/such/folder")) == "no/such/folder"  # no name on the hub: refused as a folder
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"acme/none is no path here, and .* pip install huggingface_hub"):
        hub.local_model("acme/none")
