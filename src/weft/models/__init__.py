"""Models: every classic model, assembled from parts by a frozen, validated, versioned spec."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
