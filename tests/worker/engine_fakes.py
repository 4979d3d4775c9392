"""Stand-ins for the two ends of the engine's socket, and builders of its commands."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from shared.protocol.finish import Finish
from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.request import KeepPrefix
from shared.protocol.sampling import PoolingParams, SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine_child.engine_process import EngineConnection, OnEvent, OnExit
from worker.engine_link.engine_channel import ChannelClosed, EngineChannel, EngineSocket
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineCommand,
    EngineEvent,
    RunImage,
    RunOptions,
    StepOutput,
)


def make_add(
    run_id: int,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int] = (),
    *,
    priority: int = 0,
    namespace: bytes = b"",
    pooling: PoolingParams | None = None,
    images: tuple[RunImage, ...] = (),
    adapter: str = "",
    keep: KeepPrefix | None = None,
    public: PublicPrefix | None = None,
    seeks_pages: bool = False,
    **sampling: Any,
) -> AddRequest:
    return AddRequest(
        run_id=run_id,
        prompt_ids=pack_token_ids(prompt_ids),
        output_ids=pack_token_ids(output_ids),
        options=RunOptions(
            sampling=SamplingParams(
                **({"max_tokens": 8, "seed": 7, "temperature": 0.0} | sampling)
            ),
            priority=priority,
            namespace=namespace,
            public=public,
            pooling=pooling,
            adapter=adapter,
            keep=keep,
            seeks_pages=seeks_pages,
        ),
        images=images,
    )


class FakeChannel:
    """An `EngineChannel` in memory. With nothing left to give, a wait moves the clock instead."""

    def __init__(self, *commands: EngineCommand) -> None:
        self.now = 0.0
        self.commands: list[EngineCommand] = list(commands)
        self.later: list[tuple[float, EngineCommand]] = []
        self.events: list[EngineEvent] = []
        self.sent_at: list[float] = []

    def clock(self) -> float:
        return self.now

    def poll(self, timeout_s: float) -> list[EngineCommand]:
        commands, self.commands = self.commands, []
        if not commands and timeout_s > 0:
            wake_at = min([self.now + timeout_s, *(at for at, _ in self.later)])
            self.now = max(self.now, wake_at)
        commands += [command for at, command in self.later if at <= self.now]
        self.later = [(at, command) for at, command in self.later if at > self.now]
        return commands

    def send(self, event: EngineEvent) -> None:
        self.events.append(event)
        self.sent_at.append(self.now)

    @property
    def steps(self) -> list[StepOutput]:
        return [event for event in self.events if isinstance(event, StepOutput)]

    def tokens(self) -> dict[int, list[int]]:
        return tokens_of(self.events)

    def finishes(self) -> dict[int, Finish]:
        return finishes_of(self.events)


def tokens_of(events: Sequence[EngineEvent]) -> dict[int, list[int]]:
    """New tokens by run."""
    tokens: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, StepOutput):
            for output in event.outputs:
                tokens.setdefault(output.run_id, []).extend(output.token_ids)
    return tokens


def finishes_of(events: Sequence[EngineEvent]) -> dict[int, Finish]:
    """How runs ended; asserts that none ended twice."""
    finishes: dict[int, Finish] = {}
    for event in events:
        if isinstance(event, StepOutput):
            for output in event.outputs:
                if output.finish is not None:
                    assert output.run_id not in finishes
                    finishes[output.run_id] = output.finish
    return finishes


class EngineThread:
    """An engine in a thread, behind the same socket and the same methods as EngineProcess."""

    def __init__(
        self, run_engine: Callable[[EngineChannel], None], on_event: OnEvent, on_exit: OnExit
    ) -> None:
        self._run_engine = run_engine
        self._on_exit = on_exit
        self._exited = asyncio.Event()
        self._connection = EngineConnection(on_event, self._on_closed)

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._connection, sock=ours)
        self._thread = threading.Thread(target=self._main, args=(theirs,), daemon=True)
        self._thread.start()

    def send(self, command: EngineCommand) -> None:
        self._connection.send(command)

    async def wait(self) -> int:
        await self._exited.wait()
        return 0

    async def stop(self, timeout_s: float) -> int:
        self._connection.close()
        async with asyncio.timeout(timeout_s):
            return await self.wait()

    def kill(self) -> None:
        self._connection.close()

    def _main(self, sock: socket.socket) -> None:
        channel = EngineSocket(sock)
        try:
            self._run_engine(channel)
        except ChannelClosed:
            pass
        finally:
            channel.close()

    def _on_closed(self) -> None:
        self._exited.set()
        self._on_exit(0)
