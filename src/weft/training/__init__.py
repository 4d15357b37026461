"""Training: the request, the plan, the loop, optimizers and schedules, fine-tuning, and the result."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
