"""The one loop: for all tasks, models and optimizers.

Everything random at step s follows from (seed, s), and which examples are in batch s from (seed, epoch): so weights,
optimizer and s are the whole state, and a run that is killed and resumed gives the same bits as one that is not.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.checkpoints.run_folder import RunFolder, Snapshot
from weft.foundation.numerics import bf16_is_fast
from weft.foundation.seeds import derive
from weft.parts.lora import merged, merged_state
from weft.tasks.task import Batch, Split, Task, mean_loss
from weft.training.averaging import MovingAverage
from weft.training.guards import expect_finite, expect_lawful
from weft.training.optimizers import build_optimizers
from weft.training.plan import TrainingPlan
from weft.training.reporting import Reporter, TrainingProgress
from weft.training.snapshots import gather_state, restore_state
from weft.training.training_spec import TrainingSpec

REPORT_SECONDS = 0.25  # seconds between words of progress
PREVIEWS = 4


@dataclass
class Loop:
    """A training under way. `run()` goes on from `step` to the plan's end."""

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
        self._stop = False

    # --- the way through ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All steps that are left; ends early with patience or after Ctrl-C, at the end of a step."""
        self.module.train()
        began = time.perf_counter() - self.seconds
        self._last_report = began + self.seconds
        with self._defer_sigint():
            while self.step < self.plan.last and not self._stop:
                loss, tokens = self.one_step()
                self.step += 1
                self.seconds = time.perf_counter() - began
                self._report(loss, tokens)
                last = self.step == self.plan.last
                if last or self.step % self.plan.evaluate_every == 0:
                    self._evaluate(last)
                    self.seconds = time.perf_counter() - began
                if self.training.patience is not None and self.stale_evaluations >= self.training.patience:
                    self.reporter.on_note(
                        f"stopped at step {self.step}: no better loss for {self.stale_evaluations} evaluations"
                    )
                    self._stop = True
                if self._stop or last or self.step % self.plan.checkpoint_every == 0:
                    self.checkpoint()
                    self._shorten_if_slow()
        self.module.eval()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self._stop and (self.training.patience is None or self.stale_evaluations < self.training.patience)

    def one_step(self) -> tuple[Tensor, int]:
        """One update; gives the mean loss (still on its device) and the tokens it took."""
        pieces = self._micro_batches(self.step)
        batches = [self.train.batch(piece, self.seed, self._epoch[0]).to(self.device) for piece in pieces]
        count = sum(batch.count for batch in batches)
        torch.manual_seed(derive(self.seed, "step", self.step))
        total = sum(self._backward(batch, count) for batch in batches)
        norm = nn.utils.clip_grad_norm_(self.weights, self.training.clip or float("inf"), foreach=True)
        expect_finite(self.module, norm, self.step + 1, lambda: self._loss(batches[0], count))
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
        loss = self._loss(batch, count)
        loss.backward()
        return loss.detach()

    def _loss(self, batch: Batch, count: int) -> Tensor:
        """This piece's share of the mean over the whole batch, so that pieces add up to it exactly."""
        wanted = self.training.precision
        half = wanted == "bf16" or (wanted == "auto" and bf16_is_fast(self.device))
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            loss = self.task.loss(self.module, batch, self.training.smoothing)
        share = loss.total / count
        return share if loss.auxiliary is None else share + loss.auxiliary * (loss.count / count)

    def _micro_batches(self, step: int) -> list[Sequence[int]]:
        """The examples of a step, in as many pieces as are accumulated."""
        if self._epoch[0] < 0:
            self._epoch = (0, self.train.batches(self.plan.batch, self.seed, 0))
        epoch, place = divmod(step, len(self._epoch[1]))
        if epoch != self._epoch[0]:
            self._epoch = (epoch, self.train.batches(self.plan.batch, self.seed, epoch))
        examples = self._epoch[1][place]
        size = -(-len(examples) // self.training.accumulate)
        return [examples[first : first + size] for first in range(0, len(examples), size)]

    # --- words and judgments ----------------------------------------------------------------------------------------

    def _report(self, loss: Tensor, tokens: int) -> None:
        self._loss_sum = loss if self._steps_since_report == 0 else self._loss_sum + loss  # type: ignore[assignment]
        self._steps_since_report += 1
        self._tokens_since_report += tokens
        now = time.perf_counter()
        if now - self._last_report < REPORT_SECONDS and self.step < self.plan.last and self.step > 1:
            return
        mean = float(self._loss_sum) / self._steps_since_report
        pace = self.seconds / self.step
        progress = TrainingProgress(
            self.step,
            self.plan.last,
            mean,
            self.training.build_schedule(self.plan.steps_at(self.step - 1)).share(self.step - 1),
            self._tokens_since_report / max(now - self._last_report, 1e-9),
            self.seconds,
            pace * (self.plan.last - self.step),
        )
        self.reporter.on_step(progress)
        row = {"step": self.step, "loss": mean, "rate": progress.rate, "seconds": round(self.seconds, 3)}
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
        """Cut the plan once, on record, if the machine went slower than when it was measured."""
        if self.step >= self.plan.last:
            return
        cut = self.plan.shorten(self.step, self.seconds)
        if cut is not self.plan and cut.shortened is not None:
            self.plan = cut
            self.folder.write_plan(cut.to_tree())
            self.reporter.on_note(
                f"steps take {cut.shortened.slower:.2f} times as long as planned: the plan is cut to "
                f"{cut.shortened.steps:,} steps, and plan.json says so"
            )

    @contextlib.contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        """The weights that are judged and kept: the average, where there is one; with their adapters, if any."""
        self.module.eval()
        average = self.average.swapped(self.module) if self.average is not None else contextlib.nullcontext()
        with average, merged(self.module):
            yield

    # --- the state ---------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Check the model for leaks, then write the whole state, in one file."""
        if self.training.guard:
            self.module.eval()
            expect_lawful(self.module, self.step)
            self.module.train()
        tensors = gather_state(self.module, self.optimizers, self.average)
        facts: dict[str, Any] = {"best": self.best_loss, "stale": self.stale_evaluations, "seconds": self.seconds}
        self.folder.write_snapshot(Snapshot(self.step, tensors, facts), self.training.keep)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a state."""
        restore_state(snapshot.tensors, self.module, self.optimizers, self.average)
        self.step = snapshot.step
        self.best_loss, self.stale_evaluations = float(snapshot.facts["best"]), int(snapshot.facts["stale"])
        self.seconds = float(snapshot.facts["seconds"])

    @contextlib.contextmanager
    def _defer_sigint(self) -> Iterator[None]:
        """Ctrl-C ends the step, not the middle of it; a second one ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(_: int, __: Any) -> None:
            self._stop = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
