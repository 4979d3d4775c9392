"""Who has which prefix."""

from __future__ import annotations

from shared.prefix_chain import BLOCK_TOKENS, PrefixChain
from tests.worker.checkpoints import make_weights
from worker.pool_prefixes import Holder, PoolPrefixes
from worker.prefix_set import PrefixSet


def make_hashes(*names: int) -> list[bytes]:
    return [name.to_bytes(8, "little") for name in names]


def make_chain(num_blocks: int, namespace: bytes = b"n") -> PrefixChain:
    return PrefixChain(namespace, bytes(4 * BLOCK_TOKENS * num_blocks))


def test_the_longest_known_prefix_is_found() -> None:
    known = PrefixSet(100)
    known.add(make_hashes(1, 2, 3, 4, 5))
    for num_known in range(6):
        chain = make_hashes(*range(1, num_known + 1), 91, 92, 93)
        assert known.num_matching(chain) == num_known
    assert known.num_matching(make_hashes(1, 2)) == 2
    assert known.num_matching([]) == 0


def test_adding_tells_what_is_new() -> None:
    known = PrefixSet(100)
    assert known.add(make_hashes(1, 2)) == make_hashes(1, 2)
    assert known.add(make_hashes(1, 2, 3)) == make_hashes(3)
    assert known.add(make_hashes(1, 2)) == []


def test_chains_are_forgotten_by_use_and_from_their_ends() -> None:
    known = PrefixSet(6)
    known.add(make_hashes(1, 2, 3))
    known.add(make_hashes(4, 5, 6))
    known.add(make_hashes(1, 2))
    assert known.recent(6) == make_hashes(1, 2, 4, 5, 6, 3)
    known.add(make_hashes(7, 8))
    assert known.recent(6) == make_hashes(7, 8, 1, 2, 4, 5)


def test_a_chain_longer_than_the_cache_keeps_its_beginning() -> None:
    known = PrefixSet(3)
    assert known.add(make_hashes(1, 2, 3, 4, 5)) == make_hashes(1, 2, 3)
    assert known.num_matching(make_hashes(1, 2, 3, 4, 5)) == 3


def test_without_a_cache_nothing_is_known() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    prefixes.note(make_chain(3))
    assert len(prefixes.own) == 0


async def test_only_what_is_new_is_told() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    prefixes.open(100 * BLOCK_TOKENS)
    prefixes.note(make_chain(2))
    prefixes.note(make_chain(3))
    assert await prefixes.next_untold() == make_chain(3).hashes
    prefixes.note(make_chain(3))
    prefixes.note(make_chain(4))
    assert await prefixes.next_untold() == make_chain(4).hashes[3:]


def test_the_other_worker_with_most_of_it_is_found() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    chain = make_chain(5)
    assert prefixes.best_other(chain) is None
    prefixes.learn("a", chain.hashes[:2])
    prefixes.learn("b", chain.hashes[:4])
    prefixes.learn("c", make_chain(5, b"other").hashes)
    assert prefixes.best_other(chain) == Holder("b", 4)
    prefixes.unlearn("b", chain)
    assert prefixes.best_other(chain) == Holder("a", 2)
    prefixes.keep_only(["b", "c"])
    assert prefixes.best_other(chain) is None


def test_a_new_engine_has_nothing() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    prefixes.open(100 * BLOCK_TOKENS)
    prefixes.note(make_chain(3))
    prefixes.open(100 * BLOCK_TOKENS)
    assert prefixes.own.num_matching(make_chain(3).hashes) == 0
