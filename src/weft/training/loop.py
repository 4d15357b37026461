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

from weft.checkpoints.run_folder import RunFolder
from weft.foundation.kept_memory import keep_freed_memory
from weft.foundation.seeds import derive
from weft.parts.lora import merged
from weft.tasks.task import Batch, Split, Task
from weft.training.averaging import MovingAverage
from weft.training.distribution import Distribution, MicroBatch, StepModule, TrainingState
from weft.training.guards import expect_finite, expect_lawful
from weft.training.optimizers import build_optimizers
from weft.training.planning.pace import Clock, Pace
from weft.training.planning.plan import TrainingPlan, describe_revision
from weft.training.racing.gap import HEART_EPOCHS, LANDING, WORTHWHILE, GapWatch, Regularization
from weft.training.racing.race_data import without_held_back
from weft.training.reporting import Reporter, TrainingProgress
from weft.training.training_spec import TrainingSpec

REPORT_SECONDS = 0.25  # between reports of progress
PREVIEWS = 4  # per training
FIRST_REVIEW = 3  # steps after which the plan is first compared with the clock
REVIEW = 0.02  # of the time that was given, from one review of the plan to the next
TOLD = 0.1  # of the steps: smaller revisions are on record, but not worth a line on the terminal

StopReason = Literal["interrupt", "patience"]


@dataclass
class Loop:
    """A training in progress. `run()` continues from `step` to the end of the plan.

    `stop_reason` says why it ended before the last step: "interrupt" after Ctrl-C, "patience" if the validation loss
    stopped improving; None if it did not. A plan of minutes is compared with the `clock` every few steps, and revised
    where the training would end early or late.
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
    distribution: Distribution = field(default_factory=Distribution)
    clock: Clock = time.perf_counter

    def __post_init__(self) -> None:
        o = self.training
        keep_freed_memory()  # a step makes and frees the tensors of the one before
        self._epoch: tuple[int, Sequence[Sequence[int]]] = (-1, ())
        self.spread_module = self.distribution.spread(self.task, self.module, o, self._first_example)
        self.step_module = self.spread_module  # or the same compiled, which shares its weights
        self.step, self.seconds, self.best_loss, self.stale_evaluations = 0, 0.0, float("inf"), 0
        self.optimizers: list[Optimizer] = build_optimizers(
            self.module, o.optimizer, o.rate, o.matrix_rate, o.weight_decay
        )
        self.peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.average = MovingAverage(self.module, o.ema) if o.ema else None
        self.weights = [w for w in self.module.parameters() if w.requires_grad]
        self._loss_sum, self._steps_since_report, self._last_report = 0.0, 0, 0.0
        self._tokens_since_report = 0
        self.pace, self._next_review, self._told_steps = Pace(self.plan), 0, self.plan.last
        self.gap, self.regularization = GapWatch(), Regularization(self.module, self.optimizers)
        self.stop_reason: StopReason | None = None

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return next(self.module.parameters()).device

    # --- steps -------------------------------------------------------------------------------------------------------

    def run(self, until: int | None = None) -> None:
        """Take all remaining steps; patience and Ctrl-C stop earlier, at the end of a step.

        `until` a step, the plan is followed as it is and no state is kept: whether the training goes on is open.
        """
        self.module.train()
        began = self._last_report = self.clock()
        began -= self.seconds
        self._next_review = self.step + FIRST_REVIEW
        if self._out_of_patience:  # a resumed run that had ended so
            self.stop_reason = "patience"
        with defer_stop(self.distribution.request_stop, self.distribution.signals, self.distribution.insist):
            while self.step < min(self.plan.last, until or self.plan.last) and self.stop_reason is None:
                start = self.clock()
                self.regularization.set(self.plan.notches(self.step))
                loss, tokens = self.one_step()
                self.step += 1
                self.seconds = self.clock() - began
                self._report(loss, tokens)
                self.pace.add_step(self.clock() - start)
                last = self.step == self.plan.last
                if last or self.step % self.plan.evaluate_every == 0:
                    self._evaluate(last)
                    self.seconds = self.clock() - began
                if self.distribution.stopped:
                    self.stop_reason = "interrupt"
                if self._out_of_patience and self.stop_reason is None:
                    self.stop_reason = "patience"
                    self.reporter.on_note(
                        f"stopped at step {self.step}: no better validation loss for {self.stale_evaluations} "
                        "evaluations"
                    )
                if until is not None:
                    continue
                if self.stop_reason is not None or last or self.step % self.plan.checkpoint_every == 0:
                    self.checkpoint(last or self.stop_reason is not None)
                    self.seconds = self.clock() - began
                if self.stop_reason is None:
                    self._review()
            if self.distribution.stopped:  # while the last state was written
                self.stop_reason = "interrupt"
        self.module.eval()

    def keep(self) -> None:
        """Evaluate and keep the model as it is, where its plan has no steps."""
        began = self.clock()
        self._evaluate(last=True)
        self.checkpoint()
        self.seconds += self.clock() - began
        self.module.eval()

    @property
    def _out_of_patience(self) -> bool:
        return self.training.patience is not None and self.stale_evaluations >= self.training.patience

    def compile(self) -> None:
        """Take the steps through torch.compile, tried on the first batch; where it fails, note it and go on without."""
        self.module.train()
        try:
            compiled: Any = torch.compile(self.module, dynamic=True)
            StepModule(self.task, compiled)(self._read(self._micro_batches(0)[0]))[0].backward()
            self.step_module = StepModule(self.task, compiled)
        except Exception as error:  # whatever the compiler raises, training works without it
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self.reporter.on_note(f"torch.compile does not work here ({reason[:120]}): training without it")
        self.module.zero_grad(set_to_none=True)

    def one_step(self) -> tuple[Tensor, int]:
        """One update of the weights; gives the mean loss (still on its device) and the number of tokens."""
        shares = self.distribution.take(self._micro_batches(self.step), self._read)
        count = max(1, sum(share.answers for share in shares))
        torch.manual_seed(self.distribution.seed(derive(self.seed, "step", self.step)))
        losses = [self._backward(share, count, share is shares[-1]) for share in shares]
        total = self.distribution.mean(sum(losses[1:], losses[0]))
        norm = self.distribution.clip(self.weights, self.training.clip or float("inf"))
        expect_finite(self.module, norm, self.step + 1, lambda: self._loss(self.spread_module, shares[0], count))
        rate = self._rate_share(self.step)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.module, self.step)
        return total, sum(share.batch.tokens for share in shares) * self.distribution.data_ranks

    def _rate_share(self, step: int) -> float:
        """The learning rate of a step, as a share of its peak: a function of the plan and its revisions."""
        return self.training.build_schedule(self.plan.steps).share(self.plan.position(step))

    def _backward(self, share: MicroBatch, count: float, last: bool) -> Tensor:
        with self.distribution.computing(share, last):
            loss = self._loss(self.step_module, share, count)
            loss.backward()
        return loss.detach()

    def _loss(self, module: nn.Module, share: MicroBatch, count: float) -> Tensor:
        """The share's part of the mean over the whole batch, so that the mean over data ranks adds up to it exactly."""
        half = self.training.uses_bf16(self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            total, auxiliary = module(share.batch, self.training.smoothing)
        loss: Tensor = total * (share.weight * self.distribution.data_ranks) / count
        return loss if auxiliary is None else loss + auxiliary * (share.answers / count)

    def _read(self, examples: Sequence[int]) -> Batch:
        return self.train.batch(examples, self.seed, self._epoch[0]).to(self.device)

    def _first_example(self) -> Batch:
        return self._read(self._micro_batches(0)[0][:1])

    def _micro_batches(self, step: int) -> list[Sequence[int]]:
        """The examples of a step, in as many micro-batches as gradients are accumulated over."""
        if self._epoch[0] < 0:
            self._epoch = (0, self.train.batches(self.plan.batch, self.seed, 0))
        epoch, place = divmod(step, len(self._epoch[1]))
        if epoch != self._epoch[0]:
            self._epoch = (epoch, self.train.batches(self.plan.batch, self.seed, epoch))
        examples = self._epoch[1][place]
        if step < self.plan.held_back_until:
            examples = without_held_back(examples)
        size = -(-len(examples) // self.training.accumulate)
        return [examples[first : first + size] for first in range(0, len(examples), size)]

    # --- reports and evaluations -------------------------------------------------------------------------------------

    def _report(self, loss: Tensor, tokens: int) -> None:
        self._loss_sum = loss if self._steps_since_report == 0 else self._loss_sum + loss  # type: ignore[assignment]
        self._steps_since_report += 1
        self._tokens_since_report += tokens
        now = self.clock()
        if now - self._last_report < REPORT_SECONDS and self.step < self.plan.last and self.step > 1:
            return
        mean = float(self._loss_sum) / self._steps_since_report
        progress = TrainingProgress(
            step=self.step,
            steps=self.plan.last,
            loss=mean,
            rate_share=self._rate_share(self.step - 1),
            tokens_per_second=self._tokens_since_report / max(now - self._last_report, 1e-9),
            seconds=self.seconds,
            seconds_left=(self.pace.step or self.seconds / self.step) * (self.plan.last - self.step),
        )
        self.reporter.on_step(progress)
        row = {"step": self.step, "loss": mean, "rate": progress.rate_share, "seconds": round(self.seconds, 3)}
        self.folder.add_metrics(row)
        self._loss_sum, self._steps_since_report, self._tokens_since_report, self._last_report = 0.0, 0, 0, now

    def loss_on(self, split: Split, size: int, most: int) -> float:
        """The loss of the weights that would be kept now, on about `most` tokens of a split in batches of `size`."""
        with self.evaluated():
            return self.distribution.mean_loss(self.spread_module, split, size, most)

    def _evaluate(self, last: bool) -> None:
        start = self.clock()
        with self.evaluated():
            size, most = self.plan.batch, self.plan.evaluate_tokens
            loss = self.distribution.mean_loss(self.spread_module, self.validation, size, most)
            scoring = self.clock() - start
            better = loss < self.best_loss
            self.stale_evaluations = 0 if better else self.stale_evaluations + 1
            training = self._training_loss(size, most)
            known = {} if training is None else {"training": training}
            row = {"step": self.step, "validation": loss, **known, "seconds": round(self.seconds, 3)}
            self.folder.add_metrics(row)
            self.best_loss = min(loss, self.best_loss)
            if better or self.training.weights == "last":
                self.distribution.write_model(self.folder, self.module, {"step": self.step, "loss": loss})
            self.reporter.on_evaluation(self.step, loss, better)
            every = max(1, self.plan.last // self.plan.evaluate_every // PREVIEWS)
            previews = self.distribution.leads and self.distribution.holds_whole_model
            if previews and not last and self.step // self.plan.evaluate_every % every == 0:
                text = self.task.preview(self.module, self.validation)
                if text:
                    self.reporter.on_preview(self.step, text)
        self.module.train()
        self.pace.add_evaluation(self.clock() - start, scoring)
        if training is not None and not last and self.training.weights == "best":
            self._watch_gap(loss, training)

    def _training_loss(self, size: int, most: int) -> float | None:
        """The loss on half as many tokens of the training data as an evaluation takes; inside of `evaluated`.

        None where nothing depends on it: in a training of so many steps, and until all data were read twice.
        """
        if not self.plan.budget or self.step * self.plan.batch < HEART_EPOCHS * self.train.tokens:
            return None
        most = max(1, min(most, self.plan.held_out or most) // 2)
        return self.distribution.mean_loss(self.spread_module, self.train, size, most)

    def _watch_gap(self, loss: float, training: float) -> None:
        """Do something, on record, about a model that learns by heart; losses are the same on all processes."""
        self.gap.add(loss, training)
        plan, before = self.plan, self.plan.last
        if any(made.at == self.step and made.reason != "time" for made in plan.revisions):  # taken again, as on record
            self.gap.looks.clear()
        if not self.gap.grows or self.step <= self._decided:
            return
        if plan.regularize and not plan.notches(self.step):
            self.plan = plan.regularized(self.step)
        else:
            flat = 1 - self.training.decay if self.training.schedule == "trapezoid" else 0.0
            end = max(self.step + int(LANDING * self.step), plan.least_steps)
            if end > WORTHWHILE * before:
                return
            self.plan = plan.shortened(self.step, end, flat)
        self.gap.looks.clear()
        self.folder.write_plan(self.plan.to_tree())
        self.reporter.on_note(describe_revision(self.plan, before))

    @property
    def _decided(self) -> int:
        """The step until which the record decides, not the clock or the losses of a run that goes on."""
        return self.plan.revisions[-1].at if self.plan.revisions else 0

    def _review(self) -> None:
        """Give the plan as many steps as still fit into its time, on record, if these are clearly others.

        By the clock of the first process. Steps that a resumed run takes again follow the record.
        """
        plan = self.plan
        if not plan.budget or not max(self._next_review, self._decided + 1) <= self.step < plan.last:
            return
        costs, leaders = self.pace.costs(plan), self.distribution.leaders
        elapsed, step_seconds = leaders(plan.before + self.seconds), leaders(costs.step)
        steps = int(leaders(plan.steps_that_fit(self.step, elapsed, costs)))
        self._next_review = self.step + max(1, int(REVIEW * plan.budget / step_seconds))
        if steps == plan.last:
            return
        self.plan = plan.revise(self.step, steps, elapsed, step_seconds)
        self.folder.write_plan(self.plan.to_tree())
        if abs(steps / self._told_steps - 1) > TOLD:
            self.reporter.on_note(describe_revision(self.plan, self._told_steps))
            self._told_steps = steps

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[None]:
        """Inside, the module has the weights that are evaluated and kept: averaged and with adapters merged, if any."""
        self.module.eval()
        average = self.average.swapped(self.module) if self.average is not None else contextlib.nullcontext()
        whole = self.distribution.holds_whole_model
        with average, merged(self.module) if whole else contextlib.nullcontext():
            yield

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> TrainingState:
        return TrainingState(self.module, self.optimizers, self.average)

    def checkpoint(self, last: bool = True) -> None:
        """Check the model for leaks, then write the whole training state; the `last` one is there on return."""
        start = self.clock()
        if self.training.guard and self.distribution.leads and self.distribution.holds_whole_model:
            self.module.eval()
            expect_lawful(self.module, self.step)
            self.module.train()
        facts: dict[str, Any] = {"best": self.best_loss, "stale": self.stale_evaluations, "seconds": self.seconds}
        facts |= {"pace": self.pace.facts(), "gap": self.gap.looks}
        self.distribution.save(self.folder, self._state, self.step, facts, self.training.keep, last)
        self.pace.add_checkpoint(self.clock() - start)

    def restore(self) -> bool:
        """Continue from the newest training state in the run's folder; False if there is none."""
        found = self.distribution.restore(self.folder, self._state)
        if found is None:
            return False
        self.step, facts = found
        self.best_loss, self.stale_evaluations = float(facts["best"]), int(facts["stale"])
        self.seconds = float(facts["seconds"])
        if "pace" in facts:  # older states have none
            self.pace.restore(facts["pace"])
        self.gap.looks = [(float(loss), float(training)) for loss, training in facts.get("gap", ())]
        return True


@contextlib.contextmanager
def defer_stop(
    on_stop: Callable[[], None], signals: Sequence[signal.Signals] = (signal.SIGINT,), insist: bool = True
) -> Iterator[None]:
    """Inside, one of the signals only calls `on_stop`; a second one acts as usual if users may `insist`.

    Signals reach the main thread alone: in any other this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: Any) -> None:
        if insist:
            signal.signal(number, before[signal.Signals(number)])
        on_stop()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
