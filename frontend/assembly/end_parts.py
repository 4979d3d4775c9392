"""What knows who reads a request, and ends those that nobody reads any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.inference.answers.attachments import Attachments
from frontend.inference.answers.open_answers import OpenAnswers
from frontend.inference.answers.terminator import Terminator
from frontend.inference.telemetry.recent_requests import RecentRequests


@dataclass(frozen=True, slots=True)
class EndParts:
    """Of one set of streams: a request is read by whoever has joined it there."""

    attachments: Attachments
    terminator: Terminator
    recent: RecentRequests
    answers: OpenAnswers

    @classmethod
    def of(cls, process: ProcessParts, streams: StreamParts) -> Self:
        cluster, frontend_id = streams.cluster, process.frontend_id
        metrics = process.metrics.answers
        bucket = cluster.bucket(cluster.subjects.attached_bucket)
        attachments = Attachments(bucket, frontend_id)
        terminator = Terminator(
            cluster, streams.catalog, streams.router, attachments, metrics, frontend_id
        )
        recent = RecentRequests(streams.router)
        answers = OpenAnswers(streams.router, terminator, recent, metrics, frontend_id)
        return cls(attachments, terminator, recent, answers)
