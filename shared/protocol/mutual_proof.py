"""Two sides of a connection prove to each other that they know one key, before either says more.

Who has connected says hello, with a nonce in it; who listens, a nonce and its proof; who has
connected, its own. Both proofs cover all that was said and whose they are: none can be sent back.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

NONCE_BYTES = 32
PROOF_BYTES = 32

Send = Callable[[bytes], object]
Receive = Callable[[int], bytes]  # so many bytes


class UnprovenPeer(Exception):
    """The other side does not know the key."""


def prove_to_listener(hello: bytes, key: bytes, send: Send, receive: Receive) -> bytes:
    """The side that has connected: what both have said. Raises UnprovenPeer."""
    send(hello)
    said = hello + receive(NONCE_BYTES)
    _check(receive(PROOF_BYTES), proof(key, b"listens", said))
    send(proof(key, b"connects", said))
    return said


def prove_to_caller(hello: bytes, key: bytes, send: Send, receive: Receive) -> bytes:
    """The side that listens, and was said hello: what both have said. Raises UnprovenPeer."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    said = hello + nonce
    send(nonce + proof(key, b"listens", said))
    _check(receive(PROOF_BYTES), proof(key, b"connects", said))
    return said


def proof(key: bytes, what: bytes, said: bytes) -> bytes:
    """That who knows the key has said so, as `what`."""
    return hmac.digest(key, what + b"\0" + said, hashlib.sha256)


def _check(given: bytes, wanted: bytes) -> None:
    if not hmac.compare_digest(given, wanted):
        raise UnprovenPeer("it does not know the key")
