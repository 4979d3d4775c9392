"""Whether this worker can take requests, and how many more."""

from __future__ import annotations

from worker.credits import CreditPolicy
from worker.engine_host import EngineHost
from worker.held_request import HeldRequest
from worker.held_requests import HeldRequests
from worker.keeper import Keeper
from worker.token_log import TokenLog


class Room:
    """Asked for each pull and each delivery; once closed, there is none any more."""

    def __init__(
        self,
        engine: EngineHost,
        held_requests: HeldRequests,
        token_log: TokenLog,
        keeper: Keeper,
    ) -> None:
        self._engine = engine
        self._held_requests = held_requests
        self._token_log = token_log
        self._keeper = keeper
        self._credits = CreditPolicy()
        self.is_closed = False

    def close(self) -> None:
        """A drain has begun."""
        self.is_closed = True

    def note(self, held: HeldRequest) -> None:
        """A request has been taken: learn what one needs."""
        self._credits.note(held)

    @property
    def can_run(self) -> bool:
        """A hung engine takes nothing: what comes to it would only wait for the next worker."""
        return self._engine.ready is not None and not self.is_closed and self._keeper.is_alive

    @property
    def has_slot(self) -> bool:
        ready = self._engine.ready
        return ready is not None and self._credits.has_slot(ready, self._held_requests)

    def num_credits(self) -> int:
        """Requests to ask for, beyond those that are held."""
        ready = self._engine.ready
        if ready is None or not self.can_run or self._token_log.is_overfull:
            return 0
        return self._credits.num_credits(ready, self._engine.load, self._held_requests)
