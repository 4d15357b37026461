"""Progress of a training in a notebook: a bar that moves in its cell, with what was chosen and noted below it."""

from __future__ import annotations

from html import escape
from typing import Any

from weft.training.planning.plan import TrainingPlan
from weft.training.reporting import Reporter, TrainingProgress

KEPT = 8  # lines below the bar, the newest ones


class NotebookReporter(Reporter):
    """Drawn once and then changed in its place, by what every notebook has: no widgets need to be installed."""

    def __init__(self, title: str) -> None:
        from IPython.display import HTML, display

        self.title, self.status, self.share, self.lines = title, "", 0.0, list[str]()
        self._html: Any = HTML
        self._shown = display(HTML(self.html()), display_id=True)

    def html(self) -> str:
        """The bar and the lines, as they are now."""
        below = "".join(f"<div>{escape(line)}</div>" for line in self.lines[-KEPT:])
        return (
            f'<div><b>{escape(self.title)}</b> <progress max="1" value="{self.share:.4f}"></progress> '
            f'<span>{escape(self.status)}</span><div style="opacity:.75;font-size:90%">{below}</div></div>'
        )

    def _draw(self, line: str | None = None) -> None:
        if line is not None:
            self.lines.append(line)
        if self._shown is not None:  # None outside of a notebook's kernel
            self._shown.update(self._html(self.html()))

    def on_stage(self, stage: str) -> None:
        self.status = stage
        self._draw()

    def on_model(self, description: str) -> None:
        self._draw(f"model: {description}")

    def on_race(self, description: str) -> None:
        self._draw(f"race: {description}")

    def on_plan(self, plan: TrainingPlan, description: str) -> None:
        self._draw(f"plan: {description}")

    def on_step(self, progress: TrainingProgress) -> None:
        self.share = progress.step / max(progress.steps, 1)
        left = f", {progress.seconds_left:.0f} s left" if progress.step < progress.steps else ""
        self.status = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}{left}"
        self._draw()

    def on_evaluation(self, step: int, loss: float, best: bool) -> None:
        self._draw(f"step {step:,}: validation loss {loss:.4f}{'' if best else ' (not the best)'}")

    def on_note(self, text: str) -> None:
        self._draw(f"note: {text}")
