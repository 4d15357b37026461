"""Foundation: errors with a remedy, the legend of shape letters, specs, seeds, device and numerics policy."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
