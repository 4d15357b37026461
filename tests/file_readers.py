"""Every reader of files, with valid small files to begin from: for tests that give each of them hostile ones."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import weft
from weft.checkpoints.formats.foreign_tensors import SafeTensors, read_safetensors_header
from weft.checkpoints.formats.gguf_file import open_gguf_file
from weft.checkpoints.run_folder import RunFolder
from weft.data.fingerprints import expect_unchanged, take_fingerprints
from weft.data.readers.captions import read_captions
from weft.data.readers.graphs import read_edges, read_graphs
from weft.data.readers.images import read_image, read_images
from weft.data.readers.sequences import read_sequences
from weft.data.readers.series import read_series
from weft.data.readers.sounds import log_mel, read_sound
from weft.data.readers.texts import read_documents, read_labeled, read_pairs, read_tagged
from weft.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from weft.foundation.files.tensor_files import read_tensors
from weft.foundation.spec import parse_table
from weft.tasks.support.language.prompt_format import ChatTemplate
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planned_training import PlannedTraining
from weft.training.racing.race_folder import RACE, RaceFolder
from weft.training.racing.race_record import RaceEntrant, RaceRecord
from weft.training.training_spec import TrainingSpec


@dataclass(frozen=True)
class FileReader:
    """How a file of this name is read; `seeds` makes valid contents."""

    name: str
    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]


def _png(mode: str = "L", kind: str = "png", size: tuple[int, int] = (5, 7)) -> bytes:
    held = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(held, kind)
    return held.getvalue()


def _npz(**arrays: Any) -> bytes:
    held = io.BytesIO()
    np.savez(held, **arrays)
    return held.getvalue()


def _tar(packed: str) -> bytes:
    held = io.BytesIO()
    with tarfile.open(None, f"w:{packed}", held) as archive:
        for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.png"):
            member, body = tarfile.TarInfo(name), _png()
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return held.getvalue()


def _zip() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.png"):
            archive.writestr(name, _png())
    return held.getvalue()


def _wav(kind: int = 1, bits: int = 16) -> bytes:
    sound = bytes(range(240))
    head = struct.pack("<HHIIHH", kind, 2, 8000, 8000 * bits // 4, bits // 4, bits)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(sound)) + sound
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _idx() -> bytes:
    return struct.pack(">II", 0x801, 6) + bytes([0, 1, 0, 1, 1, 0])


def _idx_pair(path: Path) -> Any:
    """With images for the labels, or labels for the images, which are sound."""
    is_images = path.read_bytes()[3:4] != b"\x01"
    other = path.with_name("other-ubyte")
    other.write_bytes(_idx() if is_images else _idx_images())
    return read_images([path, other])


def _idx_images() -> bytes:
    return struct.pack(">IIII", 0x803, 6, 3, 4) + bytes(range(72))


def _parquet() -> bytes:
    from pyarrow import parquet, table

    held = io.BytesIO()
    parquet.write_table(table({"text": ["she sells sea shells", None, "by"]}), held, write_page_checksum=True)
    return held.getvalue()


def _safetensors() -> bytes:
    from safetensors.torch import save
    from torch import arange

    return save({"a": arange(6.0).reshape(2, 3), "b": arange(5)}, {"weft": json.dumps({"step": 3})})


@cache
def _gguf() -> bytes:
    import tempfile

    import gguf

    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / "a.gguf", "llama")
        writer.add_block_count(1)
        writer.add_token_list(["a", "b"])
        writer.add_token_scores([0.0, -1.0])
        writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (Path(folder) / "a.gguf").read_bytes()


def _sentencepiece() -> bytes:
    def field(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2, len(body)]) + body

    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("▁a", -1.0, 1), ("▁", -2.0, 1), ("a", -3.0, 1), ("b", -3.5, 1)]
    rows = b"".join(
        field(1, field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind]))
        for piece, score, kind in pieces
    )
    return rows + field(2, b"\x18\x01") + field(3, b"\x18\x01")


def _tokenizer(kind: Any) -> bytes:
    return train_tokenizer(kind, ["she sells sea shells by the sea shore"] * 3, 280).engine.to_str().encode()


def _in_run(name: str, read: Callable[[RunFolder], Any]) -> Callable[[Path], Any]:
    """A reader of one file of a run folder."""

    def call(path: Path) -> Any:
        folder = path.parent / "run"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        if path.is_file():
            (folder / name).write_bytes(path.read_bytes())
        else:
            (folder / name).symlink_to(path)
        return read(RunFolder(folder))

    return call


def _rendered(path: Path) -> Any:
    return ChatTemplate(path.read_bytes().decode("utf-8", "replace")).render([{"role": "user", "content": "hi"}])


def _encoded(path: Path) -> Any:
    tokenizer = load_tokenizer(path)
    return tokenizer.decode(tokenizer.encode("a b shell é"))


def _spectrum(path: Path) -> Any:
    rate, samples = read_sound(path)
    return log_mel(samples, rate)


def _race() -> RaceRecord:
    sizes: dict[str, Any] = {"width": 16, "layers": 1, "parameters": 9, "batch": 64, "expected": 2.0}
    entrants = [
        RaceEntrant(**sizes, points=[{"seconds": 1, "tokens": 640, "loss": 2.5}], extrapolated=2.0 + n) for n in (0, 1)
    ]
    return RaceRecord(entrants=entrants, winner=1, seconds=2, scale=1)


def _plan(race: bool = False) -> TrainingPlan:
    steps = {"steps": 10, "batch": 64, "evaluate_every": 5, "evaluate_tokens": 9, "checkpoint_every": 5, "threads": 1}
    revisions = [{"at": 5, "steps": 8, "done": 0.5, "speed": 0.7, "step_seconds": 0.1, "seconds": 3.0}]
    facts: dict[str, Any] = {"parameters": 9, "tokens": 640, "epochs": 1.5, "memory": 99, "minutes": 1.0}
    return TrainingPlan(**steps, **facts, revisions=revisions, race=_race() if race else None)


def _entrants() -> bytes:
    sizes = weft.preset("nano-gpt").replace(vocabulary=9)
    planned = [PlannedTraining(sizes, TrainingSpec(), _plan(), one).to_tree() for one in _race().entrants]
    return json.dumps(planned).encode()


def _fingerprints() -> bytes:
    rows = [vars(one) for one in take_fingerprints([__file__])]
    return json.dumps({"files": rows}).encode()


LABELED = b'text,label\ngood one,yes\nbad one,no\ngood two,yes\n"bad, two",no\n'
RUN = {"version": 2, "task": "text", "model": {"family": "decoder", "version": 3}, "facts": {}, "seed": 1}
READERS = [
    FileReader(
        "text",
        "a.txt",
        lambda: [b"one\ntwo\r\nthree", "é ü\n".encode(), "x\n".encode("utf-16")],
        lambda p: list(read_documents([p])),
    ),
    FileReader(
        "packed text", "a.txt.gz", lambda: [gzip.compress(b"one\ntwo\n" * 9)], lambda p: list(read_documents([p]))
    ),
    FileReader(
        "documents",
        "a.jsonl",
        lambda: [b'{"text": "a"}\n{"text": "\\ud83d\\ude00"}\n', b'{"messages": [{"role": "user", "content": "a"}]}\n'],
        lambda p: list(read_documents([p])),
    ),
    FileReader("csv", "a.csv", lambda: [LABELED, LABELED.replace(b",", b";")], lambda p: read_labeled([p])),
    FileReader("tsv", "a.tsv", lambda: [b"good one\tyes\nbad one\tno\n" * 2], lambda p: read_labeled([p])),
    FileReader(
        "labeled jsonl",
        "a.jsonl",
        lambda: [b'{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n' * 2],
        lambda p: read_labeled([p]),
    ),
    FileReader("pairs", "a.tsv", lambda: [b"a\tb\nc d\te f\n"], lambda p: read_pairs([p])),
    FileReader(
        "conll",
        "a.conllu",
        lambda: [b"# c\n1\tA\ta\tDET\t_\t_\t0\t_\t_\t_\n\n", b"a X\nb Y\n\nc X\n"],
        lambda p: read_tagged([p]),
    ),
    FileReader(
        "image", "a.png", lambda: [_png(), _png("RGB"), _png("P"), _png("LA"), _png("I;16")], lambda p: read_image(p)
    ),
    FileReader(
        "jpeg",
        "a.jpg",
        lambda: [_png("RGB", "jpeg"), _png("L", "gif"), _png("RGB", "webp"), _png("RGB", "bmp")],
        lambda p: read_image(p, 4),
    ),
    FileReader(
        "image arrays",
        "a.npz",
        lambda: [_npz(images=np.zeros((4, 3, 5), np.uint8), labels=np.array([0, 1, 0, 1]))],
        lambda p: read_images([p]),
    ),
    FileReader(
        "idx",
        "a-idx1-ubyte",
        lambda: [_idx(), _idx_images()],
        _idx_pair,
    ),
    FileReader("tar", "a.tar", lambda: [_tar("")], lambda p: read_images([p], "auto")),
    FileReader("tgz", "a.tgz", lambda: [_tar("gz"), _tar("xz")], lambda p: read_images([p], "auto")),
    FileReader("zip", "a.zip", lambda: [_zip()], lambda p: read_images([p], "auto")),
    FileReader("wav", "a.wav", lambda: [_wav(), _wav(1, 8), _wav(1, 24), _wav(3, 32)], _spectrum),
    FileReader(
        "ts",
        "a.ts",
        lambda: [b"@dimensions 2\n@classLabel true a b\n@data\n1,2:3,?:a\n1,2:3,4:b\n5,6:7,8:a\n1,2:3,4:b\n"],
        lambda p: read_sequences([p]),
    ),
    FileReader(
        "sequence arrays",
        "a.npz",
        lambda: [_npz(x=np.zeros((4, 3, 2)), y=np.array([0, 1, 0, 1]), lengths=np.array([3, 2, 3, 1]))],
        lambda p: read_sequences([p]),
    ),
    FileReader(
        "series",
        "a.csv",
        lambda: [b"date,a,b\n2020-01-01,1,2\n2020-01-02,3,4\n2020-01-03,5,6\n", b"1\n2\n3\n"],
        lambda p: read_series([p]),
    ),
    FileReader(
        "graphs",
        "a.json",
        lambda: [b'[{"nodes": ["a", "b"], "edges": [[0, 1]], "labels": ["x", "y"]}]'],
        lambda p: read_graphs([p]),
    ),
    FileReader("edges", "a.csv", lambda: [b"from,to\n0,1\n1,2\n"], read_edges),
    FileReader("captions", "a.csv", lambda: [b"image,caption\na.csv,a file\n"], lambda p: read_captions([p])),
    FileReader(
        "skeletons",
        "a01_s01_e01_skeleton.txt",
        lambda: [(b"1 2 3 4\n" * 20)],
        lambda p: read_sequences([p], learn=False),
    ),
    FileReader(
        "foreign safetensors",
        "a.safetensors",
        lambda: [_safetensors()],
        lambda p: [SafeTensors(read_safetensors_header(p)).read(n) for n in read_safetensors_header(p)],
    ),
    FileReader("safetensors", "a.safetensors", lambda: [_safetensors()], lambda p: read_tensors(p)),
    FileReader(
        "gguf",
        "a.gguf",
        lambda: [_gguf()],
        lambda p: [open_gguf_file(p).read(name) for name in open_gguf_file(p).tensors],
    ),
    FileReader(
        "tokenizer", "tokenizer.json", lambda: [_tokenizer("bytes"), _tokenizer("bpe"), _tokenizer("words")], _encoded
    ),
    FileReader("sentencepiece", "tokenizer.model", lambda: [_sentencepiece()], _encoded),
    FileReader("wordpiece", "vocab.txt", lambda: [b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\n"], _encoded),
    FileReader(
        "spec",
        "a.json",
        lambda: [weft.preset("nano-gpt").to_json().encode(), weft.preset("nano-gpt").to_toml().encode()],
        lambda p: weft.read_spec(parse_table(p.read_bytes().decode("utf-8", "replace"))),
    ),
    FileReader(
        "run spec", "spec.json", lambda: [json.dumps(RUN).encode()], _in_run("spec.json", lambda run: run.read_spec())
    ),
    FileReader(
        "metrics",
        "metrics.jsonl",
        lambda: [b'{"step": 1, "loss": 2.0}\n{"step": 2, "metrics": {"loss": 1}}\n'],
        _in_run("metrics.jsonl", lambda run: (list(run.read_metrics()), run.keep_metrics_until(1))),
    ),
    FileReader(
        "plan",
        "plan.json",
        lambda: [json.dumps(_plan(race).to_tree()).encode() for race in (False, True)],
        _in_run("plan.json", lambda run: TrainingPlan.from_tree(run.read_plan())),
    ),
    FileReader(
        "race",
        "entrants.json",
        lambda: [_entrants()],
        _in_run(f"{RACE}/entrants.json", lambda run: RaceFolder(run).read_entrants()),
    ),
    FileReader(
        "fingerprints",
        "data.json",
        lambda: [_fingerprints()],
        _in_run("data.json", lambda run: expect_unchanged(run.read_fingerprints(), [__file__], run.path)),
    ),
    FileReader(
        "training state",
        "state.safetensors",
        lambda: [_safetensors()],
        _in_run("training/state-00000003.safetensors", lambda run: run.read_snapshot()),
    ),
    FileReader(
        "chat template",
        "a.jinja",
        lambda: [b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"],
        _rendered,
    ),
]
if importlib.util.find_spec("pyarrow"):
    READERS.append(FileReader("parquet", "a.parquet", lambda: [_parquet()], lambda p: list(read_documents([p]))))
