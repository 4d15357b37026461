"""The training loop of all tasks, models and optimizers.

Everything random at step s follows from (seed, s), and which examples are in batch s from (seed, epoch): so weights,
optimizer and s are the whole state, and a run that is killed and resumed gives the same bits as one that is not.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.checkpoints.run_folder import RunFolder, Snapshot
from weft.foundation.numerics import bf16_is_fast
from weft.foundation.seeds import derive
from weft.parts.lora import merged, merged_state
from weft.tasks.support.losses import mean_loss
from weft.tasks.task import Batch, Split, Task
from weft.training.averaging import MovingAverage
from weft.training.guards import expect_finite, expect_lawful
from weft.training.optimizers import build_optimizers
from weft.training.plan import TrainingPlan
from weft.training.reporting import Reporter, TrainingProgress
from weft.training.snapshots import gather_state, restore_state
from weft.training.training_spec import TrainingSpec

REPORT_SECONDS = 0.25  # between reports of progress
PREVIEWS = 4  # per training

StopReason = Literal["interrupt", "patience"]


@dataclass
class Loop:
    """A training in progress. `run()` continues from `step` to the end of the plan.

    `stop_reason` says why it ended before the last step: "interrupt" after Ctrl-C, "patience" if the validation loss
    stopped improving; None if it did not.
    """

    task: Task
    module: nn.Module
    train: Split
    validation: Split
    training: TrainingSpec
    plan: TrainingPlan
    folder: RunFolder
    seed: int = 0
    reporter: Reporter = field(default_factory=Reporter)

    def __post_init__(self) -> None:
        o = self.training
        self.step, self.seconds, self.best_loss, self.stale_evaluations = 0, 0.0, float("inf"), 0
        self.device = next(self.module.parameters()).device
        self.optimizers: list[Optimizer] = build_optimizers(
            self.module, o.optimizer, o.rate, o.matrix_rate, o.weight_decay
        )
        self.peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.average = MovingAverage(self.module, o.ema) if o.ema else None
        self.weights = [w for w in self.module.parameters() if w.requires_grad]
        self._epoch: tuple[int, Sequence[Sequence[int]]] = (-1, ())
        self._loss_sum, self._steps_since_report, self._last_report = 0.0, 0, 0.0
        self._tokens_since_report = 0
        self.stop_reason: StopReason | None = None
        self._step_module: nn.Module = self.module  # or the same compiled, which shares its weights

    # --- steps -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all remaining steps; patience and Ctrl-C stop earlier, at the end of a step."""
        self.module.train()
        began = time.perf_counter() - self.seconds
        self._last_report = began + self.seconds
        if self._out_of_patience:  # a resumed run that had ended so
            self.stop_reason = "patience"
        with defer_sigint(self._interrupt):
            while self.step < self.plan.last and self.stop_reason is None:
                loss, tokens = self.one_step()
                self.step += 1
                self.seconds = time.perf_counter() - began
                self._report(loss, tokens)
                last = self.step == self.plan.last
                if last or self.step % self.plan.evaluate_every == 0:
                    self._evaluate(last)
                    self.seconds = time.perf_counter() - began
                if self._out_of_patience and self.stop_reason is None:
                    self.stop_reason = "patience"
                    self.reporter.on_note(
                        f"stopped at step {self.step}: no better validation loss for {self.stale_evaluations} "
                        "evaluations"
                    )
                if self.stop_reason is not None or last or self.step % self.plan.checkpoint_every == 0:
                    self.checkpoint()
                    self._shorten_if_slow()
        self.module.eval()

    @property
    def _out_of_patience(self) -> bool:
        return self.training.patience is not None and self.stale_evaluations >= self.training.patience

    def _interrupt(self) -> None:
        self.stop_reason = "interrupt"

    def compile(self) -> None:
        """Take the steps through torch.compile, tried on the first batch; where it fails, note it and go on without."""
        self.module.train()
        batch = self.train.batch(self._micro_batches(0)[0], self.seed).to(self.device)
        try:
            compiled: Any = torch.compile(self.module, dynamic=True)
            self.task.loss(compiled, batch).total.backward()
            self._step_module = compiled
        except Exception as error:  # whatever the compiler raises, training works without it
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.reporter.on_note(f"torch.compile does not work here ({reason[:120]}): training without it")
        self.module.zero_grad(set_to_none=True)

    def one_step(self) -> tuple[Tensor, int]:
        """One update of the weights; gives the mean loss (still on its device) and the number of tokens."""
        examples = self._micro_batches(self.step)
        batches = [self.train.batch(some, self.seed, self._epoch[0]).to(self.device) for some in examples]
        count = max(1, sum(batch.count for batch in batches))
        torch.manual_seed(derive(self.seed, "step", self.step))
        total = sum(self._backward(batch, count) for batch in batches)
        norm = nn.utils.clip_grad_norm_(self.weights, self.training.clip or float("inf"), foreach=True)
        expect_finite(self.module, norm, self.step + 1, lambda: self._loss(self.module, batches[0], count))
        share = self.training.build_schedule(self.plan.steps_at(self.step)).share(self.step)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.module, self.step)
        assert isinstance(total, Tensor)
        return total, sum(batch.tokens for batch in batches)

    def _backward(self, batch: Batch, count: int) -> Tensor:
        loss = self._loss(self._step_module, batch, count)
        loss.backward()
        return loss.detach()

    def _loss(self, module: nn.Module, batch: Batch, count: int) -> Tensor:
        """The micro-batch's share of the mean over the whole batch, so that shares add up to the mean exactly."""
        wanted = self.training.precision
        half = wanted == "bf16" or (wanted == "auto" and bf16_is_fast(self.device))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            loss = self.task.loss(module, batch, self.training.smoothing)
        share = loss.total / count
        return share if loss.auxiliary is None else share + loss.auxiliary * (loss.count / count)

    def _micro_batches(self, step: int) -> list[Sequence[int]]:
        """The examples of a step, in as many micro-batches as gradients are accumulated over."""
        if self._epoch[0] < 0:
            self._epoch = (0, self.train.batches(self.plan.batch, self.seed, 0))
        epoch, place = divmod(step, len(self._epoch[1]))
        if epoch != self._epoch[0]:
            self._epoch = (epoch, self.train.batches(self.plan.batch, self.seed, epoch))
        examples = self._epoch[1][place]
        size = -(-len(examples) // self.training.accumulate)
        return [examples[first : first + size] for first in range(0, len(examples), size)]

    # --- reports and evaluations -------------------------------------------------------------------------------------

    def _report(self, loss: Tensor, tokens: int) -> None:
        self._loss_sum = loss if self._steps_since_report == 0 else self._loss_sum + loss  # type: ignore[assignment]
        self._steps_since_report += 1
        self._tokens_since_report += tokens
        now = time.perf_counter()
        if now - self._last_report < REPORT_SECONDS and self.step < self.plan.last and self.step > 1:
            return
        mean = float(self._loss_sum) / self._steps_since_report
        progress = TrainingProgress(
            step=self.step,
            steps=self.plan.last,
            loss=mean,
            rate_share=self.training.build_schedule(self.plan.steps_at(self.step - 1)).share(self.step - 1),
            tokens_per_second=self._tokens_since_report / max(now - self._last_report, 1e-9),
            seconds=self.seconds,
            seconds_left=self.seconds / self.step * (self.plan.last - self.step),
        )
        self.reporter.on_step(progress)
        row = {"step": self.step, "loss": mean, "rate": progress.rate_share, "seconds": round(self.seconds, 3)}
        self.folder.add_metrics(row)
        self._loss_sum, self._steps_since_report, self._tokens_since_report, self._last_report = 0.0, 0, 0, now

    def _evaluate(self, last: bool) -> None:
        with self._evaluated_weights():
            loss = mean_loss(self.task, self.module, self.validation, self.plan.batch, self.plan.evaluate_tokens)
            better = loss < self.best_loss
            self.stale_evaluations = 0 if better else self.stale_evaluations + 1
            self.folder.add_metrics({"step": self.step, "validation": loss, "seconds": round(self.seconds, 3)})
            self.best_loss = min(loss, self.best_loss)
            if better or self.training.weights == "last":
                self.folder.write_model(merged_state(self.module), {"step": self.step, "loss": loss})
            self.reporter.on_evaluation(self.step, loss, better)
            every = max(1, self.plan.last // self.plan.evaluate_every // PREVIEWS)
            if not last and self.step // self.plan.evaluate_every % every == 0:
                text = self.task.preview(self.module, self.validation)
                if text:
                    self.reporter.on_preview(self.step, text)
        self.module.train()

    def _shorten_if_slow(self) -> None:
        """Shorten the plan once, on record, if steps take longer than when they were measured."""
        if self.step >= self.plan.last:
            return
        shorter = self.plan.shorten(self.step, self.seconds)
        if shorter is not self.plan and shorter.shortened is not None:
            self.plan = shorter
            self.folder.write_plan(shorter.to_tree())
            self.reporter.on_note(
                f"steps take {shorter.shortened.slower:.2f} times as long as planned: the plan is shortened to "
                f"{shorter.shortened.steps:,} steps, as plan.json records"
            )

    @contextlib.contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        """Inside, the module has the weights that are evaluated and kept: averaged and with adapters merged, if any."""
        self.module.eval()
        average = self.average.swapped(self.module) if self.average is not None else contextlib.nullcontext()
        with average, merged(self.module):
            yield

    # --- state -------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Check the model for leaks, then write the whole training state to one file."""
        if self.training.guard:
            self.module.eval()
            expect_lawful(self.module, self.step)
            self.module.train()
        tensors = gather_state(self.module, self.optimizers, self.average)
        facts: dict[str, Any] = {"best": self.best_loss, "stale": self.stale_evaluations, "seconds": self.seconds}
        self.folder.write_snapshot(Snapshot(self.step, tensors, facts), self.training.keep)

    def restore(self, snapshot: Snapshot) -> None:
        restore_state(snapshot.tensors, self.module, self.optimizers, self.average)
        self.step = snapshot.step
        self.best_loss, self.stale_evaluations = float(snapshot.facts["best"]), int(snapshot.facts["stale"])
        self.seconds = float(snapshot.facts["seconds"])


@contextlib.contextmanager
def defer_sigint(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Inside, the first Ctrl-C only calls `on_interrupt`; a second one interrupts as usual.

    Signals reach the main thread alone: in any other this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: Any) -> None:
        signal.signal(signal.SIGINT, before)
        on_interrupt()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
