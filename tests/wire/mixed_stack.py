"""Roles of two builds in one service, and streams through any of them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from shared.protocol.log_records import Claim
from shared.protocol.role_cards import LevelRecord
from tests.detok.scripted import owners
from tests.e2e.role_stack import SCRIPTED, RoleProcess, RoleStack
from tests.e2e.streams import Stream, completion_body
from tests.eventually import eventually_async

_LEAVE_AT_ONCE = ("--shutdown-timeout-s", "0")


@dataclass(frozen=True)
class Trio:
    """One role of each kind, of one build."""

    build: str
    frontend: RoleProcess
    detok: RoleProcess
    worker: RoleProcess


class Mix(NamedTuple):
    """Of which build those were that a stream went through."""

    frontend: str
    worker: str
    detok: str


class MixedStack:
    """The ids of processes begin with the name of their build."""

    def __init__(self, folder: Path, builds: dict[str, Path], first: str) -> None:
        self._builds = builds
        self._num_ids = 0
        self._name = first
        self.stack = RoleStack(
            folder, "--ack-wait-s", "3", role_flags=self._role_flags, first_level=1
        )
        self.stack.build = builds[first]

    def _role_flags(self, role: str) -> list[str]:
        self._num_ids += 1
        flags = [f"--{role}-id", f"{self._name}-{role}-{self._num_ids}"]
        return flags if role == "detok" else [*flags, *_LEAVE_AT_ONCE]

    async def hold_level(self, level: int) -> None:
        """It stays until somebody orders another one, whatever the roles alive know."""
        stored = await self.stack.cluster.level.read()
        await self.stack.cluster.level.put(LevelRecord(level, is_held=True), stored.revision)

    def first(self) -> Trio:
        """With the frontend and the detokenizer that the stack has started."""
        frontend, detok = self.stack.roles
        return Trio(self._name, frontend, detok, self.stack.start_worker(*SCRIPTED))

    def start_frontend(self, build: str) -> RoleProcess:
        self._name, self.stack.build = build, self._builds[build]
        return self.stack.start_frontend()

    def start(self, build: str) -> Trio:
        frontend = self.start_frontend(build)
        return Trio(build, frontend, self.stack.start_detok(), self.stack.start_worker(*SCRIPTED))

    async def until_shared(self, *builds: str) -> None:
        """Until a detokenizer of each build owns partitions, and its worker is ready."""

        async def is_shared() -> bool:
            return {_build_of(owner) for owner in (await self._owners()).values()} == set(builds)

        await self.stack.wait_ready(len(builds))
        await eventually_async(is_shared, 30.0)

    async def mix_of(self, trio: Trio, stream: Stream) -> Mix:
        """By whom it was read, computed and decoded."""
        cluster = self.stack.cluster
        records = await cluster.ownership.read(stream.rid)
        [worker] = {each.record.worker for each in records if isinstance(each.record, Claim)}
        detok = (await self._owners())[str(cluster.subjects.partition(stream.rid))]
        return Mix(trio.build, _build_of(worker), _build_of(detok))

    async def _owners(self) -> dict[str, str]:
        return await owners(self.stack.cluster)


def _build_of(process_id: str) -> str:
    return process_id.split("-")[0]


async def leave(role: RoleProcess) -> None:
    """As a rolling upgrade asks it to."""
    await asyncio.to_thread(role.stop)


async def read_whole(stream: Stream, first_url: str, then_url: str, **fields: Any) -> None:
    """As a client does whose frontend leaves in the middle: it goes on at another one."""
    with contextlib.suppress(httpx.HTTPError):
        await stream.post(first_url, completion_body(**fields))
    while not stream.is_done:
        assert stream.error is None, stream.error
        with contextlib.suppress(httpx.HTTPError):
            await stream.resume(then_url)
