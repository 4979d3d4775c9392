from __future__ import annotations

import pytest

from tests.worker.engine.fake_runner import Stage
from worker.engine.cache.page_allocator import PageAllocator
from worker.engine.cache.req_to_token_pool import ReqToTokenPool


def test_pages_are_handed_out_once() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(3)
    assert pages == [0, 1, 2]
    assert allocator.can_allocate(1)
    assert not allocator.can_allocate(2)
    allocator.free([1])
    assert allocator.allocate(2) == [1, 3]


def test_a_page_freed_twice_is_noticed() -> None:
    allocator = PageAllocator(4)
    allocator.free(allocator.allocate(1))
    with pytest.raises(AssertionError, match="page 0 freed twice"):
        allocator.free([0])


def test_a_freed_row_is_padding_again() -> None:
    pool = ReqToTokenPool(num_rows=2, max_pages=3, padding_page=9)
    row = pool.allocate()
    pool.write_pages(row, 1, [4, 5])
    assert pool.page_table[row].tolist() == [9, 4, 5]
    pool.free(row)
    assert pool.page_table.tolist() == [[9, 9, 9], [9, 9, 9]]
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(row)


def test_a_lost_page_is_noticed() -> None:
    stage = Stage()
    stage.add(1, [1, 2, 3])
    stage.step()
    stage.ledger.allocator.allocate(1)
    with pytest.raises(RuntimeError, match="1 pages lost"):
        stage.scheduler.check_integrity()


def test_a_page_in_two_places_is_noticed() -> None:
    stage = Stage()
    req = stage.add(1, [1, 2, 3])
    stage.step()
    page = stage.ledger.req_to_token.read_pages(req.row, 0, 1)[0]
    stage.ledger.allocator.allocate(1)
    stage.ledger.allocator.free([page])
    with pytest.raises(RuntimeError, match="in two places"):
        stage.scheduler.check_integrity()


def test_a_lost_lock_is_noticed() -> None:
    stage = Stage()
    req = stage.add(1, [1] * 9)
    stage.step()
    assert req.lock_node is not None
    stage.ledger.cache.unlock(req.lock_node)
    with pytest.raises(RuntimeError):
        stage.scheduler.check_integrity()
