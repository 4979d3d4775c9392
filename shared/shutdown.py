"""How a process is asked to stop: once to drain, twice to leave now, three times to be gone."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from shared.event_wait import wait_event
from shared.log import get_logger

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = get_logger(__name__)


class Shutdown:
    """`asked` is set by the first SIGTERM or SIGINT, `hurried` by the second.

    From then on the signals have their default action: a third one ends the process at once, even
    if its event loop hangs.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._is_listening = False

    def listen(self) -> None:
        """Take the signals; call it inside the running loop."""
        self._is_listening = True
        loop = asyncio.get_running_loop()
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, self.ask)

    def ask(self) -> None:
        """As a signal does."""
        if not self.asked.is_set():
            self.asked.set()
            return
        log.info("hurried")
        self.hurried.set()
        if self._is_listening:
            self._is_listening = False
            loop = asyncio.get_running_loop()
            for signum in _SIGNALS:
                loop.remove_signal_handler(signum)
                signal.signal(signum, signal.SIG_DFL)

    def force(self) -> None:
        """The process must leave, whoever asks: as if the second signal had come."""
        self.asked.set()
        self.hurried.set()

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
