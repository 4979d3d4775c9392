"""Token ids as bytes: little-endian uint32, four bytes a token."""

from __future__ import annotations

import array
import sys
from collections.abc import Sequence

from shared.errors import MalformedMessage


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Ids in [0, 2**32)."""
    packed = array.array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def token_array(data: bytes) -> array.array[int]:
    """Raises MalformedMessage when the length is not a multiple of four."""
    if len(data) % 4:
        raise MalformedMessage(f"{len(data)} bytes are not a whole number of uint32 token ids")
    packed = array.array("I")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def unpack_token_ids(data: bytes) -> list[int]:
    """Raises MalformedMessage when the length is not a multiple of four."""
    return token_array(data).tolist()
