"""Pauses the engine while the log takes no more for the moment, or is nearly full."""

from __future__ import annotations

from shared.storage.stream_room import ENGINE_MARK, StreamRoom
from worker.engine_child.engine_host import EngineHost
from worker.runs.token_log import TokenLog


class EnginePause:
    """Asked after each step, twice a second while it is on or requests are held, as a paused engine
    makes none, and else now and then.
    """

    def __init__(self, engine: EngineHost, token_log: TokenLog, room: StreamRoom) -> None:
        self._engine = engine
        self._token_log = token_log
        self._room = room
        self.is_on = False  # as the engine was told: nothing is pulled meanwhile

    def update(self) -> None:
        """Tell the engine whether it must pause now."""
        self.is_on = self._token_log.is_overfull or self._room.is_above(ENGINE_MARK)
        self._engine.set_stalled(self.is_on)
