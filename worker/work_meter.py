"""What a worker has worked off since its start: by this a scaler knows what a worker is worth."""

from __future__ import annotations

from shared.protocol import WorkDone
from worker.held_request import HeldRequest


class WorkMeter:
    """Counts prompt tokens when their first output comes, output tokens when they are made."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_finished = 0
        self._num_finished_tokens = 0

    def done(self, num_redelivered: int) -> WorkDone:
        """As of now, beside the deliveries that were not the first."""
        return WorkDone(
            num_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_finished_tokens=self._num_finished_tokens,
            num_redelivered=num_redelivered,
        )

    def note_output(self, held: HeldRequest, num_prefill_before: int, num_new: int) -> None:
        """A run has made `num_new` tokens; so much prefill was before it until then."""
        if held.finish is not None or not held.num_prefill_tokens:
            self._num_tokens += num_prefill_before
        self._num_tokens += num_new
        if held.finish is not None:
            self._num_finished += 1
            num_prompt = held.request.reply.num_prompt_tokens - held.finish.num_cached_tokens
            self._num_finished_tokens += max(0, num_prompt) + len(held.tokens)
