"""How much of the queue a class may fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frontend.inference.admission.drain_rate import QueueWatch
from frontend.models.model_directory import NamedModel
from shared.errors import QueueFull
from shared.protocol.model_cards import ModelCard
from shared.subjects import JOB_CLASSES

_BACKGROUND_SHARE = 0.5  # of the stream: what is behind it is kept for the urgent class


class QueueLimits:
    """Limits per model and class, beside the stream's own, which holds whatever is counted here.

    All but the urgent class may only use the first half of the stream, in messages and bytes, over
    all models: so they never crowd it out.
    """

    def __init__(
        self,
        watch: QueueWatch,
        max_of_class: dict[str, int],
        models: Callable[[], Sequence[NamedModel]],
    ) -> None:
        self._watch = watch
        self._max = max_of_class
        self._models = models

    def room(self, job_class: str) -> int:
        """How many more requests of a class the model may have that has the fewest."""
        pools = {model.card.pool for model in self._models()} or {""}
        num_queued = min(self._watch.num_known(pool, job_class) for pool in pools)
        return self._max[job_class] - num_queued

    def check(self, card: ModelCard, job_class: str, num_requests: int) -> None:
        """Whether so many more fit. Raises QueueFull."""
        limit = self._max[job_class]
        if self._watch.num_queued(card.pool, job_class) + num_requests > limit:
            raise QueueFull(
                f"The queue is full: {limit} {job_class} requests of '{card.name}' may wait or run "
                f"(--queue-max-{job_class}); try again later.",
                self._watch.drain.retry_after_s(num_requests),
            )
        if job_class != JOB_CLASSES[0] and self._watch.usage >= _BACKGROUND_SHARE:
            raise QueueFull(
                f"The queue is full for {job_class} requests: they may use half of it "
                "(--queue-max-msgs, --queue-max-bytes), and it is half full; try again later.",
                self._watch.drain.retry_after_s(num_requests),
            )
