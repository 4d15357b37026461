"""Memory of one device as planned: formulas by hand, live tensors of small trainings, resident memory of large ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
from live_tensors import LiveTensors
from weft.bench.memory import planned_training
from weft.bench.memory.planned_training import Case, gpt
from weft.models.cluster import loss_memory
from weft.models.cluster.device_memory import SIZES, DeviceMemory, device_memory
from weft.models.cluster.layouts import Layout, Pieces
from weft.models.cluster.loss_memory import OutputProfile
from weft.models.cluster.training_profile import training_profile
from weft.parts.outputs import LOGITS_AT_ONCE
from weft.tasks.support import losses

ONE = Layout(1, 1, 1)
FLOAT32 = SIZES["fp32"]
C, D, N = 89, 24, 7


def small():
    return gpt(D, 5, C, N, 3)


def test_the_fullest_moment_is_the_backward_pass_or_the_update():
    memory = DeviceMemory(weights=2, gradients=3, optimizer=5, activations=70, early_gradients=0, update=11)
    assert memory.total == 2 + 5 + 70
    assert replace(memory, early_gradients=3).total == 2 + 5 + 3 + 70
    assert replace(memory, activations=13).total == 2 + 5 + 3 + 11


def test_a_tied_embedding_has_three_gradients_at_the_end_of_the_backward_pass():
    profile = training_profile(small().replace(vocabulary=10_007))

    def after(layout):
        return device_memory(profile, layout, FLOAT32, Pieces(1, 1), recompute=False).update

    assert after(ONE) == after(Layout(1, 8, 1)) == 2 * 4 * 10_007 * D
    assert after(Layout(1, 1, 2)) == 4 * 10_007 * D


def test_gradients_come_as_activations_go_unless_they_are_kept():
    profile = training_profile(small())

    def early(layout, pieces):
        memory = device_memory(profile, layout, FLOAT32, pieces, recompute=False)
        assert memory.early_gradients in (0, memory.gradients)
        return bool(memory.early_gradients)

    assert not early(ONE, Pieces(6, 6))
    assert not early(Layout(1, 1, 3), Pieces(6, 6))
    assert early(ONE, Pieces(6, 3))  # accumulated over two micro-batches
    assert early(Layout(2, 1, 1), Pieces(6, 6)) and early(Layout(1, 2, 1), Pieces(6, 6))


def test_logits_are_whole_or_in_chunks():
    output = OutputProfile(N, C, D, tied=True)
    few, many = 6, LOGITS_AT_ONCE // (N * C) + 1
    assert losses.LOGITS_AT_ONCE == LOGITS_AT_ONCE
    assert output.loss_bytes(few, 2) == 3 * 4 * few * N * C
    assert output.loss_bytes(1, 4) == 4 * N * C + 4 * C * D  # few tokens: the gradient of W is more than two slopes
    chunk = LOGITS_AT_ONCE // C * C
    assert output.loss_bytes(many, 2) == 4 * C * D + 2 * many * N * D + 2 * 4 * chunk
    assert output.more_gradient_bytes(2) == 2 * 2 * C * D
    assert replace(output, tied=False).more_gradient_bytes(2) == 0
    assert OutputProfile(N).loss_bytes(10**6, 2) == 0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gpt2", OutputProfile(1024, 50257, 768, tied=True)),
        ("llama-2-7b", OutputProfile(4096, 32000, 4096)),
        ("vaswani-base", OutputProfile(512, 37000, 512, tied=True)),
        ("nano-image-text", OutputProfile(64, 256, 128, tied=True)),
        ("vit-b16", OutputProfile(197)),
    ],
)
def test_outputs_of_presets(name, found):
    assert training_profile(weft.preset(name)).output == found


def test_recomputation_has_one_block_or_the_loss_at_a_time():
    profile = training_profile(small())
    rows, number = 6, 4
    (block,) = profile.blocks
    one, loss = rows * block.saved.bytes(number), profile.output.loss_bytes(rows, number)
    kept = rows * number * (5 + 2) * N * D
    assert profile.micro_batch_bytes(rows, number, recompute=True) == kept + max(loss, one + number * C * D)
    assert profile.micro_batch_bytes(rows, number, recompute=False) == rows * number * 2 * N * D + 5 * one + loss


def test_tp_keeps_gathered_inputs_of_branches_whole():
    """Korthikanti et al. 2022, equation 4, but with the inputs of attention and MLP kept: (4 + 30 / t) s b h."""
    profile = training_profile(small().replace(dropout=0.1))
    (block,) = profile.blocks
    assert block.saved.bytes(2) == 34 * N * D
    assert block.kept_bytes(2, 1) == 34 * N * D
    assert block.kept_bytes(2, 3) == (4 + 30 // 3) * N * D
    around = 2 * N * D + 2 * N * D // 3  # the last norm has a stretch of the tokens, the output all
    assert profile.activation_bytes(2, False, 3) == 5 * (4 + 10) * N * D + around
    assert profile.activation_bytes(2, True, 3) == 5 * 2 * N * D // 3 + (4 + 10) * N * D + around


SMALL = {
    "vocabulary": Case(gpt(16, 2, 2003, 64, 2), rows=2),
    "few tokens": Case(gpt(128, 2, 1009, 16, 4), rows=1),
    "deep": Case(gpt(32, 12, 101, 64, 4), rows=8),
    "wide": Case(gpt(128, 2, 101, 16, 4), rows=4),
    "long": Case(gpt(32, 6, 101, 512, 4, "nano-llama"), rows=2),
    "recompute": Case(gpt(32, 12, 101, 64, 4), rows=8, recompute=True),
    "accumulate": Case(gpt(64, 3, 101, 64, 4), rows=2, micro_steps=2),
}


@pytest.mark.parametrize("name", SMALL)
def test_live_tensors_of_small_trainings(name, monkeypatch):
    """Two steps as the loop takes them, the vocabulary's with a loss in chunks; what kernels take is not seen."""
    for module in (losses, loss_memory):
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", 200_000)
    with LiveTensors() as live:
        planned_training.train(SMALL[name])
    assert planned_training.predicted(SMALL[name]).total == pytest.approx(live.peak, rel=0.05)


@pytest.mark.parallel
@pytest.mark.parametrize("name", planned_training.CASES)
def test_resident_memory_of_large_trainings(name):
    """Cases of 1 GB and more, each in a process of its own."""
    found = planned_training.measured(name)
    assert found >= 1e9
    assert planned_training.predicted(planned_training.CASES[name]).total == pytest.approx(
        found, rel=planned_training.WITHIN
    )
