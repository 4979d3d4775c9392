"""Who has which prefix."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shared.protocol.prefix_chain import BLOCK_TOKENS, PrefixChain
from shared.protocol.request import GenerateRequest, KeepPrefix
from shared.protocol.token_ids import pack_token_ids
from tests.worker.checkpoints import make_weights
from tests.worker.io_stage import make_reply, make_request
from worker.affinity.pool_prefixes import Holder, PoolPrefixes, PrefixSet


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
    assert (await prefixes.next_unpublished()).hashes == make_chain(3).hashes
    prefixes.note(make_chain(3))
    prefixes.note(make_chain(4))
    assert (await prefixes.next_unpublished()).hashes == make_chain(4).hashes[3:]


def test_the_other_worker_with_most_of_it_is_found() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    chain = make_chain(5)
    assert prefixes.best_other(chain) is None
    prefixes.learn("a", chain.hashes[:2])
    prefixes.learn("b", chain.hashes[:4])
    prefixes.learn("c", make_chain(5, b"other").hashes)
    assert prefixes.best_other(chain) == Holder("b", 4)
    prefixes.unlearn("b", chain, make_request())
    assert prefixes.best_other(chain) == Holder("a", 2)
    prefixes.forget("a")
    assert prefixes.best_other(chain) is None
    assert prefixes.others == {"b", "c"}


def test_a_new_engine_has_nothing() -> None:
    prefixes = PoolPrefixes(make_weights("rev"))
    prefixes.open(100 * BLOCK_TOKENS)
    prefixes.note(make_chain(3))
    prefixes.open(100 * BLOCK_TOKENS)
    assert prefixes.own.num_matching(make_chain(3).hashes) == 0


def make_turn(num_blocks: int, session: str = "s", owner: str = "", **changes: Any) -> Turn:
    """A request of a conversation that has got so long, and its chain."""
    rid = "0" * 32
    reply = msgspec.structs.replace(make_reply(rid, num_blocks * BLOCK_TOKENS), owner=owner)
    prompt_ids = pack_token_ids([0] * (num_blocks * BLOCK_TOKENS))
    request = make_request(rid, prompt_ids=prompt_ids, reply=reply, session=session, **changes)
    return Turn(request, PoolPrefixes(make_weights("rev")).chain(request))


class Turn(NamedTuple):
    request: GenerateRequest
    chain: PrefixChain


async def tell(of: PoolPrefixes, worker: str, *others: PoolPrefixes) -> None:
    hashes, sessions = await of.next_unpublished()
    for other in others:
        other.learn(worker, hashes, sessions)


def make_pool(num_workers: int) -> list[PoolPrefixes]:
    pool = [PoolPrefixes(make_weights("rev")) for _ in range(num_workers)]
    for prefixes in pool:
        prefixes.open(100 * BLOCK_TOKENS, 50 * BLOCK_TOKENS)
    return pool


async def test_a_session_goes_home_where_the_prefix_alone_would_not_move_it() -> None:
    """All have 3 blocks, its worker has one more: too few to be offered for themselves."""
    puller, home = make_pool(2)
    first, second = make_turn(4), make_turn(5)
    puller.note(make_turn(3, "").chain)
    home.note(first.chain, first.request)
    await tell(home, "home", puller)
    assert puller.place_for(second.request, second.chain) == Holder("home", 4)
    assert home.num_gained(second.request, second.chain, 3) == BLOCK_TOKENS
    for other in (make_turn(5, ""), make_turn(5, "another"), make_turn(5, owner="somebody")):
        assert puller.place_for(other.request, other.chain) is None
        assert home.num_gained(other.request, other.chain, 3) == 0


async def test_of_two_that_have_about_as_much_the_session_decides() -> None:
    puller, home, other = make_pool(3)
    first, second = make_turn(4), make_turn(8)
    for num_blocks, expected in ((5, "home"), (6, "other")):
        home.note(first.chain, first.request)
        other.note(make_turn(num_blocks, "").chain)
        if num_blocks == 5:
            await tell(home, "home", puller, other)
        await tell(other, "other", puller, home)
        place = puller.place_for(second.request, second.chain)
        assert place is not None
        assert place.worker == expected


async def test_a_session_is_where_its_last_turn_ran() -> None:
    puller, before, after = make_pool(3)
    first, second, third = make_turn(4), make_turn(5), make_turn(6)
    before.note(first.chain, first.request)
    await tell(before, "before", puller, after)
    after.note(second.chain, second.request)
    await tell(after, "after", puller, before)
    assert puller.place_for(third.request, third.chain) == Holder("after", 5)
    assert before.num_gained(third.request, third.chain, 3) == 0, "it is no more its home"
    puller.unlearn("after", third.chain, third.request)
    puller.learn("after", second.chain.hashes[:1])
    assert puller.place_for(third.request, third.chain) == Holder("before", 4)


async def test_a_prompt_that_is_in_the_object_store_follows_its_session() -> None:
    puller, home = make_pool(2)
    first, second = make_turn(4), make_turn(9, prompt_object="prompt-1")
    second = Turn(msgspec.structs.replace(second.request, prompt_ids=b""), PrefixChain(b""))
    assert not puller.may_have_place(second.request)
    home.note(first.chain, first.request)
    await tell(home, "home", puller)
    assert puller.may_have_place(second.request)
    assert puller.place_for(second.request, second.chain) == Holder("home", 0)
    assert home.num_gained(second.request, second.chain, 0) == 4 * BLOCK_TOKENS
    home.own.clear()
    assert home.num_gained(second.request, second.chain, 0) == 0, "evicted meanwhile"


def test_what_is_kept_is_forgotten_after_all_others() -> None:
    now = 0.0
    known = PrefixSet(6, 2, clock=lambda: now)
    known.add(make_hashes(1, 2, 3))
    known.keep(make_hashes(1, 2), until=5.0)
    for name in range(10, 20):
        known.add(make_hashes(name))
    assert known.num_matching(make_hashes(1, 2, 3)) == 2
    now = 5.0
    for name in range(20, 26):
        known.add(make_hashes(name))
    assert known.num_matching(make_hashes(1, 2, 3)) == 0
    assert known.recent(6) == make_hashes(25, 24, 23, 22, 21, 20)


def test_no_more_is_kept_than_may_be() -> None:
    known = PrefixSet(4, 9, clock=lambda: 0.0)
    for names in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
        known.add(make_hashes(*names))
        known.keep(make_hashes(*names), until=5.0)
    assert len(known) == 4
    assert known.num_matching(make_hashes(7, 8, 9)) == 2


def test_of_a_request_its_prompt_is_kept() -> None:
    (prefixes,) = make_pool(1)
    turn = make_turn(3, keep=KeepPrefix(60.0, 2 * BLOCK_TOKENS + 5))
    turn.chain.extend(bytes(4 * BLOCK_TOKENS))
    prefixes.note(turn.chain, turn.request)
    prefixes.keep(turn.chain, turn.request)
    for name in range(200):
        prefixes.own.add(make_hashes(name))
    assert prefixes.own.num_matching(turn.chain.hashes) == 2


def test_a_declared_prefix_is_everybodys_and_never_more_than_the_prompt() -> None:
    alice = make_turn(4, num_public_tokens=2 * BLOCK_TOKENS + 3, cache_salt="a").chain.hashes
    bob = make_turn(4, num_public_tokens=2 * BLOCK_TOKENS + 3, cache_salt="b").chain.hashes
    assert [left == right for left, right in zip(alice, bob, strict=True)] == [
        True,
        True,
        False,
        False,
    ]
    prefixes = PoolPrefixes(make_weights("rev"))
    lies = make_turn(4, num_public_tokens=1 << 30).request
    public = prefixes.public(lies)
    assert public is not None
    assert public.num_tokens == 4 * BLOCK_TOKENS
    assert public != PoolPrefixes(make_weights("other")).public(lies)
    adapted = prefixes.public(msgspec.structs.replace(lies, adapter="x"))
    assert adapted is not None
    assert adapted.namespace != public.namespace
    assert prefixes.public(make_turn(4).request) is None
