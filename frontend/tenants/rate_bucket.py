"""A rate per minute, as a bucket that fills up steadily."""

from __future__ import annotations


class RateBucket:
    """Holds a minute's worth at most. What is taken beyond it is a debt, paid off before the rest.

    `now` is in seconds, of any clock that does not go back.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        """What can be taken; below 0 after more was taken than there was."""
        filled = self._level + (now - self._at) * self.per_minute / 60
        return min(filled, float(self.per_minute))

    def take(self, count: float, now: float) -> None:
        """Takes so much, even if it is not there; less than nothing gives back."""
        self._level = self.level(now) - count
        self._at = now

    def lower_to(self, level: float, now: float) -> None:
        """Somebody knows that there is no more than this."""
        self._level = min(self.level(now), level)
        self._at = now

    def take_reported(self, count: float, level: float, now: float) -> None:
        """Somebody has taken `count` over an unknown time, after which there is `level` at most.

        Of what was taken long ago the place has been filled up again.
        """
        self.take(min(count, max(0.0, self.per_minute - level)), now)
        self.lower_to(level, now)

    def wait_s(self, count: float, now: float) -> float:
        """Until so much is there, or the bucket is full."""
        missing = min(count, self.per_minute) - self.level(now)
        return max(0.0, missing * 60 / self.per_minute)

    def resized(self, per_minute: int, now: float) -> RateBucket:
        """The same under another limit: what is there stays, as far as it fits."""
        bucket = RateBucket(per_minute, now)
        bucket.lower_to(self.level(now), now)
        return bucket
