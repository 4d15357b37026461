"""Other libraries that Weft is compared with: what they are called, whether they are installed, how to install them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from weft.foundation.errors import WeftError


@dataclass(frozen=True)
class Peer:
    """A library: the module that is imported, and the package that pip installs; None for what is always there."""

    name: str
    module: str
    package: str | None = None
    note: str = ""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def missing(self) -> str:
        """A sentence that says how to install it."""
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.name} is not installed: pip install {self.package}{note}, or all peers: pip install 'weft[bench]'"
        )


PEERS = {
    peer.name: peer
    for peer in (
        Peer("plain", "torch"),
        Peer("torch", "torch"),
        Peer("transformers", "transformers", "transformers"),
        Peer("x-transformers", "x_transformers", "x-transformers"),
        Peer("llama.cpp", "llama_cpp", "llama-cpp-python", "compiles for about ten minutes"),
    )
}


def choose_peers(asked: Sequence[str] | None, useful: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(peers to run, a sentence for each that is missing) among those `useful` to a case."""
    for name in asked or ():
        if name not in PEERS:
            raise WeftError(f"there is no peer {name!r}: choose from {', '.join(PEERS)}")
    wanted = [name for name in useful if asked is None or name in asked]
    missing = tuple(PEERS[name].missing for name in wanted if not PEERS[name].installed)
    return tuple(name for name in wanted if PEERS[name].installed), missing
