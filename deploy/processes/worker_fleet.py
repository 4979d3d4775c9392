"""The worker processes of this host: started, kept, and stopped when there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from deploy.processes.kept_process import KeptProcess
from shared.liveness.pool_events import STARTING
from shared.protocol.role_cards import WorkerRole

PublishState = Callable[[str, str], Awaitable[None]]  # worker id, state


class WorkerFleet:
    """Workers by index: the lowest free one is used first, one that leaves keeps its own.

    A worker that dies is started again by its KeptProcess, whose delays grow: it stays a member.
    """

    def __init__(
        self,
        make_kept: Callable[[int, WorkerRole], KeptProcess],
        run_kept: Callable[[KeptProcess], Awaitable[None]],
        publish_state: PublishState,
        leave_timeout_s: float,
    ) -> None:
        self._make_kept = make_kept
        self._run_kept = run_kept
        self._publish_state = publish_state
        self._leave_timeout_s = leave_timeout_s
        self._members: dict[int, KeptProcess] = {}
        self._leaving: dict[int, KeptProcess] = {}
        self._roles: dict[int, WorkerRole] = {}  # of both, as they were given
        self._is_closed = False

    @property
    def members(self) -> list[KeptProcess]:
        """Those that are to run."""
        return list(self._members.values())

    @property
    def roles(self) -> dict[str, WorkerRole]:
        """The role of each member, by its id as it was started last."""
        return {kept.launch.id: self._roles[idx] for idx, kept in self._members.items()}

    def size(self, role: WorkerRole) -> int:
        """Members that were given this role."""
        return len(self._of(role))

    @property
    def failure(self) -> str:
        """The last words of one, when all of them fail to start."""
        failures = [kept.failure for kept in self._members.values()]
        return failures[0] if failures and all(failures) else ""

    @property
    def leaving_ids(self) -> set[str]:
        return {kept.launch.id for kept in self._leaving.values()}

    def add(self, count: int, role: WorkerRole) -> list[KeptProcess]:
        """New members, not started yet."""
        added = []
        for _ in range(count):
            used = self._members.keys() | self._leaving.keys()
            idx = next(idx for idx in range(len(used) + 1) if idx not in used)
            self._roles[idx] = role
            self._members[idx] = self._make_kept(idx, role)
            added.append(self._members[idx])
        return added

    async def run_member(self, kept: KeptProcess) -> None:
        """Until it is stopped."""
        await self._publish_state(kept.launch.id, STARTING)
        await self._run_kept(kept)

    def resize(
        self, count: int, role: WorkerRole, loads: Mapping[str, int], tasks: asyncio.TaskGroup
    ) -> None:
        """Start or stop as many of a role as it takes; returns before they are up or gone.

        Who is not ready serves nobody, and goes first; then who has the fewest requests, which are
        handed over.
        """
        if self._is_closed:
            return
        members = self._of(role)
        for kept in self.add(count - len(members), role):
            kept.mark_ready()  # from now on a failure is nobody's but its own
            tasks.create_task(self.run_member(kept))
        by_worth = sorted(members, key=lambda idx: (self._load(idx, loads), -idx))
        for idx in by_worth[: max(0, len(members) - count)]:
            self._leaving[idx] = self._members.pop(idx)
            tasks.create_task(self._see_off(idx))

    @property
    def everybody(self) -> list[KeptProcess]:
        return [*self._members.values(), *self._leaving.values()]

    def close(self) -> None:
        """From now on nobody comes."""
        self._is_closed = True

    async def stop(self, timeout_s: float) -> None:
        """All of them, for good; returns when they are gone."""
        self.close()
        await asyncio.gather(*(kept.stop(timeout_s) for kept in self.everybody))

    def _of(self, role: WorkerRole) -> list[int]:
        return [idx for idx in self._members if self._roles[idx] == role]

    def _load(self, idx: int, loads: Mapping[str, int]) -> int:
        return loads.get(self._members[idx].launch.id, -1)

    async def _see_off(self, idx: int) -> None:
        await self._leaving[idx].stop(self._leave_timeout_s)
        del self._leaving[idx]
