"""Estimates for many devices: formulas of papers exactly, saved activations as measured, published runs on paper."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from weft.foundation.errors import WeftError
from weft.models.cluster.candidates import Request, candidates, ranked, usable_memory
from weft.models.cluster.cluster_plan import default_batch, plan_cluster
from weft.models.cluster.communication import all_gather_bytes, all_reduce_bytes, communication, reduce_scatter_bytes
from weft.models.cluster.device_memory import SIZES, state_memory
from weft.models.cluster.device_table import Cluster, device_table, read_cluster
from weft.models.cluster.failures import RESTART_SECONDS, failures, young_interval
from weft.models.cluster.layouts import Layout, Pieces, layouts
from weft.models.cluster.step_time import step_time
from weft.models.cluster.training_profile import padded_parameters, training_profile

TABLE = device_table()
MIXED = SIZES["bf16"]


def cluster(words):
    return read_cluster(words, TABLE)


@pytest.fixture(scope="module")
def gpt3():
    return training_profile(weft.preset("gpt3-175b"))


# Formulas


@pytest.mark.parametrize("precision", SIZES)
def test_adam_takes_16_bytes_per_parameter(precision):
    parts = state_memory(7 * 11, SIZES[precision])
    assert sum(parts) == 16 * 7 * 11
    assert sum(state_memory(7 * 11, SIZES[precision], shards=11)) == 16 * 7
    if precision in ("bf16", "fp16"):
        assert parts == (2 * 77, 2 * 77, 12 * 77)


def ring_all_reduce(values):
    """What each device sends in a ring all-reduce of chunks: n - 1 steps that add, n - 1 that copy."""
    n = len(values)
    sent = [0] * n
    for phase in ("reduce", "gather"):
        for step in range(n - 1):
            moves = []
            for device in range(n):
                chunk = (device - step + (phase == "gather")) % n
                moves.append((device, chunk, values[device][chunk]))
            for device, chunk, value in moves:
                after = values[(device + 1) % n]
                after[chunk] = after[chunk] + value if phase == "reduce" else value
                sent[device] += 1
    return sent


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_ring_all_reduce_sends_what_a_ring_sends(n):
    values = [[10**device * (chunk + 1) for chunk in range(n)] for device in range(n)]
    total = [sum(column) for column in zip(*values, strict=True)]
    sent = ring_all_reduce(values)
    assert all(row == total for row in values)
    chunk = 13
    assert {all_reduce_bytes(n * chunk, n)} == {chunk * count for count in sent}
    assert reduce_scatter_bytes(n * chunk, n) == all_gather_bytes(n * chunk, n) == chunk * (n - 1)


def test_a_gpt_block_keeps_34_bytes_per_token_and_width():
    """Korthikanti et al. 2022, with the attention weights computed again: 34 s b h, and 2 s b h L recomputed."""
    spec = weft.preset("gpt2").replace(width=24, layers=5, length=11, dropout=0.1, **{"mixer.heads": 3})
    profile = training_profile(spec)
    (block,) = profile.blocks
    s, h = 11, 24
    assert (block.copies, block.saved.bytes(2)) == (5, 34 * s * h)
    around = 4 * s * h
    assert profile.activation_bytes(2, recompute=False) == 5 * 34 * s * h + around
    assert profile.activation_bytes(2, recompute=True) == 5 * 2 * s * h + 34 * s * h + around


def test_flops_with_recomputation_are_those_of_narayanan(gpt3):
    """96 B s l h^2 (1 + s / 6 h + V / 16 l h), B = 1."""
    s, l, h, V = 2048, 96, 12288, 50257  # noqa: E741
    assert gpt3.computed_flops(recompute=True) == 96 * s * l * h**2 + 16 * s**2 * l * h + 6 * s * h * V
    assert gpt3.computed_flops(recompute=False) == gpt3.training_flops == 3 * gpt3.model.flops_forward


def test_young_interval_loses_least():
    assert young_interval(8.0, 100.0) == 40.0
    many = cluster("1024xA100-80")
    found = failures(174_604_259_328, many)
    assert found.interval == math.sqrt(2 * found.checkpoint * found.mtbf)

    def lost(interval):
        return found.checkpoint / interval + (interval / 2 + RESTART_SECONDS) / found.mtbf

    assert found.lost == lost(found.interval)
    assert all(lost(found.interval * factor) > found.lost for factor in (0.8, 0.95, 1.05, 1.25))
    assert found.mtbf * 1024 == 30000 * 3600


def measured(spec, rows, length):
    """Bytes of all tensors that autograd keeps until backward, weights and indices left out."""
    torch.manual_seed(0)
    model = weft.build(spec).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(torch.randint(0, 97, (rows, length))).logits
    assert logits.shape[:2] == (rows, length)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("name", ["nano-gpt", "nano-llama", "nano-moe", "nano-mixtral", "nano-conv", "nano-rnn"])
def test_saved_activations_are_as_measured(name):
    spec, rows, length = weft.preset(name), 3, 113
    found = rows * training_profile(spec, length).activation_bytes(4, recompute=False)
    assert found == pytest.approx(measured(spec, rows, length), rel=0.02)


# Communication and time


def collectives(profile, layout, pieces, recompute=False):
    """{(axis, kind): (payload, bytes that one device sends)} on 8 devices."""
    found = communication(profile, layout, MIXED, cluster("8xH100"), pieces, recompute)
    return {(c.axis, c.kind): (c.payload, c.bytes) for c in found}


def test_collectives_of_each_axis():
    profile, pieces = training_profile(weft.preset("nano-gpt"), 113), Pieces(6, 3)
    (block,) = profile.blocks
    weights, again, L = 2 * profile.model.parameters, 2 * block.copies * block.parameters, block.copies
    assert (pieces.micro_steps, L, again) == (2, profile.model.layers, weights - 2 * profile.outside)
    assert collectives(profile, Layout(1, 1, 1), pieces) == {}
    # Gradients once per step, whatever the micro-batches.
    assert collectives(profile, Layout(8, 1, 1), pieces) == {("dp", "all-reduce"): (weights, weights * 14 // 8)}
    # Per micro-batch: gradients once, weights forward, and those of blocks again backward.
    assert collectives(profile, Layout(1, 8, 1), pieces) == {
        ("fsdp", "reduce-scatter"): (2 * weights, 2 * weights * 7 // 8),
        ("fsdp", "all-gather"): (2 * (weights + again), 2 * (weights + again) * 7 // 8),
    }
    # Two branches per block: X gathered and Y scattered forward, the reverse backward; around the blocks X W^T of the
    # output gathers forward, the slope of the input backward. A ring of 2 sends half of each payload. Over the divided
    # vocabulary embeddings are summed forward, slopes of the output's input backward: a ring of 2 sends all of these.
    X = 2 * 6 * 113 * profile.model.width
    split = {("tp", "reduce-scatter"): 2 * 2 * L * X, ("tp", "all-gather"): 2 * 2 * L * X + 2 * X}
    sums = {("tp", "all-reduce"): (2 * X, 2 * X)}
    assert collectives(profile, Layout(1, 1, 2), pieces) == {key: (p, p // 2) for key, p in split.items()} | sums
    recomputed = {key: payload + 2 * L * X for key, payload in split.items()} | {("tp", "all-reduce"): 2 * X}
    found = collectives(profile, Layout(1, 1, 2), pieces, recompute=True)
    assert {key: payload for key, (payload, _) in found.items()} == recomputed


def test_collectives_of_a_mesh():
    profile, pieces = training_profile(weft.preset("nano-gpt"), 113), Pieces(6, 3)
    weights = 2 * profile.model.parameters
    found = collectives(profile, Layout(2, 2, 2), pieces)
    both = ["reduce-scatter", "all-gather"]
    axes = {"dp": ["all-reduce"], "fsdp": both, "tp": [*both, "all-reduce"]}
    assert list(found) == [(axis, kind) for axis, kinds in axes.items() for kind in kinds]
    # Half of the weights by tp, half of those by fsdp; a ring of 2 sends all that it reduces.
    assert found["dp", "all-reduce"] == (weights // 4, weights // 4)


def test_fsdp_fills_rows_up():
    """3 devices have 86 rows each of 256 embeddings: 258 are gathered; of 4 in the norms of queries and keys 6."""
    spec = weft.preset("nano-gpt").replace(vocabulary=256, width=12, layers=5, **{"mixer.heads": 3})
    profile = training_profile(spec)
    (block,) = profile.blocks
    assert padded_parameters(profile.outside_shapes) == profile.outside
    outside, blocks = profile.outside + 2 * 12, 5 * (block.parameters + 2 + 2)
    found = collectives(profile, Layout(1, 3, 1), Pieces(1, 1))
    assert found["fsdp", "all-gather"][0] == 2 * (outside + 2 * blocks)
    assert found["fsdp", "reduce-scatter"][0] == 2 * (outside + blocks)


def test_links_within_and_between_nodes():
    many = cluster("64xA100-80")
    assert many.link(8, 1) == 300e9  # a node
    assert many.link(16, 1) == 200e9  # all 8 devices of a node send to the next
    assert many.link(32, 2) == 100e9  # two rings share the network of a node
    assert many.link(8, 8) == 25e9  # one device of each node
    assert cluster("4xA100-80").link(4, 1) == 300e9
    assert cluster("4xRTX4090").link(2, 2) == 16e9


def test_time_of_a_step_by_hand():
    profile = training_profile(weft.preset("nano-gpt"), 113)
    many, pieces, speed = cluster("8xH100"), Pieces(6, 3), 1e9
    alone = step_time(profile, Layout(1, 1, 1), pieces, (), many, speed, recompute=False)
    assert alone.computing == pytest.approx(6 * profile.training_flops / 1e9)
    assert alone.waiting == 0
    assert alone.optimizer == pytest.approx(28 * profile.model.parameters / 3.35e12)
    assert alone.total == alone.computing + alone.optimizer
    again = step_time(profile, Layout(1, 1, 1), pieces, (), many, speed, recompute=True)
    assert again.computing == pytest.approx(6 * (profile.training_flops + profile.block_flops) / 1e9)
    # A slow device hides what fsdp and dp send, a fast one waits for all of it; what tp sends is always waited for.
    for layout in (Layout(8, 1, 1), Layout(1, 8, 1), Layout(1, 1, 2)):
        sent = communication(profile, layout, MIXED, many, pieces, False)
        seconds = sum(c.seconds for c in sent)
        slow = step_time(profile, layout, pieces, sent, many, 1e9, recompute=False)
        fast = step_time(profile, layout, pieces, sent, many, 1e30, recompute=False)
        assert slow.waiting == pytest.approx(seconds if layout.tp > 1 else 0)
        assert fast.waiting == pytest.approx(seconds)


# Published runs


def test_gpt3_on_1024_a100_takes_about_34_days(gpt3):
    """Narayanan et al. 2021, section 5.1: 175B parameters, 300B tokens, batch 1,536, 1,024 A100: 34 days."""
    many = cluster("1024xA100-80")
    plan = plan_cluster(weft.preset("gpt3-175b"), many, tokens=300 * 10**9)
    assert plan.sequences == 1536
    assert 34 / 1.5 < plan.days(plan.best) < 34 * 1.5
    assert plan.best.memory.total <= usable_memory(many)
    assert 0.4 < plan.mfu(plan.best) < 0.45
    # They recomputed all activations, with 8 devices per tensor: the same is closer.
    ways = candidates(gpt3, Request(many, "bf16", 1536 * 2048, 1), 1536)
    theirs = min(
        (way for way in ways if way.layout == Layout(1, 128, 8) and way.recompute and way.memory.total < 72e9),
        key=lambda way: way.time.total,
    )
    assert plan.days(theirs) == pytest.approx(34, rel=0.25)


@pytest.mark.parametrize("words", ["64xA100-80", "256xA100-80", "512xA100-80"])
def test_llama_2_7b_takes_about_184320_device_hours(words):
    """Touvron et al. 2023, table 2: 2T tokens, batch of 4M tokens, on A100 of 80 GB."""
    plan = plan_cluster(weft.preset("llama-2-7b"), cluster(words), tokens=2 * 10**12, batch=4 * 2**20)
    hours = plan.days(plan.best) * 24 * plan.request.cluster.count
    assert 184_320 / 1.5 < hours < 184_320 * 1.5


# Choice


def test_layouts_fill_the_devices():
    found = list(layouts(cluster("48xH100"), splits=12))
    assert all(layout.dp * layout.fsdp * layout.tp == 48 for layout in found)
    assert {layout.tp for layout in found} == {1, 2, 4}  # 3 and 6 do not divide a node of 8, 12 is more than one
    assert len(found) == len(set(found))
    assert {layout.tp for layout in layouts(cluster("6xH100"), splits=12)} == {1, 2, 3, 6}


@pytest.mark.parametrize(
    ("name", "words", "axes"),
    [
        ("gpt2", "1xH100", ()),
        ("gpt2", "8xH100", ("dp",)),
        ("llama-2-7b", "8xH100", ("fsdp",)),
        ("gpt3-175b", "1024xA100-80", ("fsdp", "tp")),
        ("nano-rnn", "16xV100", ("dp",)),
    ],
)
def test_the_simplest_layout_that_fits_and_is_fast(name, words, axes):
    plan = plan_cluster(weft.preset(name), cluster(words))
    assert plan.best.layout.axes == axes
    assert plan.best.memory.total <= usable_memory(plan.request.cluster)
    assert plan.best.layout not in [other.layout for other in (*plan.runners_up, *plan.too_large)]
    assert all(other.memory.total > usable_memory(plan.request.cluster) for other in plan.too_large)
    assert all(1.02 * other.time.total >= plan.best.time.total for other in plan.runners_up)
    assert plan.reasons


def test_recomputation_where_memory_asks_for_it():
    small = Cluster("small", TABLE["H100"].replace(memory_gb=3.0), 1)
    spec = weft.preset("gpt2").replace(length=4096)
    plan = plan_cluster(spec, small)
    assert plan.best.recompute
    assert any("Recomputation: without it, at least" in reason for reason in plan.reasons)
    assert not plan_cluster(spec, cluster("1xH100")).best.recompute


def test_what_is_too_large_says_how_many_devices_would_do():
    with pytest.raises(WeftError, match=r"do not fit on 8xA100-40 in any layout: .*; 128xA100-40 would do$"):
        plan_cluster(weft.preset("gpt3-175b"), cluster("8xA100-40"))
    assert plan_cluster(weft.preset("gpt3-175b"), cluster("128xA100-40")).best.layout.fsdp > 1
    with pytest.raises(WeftError, match="do not fit on 64xA100-40"):
        plan_cluster(weft.preset("gpt3-175b"), cluster("64xA100-40"))
    with pytest.raises(WeftError, match="no number of them would do: shorten --length"):
        plan_cluster(weft.preset("llama-2-7b"), cluster("8xRTX4090"), length=10**6, batch=10**8)


def test_a_faster_layout_that_is_less_simple_is_named():
    plan = plan_cluster(weft.preset("gpt2-xl"), cluster("64xA100-80"))
    fastest = min(plan.runners_up, key=lambda way: way.time.total)
    assert (plan.best.layout.axes, fastest.layout.axes) == (("dp",), ("fsdp",))
    assert plan.best.time.total / 1.02 <= fastest.time.total < plan.best.time.total
    assert plan.reasons[-1].startswith(f"{fastest.layout.words} is ") and plan.reasons[-1].endswith("but less simple.")


def test_batches_of_gpt3():
    sizes = {124_439_808: 2**19, 1_557_611_200: 2**20, 6_738_415_616: 2**21, 174_604_259_328: 1536 * 2048}
    assert {size: default_batch(size) for size in sizes} == sizes


def test_ranked_are_the_fastest_of_each_layout():
    profile, many = training_profile(weft.preset("gpt2")), cluster("4xH100")
    costed = list(candidates(profile, Request(many, "bf16", 2**19, 1), 512))
    found = ranked(costed, many)
    assert {way.layout for way in found} == set(layouts(many, profile.splits))
    assert [way.time.total for way in found] == sorted(way.time.total for way in found)
    assert all(way.time.total == min(c.time.total for c in costed if c.layout == way.layout) for way in found)


@pytest.mark.parametrize("name", weft.presets())
def test_every_preset_can_be_planned(name):
    plan = plan_cluster(weft.preset(name), cluster("64xB200"), batch=2**23)
    tree = plan.to_tree()
    profile = plan.profile
    assert tree["parameters"] == profile.outside + sum(b.copies * b.parameters for b in profile.blocks)
    assert profile.outside >= 0 and profile.block_flops + profile.other_flops == profile.model.flops_forward
    assert 0 < tree["mfu"] <= 0.45 and tree["days"] > 0
    memory = tree["memory"]
    moments = (memory["early_gradients"] + memory["activations"], memory["gradients"] + memory["update"])
    assert memory["total"] == memory["weights"] + memory["optimizer"] + max(moments)
    assert all(profile.splits % way.layout.tp == 0 for way in (plan.best, *plan.runners_up))
