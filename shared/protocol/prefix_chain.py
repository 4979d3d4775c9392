"""Hashes that name the prefixes of a token sequence, block by block.

They are hints: whoever has a prefix tells its hashes, and a request whose prompt begins with it may
be sent there. Nothing but speed depends on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.request import ImageSpan

BLOCK_TOKENS = 32
HASH_BYTES = 8

_BLOCK_BYTES = 4 * BLOCK_TOKENS


def with_image_ids(packed_ids: bytes, images: Sequence[ImageSpan]) -> bytes:
    """The prompt with parts of the images' digests in the place of their tokens.

    All images have the same tokens, and must not count as the same prefix.
    """
    if not images:
        return packed_ids
    ids = bytearray(packed_ids)
    for image in images:
        start = min(4 * image.start, len(ids))
        end = min(start + 4 * image.num_tokens, len(ids))
        digest = hashlib.sha256(image.digest).digest()
        ids[start:end] = (digest * ((end - start) // len(digest) + 1))[: end - start]
    return bytes(ids)


class PrefixChain:
    """`hashes[i]` names the first (i + 1) * BLOCK_TOKENS tokens, within a namespace: that of the
    public prefix as far as its blocks go, then one's own.

    Each hash covers the one before it: where a hash is known, the whole prefix is.
    """

    def __init__(
        self, namespace: bytes, packed_ids: bytes = b"", public: PublicPrefix | None = None
    ) -> None:
        self.hashes: list[bytes] = []
        self._num_public = 0 if public is None else public.num_tokens // BLOCK_TOKENS
        self._namespace = namespace
        self._last = public.namespace if public is not None and self._num_public else namespace
        self._tail = b""  # ids of the block that is still incomplete
        self.extend(packed_ids)

    def extend(self, packed_ids: bytes) -> None:
        """More tokens of the sequence, four bytes each."""
        data = self._tail + packed_ids
        end = len(data) - len(data) % _BLOCK_BYTES
        for start in range(0, end, _BLOCK_BYTES):
            block = data[start : start + _BLOCK_BYTES]
            if self._num_public and len(self.hashes) == self._num_public:
                self._last += self._namespace
            self._last = hashlib.blake2b(self._last + block, digest_size=HASH_BYTES).digest()
            self.hashes.append(self._last)
        self._tail = data[end:]


def join_hashes(hashes: list[bytes]) -> bytes:
    """The hashes as they travel: one after the other."""
    return b"".join(hashes)


def split_hashes(data: bytes) -> list[bytes]:
    """What `join_hashes` has joined; an incomplete one at the end is left out."""
    end = len(data) - len(data) % HASH_BYTES
    return [data[start : start + HASH_BYTES] for start in range(0, end, HASH_BYTES)]
