"""Training: the request, the plan, the race of sizes, the loop, optimizers, schedules, fine-tuning, and the result."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
