"""Token ids as little-endian uint32."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import MalformedMessage
from shared.protocol.token_ids import pack_token_ids, unpack_token_ids


@given(st.lists(st.integers(0, (1 << 32) - 1)))
def test_ids_come_back(token_ids: list[int]) -> None:
    assert unpack_token_ids(pack_token_ids(token_ids)) == token_ids


def test_the_bytes_are_little_endian() -> None:
    assert pack_token_ids([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


@pytest.mark.parametrize("num_bytes", [1, 3, 6])
def test_a_broken_id_is_refused(num_bytes: int) -> None:
    with pytest.raises(MalformedMessage, match=f"{num_bytes} bytes"):
        unpack_token_ids(bytes(num_bytes))
