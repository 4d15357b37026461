"""Bodies of answers: choices, log-probabilities, usage, events of streams."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
