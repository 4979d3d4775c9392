"""What is counted of streams of text: what is lost of them, and read again."""

from __future__ import annotations

from frontend.metrics.metric_maker import MetricMaker
from shared.protocol.text import ReplayStatus


class StreamMetrics:
    """Of text on its way from detokenizers, and of clients that come back for it."""

    def __init__(self, make: MetricMaker) -> None:
        self.replays = make.counter(
            "replays", "Replays asked of detokenizers, by the status in the answer.", "status"
        )
        self.reply_gaps = make.counter(
            "reply_gaps", "Pieces of text that came before what precedes them: one was lost."
        )
        self.resumes = make.counter("resumes", "Streams resumed, by result.", "result")
        for status in (*ReplayStatus, "failed"):  # a rate cannot see the first of what was absent
            self.replays.labels(status)
        self.resumes.labels("ok")
