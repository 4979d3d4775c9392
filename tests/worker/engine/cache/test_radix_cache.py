from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.cache.radix_cache import RadixCache
from worker.engine.cache.radix_node import RadixNode


def insert(cache: RadixCache, path: str, first_page: int) -> RadixNode:
    """One page for each letter; held by nobody afterwards."""
    node, duplicates = insert_held(cache, path, first_page)
    assert duplicates == []
    cache.unlock(node)
    return node


def insert_held(cache: RadixCache, path: str, first_page: int) -> tuple[RadixNode, list[int]]:
    keys = [letter.encode() for letter in path]
    match = cache.match(keys)
    cache.lock(match.node)
    num_matched = len(match.pages)
    pages = range(first_page + num_matched, first_page + len(keys))
    result = cache.extend_lock(match.node, keys[num_matched:], pages)
    cache.check_integrity()
    return result.node, result.duplicates


def pages_of(cache: RadixCache, path: str) -> Sequence[int]:
    return cache.match([letter.encode() for letter in path]).pages


def test_the_longest_prefix_is_found() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, "abc", 10)
    insert(cache, "abx", 20)
    assert pages_of(cache, "abcd") == [10, 11, 12]
    assert pages_of(cache, "abxy") == [10, 11, 22]
    assert pages_of(cache, "b") == []


def test_pages_leave_oldest_first_and_leaves_first() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, "ab", 0)
    insert(cache, "cd", 10)
    pages_of(cache, "ab")  # used again
    assert cache.evict(1) == [11]
    assert cache.evict(2) == [10, 1]
    assert cache.evict(5) == [0]
    assert cache.num_cached_pages == 0
    cache.check_integrity()


def test_a_used_prefix_goes_after_its_unused_branch() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, "abc", 0)
    insert(cache, "x", 10)
    pages_of(cache, "a")
    assert cache.evict(4) == [2, 1, 10, 0]


def test_what_is_held_stays() -> None:
    cache = RadixCache(page_size=1)
    node, _ = insert_held(cache, "ab", 0)
    insert(cache, "abcd", 0)
    assert cache.num_evictable_pages == 2
    assert cache.evict(10) == [3, 2]
    cache.unlock(node)
    assert cache.evict(10) == [1, 0]


def test_two_holders_of_one_path() -> None:
    cache = RadixCache(page_size=1)
    first, _ = insert_held(cache, "ab", 0)
    second, _ = insert_held(cache, "abc", 0)
    cache.unlock(second)
    assert cache.evict(10) == [2]
    cache.unlock(first)
    assert cache.num_evictable_pages == 2


def test_a_second_insert_gives_its_pages_back() -> None:
    cache = RadixCache(page_size=1)
    insert(cache, "ab", 0)
    cache.lock(cache.root)
    result = cache.extend_lock(cache.root, [b"a", b"b", b"c"], [10, 11, 12])
    assert (result.pages, result.duplicates) == ([0, 1, 12], [10, 11])
    cache.unlock(result.node)
    assert cache.num_evictable_pages == 3


def test_a_match_tells_what_it_would_take_from_the_evictable() -> None:
    cache = RadixCache(page_size=1)
    insert_held(cache, "a", 0)
    insert(cache, "abc", 0)
    match = cache.match([b"a", b"b", b"c", b"d"])
    assert (len(match.pages), cache.num_unheld(match.node)) == (3, 2)


@given(st.lists(st.tuples(st.text("ab", max_size=5), st.sampled_from(["hold", "drop", "evict"]))))
def test_pages_are_neither_lost_nor_doubled(story: list[tuple[str, str]]) -> None:
    cache = RadixCache(page_size=1)
    held: list[RadixNode] = []
    next_page = 0
    out: set[int] = set()
    for path, act in story:
        if act == "evict":
            evicted = cache.evict(len(path))
            assert len(evicted) == min(len(path), len(evicted) + cache.num_evictable_pages)
            assert not out & set(evicted)
            out |= set(evicted)
        elif act == "drop" and held:
            cache.unlock(held.pop(len(path) % len(held)))
        else:
            node, duplicates = insert_held(cache, path, next_page)
            assert duplicates == []
            held.append(node)
            next_page += len(path)
        cache.check_integrity()
    pages = [node.page for node in cache.nodes()]
    assert len(set(pages)) == len(pages)
    for node in held:
        cache.unlock(node)
    assert sorted(cache.evict(10**6)) == sorted(pages)
    cache.check_integrity()


def test_pinned_pages_leave_after_all_others() -> None:
    cache = RadixCache(page_size=1, max_pinned_pages=4)
    node = insert(cache, "abc", 0)
    insert(cache, "xy", 10)
    cache.pin(node, 2, until=5.0)
    assert cache.num_pinned_pages == 2
    pages_of(cache, "xy")
    assert cache.evict(3) == [2, 11, 10]
    assert cache.evict(5) == [1, 0], "no lock: they go when nothing else is left"
    assert cache.num_pinned_pages == 0
    cache.check_integrity()


def test_a_pin_that_is_over_counts_for_nothing() -> None:
    cache = RadixCache(page_size=1, max_pinned_pages=4)
    first, second = insert(cache, "a", 0), insert(cache, "b", 1)
    cache.pin(first, 1, until=5.0)
    cache.pin(second, 1, until=7.0)
    cache.pin(second, 1, until=6.0)  # shorter: it stays as it was
    insert(cache, "x", 10)
    assert cache.evict(1) == [10], "both wait behind it"
    insert(cache, "y", 20)
    cache.end_pins(5.0)
    cache.check_integrity()
    assert cache.evict(1) == [0]
    cache.end_pins(6.5)
    assert cache.num_pinned_pages == 1
    assert cache.evict(2) == [20, 1]


def test_of_too_many_pins_the_oldest_give_way_from_their_end() -> None:
    cache = RadixCache(page_size=1, max_pinned_pages=4)
    cache.pin(insert(cache, "abc", 0), 3, until=9.0)
    cache.pin(insert(cache, "xy", 10), 2, until=9.0)
    cache.check_integrity()
    insert(cache, "z", 20)
    assert cache.evict(2) == [2, 20], "c is no more pinned than z, and older"
    cache.pin(insert(cache, "mnopqrs", 30), 7, until=9.0)
    cache.check_integrity()
    assert cache.num_pinned_pages == 4
    assert cache.evict(7) == [1, 0, 11, 10, 36, 35, 34]


def test_pins_that_come_and_go_leave_nothing_behind() -> None:
    cache = RadixCache(page_size=1, max_pinned_pages=3)
    node = insert(cache, "abc", 0)
    for now in range(1000):
        cache.pin(node, 1 + now % 3, until=now + 1.5)
        cache.end_pins(float(now) if now % 7 else now + 10.0)
        assert cache.evict(0) == []
        pages_of(cache, "abc")
        cache.check_integrity()
    assert len(cache._heap) < 100
