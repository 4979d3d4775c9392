"""One process at a time makes what a cache lacks; nobody waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path

from worker.engine.device.cache_lock import cache_lock


def test_one_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    with cache_lock(path := tmp_path / "folder" / "x.lock", 10.0) as is_ours:
        assert is_ours

        def second() -> None:
            with cache_lock(path, 10.0) as is_mine:
                order.append(f"second {is_mine}")

        thread = threading.Thread(target=second)
        thread.start()
        with cache_lock(path, 0.1) as is_free:
            assert not is_free
        order.append("first")
    thread.join()
    assert order == ["first", "second True"]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with cache_lock(tmp_path / "file" / "x.lock", 10.0) as is_ours:
        assert not is_ours
