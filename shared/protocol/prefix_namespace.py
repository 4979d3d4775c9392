"""Which cached prefixes a request may share."""

from __future__ import annotations

import functools
import hashlib

import msgspec

NUM_BYTES = 16
_NUM_KEPT = 1024


class PublicPrefix(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a prompt that an operator has declared, and that all tenants share.

    Only what is declared text as a whole, page or block, is found under its namespace. What comes
    behind it is the tenant's own, and is found by nobody else.
    """

    namespace: bytes
    num_tokens: int


def prefix_namespace(revision: str, adapter: str, cache_salt: str) -> bytes:
    """Equal for requests whose equal tokens have equal keys and values, and that may know it.

    `revision` is the weights', `adapter` names what is put on top of them, and `cache_salt` keeps
    those apart who must not find out, by time or usage, what others have asked.
    """
    return _digest(b"jetflock-prefix", revision, adapter, cache_salt)


def public_namespace(revision: str, adapter: str) -> bytes:
    """That of declared prefixes: no salt, whatever it is, makes it."""
    return _digest(b"jetflock-public", revision, adapter)


@functools.lru_cache(maxsize=_NUM_KEPT)
def _digest(person: bytes, *parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=NUM_BYTES, person=person)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.digest()
