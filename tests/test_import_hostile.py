"""Broken, foreign and hostile checkpoints: one clear sentence, and nothing remains."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import weft
from foreign_folders import bart, bert, decoder, t5, vision
from weft.checkpoints import convert_checkpoint as importing
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.checkpoints.formats.foreign_tensors import SafeTensors, read_safetensors_header
from weft.checkpoints.formats.safetensors_writer import TensorInfo, stream_safetensors
from weft.cli.main import app


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A sound folder of a tiny Llama."""
    folder = tmp_path_factory.mktemp("plain") / "folder"
    decoder(folder, "Llama")
    return folder


@pytest.fixture
def folder(plain, tmp_path):
    """A copy of it to be spoiled."""
    shutil.copytree(plain, tmp_path / "folder")
    return tmp_path / "folder"


@pytest.fixture
def refused(tmp_path):
    """`refused(folder, words)`: the import fails with a WeftError that says these, and leaves nothing behind."""

    def check(source, words):
        before = sorted(path.name for path in tmp_path.iterdir())
        with pytest.raises(weft.WeftError, match=words) as caught:
            convert_checkpoint(source, tmp_path / "run", certified=False)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        return str(caught.value)

    return check


def rewrite(path: Path, change) -> None:
    """Change the header of a safetensors file, the numbers stay."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    text = change(header)
    text = text if isinstance(text, bytes) else json.dumps(header if text is None else text).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


FIRST, LAST = "model.embed_tokens.weight", "model.norm.weight"


def shift(header):
    header[FIRST]["data_offsets"] = [n + 4 for n in header[FIRST]["data_offsets"]]


def overlap(header):
    one, other = (header[name]["data_offsets"] for name in ("lm_head.weight", FIRST))
    header["lm_head.weight"]["data_offsets"] = list(other)
    header[FIRST]["data_offsets"] = list(other)
    assert one != other


HEADERS = {
    "beyond the end": (lambda h: h[FIRST].update(data_offsets=[0, 1 << 50]), "bytes for the shape"),
    "backwards": (lambda h: h[FIRST].update(data_offsets=[100, 0]), "bytes for the shape"),
    "negative": (lambda h: h[FIRST].update(data_offsets=[-8, 0]), "whole numbers from 0"),
    "a gap": (shift, "begins at byte"),
    "upon another": (overlap, "begins at byte"),
    "a huge shape": (lambda h: h[FIRST].update(shape=[1 << 40, 1 << 40]), "bytes for the shape"),
    "a shape of words": (lambda h: h[FIRST].update(shape=["a"]), "whole numbers from 0"),
    "an unknown type": (lambda h: h[FIRST].update(dtype="F8_E4M3"), "convert the weights to bfloat16"),
    "no offsets": (lambda h: h[FIRST].pop("data_offsets") and None, "header of model.safetensors is broken"),
    "no table": (lambda h: [1, 2], "header of model.safetensors is broken"),
    "no JSON": (lambda h: b"{" * 3000, "header of model.safetensors is broken"),
    "deep JSON": (lambda h: b'{"a":' + b"[" * 100_000, "header of model.safetensors is broken"),
    "a name twice": (lambda h: b'{"a": 1, "a": 2}', "stands there twice"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(folder, refused, name):
    change, words = HEADERS[name]
    rewrite(folder / "model.safetensors", change)
    refused(folder, words)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data[: len(data) // 2], "was cut off"),
        (lambda data: data + b"more", "has something after its tensors"),
        (lambda data: struct.pack("<Q", 1 << 62) + data[8:], "header of 4,611,686,018,427,387,904 bytes does not fit"),
        (lambda data: struct.pack("<Q", 101_000_000) + data[8:], "does not fit its"),
        (lambda data: b"", "is not a safetensors file"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "is not a safetensors file"),
    ],
)
def test_files_that_were_cut_or_are_others(folder, refused, spoil, words):
    file = folder / "model.safetensors"
    file.write_bytes(spoil(file.read_bytes()))
    refused(folder, words)


def test_tensors_that_are_missing_over_or_of_another_shape(folder, refused):
    weights = load_file(folder / "model.safetensors")
    file = folder / "model.safetensors"
    save_file({name: w for name, w in weights.items() if "k_proj" not in name}, file)
    assert "layers.0.self_attn.k_proj" in refused(folder, "lacks 2 of 21 tensors")
    save_file(weights | {"model.layers.7.extra.weight": torch.zeros(3)}, file)
    refused(folder, r"holds model\.layers\.7\.extra\.weight, which this architecture does not have")
    save_file(weights | {LAST: torch.zeros(41)}, file)
    refused(folder, r"model\.norm\.weight is \[41\], but config\.json makes it \[42\]")
    save_file(weights | {LAST: torch.zeros(42, dtype=torch.int32)}, file)
    refused(folder, "weights are floating-point numbers")
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(tree | {"tie_word_embeddings": True}))
    save_file(weights, file)
    refused(folder, r"lm_head\.weight and model\.embed_tokens\.weight differ, but config\.json says that they are one")


CONFIGS = {
    "unknown": ({"model_type": "mamba"}, "no adapter for model_type 'mamba'"),
    "none": ({"model_type": None}, "no adapter for model_type None"),
    "other class": ({"architectures": ["LlamaForTokenClassification"]}, "no adapter for the architecture"),
    "quantized": ({"quantization_config": {"bits": 4}}, "weights are quantized"),
    "layers": ({"num_hidden_layers": 10**9}, "less than or equal to 4096 .got 1000000000"),
    "more layers": ({"num_hidden_layers": 3}, "lacks 9 of"),
    "width": ({"hidden_size": 10**12}, r"is \[277, 42\], but config.json makes it \[277, 1000000000000\]"),
    "vocabulary": ({"vocab_size": 1 << 39, "hidden_size": 1 << 39}, "sizes that no tensor can have"),
    "words": ({"hidden_size": "forty"}, "hidden_size is 'forty', but a whole number"),
    "negative": ({"num_attention_heads": -3}, "num_attention_heads is -3"),
    "epsilon": ({"rms_norm_eps": "nan"}, "rms_norm_eps is 'nan', but a positive number"),
    "activation": ({"hidden_act": "mish"}, "hidden_act is 'mish', but one of gelu"),
    "dynamic": ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "scales rotary positions by 'dynamic'"),
    "heads": ({"num_key_value_heads": 4}, "key_heads 4 does not divide"),
    "flag": ({"attention_bias": "yes"}, "attention_bias is 'yes', but true or false"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(folder, refused, name):
    changes, words = CONFIGS[name]
    tree = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(tree | changes))
    refused(folder, words)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, '"llama"'])
def test_configs_that_are_no_tables(folder, refused, content):
    (folder / "config.json").write_text(content)
    refused(folder, r"config\.json is")


def test_other_settings_that_weft_does_not_have(tmp_path, refused):
    cases = [
        (bert, {"position_embedding_type": "relative_key"}, "sets position_embedding_type"),
        (bert, {"is_decoder": True}, "sets is_decoder"),
        (bart, {"decoder_ffn_dim": 41}, "encoder_ffn_dim 37 and decoder_ffn_dim 41 differ"),
        (bart, {"eos_token_id": 10**6}, "eos_token_id is 1000000, but a token from 0 to 276"),
        (vision, {"image_size": [21, 28]}, "vision models take squares"),
        (vision, {"architectures": ["ViTForMaskedImageModeling"]}, "no adapter for the architecture 'ViTForMasked"),
        (t5, {"feed_forward_proj": "gated-mish"}, "feed_forward_proj: act is 'mish'"),
    ]
    for number, (make, changes, words) in enumerate(cases):
        place = tmp_path / f"folder{number}"
        make(place)
        tree = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(tree | changes))
        refused(place, words)


# --- names and links -------------------------------------------------------------------------------------------------


def shard(folder: Path, names: dict[str, str]) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model-1.safetensors")
    table = dict.fromkeys(weights, "model-1.safetensors") | names
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


@pytest.mark.parametrize("name", ["../plain.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\0b", 7, "c:x"])
def test_indexes_name_files_of_their_folder_only(folder, refused, name):
    shutil.copy(folder / "model.safetensors", folder.parent / "plain.safetensors")
    shard(folder, {FIRST: name})
    refused(folder, "is outside of it: do not trust this folder")


def test_indexes_that_do_not_fit(folder, refused):
    shard(folder, {"model.more.weight": "model-1.safetensors"})
    refused(folder, r"do not fit together: model\.more\.weight is not there")
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())["weight_map"]
    index.write_text(
        json.dumps({"weight_map": {n: f for n, f in table.items() if n not in (LAST, "model.more.weight")}})
    )
    refused(folder, r"model\.norm\.weight is not in model\.safetensors\.index\.json")
    index.write_text(json.dumps({"weight_map": {LAST: "model-2.safetensors"}}))
    refused(folder, "names model-2.safetensors, which is not there")
    index.write_text("{}")
    refused(folder, "has no weight_map")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_links_that_lead_out(folder, refused, name):
    outside = folder.parent / "outside"
    outside.mkdir()
    shutil.move(folder / name, outside / name)
    (folder / name).symlink_to(outside / name)
    refused(folder, "is a link to a file outside of its folder")


def test_the_cache_of_the_hub_is_made_of_links(folder, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1f", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    assert convert_checkpoint(snapshot, tmp_path / "run", certified=False).parameters == 46242


def test_modules_of_sentence_transformers(tmp_path, refused):
    folder = tmp_path / "folder"
    bert(folder)
    rows = [{"path": "", "type": "m.Transformer"}, {"path": "../1_Pooling", "type": "m.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(rows))
    refused(folder, "is outside of it")
    rows[1]["path"] = "1_Pooling"
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    refused(folder, "pools by max: Weft has cls, mean and lasttoken")
    rows[1]["type"] = "m.Dense"
    (folder / "modules.json").write_text(json.dumps(rows))
    refused(folder, "a module 'Dense'")
    (folder / "modules.json").write_text("{}")
    assert convert_checkpoint(folder, tmp_path / "run", certified=False).task == "embedding"


# --- pickles ---------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("ignore:.*weights_only")
def test_pickles_run_nothing(folder, refused, tmp_path):
    (folder / "model.safetensors").unlink()
    for save in (lambda value, file: file.write_bytes(pickle.dumps(value)), torch.save):
        save({"a": Bomb(tmp_path / "exploded")}, folder / "pytorch_model.bin")
        refused(folder, "cannot be read safely as a file of tensors")
        assert not (tmp_path / "exploded").exists()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 not a zip")
    refused(folder, "cannot be read safely")
    torch.save([torch.zeros(2)], folder / "pytorch_model.bin")
    refused(folder, "something else than named tensors")


# --- whole or not at all ---------------------------------------------------------------------------------------------


def test_no_tokenizer_no_run(folder, refused):
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, r"tokenizer\.json is not a readable tokenizer")
    (folder / "tokenizer.json").unlink()
    refused(folder, "holds no tokenizer")
    (folder / "config.json").unlink()
    refused(folder, r"has no config\.json")
    refused(folder / "nowhere", "there is no folder")
    refused(folder / "model.safetensors", "is a single file: give its folder")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").unlink()
    refused(folder, "no adapter for model_type None")


def test_nothing_remains_of_an_import_that_fails_midway(folder, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(importing, "certify_parity", stop)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(folder, tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    # What a killed process left is removed by the next import, and does not get into the run.
    left = tmp_path / ".run.importing"
    left.mkdir()
    (left / "metrics.jsonl").write_text("old")
    (tmp_path / "run").mkdir()
    convert_checkpoint(folder, tmp_path / "run", certified=False)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["import.json", "model.safetensors", "spec.json", "tokenizer.json"] and not left.exists()


def test_a_full_disk_is_told_in_a_sentence(folder, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("weft.checkpoints.formats.safetensors_writer._append", full)
    with pytest.raises(weft.WeftError, match="the disk is full"):
        convert_checkpoint(folder, tmp_path / "run", certified=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_the_command_says_one_sentence(folder, tmp_path, capsys):
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(SystemExit) as stopped:
        app(["import", str(folder), "--out", str(tmp_path / "run")], prog_name="weft")
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and told.startswith("weft: config.json") and told.count("\n") == 1


# --- writing and memory ----------------------------------------------------------------------------------------------


def test_streamed_files_are_those_of_the_library(tmp_path):
    tensors = {
        "b": torch.randn(3, 5).half(),
        "a": torch.randn(7, dtype=torch.float64),
        "c": torch.randn(5, 2).T,
        "none": torch.zeros(0, 4),
    }
    slots = {name: TensorInfo(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    stream_safetensors(tmp_path / "x.safetensors", slots, tensors.__getitem__, {"k": "v"})
    found, own = load_file(tmp_path / "x.safetensors"), SafeTensors(read_safetensors_header(tmp_path / "x.safetensors"))
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor) and torch.equal(own.read(name), tensor)


PEAK = """
import sys, torch
from weft.checkpoints.convert_checkpoint import convert_checkpoint
import weft.checkpoints.formats.huggingface_folder, weft.models.presets
def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if "VmHWM" in line).split()[1])
before = peak()
convert_checkpoint(sys.argv[1], sys.argv[2], certified=False)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a program's peak memory")
def test_an_import_needs_a_fraction_of_the_file(tmp_path):
    """160 MB of weights pass through, a tensor at a time; the large case is `weft bench memory`."""
    from weft.bench.memory.import_peak import count, llama_spec, write_folder

    spec = llama_spec(4e7)
    size = write_folder(tmp_path / "folder", spec, torch.float32)
    assert size > 4 * count(spec) > 1.4e8
    command = [sys.executable, "-c", PEAK, tmp_path / "folder", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 0.6 * size


def test_experts_are_no_more_than_tensors(tmp_path, refused):
    decoder(tmp_path / "folder", "Mixtral", num_local_experts=3, num_experts_per_tok=2)
    file = tmp_path / "folder" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_local_experts": 20_000_000}))
    refused(tmp_path / "folder", "says 20,000,000 experts")


def test_numbers_of_eight_bits_are_no_weights(folder, refused):
    weights = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    torch.save(weights | {name: weights[name].to(torch.float8_e4m3fn)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match="pytorch_model"):
        refused(folder, "floating-point numbers of 16 bits")
