"""How many more requests this worker has room for."""

from __future__ import annotations

from collections.abc import Iterable

from worker.engine_link.engine_messages import EngineLoad, EngineReady
from worker.held.held_request import HeldRequest

# Output that a request is expected to need beyond what it has: admission is optimistic, since the
# engine can retract, but not so much that it must.
_EXPECTED_OUTPUT = 256
_MEAN_WEIGHT = 0.1


class CreditPolicy:
    """Late binding: what does not fit now stays in the queue, where another worker can take it."""

    def __init__(self) -> None:
        self._mean_need = 0.0  # KV tokens of a request, exponentially averaged

    def note(self, held: HeldRequest) -> None:
        """A request has come: learn what one needs."""
        need = self._need(held)
        weight = _MEAN_WEIGHT if self._mean_need else 1.0
        self._mean_need += weight * (need - self._mean_need)

    def num_credits(
        self, ready: EngineReady, load: EngineLoad | None, held: Iterable[HeldRequest]
    ) -> int:
        """Requests to ask for, beyond those that are held."""
        if load is not None and load.num_free_slots <= 0:
            return 0
        active = [request for request in held if request.is_active]
        num_slots = ready.max_running - len(active)
        if num_slots <= 0:
            return 0
        if not active:
            return num_slots if self._mean_need == 0 else max(1, self._fitting(ready, 0, num_slots))
        if load is not None and load.num_waiting_tokens > 2 * ready.max_step_tokens:
            return 0
        return self._fitting(ready, sum(self._need(request) for request in active), num_slots)

    @staticmethod
    def has_slot(ready: EngineReady, held: Iterable[HeldRequest], num_reserved: int = 0) -> bool:
        """Whether one more can run at all, beside what is held and what a place is kept for."""
        return num_reserved + sum(request.is_active for request in held) < ready.max_running

    def _fitting(self, ready: EngineReady, num_committed: int, num_slots: int) -> int:
        num_free = ready.num_kv_tokens - num_committed
        return max(0, min(num_slots, int(num_free / max(1.0, self._mean_need))))

    @staticmethod
    def _need(held: HeldRequest) -> int:
        request = held.request
        num_left = request.sampling.max_tokens - len(held.tokens)
        expected = min(max(0, num_left), _EXPECTED_OUTPUT)
        return request.reply.num_prompt_tokens + len(held.tokens) + expected
