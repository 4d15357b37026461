"""Recording: what attention was given, kept while a model runs."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
