"""The device's copy of a page table: equal to the host's, for the price of what has changed."""

from __future__ import annotations

import random

import torch

from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.cuda.kv.device_page_table import DevicePageTable

PADDING = 99


def make_pair(num_rows: int, max_pages: int) -> tuple[ReqToTokenPool, DevicePageTable]:
    pool = ReqToTokenPool(num_rows, max_pages, PADDING)
    table = DevicePageTable(num_rows, max_pages, PADDING, torch.device("cpu"))
    table.follow(pool)
    return pool, table


def send(table: DevicePageTable) -> int:
    """How many entries it took."""
    updates = table.updates()
    table.apply(torch.from_numpy(updates))
    return updates.shape[1]


def test_it_is_equal_after_any_writes() -> None:
    rng = random.Random(1)
    pool, table = make_pair(6, 9)
    rows: list[int] = []
    for _ in range(300):
        if rows and rng.random() < 0.2:
            pool.free(rows.pop(rng.randrange(len(rows))))
        elif pool.num_free_rows and rng.random() < 0.4:
            rows.append(pool.allocate())
        elif rows:
            start = rng.randrange(9)
            pages = [rng.randrange(90) for _ in range(rng.randint(0, 9 - start))]
            pool.write_pages(rng.choice(rows), start, pages)
        if rng.random() < 0.5:
            send(table)
            assert table.table[:6].tolist() == pool.page_table.tolist()
    assert table.table[table.padding_row].tolist() == [PADDING] * 9


def test_only_what_is_new_is_sent() -> None:
    pool, table = make_pair(4, 8)
    one, two = pool.allocate(), pool.allocate()
    pool.write_pages(one, 0, [5, 6, 7])
    assert send(table) == 3
    assert send(table) == 0
    pool.write_pages(one, 3, [8])
    pool.write_pages(two, 0, [9])
    pool.write_pages(one, 0, [5, 6, 7])  # as they were
    assert send(table) == 2
    pool.free(one)
    assert send(table) == 4
    assert pool.take_changes() == {}


def test_another_scheduler_begins_anew() -> None:
    pool, table = make_pair(2, 3)
    pool.write_pages(pool.allocate(), 0, [1, 2, 3])
    send(table)
    other = ReqToTokenPool(2, 3, PADDING)
    table.follow(other)
    other.write_pages(other.allocate(), 0, [4])
    send(table)
    assert table.table[:2].tolist() == other.page_table.tolist()
