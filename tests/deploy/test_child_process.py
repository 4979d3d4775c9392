"""A child's output, status and end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deploy.local.nats_child import FullStore
from deploy.processes import die_with_parent
from deploy.processes.kept_process import ChildProcess, KeptProcess, Launch
from tests.deploy.local_stack import any_alive
from tests.eventually import wait_until

pytestmark = pytest.mark.e2e


async def start(script: str, lines: list[str]) -> ChildProcess:
    return await ChildProcess.start([sys.executable, "-c", script], os.environ, lines.append)


async def test_lines_are_passed_on_and_the_last_ones_kept() -> None:
    lines: list[str] = []
    child = await start("import sys\nfor i in range(50): print(i)\nprint('end', end='')", lines)
    assert await child.wait() == 0
    assert lines == [*map(str, range(50)), "end"]
    assert list(child.tail)[-2:] == ["49", "end"]
    assert len(child.tail) == 20


async def test_an_endless_line_is_cut_rather_than_kept() -> None:
    lines: list[str] = []
    child = await start("print('x' * 300_000)", lines)
    assert await child.wait() == 0
    assert "".join(lines) == "x" * 300_000
    assert len(lines) > 1


async def test_status_tells_the_signal() -> None:
    child = await start("import os; os.kill(os.getpid(), 9)", [])
    assert await child.wait() == -9
    assert not child.is_running


async def test_a_server_whose_volume_was_full_is_started_anew(tmp_path: Path) -> None:
    """Once, and not before it has said so: its second start here finds space."""
    store, said = FullStore(tmp_path), asyncio.Queue[str]()
    (full := tmp_path / "full").touch()
    script = (
        f"import os, signal; is_full = os.path.exists({str(full)!r})\n"
        "print('write x.blk: no space left on device' if is_full else 'up', flush=True)\n"
        "signal.pause()"
    )

    def sink(line: str) -> None:
        store.note(line)
        full.unlink(missing_ok=True)
        said.put_nowait(line)

    launch = Launch([sys.executable, "-c", script], os.environ)
    kept = KeptProcess("nats", lambda: launch, sink, lambda words: None)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(kept.run())
        watching = tasks.create_task(store.watch(kept))
        assert (await said.get()).endswith("no space left on device")
        assert await said.get() == "up"
        watching.cancel()
        await kept.stop(5)


async def test_what_a_child_leaves_behind_is_killed() -> None:
    lines: list[str] = []
    script = "import subprocess; print(subprocess.Popen(['sleep', '100']).pid)"
    child = await start(script, lines)
    await asyncio.wait_for(child.wait(), 5)
    wait_until(lambda: not psutil.pid_exists(int(lines[0])) or _is_zombie(int(lines[0])))


def _is_zombie(pid: int) -> bool:
    return not any_alive([psutil.Process(pid)])


async def test_it_leads_a_process_group_of_its_own() -> None:
    lines: list[str] = []
    child = await start("import os; print(os.getpgrp() == os.getpid())", lines)
    await child.wait()
    assert lines == ["True"]


def test_a_child_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    script, mark = str(Path(die_with_parent.__file__)), tmp_path / "mark"
    not_our_pid = "1"
    done = subprocess.run([sys.executable, script, not_our_pid, "touch", mark], check=False)
    assert done.returncode == 1
    assert not mark.exists()
