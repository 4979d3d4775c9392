"""Hashes of prefixes."""

from __future__ import annotations

import pytest

from shared.protocol.prefix_chain import (
    BLOCK_TOKENS,
    PrefixChain,
    join_hashes,
    split_hashes,
    with_image_ids,
)
from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.request import ImageSpan
from shared.protocol.token_ids import pack_token_ids


def hashes_of(token_ids: list[int], namespace: bytes = b"n") -> list[bytes]:
    return PrefixChain(namespace, pack_token_ids(token_ids)).hashes


def num_shared(left: list[bytes], right: list[bytes]) -> int:
    return sum(a == b for a, b in zip(left, right, strict=False))


def test_only_whole_blocks_count() -> None:
    lens = [0, BLOCK_TOKENS - 1, BLOCK_TOKENS, 3 * BLOCK_TOKENS + 1]
    assert [len(hashes_of([7] * num_tokens)) for num_tokens in lens] == [0, 0, 1, 3]


def test_a_token_changes_its_block_and_all_after_it() -> None:
    tokens = list(range(5 * BLOCK_TOKENS))
    other = list(tokens)
    other[2 * BLOCK_TOKENS] += 1
    left, right = hashes_of(tokens), hashes_of(other)
    assert [a == b for a, b in zip(left, right, strict=True)] == [True, True, False, False, False]


def test_equal_blocks_at_different_places_have_different_hashes() -> None:
    assert len(set(hashes_of([7] * 4 * BLOCK_TOKENS))) == 4


def test_namespaces_never_meet() -> None:
    tokens = [7] * 2 * BLOCK_TOKENS
    assert num_shared(hashes_of(tokens, b"a"), hashes_of(tokens, b"b")) == 0


@pytest.mark.parametrize("cut", [0, 1, BLOCK_TOKENS, BLOCK_TOKENS + 5])
def test_a_chain_may_come_in_pieces(cut: int) -> None:
    tokens = list(range(3 * BLOCK_TOKENS + 9))
    chain = PrefixChain(b"n", pack_token_ids(tokens[:cut]))
    chain.extend(pack_token_ids(tokens[cut:]))
    assert chain.hashes == hashes_of(tokens)


@pytest.mark.parametrize("cut", [0, 40, 2 * BLOCK_TOKENS])
def test_whole_blocks_of_a_public_prefix_are_everybodys(cut: int) -> None:
    tokens = list(range(5 * BLOCK_TOKENS))
    public = PublicPrefix(b"p", 2 * BLOCK_TOKENS + 5)

    def hashes(namespace: bytes, public: PublicPrefix | None = public) -> list[bytes]:
        chain = PrefixChain(namespace, pack_token_ids(tokens[:cut]), public)
        chain.extend(pack_token_ids(tokens[cut:]))
        return chain.hashes

    alice, bob = hashes(b"a"), hashes(b"b")
    same = [left == right for left, right in zip(alice, bob, strict=True)]
    assert same == [True, True, False, False, False]
    assert alice == hashes(b"a")
    assert not set(alice) & set(hashes(b"a", None))
    assert hashes(b"a", PublicPrefix(b"p", BLOCK_TOKENS - 1)) == hashes(b"a", None)


def test_hashes_travel_joined() -> None:
    hashes = hashes_of(list(range(3 * BLOCK_TOKENS)))
    assert split_hashes(join_hashes(hashes)) == hashes
    assert split_hashes(join_hashes(hashes)[:-1]) == hashes[:-1]


def test_images_count_by_their_digests() -> None:
    def hashes(digest: bytes, start: int = BLOCK_TOKENS) -> list[bytes]:
        ids = pack_token_ids([7] * 4 * BLOCK_TOKENS)
        span = ImageSpan(start, BLOCK_TOKENS, digest)
        return PrefixChain(b"n", with_image_ids(ids, [span])).hashes

    one, other = hashes(b"one"), hashes(b"other")
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False, False]
    assert hashes(b"one") == one
    assert num_shared(one, hashes(b"one", BLOCK_TOKENS + 1)) == 1
    assert num_shared(one, hashes_of([7] * 4 * BLOCK_TOKENS)) == 1


@pytest.mark.parametrize("span", [(3, 1 << 40), (1 << 50, 5), (0, 0)])
def test_images_that_cannot_be_there_change_no_length(span: tuple[int, int]) -> None:
    ids = pack_token_ids(list(range(10)))
    assert len(with_image_ids(ids, [ImageSpan(*span, b"")])) == len(ids)
