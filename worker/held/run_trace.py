"""The spans of one request at one worker: it waited, was claimed, was prefilled, was decoded."""

from __future__ import annotations

import time

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release
from shared.protocol.request import GenerateRequest
from shared.protocol.trace_context import TraceContext
from shared.telemetry.tracing import Attributes, Span, SpanKind, Tracer, epoch_ns
from shared.token_log.ownership import StoredRecord
from worker.held.delivery import Delivery

_BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)


class RunTrace:
    """From a delivery until the request has finished here, or has left.

    All spans are children of the request's own, as those of the next worker will be: what a dead
    one has not sent leaves no orphans. Nothing is told before the claim is stored.
    """

    def __init__(
        self,
        tracer: Tracer,
        parent: TraceContext,
        worker_id: str,
        request: GenerateRequest,
        delivery: Delivery,
    ) -> None:
        reply = request.reply
        self._tracer = tracer
        self._parent = parent
        self._delivery = delivery
        self._common: Attributes = {
            "jetflock.request_id": request.rid,
            "jetflock.choice": reply.choice_idx if reply.num_choices > 1 else None,
            "jetflock.worker": worker_id,
        }
        self._num_prompt_tokens = reply.num_prompt_tokens
        self._delivered_ns = time.time_ns()
        self._epoch = 0
        # By the monotonic clock; 0: not yet.
        self._started_at = 0.0
        self._first_output_at = 0.0
        self._ended_at = 0.0
        self._ending: Attributes = {}
        self._error_type = ""
        self._engine_queue_s: float | None = None  # None: it still waits there
        self._has_traced_prefill = False
        self._decode: Span | None = None
        self.why_left = "fenced"  # said if it goes without a finish

    def on_started(self) -> None:
        """The engine was given it, for the first time or anew."""
        self._started_at, self._first_output_at = time.monotonic(), 0.0
        self._engine_queue_s = None

    def on_begun(self, queue_s: float) -> None:
        """The engine has put it into its batch: for the first time, or after it was retracted."""
        if self._engine_queue_s is None:
            self._engine_queue_s = queue_s
        elif self._decode is not None:
            self._decode.event("runs again after a retraction")

    def on_claimed(self, epoch: int, num_resumed: int, before: StoredRecord | None) -> None:
        """`before`: the record behind which the claim stands."""
        self._epoch = epoch
        self._trace_wait(before)
        self._trace_claim(num_resumed, before)
        self._trace_run()

    def on_output(self, finish: Finish | None, num_tokens: int) -> None:
        """Its first output has come, or its finish, or both in one."""
        now = time.monotonic()
        if not self._first_output_at:
            self._first_output_at = now
        if finish is not None:
            self._ended_at = now
            self._ending = {
                "jetflock.finish_reason": finish.reason.value,
                "jetflock.output_tokens": num_tokens,
                "jetflock.cached_tokens": finish.num_cached_tokens,
            }
            self._error_type = "" if finish.reason in _BY_ITSELF else finish.reason.value
        self._trace_run()

    def on_drop(self, num_tokens: int) -> None:
        """The worker forgets it."""
        if self._ended_at:
            return
        self._ended_at = time.monotonic()
        self._ending = {"jetflock.left": self.why_left, "jetflock.output_tokens": num_tokens}
        self._error_type = "crashed" if self.why_left == "crashed" else ""
        self._trace_run()

    def _trace_wait(self, before: StoredRecord | None) -> None:
        """From the broker's clock to ours. Since when one waits whose worker died, nobody knows."""
        since = self._delivery.queued_at
        if before is not None:
            if not isinstance(before.record, Release):
                return
            since = before.time
        attributes: Attributes = {
            "messaging.system": "nats",
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.message.id": self._delivery.rid,
            "messaging.message.body.size": len(self._delivery.data),
            "jetflock.lane": self._delivery.lane.token,
        }
        start_ns = min(int(since.timestamp() * 1e9), self._delivered_ns)
        span = self._span("queue wait", start_ns, attributes, SpanKind.CONSUMER)
        span.end(self._delivered_ns)

    def _trace_claim(self, num_resumed: int, before: StoredRecord | None) -> None:
        attributes: dict[str, str | int] = {
            "jetflock.deliveries": self._delivery.num_delivered,
            "jetflock.resumed_tokens": num_resumed,
        }
        if before is not None and isinstance(before.record, Claim | Release):
            attributes["jetflock.previous_worker"] = before.record.worker
            attributes["jetflock.hand_over"] = "died"
            if isinstance(before.record, Release):
                is_crash = before.record.crashed
                attributes["jetflock.hand_over"] = "crashed" if is_crash else "released"
        self._span("claim", self._delivered_ns, attributes).end()

    def _trace_run(self) -> None:
        """What is known of its stay in the engine, each part once."""
        if not self._epoch or not self._started_at:
            return
        if not self._has_traced_prefill and (self._first_output_at or self._ended_at):
            self._has_traced_prefill = True
            self._trace_prefill()
        if self._decode is None and self._has_decoded:
            start_ns = epoch_ns(self._first_output_at)
            self._decode = self._span("decode", start_ns, {})
            self._decode.event("first token", start_ns)
        if self._decode is not None and self._ended_at:
            self._finish(self._decode)

    @property
    def _has_decoded(self) -> bool:
        """Not what left while it was prefilled, or whose first output was its finish."""
        return 0.0 < self._first_output_at != self._ended_at

    def _trace_prefill(self) -> None:
        attributes: Attributes = {
            "jetflock.prompt_tokens": self._num_prompt_tokens,
            "jetflock.engine_queue_s": self._engine_queue_s,
        }
        span = self._span("prefill", epoch_ns(self._started_at), attributes)
        if self._has_decoded:
            span.end(epoch_ns(self._first_output_at))
        else:
            self._finish(span)

    def _finish(self, span: Span) -> None:
        span.set(self._ending)
        if "jetflock.left" in self._ending:
            span.event(self.why_left)
        if self._error_type:
            span.fail(self._error_type)
        span.end(epoch_ns(self._ended_at))

    def _span(
        self, name: str, start_ns: int, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        told = {**self._common, "jetflock.epoch": self._epoch, **attributes}
        return self._tracer.start(name, kind, parent=self._parent, attributes=told, at_ns=start_ns)


class RunTraces:
    """Begins them, where somebody records the trace."""

    def __init__(self, tracer: Tracer, worker_id: str) -> None:
        self._tracer = tracer
        self._worker_id = worker_id

    def begin(self, request: GenerateRequest, delivery: Delivery) -> RunTrace | None:
        if not self._tracer.is_on:
            return None
        parent = request.reply.trace
        if parent is None or not parent.is_sampled:
            return None
        return RunTrace(self._tracer, parent, self._worker_id, request, delivery)
