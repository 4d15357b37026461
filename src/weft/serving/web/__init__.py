"""What stands between the network and the endpoints: connections, keys, limits, errors, logs, metrics."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
