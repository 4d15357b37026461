"""Evaluation: metrics, scores of single examples, intervals, and simple methods beside the model."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
