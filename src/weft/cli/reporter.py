"""Progress of a training on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from weft.cli.terminal import console
from weft.training.planning.plan import TrainingPlan
from weft.training.reporting import Reporter, TrainingProgress

PLAIN_EVERY = 10.0  # seconds between plain lines, at least


class TerminalReporter(Reporter):
    """A context manager: the bar is removed at the end, also after an error. `silent`: another process prints."""

    def __init__(self, title: str, silent: bool = False) -> None:
        self.title, self.out, self.silent = title, console(to_stderr=True), silent
        self.bar: Bar | None = None
        self.subset = ""
        self.last_line = -PLAIN_EVERY
        if sys.stderr.isatty() and not silent:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
            self.bar = Bar(*columns, TimeRemainingColumn(), console=self.out, transient=True)
            self.task = self.bar.add_task(title, total=None, status="")

    def __enter__(self) -> TerminalReporter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def on_stage(self, stage: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, status=stage)
        else:
            self._line(f"{stage} ...")

    def on_model(self, description: str) -> None:
        self._line(f"model: {description}")

    def on_race(self, description: str) -> None:
        self._line(f"race: {description}")

    def on_plan(self, plan: TrainingPlan, description: str) -> None:
        if plan.evaluate_tokens < plan.held_out:
            self.subset = f" on {plan.evaluate_tokens:,} of {plan.held_out:,} tokens"
        self._line(f"plan: {description}")

    def on_step(self, progress: TrainingProgress) -> None:
        status = f"loss {progress.loss:.4f}  {progress.tokens_per_second:,.0f} tokens/s  step {progress.step:,}"
        if self.bar is not None:
            self.bar.update(self.task, total=progress.steps, completed=progress.step, status=status)
        elif time.monotonic() - self.last_line >= PLAIN_EVERY or progress.step in (1, progress.steps):
            self.last_line = time.monotonic()
            self._line(f"{status} of {progress.steps:,}, {_clock(progress.seconds_left)} left")

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        self._line(f"step {step:,}: validation loss {loss:.4f}{self.subset}{'' if best else ' (not the best)'}")

    def on_preview(self, step: int, text: str) -> None:
        for line in text.splitlines():
            self._line(f"  {line}", dim=True)

    def on_note(self, text: str) -> None:
        self._line(f"note: {text}")

    def _line(self, text: str, dim: bool = False) -> None:
        if not self.silent:
            self.out.print(Text(text, style="dim" if dim else ""), soft_wrap=True)


class TensorBoardReporter(Reporter):
    """Writes losses and speed to TensorBoard, and passes everything on to another reporter."""

    def __init__(self, inner: Reporter, folder: str) -> None:
        from weft.foundation.errors import WeftError

        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise WeftError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'") from None
        self.inner, self.writer = inner, SummaryWriter(folder)

    def on_stage(self, stage: str) -> None:
        self.inner.on_stage(stage)

    def on_model(self, description: str) -> None:
        self.inner.on_model(description)

    def on_race(self, description: str) -> None:
        self.inner.on_race(description)

    def on_plan(self, plan: TrainingPlan, description: str) -> None:
        self.inner.on_plan(plan, description)

    def on_step(self, progress: TrainingProgress) -> None:
        self.writer.add_scalar("loss/train", progress.loss, progress.step)
        self.writer.add_scalar("tokens per second", progress.tokens_per_second, progress.step)
        self.inner.on_step(progress)

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        self.writer.add_scalar("loss/validation", loss, step)
        self.writer.flush()
        self.inner.on_evaluation(step, loss, best)

    def on_preview(self, step: int, text: str) -> None:
        self.writer.add_text("preview", text, step)
        self.inner.on_preview(step, text)

    def on_note(self, text: str) -> None:
        self.inner.on_note(text)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
