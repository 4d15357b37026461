"""Layouts, splits and state files, without any process."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import weft
from weft.checkpoints.sharded_files import read_index, section_key, write_index
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import DiskError
from weft.parts.auxiliary import summing_by
from weft.parts.experts import Experts, balance_loss
from weft.training.parallel.layout import ParallelLayout
from weft.training.parallel.sharded_state import StateLayout
from weft.training.parallel.tensor_parallel import local_part
from weft.training.parallel.tensor_splits import fused_sections, interleaved, split_weights
from weft.training.request import TrainRequest


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ("ddp", ParallelLayout()),
        ("fsdp", ParallelLayout("fsdp")),
        ("tp=2", ParallelLayout("ddp", 2)),
        ("fsdp,tp=4", ParallelLayout("fsdp", 4)),
        (" fsdp , cp=3", ParallelLayout("fsdp", 1, 3)),
    ],
)
def test_layouts_are_read_and_written(words: str, layout: ParallelLayout) -> None:
    assert ParallelLayout.parse(words) == layout
    assert ParallelLayout.parse(str(layout)) == layout


@pytest.mark.parametrize("words", ["", "pp=2", "fsdp,ddp", "tp=0", "tp=x", "tp=2,tp=2", "fsdp=2"])
def test_other_layouts_are_refused_in_one_sentence(words: str) -> None:
    with pytest.raises(WeftError, match="--parallel"):
        ParallelLayout.parse(words)


def test_layouts_refuse_processes_and_devices_that_do_not_fit() -> None:
    assert ParallelLayout.parse("fsdp,tp=2").data_ranks(6) == 3
    with pytest.raises(WeftError, match="groups of 2 processes, but there are 3"):
        ParallelLayout.parse("tp=2").data_ranks(3)
    with pytest.raises(WeftError, match="GPUs only"):
        ParallelLayout.parse("cp=2").expect_possible("cpu")
    with pytest.raises(WeftError, match="not combined"):
        ParallelLayout.parse("tp=2,cp=2").expect_possible("cuda")
    ParallelLayout.parse("cp=2").expect_possible("cuda")


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_time(tmp_path, timeout: float) -> None:
    with pytest.raises(WeftError, match="timeout"):
        TrainRequest("text", ("a.txt",), tmp_path, timeout=timeout)


def test_fused_rows_are_divided_section_by_section() -> None:
    assert interleaved((4, 2), 2).tolist() == [0, 1, 4, 2, 3, 5]
    model = weft.build(
        weft.preset("nano-llama").replace(width=24, layers=1, **{"mixer.heads": 4, "mixer.key_heads": 2})
    )
    name = "stack.blocks.0.mixer.qkv.weight"
    splits, weight = split_weights(model, 2), model.state_dict()[name]
    query, key, value = weight.split([24, 12, 12])
    second = local_part(weight, splits[name], 1, 2)
    assert torch.equal(second, torch.cat((query[12:], key[6:], value[6:])))
    assert fused_sections(model)[name] == (24, 12, 12)
    # What is stored of it is each section by itself, whoever holds what.
    pieces = list(StateLayout(fused_sections(model)).pieces(f"weight.{name}", weight))
    assert [piece.key for piece in pieces] == [section_key(f"weight.{name}", number) for number in range(3)]
    assert torch.equal(torch.cat([piece.tensor for piece in pieces]), weight)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mixer.heads": 3}, "3 heads .* mixer.heads"),
        ({"mixer.heads": 4, "mixer.key_heads": 1}, "1 key heads .* mixer.key_heads"),
        ({"mixer.heads": 4, "mixer.key_heads": 2, "feedforward.hidden": 45}, "45 hidden units .* feedforward.hidden"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_field_to_change(change: dict[str, int], words: str) -> None:
    spec = weft.preset("nano-llama").replace(width=24, layers=1, **{"mixer.key_heads": None, **change})
    with pytest.raises(WeftError, match=words):
        split_weights(weft.build(spec, device="meta"), 2)


def test_experts_held_by_several_processes_add_up(double) -> None:
    torch.manual_seed(3)
    whole, x = Experts(5, 7, 6, 2, shared=None), torch.randn(2, 11, 5)
    parts = []
    for rank in range(3):
        part = Experts(5, 7, 6, 2)
        part.router = whole.router
        part.up, part.down = nn.Parameter(whole.up[2 * rank : 2 * rank + 2]), nn.Parameter(whole.down[2 * rank :][:2])
        part.first = 2 * rank
        parts.append(part(x))
    torch.testing.assert_close(sum(parts), whole(x), atol=1e-12, rtol=0)


def test_the_balance_of_a_batch_in_two_shares_is_that_of_the_batch(double) -> None:
    torch.manual_seed(3)
    probabilities = torch.randn(13, 5).softmax(-1)
    chosen, weight = probabilities.topk(2).indices, torch.ones(13)
    expected = balance_loss(probabilities, chosen, weight)
    shares = [slice(0, 4), slice(4, 13)]
    sums: list[list[torch.Tensor]] = [[], []]
    for share, kept in zip(shares, sums, strict=True):
        with summing_by(lambda x, kept=kept: kept.append(x) or x):
            balance_loss(probabilities[share], chosen[share], weight[share])
    totals = iter([a + b for a, b in zip(*sums, strict=True)])
    with summing_by(lambda x: next(totals)):
        found = balance_loss(probabilities[shares[0]], chosen[shares[0]], weight[shares[0]])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_a_state_is_complete_only_with_its_index_and_all_of_its_files(tmp_path) -> None:
    (tmp_path / "shard-00001.safetensors").write_bytes(b"12345")
    with pytest.raises(DiskError, match="not a complete training state"):
        read_index(tmp_path)
    write_index(tmp_path, 7, {"best": 1.5}, {"optimizer.0.w.step": 7.0})
    assert read_index(tmp_path)["step"] == 7
    (tmp_path / "shard-00001.safetensors").write_bytes(b"123")
    with pytest.raises(DiskError, match="3 bytes in place of 5"):
        read_index(tmp_path)
    (tmp_path / "shard-00001.safetensors").unlink()
    with pytest.raises(DiskError, match="not a complete training state"):
        read_index(tmp_path)
    assert json.loads((tmp_path / "state.json").read_text())["scalars"] == {"optimizer.0.w.step": 7.0}
