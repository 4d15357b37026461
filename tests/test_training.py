"""The loop: full-batch accumulation, the same bits after any kill, guards, the time plan."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import weft
from weft.checkpoints.run_folder import RunFolder
from weft.foundation.errors import WeftError
from weft.foundation.files import tensor_files
from weft.foundation.files.atomic_files import DiskError
from weft.models.build import build
from weft.models.presets import preset
from weft.models.teacher_forcing import IGNORED
from weft.parts.mask_algebra import Everything
from weft.tasks.registry import task_named
from weft.tasks.support import losses
from weft.tasks.support.losses import class_loss, language_loss, spread
from weft.tasks.task import LADDER, Batch, Loss, Split
from weft.training.averaging import MovingAverage, recompute_blocks
from weft.training.guards import TrainingError
from weft.training.loop import Loop, defer_stop
from weft.training.planning.pace import FORWARD, SCORING
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planner import EVALUATION_SHARE, Planner, expected_loss, suitable_batch
from weft.training.planning.step_timing import StepTimer, StepTiming
from weft.training.pretrained import model_source
from weft.training.reporting import Reporter
from weft.training.request import TrainRequest
from weft.training.train import run_training
from weft.training.training_spec import TrainingSpec

TEXT = "the quick brown fox jumps over the lazy dog; the dog sleeps on.\n" * 60
SMALL = {
    "width": 24, "layers": 2, "mixer.heads": 2, "length": 19, "dropout": 0.1,
    "training.batch": 133, "training.threads": 1, "training.guard": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text(TEXT)


def train(tmp_path, name="run", steps=23, resume=False, reporter=None, **changes):
    more = {} if resume else {"set": SMALL | changes, "steps": steps}
    return weft.train("text", tmp_path / "book.txt", tmp_path / name, resume=resume, reporter=reporter, **more)


def weights_of(folder):
    return RunFolder(folder).read_snapshot().tensors


def assert_same_bits(one: Path, other: Path):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


class StopAfter(Reporter):
    """Breaks off in the middle of a training, without any chance to tidy up."""

    def __init__(self, step):
        self.step = step

    def on_evaluation(self, step, loss, best):
        if step >= self.step:
            raise RuntimeError("pulled the plug")


@pytest.mark.parametrize("changes", [{}, {"training.ema": 0.9}, {"training.optimizer": "adamw"}])
def test_a_run_that_breaks_off_goes_on_to_the_same_bits(tmp_path, changes):
    changes = {"training.checkpoint_every": 4, "training.evaluate_every": 3, **changes}
    train(tmp_path, "whole", **changes)
    with pytest.raises(RuntimeError, match="plug"):
        train(tmp_path, "broken", reporter=StopAfter(15), **changes)
    assert RunFolder(tmp_path / "broken").read_snapshot().step == 12
    train(tmp_path, "broken", resume=True)
    assert_same_bits(tmp_path / "whole", tmp_path / "broken")
    rows = [[row["step"] for row in RunFolder(tmp_path / n).read_metrics() if "validation" in row]
            for n in ("whole", "broken")]  # fmt: skip
    assert rows[0] == rows[1] == [3, 6, 9, 12, 15, 18, 21, 23]


def test_kill_9_at_any_moment_changes_no_bit(tmp_path):
    settings = [f"--set={name}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "-m", "weft", "train", "text", str(tmp_path / "book.txt")]
    order = [*settings, "--set=training.checkpoint_every=2", "--set=training.evaluate_every=5", "--steps=150"]
    subprocess.run([*command, *order, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    broken = tmp_path / "broken"
    kills = 0
    for delay in (0.05, 0.3, 0.8):
        begun = (broken / "spec.json").exists()
        more = ["--resume"] if begun else order
        child = subprocess.Popen(
            [*command, *more, "--out", str(broken)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        state = broken / "training"
        before = len(list(state.glob("state-*"))) and max(state.glob("state-*")).name
        while child.poll() is None and (max(state.glob("state-*"), default=state).name in (before, "training")):
            time.sleep(0.01)  # until it has written something new
        time.sleep(delay)
        kills += child.poll() is None
        child.kill()
        child.wait()
    assert kills >= 1
    subprocess.run([*command, "--resume", "--out", str(broken)], check=True, capture_output=True)
    assert_same_bits(tmp_path / "whole", broken)


def test_ctrl_c_leaves_a_run_that_resumes(tmp_path):
    command = [sys.executable, "-m", "weft", "train", "text", str(tmp_path / "book.txt"), f"--out={tmp_path / 'run'}"]
    settings = [f"--set={name}={value}" for name, value in SMALL.items()]
    child = subprocess.Popen([*command, *settings, "--steps=100000"], stderr=subprocess.PIPE, text=True)
    while "metrics.jsonl" not in os.listdir(tmp_path / "run" if (tmp_path / "run").exists() else tmp_path):
        time.sleep(0.02)
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, words = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "--resume" in words and "Traceback" not in words
    assert RunFolder(tmp_path / "run").read_snapshot().step > 0


def test_a_run_that_is_being_written_is_refused(tmp_path):
    with RunFolder(tmp_path / "run").hold(), pytest.raises(DiskError, match="being written by process"):
        train(tmp_path)


def test_an_existing_run_is_not_overwritten_and_resume_follows_it(tmp_path):
    train(tmp_path, steps=2)
    with pytest.raises(WeftError, match="holds a run already"):
        train(tmp_path, steps=2)
    with pytest.raises(WeftError, match="same data"):
        weft.train("text", "sample:markov", tmp_path / "run", resume=True)
    with pytest.raises(WeftError, match="--resume keeps those"):
        weft.train("text", tmp_path / "book.txt", tmp_path / "run", resume=True, steps=7)
    with pytest.raises(WeftError, match="task text"):
        weft.train("translation", tmp_path / "book.txt", tmp_path / "run", resume=True)


def test_a_full_disk_keeps_the_last_good_state(tmp_path, monkeypatch):
    changes = {"training.checkpoint_every": 4, "training.evaluate_every": 50}
    train(tmp_path, "whole", **changes)
    real, calls = tensor_files.save_file, []

    def save(tensors, path, metadata=None):
        calls.append(path)
        if len(calls) > 2:
            Path(path).write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(tensor_files, "save_file", save)
    with pytest.raises(DiskError, match="disk is full"):
        train(tmp_path, "full", **changes)
    monkeypatch.setattr(tensor_files, "save_file", real)
    assert RunFolder(tmp_path / "full").read_snapshot().step == 8
    assert [path.name for path in (tmp_path / "full" / "training").iterdir()] == ["state-00000008.safetensors"]
    train(tmp_path, "full", resume=True)
    assert_same_bits(tmp_path / "whole", tmp_path / "full")


def test_a_damaged_state_falls_back_to_the_one_before(tmp_path):
    train(tmp_path, "whole", **{"training.checkpoint_every": 5, "training.keep": 3})
    states = sorted((tmp_path / "whole" / "training").iterdir())
    assert [path.name for path in states] == [f"state-{step:08d}.safetensors" for step in (15, 20, 23)]
    states[-1].write_bytes(states[-1].read_bytes()[:-100])
    assert RunFolder(tmp_path / "whole").read_snapshot().step == 20


def test_nan_is_named_and_stops_with_the_last_good_state(tmp_path, monkeypatch):
    from weft.parts.feedforward import FeedForward

    real = FeedForward.forward
    calls = []

    def poisoned(self, *args, **more):
        y = real(self, *args, **more)
        if not self.training:
            return y
        calls.append(self)
        return y * float("nan") if len(calls) > 15 and self is calls[1] else y

    monkeypatch.setattr(FeedForward, "forward", poisoned)
    with pytest.raises(TrainingError, match=r"step \d+.*stack\.blocks\.1\.feedforward.*last good state"):
        train(tmp_path, **{"training.checkpoint_every": 3})
    state = RunFolder(tmp_path / "run").read_snapshot()
    assert state.step % 3 == 0 and all(bool(tensor.isfinite().all()) for tensor in state.tensors.values())


def test_a_model_that_looks_ahead_is_refused_at_the_start(tmp_path, monkeypatch):
    def leaky(spec, seed=0, device="cpu"):
        module = build(spec, seed, device)
        module.stack.masks = [Everything() for _ in module.stack.masks]
        return module

    monkeypatch.setattr(model_source, "build", leaky)
    with pytest.raises(TrainingError, match=r"step 0.*causality"):
        train(tmp_path, **{"training.guard": True})
    assert not (tmp_path / "run" / "model.safetensors").exists()


# --- the parts of the loop -------------------------------------------------------------------------------------------


class Numbers(Split):
    """Rows of different lengths, in float64."""

    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.rows = [torch.randint(11, (n,), generator=draw) for n in (7, 3, 5, 2, 7, 4, 6, 3, 5, 7, 2)]

    def __len__(self):
        return len(self.rows)

    @property
    def tokens(self):
        return sum(map(len, self.rows))

    def batches(self, size, seed, epoch=0):
        return [list(range(len(self.rows)))]

    def batch(self, examples, seed=None, epoch=0):
        tokens, labels = torch.zeros(len(examples), 7, dtype=torch.long), torch.full((len(examples), 7), IGNORED)
        for row, example in enumerate(examples):
            n = len(self.rows[example])
            tokens[row, :n], labels[row, : n - 1] = self.rows[example], self.rows[example][1:]
        return Batch({"tokens": tokens}, labels, int((labels != IGNORED).sum()), tokens.numel())


class Next:
    def loss(self, module, batch, smoothing=0.0):
        return language_loss(module, module(batch.inputs["tokens"]), batch.labels, batch.count, smoothing)

    def preview(self, module, part):
        return ""


def small_plan(steps=1, **more):
    looks = {"evaluate_every": 9, "evaluate_tokens": 99, "checkpoint_every": 9}
    return TrainingPlan(steps=steps, batch=99, threads=1, parameters=1, tokens=1, epochs=1.0, memory=1, **looks, **more)


def small_model(**changes):
    return build(preset("nano-gpt").replace(width=12, layers=2, vocabulary=11, **{"mixer.heads": 2} | changes)).double()


def gradient_of(tmp_path, accumulate, model=None, **options):
    model = model or small_model()
    spec = TrainingSpec(accumulate=accumulate, clip=0.0, guard=False, **options)
    loop = Loop(Next(), model, Numbers(), Numbers(), spec, small_plan(), RunFolder(tmp_path))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    loss, _ = loop.one_step()
    return loss, {name: weight.detach() - before[name] for name, weight in model.named_parameters()}


@pytest.mark.parametrize("pieces", [2, 3, 11])
def test_accumulation_equals_the_full_batch(tmp_path, pieces):
    one_loss, one = gradient_of(tmp_path, 1, smoothing=0.1, optimizer="adamw")
    many_loss, many = gradient_of(tmp_path, pieces, smoothing=0.1, optimizer="adamw")
    assert abs(one_loss - many_loss) < 1e-12
    assert max(float((one[name] - many[name]).abs().max()) for name in one) < 1e-9


def test_recomputing_blocks_changes_nothing(tmp_path):
    _, plain = gradient_of(tmp_path, 1, small_model())
    model = small_model()
    recompute_blocks(model)
    _, again = gradient_of(tmp_path, 1, model)
    assert max(float((plain[name] - again[name]).abs().max()) for name in plain) < 1e-12
    assert model.state_dict().keys() == small_model().state_dict().keys()


HEADS = [{}, {"head": {"kind": "linear", "bias": True}}, {"head": {"kind": "tied", "scale": 0.3}}]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_in_chunks_is_the_loss(monkeypatch, head, smoothing):
    model, batch = small_model(**head), Numbers().batch(range(7))
    found = []
    for whole in (10**9, 0):
        monkeypatch.setattr(losses, "LOGITS_AT_ONCE", whole)
        model.zero_grad()
        loss = Next().loss(model, batch, smoothing)
        loss.total.backward()
        found.append((loss.total.detach(), {n: w.grad.clone() for n, w in model.named_parameters()}))
    assert abs(found[0][0] - found[1][0]) < 1e-9
    assert max(float((found[0][1][name] - found[1][1][name]).abs().max()) for name in found[0][1]) < 1e-9
    flat = model(batch.inputs["tokens"]).logits.flatten(0, 1)
    assert abs(nn.functional.cross_entropy(flat, batch.labels.flatten(), reduction="sum", label_smoothing=smoothing)
               - found[0][0]) < 1e-9  # fmt: skip


def test_auxiliary_losses_of_experts_count():
    model = build(preset("nano-moe").replace(width=16, layers=2, vocabulary=11, **{"mixer.heads": 2})).double()
    loss = Next().loss(model, Numbers().batch(range(5)))
    assert loss.auxiliary is not None and 0 < float(loss.auxiliary.detach()) < 1


def test_class_loss_leaves_out_what_has_no_label():
    model = build(preset("nano-encoder").replace(width=16, layers=1, **{"mixer.heads": 2})).double()
    output = model(torch.randint(11, (3, 5)))
    found = class_loss(output, torch.tensor([1, IGNORED, 0]), 2)
    assert isinstance(found, Loss) and found.mean == found.total / 2
    kept = output.logits[[0, 2]]
    assert torch.allclose(found.total, nn.functional.cross_entropy(kept, torch.tensor([1, 0]), reduction="sum"))


def test_the_average_is_swapped_in_and_out():
    model = nn.Linear(3, 2)
    average = MovingAverage(model, 0.5)
    start = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    average.update(model, 1000)
    with average.swapped(model):
        assert torch.allclose(model.weight, start + 0.5)
    assert torch.allclose(model.weight, start + 1.0)


def test_patience_stops_early(tmp_path):
    class NoteReporter(Reporter):
        def __init__(self):
            self.said = []

        def on_note(self, text):
            self.said.append(text)

    notes = NoteReporter()
    train(tmp_path, steps=60, reporter=notes, **{
        "training.patience": 2, "training.evaluate_every": 1, "training.rate": 1e-12, "training.matrix_rate": 1e-12,
    })  # fmt: skip
    assert any("no better validation loss" in text for text in notes.said)
    stopped = RunFolder(tmp_path / "run").read_snapshot().step
    assert stopped < 60
    train(tmp_path, resume=True)
    assert RunFolder(tmp_path / "run").read_snapshot().step == stopped


class Interrupts(Reporter):
    """Ctrl-C at the first evaluation that is not the best."""

    def on_evaluation(self, step, loss, best):
        if not best:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("patience", [None, 1])
def test_ctrl_c_is_the_reason_also_when_patience_is_at_its_end(tmp_path, patience):
    changes = {"training.evaluate_every": 1, "training.rate": 1e-12, "training.matrix_rate": 1e-12}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, steps=29, reporter=Interrupts(), **changes, **{"training.patience": patience})
    assert 1 < RunFolder(tmp_path / "run").read_snapshot().step < 29


def looped(tmp_path, **options):
    spec = TrainingSpec(guard=False, evaluate_every=1, **options)
    plan = small_plan(steps=5).replace(evaluate_every=1)
    return Loop(Next(), small_model(), Numbers(), Numbers(), spec, plan, RunFolder(tmp_path))


def test_why_a_loop_ended(tmp_path):
    whole = looped(tmp_path)
    whole.run()
    assert (whole.step, whole.stop_reason) == (5, None)
    impatient = looped(tmp_path, patience=2, rate=1e-30, matrix_rate=1e-30)
    impatient.run()
    assert (impatient.step, impatient.stop_reason) == (3, "patience")
    stopped = looped(tmp_path, patience=1, rate=1e-30, matrix_rate=1e-30)
    stopped.reporter = Interrupts()
    stopped.run()
    assert (stopped.step, stopped.stop_reason) == (2, "interrupt")


@pytest.fixture
def interruptible():
    """Ctrl-C as in a shell's foreground: a background shell makes its programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_first_interrupt_is_deferred_and_the_second_is_not():
    before, heard = signal.getsignal(signal.SIGINT), []
    with defer_stop(lambda: heard.append("first")):
        signal.raise_signal(signal.SIGINT)
        assert heard == ["first"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert heard == ["first"] and signal.getsignal(signal.SIGINT) is before
    with ThreadPoolExecutor() as pool:

        def elsewhere():
            with defer_stop(lambda: None):
                return signal.getsignal(signal.SIGINT)

        assert pool.submit(elsewhere).result() is before


def test_compiling_falls_back_with_a_note(tmp_path, monkeypatch):
    def cannot(module, **more):
        raise RuntimeError("no compiler here")

    said = []
    monkeypatch.setattr(torch, "compile", cannot)
    monkeypatch.setattr(Reporter, "on_note", lambda self, text: said.append(text))
    request = TrainRequest(
        "text", (str(tmp_path / "book.txt"),), tmp_path / "run", changes=SMALL, steps=2, compile=True
    )
    run_training(request, Reporter())
    assert "no compiler here" in said[0] and "without it" in said[0]


def test_steps_run_through_the_compiled_module_and_nothing_else_does(tmp_path, monkeypatch):
    """A stand-in for torch.compile that counts calls: the weights are shared, and the bits stay the same."""

    class Compiled(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.calls = [module], 0  # in a list: not a submodule

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module[0], name)

        def forward(self, *args, **more):
            self.calls += 1
            return self.module[0](*args, **more)

    made = []
    monkeypatch.setattr(torch, "compile", lambda module, **more: made.append(Compiled(module)) or made[-1])
    loops = [looped(tmp_path), looped(tmp_path)]
    loops[1].compile()
    for loop in loops:
        loop.run()
    assert made[0].calls == 1 + 5  # the trial and the steps, no evaluation
    plain, compiled = (loop.module.state_dict() for loop in loops)
    assert all(torch.equal(plain[name], compiled[name]) for name in plain)


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_torch_compile_itself_trains(tmp_path, monkeypatch):
    """torch.compile up to the generated code, which test_compiled.py tests."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    plain, compiled = looped(tmp_path), looped(tmp_path)
    notes = []
    compiled.reporter.on_note = notes.append
    compiled.compile()
    (loss, _), (same, _) = plain.one_step(), compiled.one_step()
    assert not notes and abs(loss - same) < 1e-10
    ours = dict(plain.module.named_parameters())
    assert max(float((ours[n] - w).detach().abs().max()) for n, w in compiled.module.named_parameters()) < 1e-6


def test_a_request_is_checked_where_it_is_made(tmp_path):
    with pytest.raises(WeftError, match="no data for task text"):
        TrainRequest("text", (), tmp_path)
    with pytest.raises(WeftError, match="leave --preset out"):
        TrainRequest("text", ("a",), tmp_path, preset="gpt2", base="runs/a")
    changes = {"data.held_out": 0.2, "training.rate": 0.1, "mixer.heads": 3}
    request = TrainRequest("text", ("a",), tmp_path, changes=changes)
    assert (request.data_changes, request.training_changes) == ({"held_out": 0.2}, {"rate": 0.1})
    assert request.model_changes == {"mixer.heads": 3}


# --- the plan --------------------------------------------------------------------------------------------------------


def test_what_is_expected_falls_with_size_and_with_tokens_and_rereading_saturates():
    assert expected_loss(2e6, 1e7, 1e9) < expected_loss(1e6, 1e7, 1e9)
    assert expected_loss(1e6, 2e7, 1e9) < expected_loss(1e6, 1e7, 1e9)
    first = expected_loss(1e6, 1e6, 1e6) - expected_loss(1e6, 2e6, 1e6)
    later = expected_loss(1e6, 5e7, 1e6) - expected_loss(1e6, 1e8, 1e6)
    assert 0 <= later < first / 10
    assert [suitable_batch(n) for n in (1e5, 1.6e6, 1e7)] == [512, 2048, 4096]


def test_minutes_end_on_time_and_are_written_down(tmp_path):
    began = time.perf_counter()
    weft.train("text", tmp_path / "book.txt", tmp_path / "run", minutes=0.1)
    assert time.perf_counter() - began < 30  # 6 s, on a machine that may be busy
    plan = TrainingPlan.from_tree(RunFolder(tmp_path / "run").read_plan())
    assert plan.minutes == 0.1 and plan.tried and plan.step_seconds > 0
    assert plan.parameters == sum(w.numel() for w in load_file(tmp_path / "run" / "model.safetensors").values())


def test_the_ladder_goes_up():
    weights = [size.width**2 * size.layers for size in LADDER]
    assert weights == sorted(weights)


def test_batches_to_judge_on_are_spread_evenly():
    batches = [[n] for n in range(20)]
    assert spread(batches, None, 100) == batches and spread(batches, 200, 100) == batches
    assert spread(batches, 20, 100) == [[0], [5], [10], [15]]


def test_a_plan_fills_its_time_whatever_batch_was_timed(tmp_path, monkeypatch):
    """Steps are timed with a batch that is a guess; those of the batch that is chosen then take another time."""
    rate = 1500.0

    def timed(timer, spec, options, batch, *known):
        tokens = batch - batch % 49  # whole pictures of 49 patches
        return StepTiming(tokens / rate, tokens, 1)

    monkeypatch.setattr(StepTimer, "fastest", timed)
    kind = task_named("images")
    prepared = kind.prepare(["sample:digits"], kind.Options(), 0, tmp_path)
    for minutes in (0.5, 1.0, 2.2, 5.0):
        planner = Planner(prepared.task, prepared.train, prepared.validation, {}, {}, 0, torch.device("cpu"))
        _, _, plan = planner.plan_minutes(weft.preset("nano-vit"), minutes, time.perf_counter())
        steps = plan.steps * plan.batch / rate
        final = SCORING * FORWARD * plan.final_tokens / rate  # the held-out pictures are scored once more
        assert (1 + EVALUATION_SHARE) * steps + final == pytest.approx(60 * minutes, rel=0.1) and steps > final


def test_a_slow_machine_gets_a_small_model_even_if_only_one_was_measured(tmp_path, monkeypatch):
    """Measuring the first candidate takes all the time there is for measuring; the formula knows smaller ones."""
    from weft.training.planning import planner as planning

    clock = [0.0]

    def timed(timer, spec, options, batch, *known):
        clock[0] += 30
        return StepTiming(planning._flops(spec) * batch / speed, batch, 1)

    monkeypatch.setattr(StepTimer, "fastest", timed)
    kind = task_named("text")
    prepared = kind.prepare(["sample:markov"], kind.Options(), 0, tmp_path)
    widths = {}
    for speed in (1e8, 1e13):
        clock[0] = 0.0
        data, cpu = (prepared.train, prepared.validation), torch.device("cpu")
        planner = Planner(prepared.task, *data, {}, {}, 0, cpu, clock=lambda: clock[0])
        _, _, plan = planner.plan_minutes(None, 2.0, 0.0)
        chosen = plan.tried[0]
        widths[speed] = chosen["width"]
        spec = prepared.task.default_model(next(size for size in LADDER if size.width == chosen["width"]))
        measured = plan.steps * plan.batch * planning._flops(spec)
        assert measured / speed <= 120 - clock[0]
    assert widths[1e8] == 48 < widths[1e13]
