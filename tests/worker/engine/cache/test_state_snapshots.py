"""Who gives way when there are fewer slots for states than are wanted."""

from __future__ import annotations

import pytest

from worker.engine.cache.radix_node import RadixNode
from worker.engine.cache.state_snapshots import StateSnapshots


def put(snapshots: StateSnapshots, key: bytes) -> RadixNode:
    node = RadixNode(None, key, 0, 0)
    slot = snapshots.allocate()
    assert slot is not None
    snapshots.put(node, slot)
    return node


def test_the_least_recently_found_gives_way_and_pinned_ones_last() -> None:
    snapshots = StateSnapshots(3)
    first, second, third = (put(snapshots, key) for key in (b"1", b"2", b"3"))
    assert (first.snapshot, second.snapshot, third.snapshot) == (0, 1, 2)
    snapshots.use(first)
    second.pinned_until = 1.0
    version = snapshots.version
    assert [snapshots.allocate() for _ in range(4)] == [2, 0, 1, None]
    assert [each.snapshot for each in (first, second, third)] == [None, None, None]
    assert snapshots.version == version + 3
    snapshots.check_integrity([], [0, 1, 2])


def test_a_page_has_one_state_and_leaves_with_it() -> None:
    snapshots = StateSnapshots(2)
    node = put(snapshots, b"1")
    slot = snapshots.allocate()
    assert slot == 1
    snapshots.put(node, slot)
    assert (node.snapshot, snapshots.num_free, snapshots.num_cached) == (0, 1, 1)
    snapshots.forget(node)
    assert (snapshots.num_free, snapshots.num_cached) == (2, 0)


def test_half_of_the_slots_are_latest_states_at_most() -> None:
    snapshots = StateSnapshots(3)
    latest = snapshots.allocate_latest()
    assert latest == 0
    assert snapshots.allocate_latest() is None
    snapshots.free(snapshots.end_latest(latest))
    assert snapshots.allocate_latest() == 0
    assert StateSnapshots(1).allocate_latest() is None


def test_a_lost_slot_is_noticed() -> None:
    snapshots = StateSnapshots(2)
    snapshots.allocate()
    with pytest.raises(RuntimeError, match="not in one place each"):
        snapshots.check_integrity([], [])
