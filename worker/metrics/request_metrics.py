"""What becomes of requests: taken from the queue, offered to another worker, run, settled."""

from __future__ import annotations

from shared.protocol.finish import FinishReason
from shared.telemetry.histograms import REQUEST_S, STEP_TOKENS, TOKEN_S, TOKENS
from worker.held.held_request import HeldRequest
from worker.metrics.metric_maker import MetricMaker


class RequestMetrics:
    """Counts requests from their delivery to their acknowledgement."""

    def __init__(self, make: MetricMaker) -> None:
        counter = make.counter
        self.redeliveries = counter("redeliveries", "Deliveries that were not the first.")
        self.taken = counter("requests_taken", "Requests claimed.")
        self.resumed = counter("requests_resumed", "Requests taken over with tokens.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests taken.")
        self.quarantines = counter(
            "quarantines", "Requests run alone, since workers had died under them."
        )
        self.generation_tokens = counter("generation_tokens", "Tokens given to the log.")
        self.frames_resent = counter("frames_resent", "Frames sent again for want of an ack.")
        self.released = counter("requests_released", "Requests handed over.")
        self.fenced = counter("requests_fenced", "Requests lost to another worker.")
        self.finished = counter("requests_finished", "Requests acknowledged.")
        self.poison_ends = counter("poison_ends", "Requests given up, since workers died of them.")
        self.dead_discarded = counter(
            "dead_requests_discarded", "Given-up requests discarded, for want of room or for age."
        )
        self._model_name = make.model_name
        self._success = make.counters_as_needed(
            "request_success",
            "Requests that the engine has finished, by reason.",
            "finished_reason",
        )
        self._ended = make.counters_as_needed(
            "requests_ended",
            "Requests that were ended while this worker had them: cancelled, late, given up.",
            "reason",
        )
        for reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._success.labels(make.model_name, reason.value)
        for reason in (FinishReason.CANCEL, FinishReason.DEADLINE, FinishReason.POISON):
            self._ended.labels(make.model_name, reason.value)

    def note_taken(self, held: HeldRequest, *, is_resumed: bool) -> None:
        """Its claim is stored, and it runs: with tokens of another worker, or from its prompt."""
        self.taken.inc()
        self.prompt_tokens.inc(held.request.reply.num_prompt_tokens)
        if is_resumed:
            self.resumed.inc()

    def note_finish(self, held: HeldRequest) -> None:
        """The engine has finished it, and the log is given its last token."""
        assert held.finish is not None
        self._success.labels(self._model_name, held.finish.reason.value).inc()

    def note_end(self, reason: FinishReason) -> None:
        """Somebody has ended a request that was here."""
        self._ended.labels(self._model_name, reason.value).inc()


class RunMetrics:
    """Metrics of finished runs; what a client sees of them, frontends measure."""

    def __init__(self, make: MetricMaker) -> None:
        histogram = make.histogram
        self._queue_s = histogram(
            "request_queue_time_seconds",
            "Of a run, inside the worker before its first step; what waits in NATS is not in it.",
            REQUEST_S,
        )
        self._prefill_s = histogram(
            "request_prefill_time_seconds", "From its first step to its first token.", REQUEST_S
        )
        self._decode_s = histogram(
            "request_decode_time_seconds", "From its first token to its last.", REQUEST_S
        )
        self._inference_s = histogram(
            "request_inference_time_seconds", "From its first step to its last token.", REQUEST_S
        )
        self._token_s = histogram(
            "request_time_per_output_token_seconds",
            "Decode time of a run by its tokens behind the first.",
            TOKEN_S,
        )
        self._prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a finished request.", TOKENS
        )
        self._generation_tokens = histogram(
            "request_generation_tokens", "Output tokens of a finished request.", TOKENS
        )
        self.step_tokens = histogram(
            "iteration_tokens", "Tokens that went through the model in a step.", STEP_TOKENS
        )

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token, and says how that went."""
        assert held.finish is not None
        run = held.finish.run
        assert run is not None
        self._queue_s.observe(run.queue_s)
        self._prefill_s.observe(run.prefill_s)
        self._decode_s.observe(run.decode_s)
        self._inference_s.observe(run.prefill_s + run.decode_s)
        num_behind_first = len(held.tokens) - held.num_prefix - 1
        if num_behind_first > 0:
            self._token_s.observe(run.decode_s / num_behind_first)
        self._prompt_tokens.observe(held.request.reply.num_prompt_tokens)
        self._generation_tokens.observe(held.num_output_tokens)


class OfferMetrics:
    """Counts requests that are offered to the worker which holds their prefix."""

    def __init__(self, make: MetricMaker) -> None:
        counter = make.counter
        self.made = counter("offers_made", "Requests offered to the holder of a prefix.")
        self.taken = counter("offers_taken", "Of which it took.")
        self.refused = counter("offers_refused", "Of which it refused.")
        self.unanswered = counter("offers_unanswered", "Of which nobody answered in time.")
        self.affinity_tokens = counter(
            "affinity_tokens", "Prompt tokens known here, and not to the workers that offered them."
        )


class DecodeMetrics:
    """Counts requests that a worker which decodes could take over behind their prompt."""

    def __init__(self, make: MetricMaker) -> None:
        counter = make.counter
        self.moved = counter(
            "decodes_moved", "Requests that a worker which decodes took over behind their prompt."
        )
        self.kept = counter(
            "decodes_kept", "Times that none had room, so that this worker went on."
        )
        self.taken_back = counter(
            "decodes_taken_back", "Requests released to such a worker, which did not take them."
        )
