"""GGUF files: names, pairs of coordinates, quantized types, vocabularies and templates; broken ones are refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import weft
from foreign_folders import decoder, gpt2, llama3
from test_tokenizers import sentencepiece
from weft.checkpoints.convert_checkpoint import convert_checkpoint, open_checkpoint
from weft.checkpoints.formats.gguf_checkpoint import interleave_pairs, separate_pairs, to_gguf
from weft.checkpoints.formats.gguf_file import open_gguf_file
from weft.checkpoints.formats.gguf_vocabulary import read_gguf_vocabulary
from weft.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from weft.models.position_specs import Llama3ScalingSpec

SHARED = Path(os.environ.get("WEFT_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tokenizers"
Kind = gguf.GGMLQuantizationType
TEMPLATE = "{{ '<start>' + messages[0]['content'] }}"
TEXTS = ["she sells 1234 sea shells", " two  spaces\n\nlines", "naïve 日本 🙂", "don't <start> stop"]


def settings(writer: gguf.GGUFWriter, config, name: str) -> None:
    """What llama.cpp's own converter writes for these architectures."""
    writer.add_context_length(getattr(config, "n_positions", None) or config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if name == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    if hasattr(config, "num_local_experts"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter does it, in its own words."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def tensors(model, name: str) -> dict[str, np.ndarray]:
    """The weights under GGUF's names, as the converter lays them out."""
    config, found = model.config, {}
    experts: dict[str, list[np.ndarray]] = {}
    for key, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        if ".mlp.experts." in key:
            layer = key.split(".")[2]
            kinds = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}
            names = kinds[key.rpartition(".")[2]]
            for kind, part in zip(names, np.split(array, len(names), axis=1), strict=True):
                experts[f"blk.{layer}.{kind}.weight"] = part
            continue
        if key == "lm_head.weight" and config.tie_word_embeddings and name != "gpt2":
            continue
        key = key.replace("mlp.gate.weight", "block_sparse_moe.gate.weight")
        ours = to_gguf(name, key)
        if name == "gpt2" and array.ndim == 2 and "blk" in ours:
            array = array.T
        if name == "llama" and ".attn_q." in ours:
            array = permute(array, config.num_attention_heads)
        if name == "llama" and ".attn_k." in ours:
            array = permute(array, config.num_key_value_heads)
        found[ours] = np.ascontiguousarray(array)
    return found | experts


def vocabulary(writer: gguf.GGUFWriter, count: int) -> None:
    """Bytes as tokens, one merge, filled up."""
    tokenizer = train_tokenizer("bytes", [])
    tokens = sorted(tokenizer.engine.get_vocab(), key=tokenizer.engine.get_vocab().get)
    tokens += ["ab", *(f"[{n}]" for n in range(len(tokens) + 1, count))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if n < 4 else 1 for n in range(count)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def write(path: Path, model, name: str, kind: Kind | None = None, more=None) -> Path:
    """A GGUF file; matrices are quantized to `kind`."""
    writer = gguf.GGUFWriter(path, name)
    settings(writer, model.config, name)
    vocabulary(writer, model.config.vocab_size)
    for key, array in {**tensors(model, name), **(more or {})}.items():
        if kind is None or array.ndim == 1:
            writer.add_tensor(key, array)
        elif kind == Kind.F16:
            writer.add_tensor(key, array.astype(np.float16))
        else:
            writer.add_tensor(key, quantized(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantized(array: np.ndarray, kind: Kind) -> np.ndarray:
    """By the package where it can; K types get random blocks with small scales."""
    if kind not in (Kind.Q4_K, Kind.Q6_K):
        return gguf.quants.quantize(array, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = array.reshape(-1, array.shape[-1])
    random = np.random.default_rng(abs(int(rows[0, 0] * 1e9)))
    blocks = random.integers(0, 256, (rows.shape[0], rows.shape[1] // block, size), dtype=np.uint8)
    scales = (
        random.uniform(1e-4, 4e-4, blocks.shape[:2]).astype(np.float16).view(np.uint8).reshape(*blocks.shape[:2], 2)
    )
    if kind == Kind.Q4_K:
        blocks[..., :2], blocks[..., 2:4] = scales, scales
    else:
        blocks[..., -2:] = scales
    return blocks.reshape(*array.shape[:-1], -1)


FILES = {
    "llama": lambda f: (decoder(f, "Llama"), "llama"),
    "llama, tied, with biases": lambda f: (
        decoder(f, "Llama", tie_word_embeddings=True, attention_bias=True, num_key_value_heads=3, head_dim=14),
        "llama",
    ),
    "qwen2": lambda f: (decoder(f, "Qwen2"), "qwen2"),
    "qwen3": lambda f: (decoder(f, "Qwen3"), "qwen3"),
    "mixtral": lambda f: (decoder(f, "Mixtral", num_local_experts=5, num_experts_per_tok=3), "llama"),
    "gpt2": lambda f: (gpt2(f), "gpt2"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", FILES)
def test_logits_are_those_of_the_folder(tmp_path, name):
    model, kind = FILES[name](tmp_path / "folder")
    run = weft.import_checkpoint(write(tmp_path / "model.gguf", model, kind), tmp_path / "run", certificate=False)
    tokens = torch.randint(277, (2, 13))
    torch.testing.assert_close(run.module(tokens).logits, model(tokens).logits, atol=2e-5, rtol=0)
    assert run.task.prompt_format.before == (1,) and run.task.prompt_format.stops == (2,)
    assert run.tokenizer.decode(run.tokenizer.encode("she sells")) == "she sells"
    assert run.task.prompt_format.chat.render([{"role": "user", "content": "hi"}]) == "<start>hi"
    tied = name == "gpt2" or "tied" in name
    assert run.module.spec.head.kind == ("tied" if tied else "linear")


@torch.no_grad()
def test_llama_3_keeps_how_it_stretches_positions(tmp_path):
    model = llama3(tmp_path / "folder")
    rope = dict(model.config.rope_parameters) | {
        "factor": 8.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_theta": 5e5,
    }  # fmt: skip
    config = type(model.config)(**{**model.config.to_dict(), "rope_parameters": rope})
    twin = type(model)(config).eval()
    twin.load_state_dict(model.state_dict())
    K = 10
    plain = rope["rope_theta"] ** -(np.arange(0, K, 2) / K)
    factors = (plain / twin.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)
    path = write(tmp_path / "model.gguf", twin, "llama", more={"rope_freqs.weight": factors})
    run = weft.import_checkpoint(path, tmp_path / "run", certificate=False)
    assert run.module.spec.positions.scaling == Llama3ScalingSpec(factor=8.0)
    tokens = torch.randint(277, (2, 89))
    torch.testing.assert_close(run.module(tokens).logits, twin(tokens).logits, atol=1e-4, rtol=0)
    odd = write(tmp_path / "odd.gguf", twin, "llama", more={"rope_freqs.weight": factors * np.float32(1.5)})
    with pytest.raises(weft.WeftError, match="not Llama 3's"):
        open_checkpoint(odd)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A Llama whose rows are whole blocks of every type."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64, "rms_norm_eps": 1e-5}
    return decoder(tmp_path_factory.mktemp("wide"), "Llama", **sizes, num_attention_heads=4, num_key_value_heads=2)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_types_are_read_as_transformers_reads_them(tmp_path, wide, kind):
    path = write(tmp_path / "model.gguf", wide, "llama", None if kind == "F32" else Kind[kind])
    file = open_gguf_file(path)
    stored = gguf.GGUFReader(path)
    for tensor in stored.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert file.tensors[tensor.name].kind == tensor.tensor_type.name
        np.testing.assert_array_equal(file.read(tensor.name).float().numpy(), expected)
    made = convert_checkpoint(path, tmp_path / "run")
    assert made.uncertified is None and made.certificate.difference < 1e-4 * max(1, made.certificate.largest)
    assert made.parameters == sum(p.numel() for p in wide.parameters())


def test_pairs_of_coordinates_part_and_meet():
    weight = torch.randn(3 * 10, 7)
    assert torch.equal(interleave_pairs(weight, 3), torch.from_numpy(permute(weight.numpy(), 3)))
    assert torch.equal(separate_pairs(interleave_pairs(weight, 3), 3), weight)


# --- vocabularies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_merges_in_a_gguf_file(pre):
    tokenizer = train_tokenizer("bpe", TEXTS * 3, vocabulary=330)
    model = json.loads(tokenizer.engine.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    table = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3 if n < 4 else 1 for n in range(len(tokens))],
    }
    table |= {"merges": [" ".join(pair) for pair in model["merges"]], "bos_token_id": 1}
    found = read_gguf_vocabulary("x.gguf", {f"tokenizer.ggml.{key}": value for key, value in table.items()})
    for text in TEXTS:
        ids = found.tokenizer.encode(text)
        assert found.tokenizer.decode(ids, keep_special=True) == text
        if pre == "gpt-2":
            assert ids == tokenizer.encode(text)
    digits = {"gpt-2": 1, "smollm": 4, "llama-bpe": 2, "qwen2": 4}[pre]
    pieces = found.tokenizer.engine.pre_tokenizer.pre_tokenize_str("1234")
    assert len(pieces) == digits
    assert found.before == ((1,) if pre == "llama-bpe" else ()) and found.names == {"bos_token": "<start>"}
    table["pre"] = "something-new"
    with pytest.raises(weft.WeftError, match="splits texts as 'something-new' does"):
        read_gguf_vocabulary("x.gguf", {f"tokenizer.ggml.{key}": value for key, value in table.items()})


def test_sentencepiece_in_a_gguf_file(tmp_path):
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("▁a", -1, 1), ("▁", -2, 1), ("a", -3, 1), ("<im>", 0, 4)]
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece(pieces[:-1]))
    names, scores, kinds = zip(*pieces, strict=True)
    table = {"model": "llama", "tokens": list(names), "scores": list(scores), "token_type": list(kinds)}
    table |= {"bos_token_id": 1, "eos_token_id": 2}
    found = read_gguf_vocabulary("x.gguf", {f"tokenizer.ggml.{key}": value for key, value in table.items()})
    assert found.tokenizer.encode("aa a") == load_tokenizer(tmp_path).encode("aa a") and found.before == (1,)
    assert found.tokenizer.encode("<im>a")[0] == 6
    with pytest.raises(weft.WeftError, match="vocabulary of kind 'bert'"):
        read_gguf_vocabulary("x", {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "bert"})
    with pytest.raises(weft.WeftError, match="has no vocabulary"):
        read_gguf_vocabulary("x", {})


@pytest.mark.skipif(not SHARED.exists(), reason="the golden pairs are not part of the project")
def test_golden_pairs_of_gpt2():
    found = read_gguf_vocabulary("x", open_gguf_file(SHARED / "gpt2" / "ggml-vocab-gpt-2.gguf").settings)
    texts = (SHARED / "ggml-vocab-gpt-2.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = (SHARED / "ggml-vocab-gpt-2.gguf.out").read_text().split("\n")
    for text, line in zip(texts, lines, strict=False):
        assert found.tokenizer.encode(text) == [int(word) for word in line.split()], text


# --- broken and hostile files ----------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def small(*parts: bytes, tensors: int = 0, settings: int = 0, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    body = magic + struct.pack("<IQQ", version, tensors, settings) + b"".join(parts)
    return body + bytes(-len(body) % 32 + 64)


ARRAY = text("a") + struct.pack("<I", 9)
HOSTILE = {
    "another magic": (small(magic=b"GGML"), "is not a GGUF file"),
    "version 1": (small(version=1), "of GGUF version 1"),
    "big-endian": (small(version=3 << 24), "of GGUF version"),
    "many tensors": (small(tensors=1 << 60), "promises 1,152,921,504,606,846,976 entries"),
    "many settings": (small(settings=1 << 60), "promises"),
    "a long key": (small(struct.pack("<Q", 1 << 40), settings=1), "longer than the file"),
    "a long list": (small(ARRAY + struct.pack("<IQ", 0, 1 << 60), settings=1), "promises"),
    "a long list of texts": (small(ARRAY + struct.pack("<IQ", 8, 1 << 60), settings=1), "promises"),
    "lists of lists": (small(ARRAY + struct.pack("<IQ", 9, 1), settings=1), "lists of type 9"),
    "an unknown setting": (small(text("a") + struct.pack("<I", 77), settings=1), "setting of type 77"),
    "a key twice": (small((text("a") + struct.pack("<II", 4, 1)) * 2, settings=2), "sets 'a' twice"),
    "no axes": (small(entry("w", ()), tensors=1), "has 0 axes"),
    "many axes": (small(entry("w", (1,) * 9), tensors=1), "has 9 axes"),
    "a huge shape": (small(entry("w", (1 << 40, 1 << 40)), tensors=1), "does not fit into the file"),
    "an empty shape": (small(entry("w", (0,)), tensors=1), "does not fit into the file"),
    "an unknown type": (small(entry("w", (4,), kind=999), tensors=1), "of type 999"),
    "an offset": (small(entry("w", (4,), offset=1 << 40), tensors=1), "does not fit into the file"),
    "not aligned": (small(entry("w", (4,), offset=8), tensors=1), "does not fit into the file"),
    "no whole block": (small(entry("w", (33,), kind=8), tensors=1), "does not fit into the file"),
    "upon another": (small(entry("v", (4,)), entry("w", (4,)), tensors=2), "w overlaps v"),
    "a name twice": (small(entry("w", (4,)), entry("w", (4,), offset=32), tensors=2), "holds w twice"),
    "an odd alignment": (
        small(text("general.alignment") + struct.pack("<II", 4, 3), entry("w", (4,)), tensors=1, settings=1),
        "not a power of two",
    ),
    "nothing": (b"GGUF", "is not a GGUF file"),
    "no architecture": (small()[:-32], "of architecture None"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, name):
    content, words = HOSTILE[name]
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(weft.WeftError, match=words) as caught:
        convert_checkpoint(tmp_path / "model.gguf", tmp_path / "run")
    assert "\n" not in str(caught.value) and [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_files_that_lack_or_hold_too_much(tmp_path):
    model = decoder(tmp_path / "folder", "Llama")
    path = write(tmp_path / "model.gguf", model, "llama", more={"blk.0.attn_sinks.weight": np.zeros(6, np.float32)})
    with pytest.raises(weft.WeftError, match=r"attn_sinks\.weight, which this architecture does not have"):
        open_checkpoint(path)
    data = path.read_bytes()
    for cut in (100, 5000, len(data) - 50_000):
        path.write_bytes(data[:cut])
        with pytest.raises(weft.WeftError, match=r"longer than the file|does not fit into the file|promises"):
            open_checkpoint(path)
    path.write_bytes(data.replace(b"llama.block_count", b"llama.block_kount"))
    with pytest.raises(weft.WeftError, match="block_count is None"):
        open_checkpoint(path)
