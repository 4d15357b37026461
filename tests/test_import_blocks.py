"""GGUF files whose weights stay in their blocks: in the run folder, in the model, and for all that reads weights."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import weft
from foreign_folders import decoder, gpt2
from test_import_gguf import Kind, settings, tensors, vocabulary
from weft.checkpoints.convert_checkpoint import convert_checkpoint, open_checkpoint
from weft.checkpoints.run_folder import RunFolder
from weft.foundation.files.tensor_files import read_tensors, write_tensors
from weft.inference.fast.native import NativeStack, library
from weft.inference.fast.optimized import optimized
from weft.parts.quantized import BlockMatrix, BlockQuantizedEmbedding, BlockQuantizedLinear

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64, "rms_norm_eps": 1e-5}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}


def quantized(array: np.ndarray, kind: Kind) -> np.ndarray:
    """By the package where it can; K kinds get random blocks that mean weights of about 0.04."""
    if kind not in (Kind.Q4_K, Kind.Q6_K):
        return gguf.quants.quantize(array, kind)
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(abs(int(array[0, 0] * 1e9)))
    blocks = random.integers(0, 256, (array.shape[0], array.shape[1] // columns, size), dtype=np.uint8)
    for at, scale in ((0, 2e-4), (2, 1.5e-3)) if kind == Kind.Q4_K else ((208, 3e-5),):
        blocks[..., at : at + 2] = np.array([scale], dtype=np.float16).view(np.uint8)
    return blocks.reshape(array.shape[0], -1)


def write(path: Path, model, name: str, kind_of) -> Path:
    """A GGUF file; `kind_of(name)` is the kind of each matrix."""
    writer = gguf.GGUFWriter(path, name)
    settings(writer, model.config, name)
    vocabulary(writer, model.config.vocab_size)
    for key, array in tensors(model, name).items():
        kind = None if array.ndim == 1 or key.startswith("position") else kind_of(key)
        if kind is None:
            writer.add_tensor(key, array)
        else:
            writer.add_tensor(key, quantized(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return decoder(tmp_path_factory.mktemp("llama"), "Llama", **SIZES, **HEADS)


def mixed(name: str) -> Kind:
    """As files of kind Q4_K_M have it: values and the way down in more bits than the rest."""
    return Kind.Q6_K if "attn_v" in name or "ffn_down" in name or "token_embd" in name else Kind.Q4_K


KINDS = {name: (lambda key, kind=Kind[name]: kind) for name in ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")}
KINDS["mixed"] = mixed


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_weights_stay_in_their_blocks_and_mean_the_same(tmp_path, llama, kind):
    path = write(tmp_path / "model.gguf", llama, "llama", KINDS[kind])
    made = convert_checkpoint(path, tmp_path / "run")
    assert made.certificate is not None and made.certificate.holds
    assert made.parameters == sum(p.numel() for p in llama.parameters())
    assert made.blocks == (("Q4_K", "Q6_K") if kind == "mixed" else (kind,)) and json.dumps(made.to_tree())
    assert (tmp_path / "run" / "model.safetensors").stat().st_size < 1.2 * path.stat().st_size
    found, run = open_checkpoint(path), weft.load(tmp_path / "run")
    state = RunFolder(tmp_path / "run").read_model()
    for name, matched in found.matched.items():
        assert torch.equal(state[name], matched.read(found.tensors)), name
    assert isinstance(run.module.embedding, BlockQuantizedEmbedding)
    linears = [part for part in run.module.modules() if isinstance(part, BlockQuantizedLinear)]
    assert len(linears) == 2 * 4 and not any(isinstance(part, torch.nn.Linear) for part in run.module.modules())
    if kind == "mixed":
        assert [one.kind for one in run.module.stack.blocks[0].mixer.qkv.segments] == ["Q4_K", "Q4_K", "Q6_K"]
    plain = weft.build(run.module.spec)
    plain.load_state_dict(state)
    tokens = torch.randint(277, (2, 13))
    assert torch.allclose(run.module(tokens).logits, plain.eval()(tokens).logits, atol=1e-5)
    assert torch.allclose(run.module.double()(tokens).logits, plain.double()(tokens).logits, atol=1e-12)


@pytest.mark.skipif(library() is None, reason="there is no C compiler on this machine")
@torch.inference_mode()
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "mixed"])
def test_decoding_reads_the_blocks(tmp_path, llama, kind):
    path = write(tmp_path / "model.gguf", llama, "llama", KINDS[kind])
    module = weft.import_checkpoint(path, tmp_path / "run", certificate=False).module
    twin, tokens = optimized(module), torch.randint(277, (2, 40))
    assert isinstance(twin.stack, NativeStack)
    expected = module(tokens).logits
    for sizes in ([40], [7, *[1] * 33], [3, 37]):
        state = twin.make_state(2)
        found = torch.cat([twin(piece, state=state).logits for piece in tokens.split(sizes, 1)], 1)
        assert (found - expected).abs().max() < 0.05 * expected.abs().max()


@torch.inference_mode()
def test_gpt2_is_stored_by_rows_of_ours(tmp_path):
    model = gpt2(tmp_path / "folder", n_embd=64, n_head=2, n_inner=96)
    path = write(tmp_path / "model.gguf", model, "gpt2", lambda name: Kind.Q8_0)
    run = weft.import_checkpoint(path, tmp_path / "run", certificate=False)
    assert isinstance(run.module.stack.blocks[0].mixer.qkv, BlockQuantizedLinear)
    tokens = torch.randint(277, (2, 13))
    expected = model(tokens).logits
    assert (run.module(tokens).logits - expected).abs().max() < 0.01 * expected.abs().max()


def test_what_cannot_be_kept_is_computed(tmp_path, llama):
    """Rows of one matrix of ours in float and in blocks; kinds that are not kept; experts."""
    kinds = {"attn_q": Kind.Q8_0, "attn_k": None, "ffn_down": Kind.Q5_1}
    path = write(tmp_path / "model.gguf", llama, "llama", lambda name: kinds.get(name.split(".")[-2], Kind.Q4_0))
    run = weft.import_checkpoint(path, tmp_path / "run", certificate=False)
    block = run.module.stack.blocks[0]
    assert isinstance(block.mixer.qkv, torch.nn.Linear) and isinstance(block.feedforward.down, torch.nn.Linear)
    assert isinstance(block.mixer.output, BlockQuantizedLinear)
    experts = decoder(tmp_path / "experts", "Mixtral", **SIZES, **HEADS, num_local_experts=3, num_experts_per_tok=2)
    path = write(tmp_path / "mixtral.gguf", experts, "llama", lambda name: None if "inp" in name else Kind.Q8_0)
    run = weft.import_checkpoint(path, tmp_path / "mixtral", certificate=False)
    assert isinstance(run.module.stack.blocks[0].mixer.qkv, BlockQuantizedLinear)
    with torch.inference_mode():
        tokens, twin = torch.randint(277, (2, 11)), optimized(run.module)
        expected = run.module(tokens).logits
        found = twin(tokens, state=twin.make_state(2)).logits
    # A token near the bound between two experts may go to the other one.
    assert (found - expected).abs().median() < 0.01 * expected.abs().max()


def test_training_and_export_take_floats(tmp_path, llama):
    path = write(tmp_path / "model.gguf", llama, "llama", KINDS["Q8_0"])
    run = weft.import_checkpoint(path, tmp_path / "run", certificate=False)
    (tmp_path / "text.txt").write_text("she sells sea shells by the sea shore. " * 40)
    tuned = weft.train("text", tmp_path / "text.txt", tmp_path / "tuned", base=run.folder, steps=1)
    assert not any(isinstance(part, BlockMatrix) for part in tuned.module.modules())
    assert any(weight.requires_grad for weight in tuned.module.parameters())
    weft.export(run, "huggingface", tmp_path / "out", certificate=False)
    again = weft.import_checkpoint(tmp_path / "out", tmp_path / "again", certificate=False)
    assert torch.equal(again.module.stack.blocks[1].mixer.qkv.weight, run.module.stack.blocks[1].mixer.qkv.weight)
    assert isinstance(weft.load(run.folder, quantize="int4").module.stack.blocks[0].mixer.qkv, BlockQuantizedLinear)
    with pytest.raises(weft.WeftError, match="rounded or replaced"):
        weft.export(weft.load(again.folder, quantize="int8"), "huggingface", tmp_path / "rounded")


def test_notes_that_do_not_fit(tmp_path, llama):
    path = write(tmp_path / "model.gguf", llama, "llama", KINDS["Q8_0"])
    folder = weft.import_checkpoint(path, tmp_path / "run", certificate=False).folder
    file = folder / "model.safetensors"
    weights = read_tensors(file)
    for notes, reason in (
        ({"blocks": {"embedding": 3}}, "nothing readable about its blocks"),
        ({"blocks": {"embedding": {"columns": 256, "segments": [["Q3_X", 277]]}}}, "no blocks of kind 'Q3_X'"),
        (
            {"blocks": {"embedding": {"columns": 256, "segments": [["Q8_0", 276]]}}},
            "embedding is no matrix of 276 x 256",
        ),
        ({"blocks": {"none": {"columns": 256, "segments": [["Q8_0", 277]]}}}, "does not fit spec.json"),
        ({}, "does not fit spec.json"),
    ):
        write_tensors(file, weights, {"weft": json.dumps(notes)})
        with pytest.raises(weft.WeftError, match=reason):
            weft.load(folder)
