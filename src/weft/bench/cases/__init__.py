"""One file per case of `weft bench`; `bench.registry` names them."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
