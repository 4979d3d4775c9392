"""How a process is asked to stop: once to drain, twice to leave now, three times to be gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable

from shared.event_wait import wait_event
from shared.telemetry.log import get_logger

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEAVE_S = 10.0  # to leave, beside the time that is given to what runs
_TOO_LATE = 1  # status

log = get_logger(__name__)


class Shutdown:
    """`asked` is set by the first SIGTERM or SIGINT, `hurried` by the second.

    From then on the signals have their default action: a third one ends the process at once, even
    if its event loop hangs. Who listens is gone in time, whatever it waits for: the process ends
    when its grace and the time to leave are over.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._is_listening = False
        self._grace_s: Callable[[], float] | None = None
        self._leave_s = LEAVE_S
        self._last_resort: threading.Timer | None = None

    def listen(
        self, grace_s: Callable[[], float] | None = None, *, leave_s: float = LEAVE_S
    ) -> None:
        """Take the signals; call it inside the running loop.

        `grace_s` tells how long what runs may take; without it nothing ends the process.
        """
        self._is_listening = True
        self._grace_s, self._leave_s = grace_s, leave_s
        loop = asyncio.get_running_loop()
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, self.ask)

    def ask(self) -> None:
        """Asks for it as a signal does."""
        if not self.asked.is_set():
            self.asked.set()
            self._end_process_after(0.0 if self._grace_s is None else self._grace_s())
            return
        log.info("hurried")
        self.hurried.set()
        self._end_process_after(0.0)
        if self._is_listening:
            self._is_listening = False
            loop = asyncio.get_running_loop()
            for signum in _SIGNALS:
                loop.remove_signal_handler(signum)
                signal.signal(signum, signal.SIG_DFL)

    async def ask_when(self, event: asyncio.Event) -> None:
        await event.wait()
        self.ask()

    def force(self) -> None:
        """The process must leave, whoever asks: as if the second signal had come."""
        self.asked.set()
        self.hurried.set()
        self._end_process_after(0.0)

    def call_off(self) -> None:
        """The role has ended, and the process goes on: nothing ends it any more."""
        if self._last_resort is not None:
            self._last_resort.cancel()

    def _end_process_after(self, grace_s: float) -> None:
        if self._grace_s is None:
            return
        if self._last_resort is not None:
            self._last_resort.cancel()
        self._last_resort = threading.Timer(grace_s + self._leave_s, _end_process)
        self._last_resort.daemon = True
        self._last_resort.start()

    async def grace(self, done: asyncio.Event, timeout_s: float) -> bool:
        """Wait for `done`, for `timeout_s` at most, and no longer when hurried. Whether it came."""
        hurried = asyncio.create_task(self.hurried.wait())
        finished = asyncio.create_task(wait_event(done, timeout_s))
        try:
            await asyncio.wait({hurried, finished}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (hurried, finished):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return done.is_set()


def _end_process() -> None:
    log.error("left_by_force")
    os._exit(_TOO_LATE)
