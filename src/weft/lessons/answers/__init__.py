"""Answers: one file per lesson, with its questions' solutions and the code that judges an answer."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
