"""Optimizers, schedules, and files that survive a kill."""

from __future__ import annotations

import copy
import errno
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import weft
from weft.foundation.files import tensor_files
from weft.foundation.files.atomic_files import DiskError, lock_folder, write_atomic, write_text
from weft.foundation.files.tensor_files import read_tensors, write_tensors
from weft.training.optimizers import (
    COEFFICIENTS,
    Muon,
    _large_side,
    _small_side,
    build_optimizers,
    orthogonalize,
    split_weights,
)
from weft.training.schedules import Cosine, InverseRoot, Trapezoid


def test_cosine():
    schedule = Cosine(100, warmup=10, floor=0.1)
    shares = [schedule.share(step) for step in range(100)]
    assert shares[0] == pytest.approx(0.1) and shares[9] == shares[10] == 1.0
    assert shares[55] == pytest.approx(0.55) and schedule.share(100) == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(shares[10:]))


def test_trapezoid():
    schedule = Trapezoid(100, warmup=5, decay=0.4)
    assert [schedule.share(s) for s in (4, 5, 60)] == [1.0, 1.0, 1.0]
    assert schedule.share(80) == pytest.approx(0.5) and schedule.share(100) == 0.0
    assert Trapezoid(10, decay=0.0).share(9) == 1.0


def test_inverse_root_peaks_after_the_warmup():
    schedule = InverseRoot(1000, warmup=40)
    shares = [schedule.share(step) for step in range(200)]
    assert max(shares) == shares[39] == 1.0 and shares[159] == pytest.approx(0.5)


def test_schedule_errors():
    for make in (
        lambda: Cosine(0),
        lambda: Trapezoid(5, 6),
        lambda: Trapezoid(5, decay=2.0),
        lambda: InverseRoot(5, 0),
    ):
        with pytest.raises(weft.WeftError):
            make()


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8), (3, 8, 24)])
def test_orthogonalized_matrices_keep_their_directions_with_singular_values_near_one(shape):
    drawn = torch.randn(shape, dtype=torch.float64)
    U, S, V = torch.linalg.svd(drawn, full_matrices=False)
    M = U @ torch.diag(torch.logspace(0, -1.5, S.shape[-1], dtype=torch.float64)) @ V
    O = orthogonalize(M)  # noqa: E741
    assert (torch.linalg.svdvals(O) - 1).abs().max() < 0.2
    assert (O * (U @ V)).sum() / (O.norm() * (U @ V).norm()) > 0.97
    torch.testing.assert_close(O, orthogonalize(1e-3 * M), atol=1e-9, rtol=0)
    rounded = orthogonalize(M.float()).double()  # in bf16 on some machines
    assert (rounded * O).sum() / (rounded.norm() * O.norm()) > 0.97
    assert not orthogonalize(torch.zeros(shape)).any()


@pytest.mark.parametrize("steepness", [0.0, 1.0, 2.0, 3.0])
def test_rounding_to_bf16_does_not_make_singular_values_grow(steepness):
    U, S, V = torch.linalg.svd(torch.randn(29, 97), full_matrices=False)
    M = U @ torch.diag(torch.logspace(0, -steepness, len(S))) @ V
    assert torch.linalg.svdvals(_large_side((M / M.norm())[None].bfloat16()).float()).max() < 1.25


def test_products_on_either_side_give_the_same():
    X = torch.randn(3, 7, 19, dtype=torch.float64)
    torch.testing.assert_close(_small_side(X), _large_side(X), atol=1e-9, rtol=0)


def test_the_polynomials_are_the_nearest_to_one():
    """Each error oscillates between its bounds at least four times, so no other odd quintic is nearer (Chebyshev)."""
    low, high = 0.003, 1.0
    for a, b, c in COEFFICIENTS:
        x = torch.linspace(low, high, 200_001, dtype=torch.float64)
        error = a * x + b * x**3 + c * x**5 - 1
        most = float(error.abs().max())
        signs = error[error.abs() > 0.9999 * most].sign()
        assert 1 + int((signs[1:] != signs[:-1]).sum()) >= 4
        low, high = 1 - most, 1 + most
    assert most < 0.2


def test_no_bf16_where_it_is_slow(monkeypatch):
    monkeypatch.setattr("weft.training.optimizers.bf16_is_fast", lambda device: False)
    seen = []
    original = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: seen.append(a.dtype) or original(a, b))
    orthogonalize(torch.randn(4, 6))
    assert set(seen) == {torch.float32}


def test_each_weight_has_one_optimizer():
    model = weft.build("nano-moe")
    matrices, tables, vectors = split_weights(model)
    assert len(matrices) + len(tables) + len(vectors) == len(list(model.parameters()))
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[1] for p in tables} == {"weight", "router"}
    assert any("feedforward.up" in names[id(p)] and p.dim() == 3 for p in matrices)
    for kind, count in (("muon", 2), ("adamw", 1)):
        optimizers = build_optimizers(model, kind)
        held = [id(p) for o in optimizers for g in o.param_groups for p in g["params"]]
        assert len(optimizers) == count and sorted(held) == sorted(names)
    model.embedding.weight.requires_grad_(False)
    assert not split_weights(model)[1] or all(p is not model.embedding.weight for p in split_weights(model)[1])


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_both_learn_and_repeat_bit_for_bit(kind):
    def train():
        model = weft.build(weft.preset("nano-gpt").replace(layers=2, width=32, vocabulary=17, **{"mixer.heads": 2}))
        optimizers = build_optimizers(model, kind)
        tokens = torch.arange(340).reshape(4, 85) % 17
        losses = []
        for _ in range(60):
            logits = model(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses, model.state_dict()

    losses, weights = train()
    again, same = train()
    assert losses[-1] < 0.2 * losses[0] and losses == again
    assert all(torch.equal(weights[key], same[key]) for key in weights)


def test_muon_resumes_bit_for_bit():
    def steps(optimizer, weight, count):
        for number in range(count):
            optimizer.zero_grad()
            ((weight @ weight.T) * (number + 1)).sum().backward()
            optimizer.step(lambda: None)

    start = torch.randn(6, 9)
    straight = torch.nn.Parameter(start.clone())
    whole = Muon([straight])
    steps(whole, straight, 3)
    kept = {"weight": straight.detach().clone(), "state": copy.deepcopy(whole.state_dict())}
    steps(whole, straight, 2)
    resumed = torch.nn.Parameter(kept["weight"])
    other = Muon([resumed])
    other.load_state_dict(kept["state"])
    steps(other, resumed, 2)
    assert torch.equal(straight, resumed)


def test_tensors_come_back_and_broken_files_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.randn(3, 5).T, "b": torch.arange(3)}
    write_tensors(path, tensors, {"made": "by a test"})
    back = read_tensors(path)
    assert all(torch.equal(back[key], value) for key, value in tensors.items())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DiskError, match="not a complete safetensors file"):
        read_tensors(path)
    with pytest.raises(DiskError, match="there is no file"):
        read_tensors(tmp_path / "nothing")


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "spec.json"
    write_text(path, "old")

    def full(fresh):
        fresh.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskError, match="the disk is full"):
        write_atomic(path, full)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["spec.json"]
    with pytest.raises(DiskError, match="cannot write"):
        write_text(tmp_path / "nowhere" / "x", "y")
    assert tensor_files._number_in("No space left on device (os error 28)") == errno.ENOSPC


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_full_disk_is_one_sentence(tmp_path):
    def to_full(fresh):
        with open("/dev/full", "w") as file:
            file.write("x" * 100_000)

    with pytest.raises(DiskError, match="the disk is full"):
        write_atomic(tmp_path / "a", to_full)


def test_two_writers_are_refused_and_a_killed_one_frees_the_folder(tmp_path):
    code = "import sys, time\nfrom pathlib import Path\nfrom weft.foundation.files.atomic_files import lock_folder\n"
    code += "with lock_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "held"
    with pytest.raises(DiskError, match=f"written by process {child.pid}"), lock_folder(tmp_path):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    for _ in range(50):
        try:
            with lock_folder(tmp_path):
                break
        except DiskError:
            time.sleep(0.02)
    else:
        pytest.fail("the lock outlived its process")
