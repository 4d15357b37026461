"""Cluster: what training a model on many devices would take, from its spec and a table of devices. Nothing is run."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
