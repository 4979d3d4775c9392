"""What is counted of batches."""

from __future__ import annotations

from frontend.metrics.metric_maker import MetricMaker


class BatchMetrics:
    """Of the batches that a frontend drives."""

    def __init__(self, make: MetricMaker) -> None:
        self.live = make.gauge("batches_live", "Batches that this frontend drives.")
        self.lines = make.counter(
            "batch_lines", "Lines of batches that are over: completed or failed.", "result"
        )
        for result in ("completed", "failed"):  # a rate cannot see the first of what was absent
            self.lines.labels(result)
