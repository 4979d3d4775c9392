"""Who is started, and who is chosen to leave."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from deploy.processes.kept_process import KeptProcess, Launch
from deploy.processes.worker_fleet import WorkerFleet
from deploy.scaling.scale_config import WorkerRange
from shared.errors import ConfigError
from shared.protocol.role_cards import WorkerRole
from tests.eventually import eventually

pytestmark = pytest.mark.e2e

SLEEP = "import signal; signal.pause()"


class Fleet:
    """Of processes that sleep, or run another script."""

    def __init__(self, script: str = SLEEP) -> None:
        self.script = script
        self.said: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.num_launched = 0
        self.fleet = WorkerFleet(self.make_kept, KeptProcess.run, self.tell, leave_timeout_s=5)

    def make_kept(self, idx: int, _role: WorkerRole) -> KeptProcess:
        def launch() -> Launch:
            self.num_launched += 1
            command = [sys.executable, "-c", self.script]
            return Launch(command, os.environ, f"{idx}-{self.num_launched}")

        return KeptProcess(str(idx), launch, self.said.append, self.said.append)

    async def tell(self, worker: str, state: str) -> None:
        self.told.append((worker, state))

    @property
    def names(self) -> list[str]:
        return sorted(kept.name for kept in self.fleet.members)


async def test_those_that_serve_nobody_leave_first() -> None:
    fleet = Fleet()
    async with asyncio.TaskGroup() as tasks:
        fleet.fleet.resize(4, "both", {}, tasks)
        await eventually(lambda: all(kept.pid for kept in fleet.fleet.members))
        assert fleet.told == [(f"{idx}-{idx + 1}", "starting") for idx in range(4)]
        fleet.fleet.resize(3, "both", {"0-1": 3, "1-2": 0, "3-4": 5}, tasks)
        assert fleet.names == ["0", "1", "3"], "2 is not ready"
        fleet.fleet.resize(1, "both", {"0-1": 3, "1-2": 0, "3-4": 5}, tasks)
        assert fleet.names == ["3"], "it has most to do"
        fleet.fleet.resize(0, "decode", {"3-4": 5}, tasks)
        assert fleet.names == ["3"], "it has another role"
        assert fleet.fleet.leaving_ids >= {"1-2", "0-1"}
        await eventually(lambda: not fleet.fleet.leaving_ids)
        await fleet.fleet.stop(5)


async def test_the_place_of_one_that_leaves_is_not_taken() -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('up'); "
    fleet = Fleet(stubborn + "signal.pause()")
    async with asyncio.TaskGroup() as tasks:
        fleet.fleet.resize(2, "both", {}, tasks)
        await eventually(lambda: len(fleet.said) == 2)
        fleet.fleet.resize(1, "both", {"0-1": 1}, tasks)
        fleet.fleet.resize(2, "both", {"0-1": 1}, tasks)
        assert fleet.names == ["0", "2"]
        await fleet.fleet.stop(0.1)


async def test_one_that_keeps_dying_stays_a_member_and_is_not_hurried() -> None:
    fleet = Fleet("raise SystemExit(2)")
    async with asyncio.TaskGroup() as tasks:
        fleet.fleet.resize(1, "both", {}, tasks)
        await eventually(lambda: sum("starting it again" in line for line in fleet.said) == 3)
        for _ in range(100):
            fleet.fleet.resize(1, "both", {}, tasks)
        delays = [line.rsplit(" ", 2)[1] for line in fleet.said]
        assert delays == ["0.2", "0.4", "0.8"]
        assert fleet.num_launched == 3
        await fleet.fleet.stop(5)


async def test_a_closed_fleet_starts_nobody() -> None:
    fleet = Fleet()
    async with asyncio.TaskGroup() as tasks:
        await fleet.fleet.stop(1)
        fleet.fleet.resize(3, "both", {}, tasks)
        assert fleet.names == []


def test_ranges() -> None:
    assert WorkerRange.parse("0..4") == WorkerRange(0, 4)
    assert WorkerRange.parse(3) == WorkerRange.parse("3") == WorkerRange(3, 3)
    assert str(WorkerRange(0, 4)) == "0 to 4"
    for wrong in ("0", "4..1", "0..0", "-1", "1..", "many", "1.5"):
        with pytest.raises(ConfigError, match="--workers is"):
            WorkerRange.parse(wrong)
