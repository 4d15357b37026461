"""API keys: who a request comes from. Compared in constant time; only digests of keys are kept."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.serving.settings import is_loopback
from weft.serving.web.errors import ApiError

SCHEME = "bearer "
ANYONE = ""  # of a server without keys


@dataclass(frozen=True)
class Client:
    """Who asks: the beginning of the key's digest, which logs may show and the prefix cache is kept apart by."""

    name: str = ANYONE


class Keys:
    """The keys that a server accepts; without any, everyone on this machine is let in."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self.digests)

    def identify(self, headers: Mapping[bytes, bytes]) -> Client:
        """The client of a request; all keys are compared, so that the time says nothing about them."""
        if not self.digests:
            return Client()
        value = headers.get(b"authorization", b"").decode("latin-1")
        if not value:
            raise refusal("there is no API key: send the header authorization: Bearer KEY", "missing_api_key")
        given = value[len(SCHEME) :].strip() if value.lower().startswith(SCHEME) else ""
        digest = hashlib.sha256(given.encode("latin-1")).digest()
        same = [hmac.compare_digest(digest, known) for known in self.digests]
        if not any(same):
            raise refusal("this API key is not known here: check it", "invalid_api_key")
        return Client(digest.hex()[:12])


def refusal(message: str, code: str) -> ApiError:
    """401, with how to do it."""
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})


def expect_own_host(headers: Mapping[bytes, bytes]) -> None:
    """Without keys, a page of another site must not reach this server by a name that it points to this machine."""
    host = headers.get(b"host", b"").decode("latin-1")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if host and not is_loopback(name):
        raise ApiError(403, "this server has no API key, so it answers to localhost only", code="invalid_host")
