"""How many tokens to guess for one request, by how its guesses have fared."""

from __future__ import annotations

MAX_WAIT = 32  # steps
FIRST_DRAFTS = 4  # most first guesses are wrong


class DraftPace:
    """How much one request should guess: more after a step that confirmed all, else fewer.

    After a step that confirmed none, some steps go without: their number doubles each time.
    """

    def __init__(self, max_drafts: int) -> None:
        self._max_drafts = max_drafts
        self._num_drafts = min(max_drafts, FIRST_DRAFTS)
        self._num_waits = 0  # of the last wait
        self._num_waits_left = 0

    @property
    def is_due(self) -> bool:
        return self._num_waits_left == 0

    def next_num_drafts(self) -> int:
        """How many the step that is being planned may have; counts as one step."""
        if self.is_due:
            return self._num_drafts
        self._num_waits_left -= 1
        return 0

    def on_result(self, num_drafted: int, num_accepted: int) -> None:
        if num_accepted == 0:
            self._num_waits = min(MAX_WAIT, max(1, 2 * self._num_waits))
            self._num_waits_left = self._num_waits
            self._num_drafts = max(1, self._num_drafts // 2)
            return
        self._num_waits = 0
        if num_accepted == num_drafted:
            self._num_drafts = min(self._max_drafts, 2 * self._num_drafts)
        else:
            self._num_drafts = num_accepted + 1
