"""Results as text, JSON, a page and a picture."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
