"""The span of a request at its detokenizer: from its first record to its stored result."""

from __future__ import annotations

from detok.decode_status import DecodeStatus
from shared.telemetry.tracing import Tracer, epoch_ns


class DecodeSpans:
    """Records each at its end. Whoever takes a partition over records the whole, as it read it."""

    def __init__(self, tracer: Tracer, detok_id: str) -> None:
        self._tracer = tracer
        self._detok_id = detok_id

    def record(self, status: DecodeStatus, partition: int) -> None:
        """Its result is stored."""
        if not self._tracer.is_on:
            return
        reply, finish = status.reply, status.fold.finish
        if reply is None or reply.trace is None or not reply.trace.is_sampled or finish is None:
            return
        span = self._tracer.start(
            "detokenize",
            parent=reply.trace,
            attributes={
                "jetflock.request_id": status.rid,
                "jetflock.choice": reply.choice_idx if reply.num_choices > 1 else None,
                "jetflock.detok": self._detok_id,
                "jetflock.partition": partition,
                "jetflock.epochs": status.num_claims,
                "jetflock.epoch": status.fold.epoch or None,
                "jetflock.output_tokens": len(status.fold.tokens) + finish.num_beam_tokens,
                "jetflock.finish_reason": finish.reason.value,
            },
            at_ns=epoch_ns(status.met_at),
        )
        span.end()
