"""Which cached prefixes a request may share."""

from __future__ import annotations

import hashlib

NUM_BYTES = 16


def prefix_namespace(revision: str, adapter: str, cache_salt: str) -> bytes:
    """Equal for requests whose equal tokens have equal keys and values, and that may know it.

    `revision` is the weights', `adapter` names what is put on top of them, and `cache_salt` keeps
    those apart who must not find out, by time or usage, what others have asked.
    """
    digest = hashlib.blake2b(digest_size=NUM_BYTES, person=b"jetflock-prefix")
    for part in (revision, adapter, cache_salt):
        data = part.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.digest()
