"""What a worker has worked off since its start: by this a scaler knows what a worker is worth."""

from __future__ import annotations

from shared.protocol.role_cards import WorkDone
from shared.telemetry.metrics import count_of
from worker.engine_link.engine_messages import EngineLoad
from worker.held.held_request import HeldRequest
from worker.telemetry.worker_metrics import WorkerMetrics


class WorkMeter:
    """Counts prompt tokens when their first output comes, output tokens when they are made."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_finished = 0
        self._num_finished_tokens = 0

    def done(self, metrics: WorkerMetrics, load: EngineLoad | None) -> WorkDone:
        """As of now, beside what others have counted."""
        return WorkDone(
            num_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_finished_tokens=self._num_finished_tokens,
            num_redelivered=count_of(metrics.redeliveries),
            num_generated=count_of(metrics.generation_tokens),
            num_released=count_of(metrics.requests_released),
            num_fenced=count_of(metrics.requests_fenced),
            num_prefix_queries=load.num_prefix_queries if load else 0,
            num_prefix_hits=load.num_prefix_hits if load else 0,
        )

    def note_tokens(self, num_tokens: int) -> None:
        """So many have been prefilled, or made."""
        self._num_tokens += num_tokens

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token."""
        assert held.finish is not None
        self._num_finished += 1
        num_prompt = held.request.reply.num_prompt_tokens - held.finish.num_cached_tokens
        self._num_finished_tokens += max(0, num_prompt) + held.num_output_tokens
