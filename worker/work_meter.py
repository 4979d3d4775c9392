"""What a worker has worked off since its start: by this a scaler knows what a worker is worth."""

from __future__ import annotations

from shared.protocol.role_cards import WorkDone
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

    def note_tokens(self, num_tokens: int) -> None:
        """So many have been prefilled, or made."""
        self._num_tokens += num_tokens

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token."""
        assert held.finish is not None
        self._num_finished += 1
        num_prompt = held.request.reply.num_prompt_tokens - held.finish.num_cached_tokens
        num_output = len(held.tokens) + held.finish.num_beam_tokens
        self._num_finished_tokens += max(0, num_prompt) + num_output
