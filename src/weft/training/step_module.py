"""What a training step calls: the task's loss as the forward pass of one module, which torch can wrap and spread."""

from __future__ import annotations

from torch import Tensor, nn

from weft.tasks.task import Batch, Task


class StepModule(nn.Module):
    """(sum of the losses, auxiliary loss or None) of a batch; `model` is the model itself, or the same compiled."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor | None]:
        loss = self.task.loss(self.model, batch, smoothing)
        return loss.total, loss.auxiliary
