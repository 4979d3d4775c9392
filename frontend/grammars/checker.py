"""Tries grammars before they are accepted, in child processes with bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

import frontend
from frontend.grammars.trial import CPU_LIMIT_S, LENGTH
from shared.errors import InvalidRequest, ServiceUnavailable
from shared.protocol.sampling import Grammar
from shared.telemetry.log import get_logger

NUM_CHILDREN = 2
MAX_KNOWN = 1024
MAX_KNOWN_BYTES = 8 << 20
START_TIMEOUT_S = 30.0
TRIAL_TIMEOUT_S = 10.0  # of the clock: the child itself ends at its limit of CPU time

log = get_logger(__name__)


class GrammarChecker:
    """It has two trials at a time at most; the others wait. Outcomes are remembered.

    A child is started when it is needed first, and again when a grammar was the end of it.
    """

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._seats = asyncio.Semaphore(NUM_CHILDREN)
        self._known: OrderedDict[Grammar, str] = OrderedDict()  # to what is wrong with it
        self._num_known_bytes = 0

    async def check(self, grammar: Grammar, param: str) -> None:
        """Raises InvalidRequest, or ServiceUnavailable when no child can be had."""
        error = self._known.get(grammar)
        if error is None:
            error = await self._try(grammar)
            self._remember(grammar, error)
        else:
            self._known.move_to_end(grammar)
        if error:
            raise InvalidRequest(f"'{param}' cannot be used: {error}", param=param)

    def close(self) -> None:
        for child in self._idle:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        self._idle.clear()

    async def _try(self, grammar: Grammar) -> str:
        try:
            async with self._child() as child, asyncio.timeout(TRIAL_TIMEOUT_S):
                return await _ask(child, msgspec.msgpack.encode(grammar))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            log.warning("grammar_ended_its_trial", kind=grammar.kind, num=len(grammar.text))
            return f"it takes more than {CPU_LIMIT_S:g} s to compile, or too much memory"

    @contextlib.asynccontextmanager
    async def _child(self) -> AsyncIterator[Process]:
        """One to oneself; it is ended when anything goes wrong, for it may still be at work."""
        async with self._seats:
            child = self._idle.pop() if self._idle else await _start()
            is_well = False
            try:
                yield child
                is_well = True
            finally:
                if is_well:
                    self._idle.append(child)
                else:
                    with contextlib.suppress(ProcessLookupError):
                        child.kill()
                    await child.wait()

    def _remember(self, grammar: Grammar, error: str) -> None:
        self._known[grammar] = error
        self._num_known_bytes += len(grammar.text)
        while len(self._known) > MAX_KNOWN or self._num_known_bytes > MAX_KNOWN_BYTES:
            forgotten, _ = self._known.popitem(last=False)
            self._num_known_bytes -= len(forgotten.text)


async def _start() -> Process:
    assert frontend.__file__ is not None
    folder = str(Path(frontend.__file__).parent.parent)
    python_path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "frontend.grammars.trial",
            stdin=PIPE,
            stdout=PIPE,
            env=os.environ | {"PYTHONPATH": python_path, "RAYON_NUM_THREADS": "1"},
        )
    except OSError as exc:
        raise ServiceUnavailable("Grammars cannot be checked now.") from exc
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await _answer(child)
    except (TimeoutError, asyncio.IncompleteReadError) as exc:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        raise ServiceUnavailable("Grammars cannot be checked now.") from exc
    return child


async def _ask(child: Process, frame: bytes) -> str:
    assert child.stdin is not None
    child.stdin.write(LENGTH.pack(len(frame)) + frame)
    await child.stdin.drain()
    return await _answer(child)


async def _answer(child: Process) -> str:
    assert child.stdout is not None
    (body_len,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
    return (await child.stdout.readexactly(body_len)).decode()
