"""Matrices in blocks: read as the package gguf reads them, multiplied with the same bits in any company and any way."""

from __future__ import annotations

import shutil

import gguf
import numpy as np
import pytest
import torch

import weft
from weft.foundation.threads import number_of_threads
from weft.inference.fast.native import NativeMatrix, library
from weft.inference.fast.native.library import compiled
from weft.parts.block_formats import BLOCK_FORMATS, dequantize_blocks, quantize_blocks
from weft.parts.quantized import (
    BlockMatrix,
    BlockQuantizedLinear,
    BlockSegment,
    dequantize,
    products_by,
    quantize,
)

needs_compiler = pytest.mark.skipif(library() is None, reason="there is no C compiler on this machine")
SCALES_AT = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}


def blocks_of(kind: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Any bytes, with scales that are numbers."""
    form, random = BLOCK_FORMATS[kind], np.random.default_rng(seed)
    count = rows * -(-columns // form.columns)
    blocks = random.integers(0, 256, (count, form.bytes), dtype=np.uint8)
    for at in SCALES_AT[kind]:
        blocks[:, at : at + 2] = (random.standard_normal((count, 1)) * 0.01).astype(np.float16).view(np.uint8)
    return torch.from_numpy(blocks.reshape(rows, -1))


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product_of_rounded_rows(matrix: BlockMatrix, x: torch.Tensor) -> torch.Tensor:
    """The native product by its formula: whole-number sums per block, then float32 additions in their order."""
    columns = -(-matrix.columns // 32) * 32
    padded = torch.nn.functional.pad(x, (0, columns - matrix.columns)).unflatten(1, (-1, 32))
    largest = padded.abs().amax(2)
    one = torch.where(largest > 0, torch.full_like(largest, 16256) / largest, 0)  # one division, as in C
    whole, scale = (padded * one[..., None]).round(), largest / 16256
    found = []
    for kind, stored in matrix.stored():
        quants, d, m = parts_of(kind, stored)
        y = torch.zeros(len(x), len(stored))
        for b in range(quants.shape[1]):
            sums = torch.einsum("ri,osi->ros", whole[:, b].double(), quants[:, b].double())  # exact
            # The sub-blocks of Q6_K have scales of their own, which are whole numbers too.
            y = fused(sums.sum(2).float(), d[:, b] * scale[:, b, None], y)
            if m is not None:
                y = fused(m[:, b], (scale[:, b] * whole[:, b].sum(1))[:, None], y)
        found.append(y)
    return torch.cat(found, 1)


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a b + c in float32, rounded once: the product is exact in float64."""
    return (a.double() * b.double() + c.double()).float()


def parts_of(kind: str, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Whole numbers [rows, blocks, 1, 32], d and m [rows, blocks], from the bytes."""
    form, rows = BLOCK_FORMATS[kind], stored.shape[0]
    each = stored.reshape(rows, -1, form.bytes)

    def half(at: int) -> torch.Tensor:
        return each[:, :, at : at + 2].contiguous().view(torch.float16)[:, :, 0].float()

    if kind == "Q8_0":
        return each[:, :, 2:].contiguous().view(torch.int8)[:, :, None].float(), half(0), None
    if kind in ("Q4_0", "Q4_1"):
        bytes_ = each[:, :, 2 if kind == "Q4_0" else 4 :]
        quants = torch.cat((bytes_ & 15, bytes_ >> 4), 2)[:, :, None].float()
        return quants - (8 if kind == "Q4_0" else 0), half(0), half(2) if kind == "Q4_1" else None
    plain = stored.clone().reshape(-1, form.bytes)  # with d = 1 the numbers themselves are whole
    for at in SCALES_AT[kind]:
        plain[:, at : at + 2] = torch.tensor([1.0], dtype=torch.float16).view(torch.uint8)
    if kind == "Q6_K":
        whole = dequantize_blocks(kind, plain.reshape(rows, -1), 256 * each.shape[1])
        return whole.reshape(rows, -1, 1, 32), half(208).repeat_interleave(8, 1), None
    least = plain.clone()
    least[:, 16:] = 0
    offsets = dequantize_blocks(kind, least.reshape(rows, -1), 256 * each.shape[1]).reshape(rows, -1, 32)
    scaled = dequantize_blocks(kind, plain.reshape(rows, -1), 256 * each.shape[1]).reshape(rows, -1, 32) - offsets
    ones = plain.clone()
    ones[:, 16:] = 0x11
    scales = dequantize_blocks(kind, ones.reshape(rows, -1), 256 * each.shape[1]).reshape(rows, -1, 32) - offsets
    quants = torch.where(scales > 0, scaled / scales.clamp(min=1), 0)
    d, e = half(0).repeat_interleave(8, 1), half(2).repeat_interleave(8, 1)
    return quants[:, :, None], d * scales[:, :, 0], e * offsets[:, :, 0]


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_blocks_are_read_as_the_package_reads_them(kind):
    form = BLOCK_FORMATS[kind]
    assert (form.columns, form.bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = blocks_of(kind, 7, 3 * form.columns)
    expected = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(dequantize_blocks(kind, blocks, 3 * form.columns).numpy(), expected)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_rounding_is_at_least_as_near_as_the_package(kind):
    weight = numbers(13, 96) * numbers(13, 1).exp()
    name = gguf.GGMLQuantizationType[kind]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), name), name)
    own = dequantize_blocks(kind, quantize_blocks(kind, weight), 96)
    assert (own - weight).square().sum() <= 1.0001 * (torch.from_numpy(theirs) - weight).square().sum()
    for edge in (torch.zeros(2, 37), torch.full((2, 37), 0.25), torch.eye(5, 37)):
        again = dequantize_blocks(kind, quantize_blocks(kind, edge), 37)
        assert torch.allclose(again, edge, atol=0.04 if kind == "Q4_1" else 1e-3)


MATRICES = [
    *([BlockSegment(kind, 37)] for kind in BLOCK_FORMATS),
    [BlockSegment("Q4_K", 19), BlockSegment("Q6_K", 5), BlockSegment("Q8_0", 23)],
]
in_blocks = pytest.mark.parametrize("segments", MATRICES, ids=lambda found: "+".join(one.kind for one in found))


def columns_of(segments) -> int:
    """Not a whole number of blocks where that is possible."""
    return 71 if all(BLOCK_FORMATS[one.kind].columns == 32 for one in segments) else 768


def matrix_of(segments, columns) -> BlockQuantizedLinear:
    blocks = [blocks_of(kind, rows, columns, seed).reshape(-1) for seed, (kind, rows) in enumerate(segments)]
    return BlockQuantizedLinear(torch.cat(blocks), segments, columns, numbers(sum(s.rows for s in segments), seed=5))


@needs_compiler
@torch.inference_mode()
@in_blocks
def test_the_native_product_is_its_formula(segments):
    columns = columns_of(segments)
    matrix = matrix_of(segments, columns)
    native = NativeMatrix(library(), matrix, matrix.bias)
    x = numbers(19, columns) * numbers(19, 1, seed=2).exp()
    x[3], x[4, :40] = 0, 0
    found = native(x)
    expected = product_of_rounded_rows(matrix, x) + matrix.bias
    assert torch.equal(found, expected)
    size = (x.abs() @ matrix.weight.abs().T).clamp(min=1)
    assert ((matrix(x) - found).abs() / size).max() < 2e-4
    with products_by(lambda linear, given: native(given)):
        assert torch.equal(matrix(x), found)


@needs_compiler
@torch.inference_mode()
@in_blocks
def test_rows_have_the_same_bits_in_any_company_and_by_any_number_of_threads(segments, monkeypatch):
    monkeypatch.setattr("weft.inference.fast.native.matrices.ONE_THREAD_WEIGHTS", 0)
    columns = columns_of(segments)
    matrix = matrix_of(segments, columns)
    native, x = NativeMatrix(library(), matrix, matrix.bias), numbers(43, columns)
    together = native(x)
    for threads in (1, 2, 3):
        with number_of_threads(threads):
            for count in (1, 2, 3, 7, 8, 11):
                assert torch.equal(native(x[5 : 5 + count]), together[5 : 5 + count])


@needs_compiler
@torch.inference_mode()
@pytest.mark.parametrize("way", ["WEFT_PORTABLE", "WEFT_AVX2"])
@in_blocks
def test_every_way_gives_the_same_bits(segments, way):
    compiler = next(found for found in map(shutil.which, ("cc", "gcc", "clang")) if found)
    columns = columns_of(segments)
    matrix, x = matrix_of(segments, columns), numbers(13, columns)
    other = NativeMatrix(compiled(compiler, f"-D{way}"), matrix, matrix.bias)
    assert torch.equal(other(x), NativeMatrix(library(), matrix, matrix.bias)(x))


@needs_compiler
@torch.inference_mode()
def test_what_is_no_number_stays_none():
    matrix = matrix_of([BlockSegment("Q8_0", 5)], 64)
    x = numbers(3, 64)
    x[1, 7] = torch.nan
    found = NativeMatrix(library(), matrix, None)(x)
    assert found[1].isnan().all() and not found[[0, 2]].isnan().any()


def test_gradients_pass_through_to_what_is_before():
    matrix = matrix_of([BlockSegment("Q4_1", 7)], 33)
    x = numbers(2, 33).requires_grad_()
    matrix(x).sum().backward()
    assert torch.allclose(x.grad, matrix.weight.sum(0).expand(2, 33), atol=1e-5)


def test_errors():
    with pytest.raises(weft.WeftError, match="no blocks of kind 'Q5_9'"):
        BlockMatrix(torch.zeros(3, dtype=torch.uint8), [BlockSegment("Q5_9", 1)], 32)
    with pytest.raises(weft.WeftError, match="takes 68 bytes in blocks of Q8_0"):
        BlockMatrix(torch.zeros(67, dtype=torch.uint8), [BlockSegment("Q8_0", 2)], 32)
    with pytest.raises(weft.WeftError, match="are not rounded to Q4_K here"):
        quantize(torch.nn.Linear(7, 3), "Q4_K")


def test_parts_become_floats_again():
    model = quantize(torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3, bias=False)), "Q4_1")
    x = numbers(2, 7)
    expected = model(x)
    assert torch.equal(dequantize(model)(x), expected) and type(model[0]) is torch.nn.Linear
