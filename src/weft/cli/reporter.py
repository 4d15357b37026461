"""How a training shows itself: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from weft.cli.terminal import console
from weft.training.plan import TrainingPlan
from weft.training.reporting import Reporter, TrainingProgress

PLAIN_EVERY = 10.0  # seconds between plain lines, at least


class TerminalReporter(Reporter):
    """Use it as a context: the bar is taken away at the end, also after an error."""

    def __init__(self, title: str) -> None:
        self.title, self.out = title, console(to_stderr=True)
        self.bar: Bar | None = None
        self.share = ""
        self.last_line = -PLAIN_EVERY
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
            self.bar = Bar(*columns, TimeRemainingColumn(), console=self.out, transient=True)
            self.task = self.bar.add_task(title, total=None, words="")

    def __enter__(self) -> TerminalReporter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def on_stage(self, what: str) -> None:
        """A stage."""
        if self.bar is not None:
            self.bar.update(self.task, words=what)
        else:
            self._line(f"{what} ...")

    def on_plan(self, plan: TrainingPlan, words: str) -> None:
        """The plan in one line."""
        if plan.evaluate_tokens < plan.held_out:
            self.share = f" on {plan.evaluate_tokens:,} of {plan.held_out:,} tokens"
        self._line(f"plan: {words}")

    def on_step(self, progress: TrainingProgress) -> None:
        """Loss, speed and time left."""
        words = f"loss {progress.loss:.4f}  {progress.tokens_per_second:,.0f} tokens/s  step {progress.step:,}"
        if self.bar is not None:
            self.bar.update(self.task, total=progress.steps, completed=progress.step, words=words)
        elif time.monotonic() - self.last_line >= PLAIN_EVERY or progress.step in (1, progress.steps):
            self.last_line = time.monotonic()
            self._line(f"{words} of {progress.steps:,}, {_clock(progress.left)} left")

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        """The held-out loss."""
        self._line(f"step {step:,}: held-out loss {loss:.4f}{self.share}{'' if best else ' (not the best)'}")

    def on_preview(self, step: int, text: str) -> None:
        """What the model does now."""
        for line in text.splitlines():
            self._line(f"  {line}", dim=True)

    def on_note(self, text: str) -> None:
        """A word to the user."""
        self._line(f"note: {text}")

    def _line(self, text: str, dim: bool = False) -> None:
        self.out.print(Text(text, style="dim" if dim else ""), soft_wrap=True)


class TensorBoardReporter(Reporter):
    """Hands everything on to another reporter, and numbers to TensorBoard."""

    def __init__(self, inner: Reporter, folder: str) -> None:
        from weft.foundation.errors import WeftError

        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise WeftError("--tensorboard needs the package tensorboard: pip install 'weft[tensorboard]'") from None
        self.inner, self.writer = inner, SummaryWriter(folder)

    def on_stage(self, what: str) -> None:
        """A stage."""
        self.inner.on_stage(what)

    def on_plan(self, plan: TrainingPlan, words: str) -> None:
        """The plan."""
        self.inner.on_plan(plan, words)

    def on_step(self, progress: TrainingProgress) -> None:
        """Loss and speed."""
        self.writer.add_scalar("loss/train", progress.loss, progress.step)
        self.writer.add_scalar("tokens a second", progress.tokens_per_second, progress.step)
        self.inner.on_step(progress)

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        """The held-out loss."""
        self.writer.add_scalar("loss/held out", loss, step)
        self.writer.flush()
        self.inner.on_evaluation(step, loss, best)

    def on_preview(self, step: int, text: str) -> None:
        """What the model does now."""
        self.writer.add_text("preview", text, step)
        self.inner.on_preview(step, text)

    def on_note(self, text: str) -> None:
        """A word to the user."""
        self.inner.on_note(text)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"
