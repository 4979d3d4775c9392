from __future__ import annotations

import os
from pathlib import Path

from shared.machine.host_limits import available_memory_bytes, num_usable_cores

MEMINFO = "MemTotal: 100 kB\nMemAvailable: 50 kB\n"


def test_without_a_container_the_machine_is_the_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert num_usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert available_memory_bytes(tmp_path, meminfo) == 50 * 1024


def test_a_containers_quota_is_the_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("30000\n")
    (tmp_path / "memory.current").write_text("10000\n")
    assert num_usable_cores(tmp_path) == 1
    assert available_memory_bytes(tmp_path, meminfo) == 20000
    (tmp_path / "memory.stat").write_text("anon 4000\ninactive_file 5000\nactive_file 1000\n")
    assert available_memory_bytes(tmp_path, meminfo) == 25000


def test_a_container_without_a_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert num_usable_cores(tmp_path) == len(os.sched_getaffinity(0))
