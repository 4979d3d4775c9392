"""The answers that transports send: counted, cut at the end, observed when closed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from frontend.inference.answers.terminator import Terminator
from frontend.inference.telemetry.access_log import log_finished
from frontend.inference.telemetry.recent_requests import RecentRequest, RecentRequests
from frontend.inference.telemetry.server_span import end_with_answer
from frontend.metrics import AnswerMetrics
from frontend.streams.generation import Generation, Interrupt
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.answer import Answer
from frontend.surfaces.anthropic.message_events import MessageEvents
from frontend.surfaces.event_feed import EventFeed, Feed
from frontend.surfaces.ollama.answer_events import OllamaEvents
from frontend.surfaces.responses.feed import ResponseFeed
from frontend.surfaces.unnumbered_feed import UnnumberedFeed
from shared.protocol.reply import Surface


class OpenAnswers:
    """Each is opened once and closed once."""

    def __init__(
        self,
        router: ReplyRouter,
        terminator: Terminator,
        recent: RecentRequests,
        metrics: AnswerMetrics,
        frontend_id: str,
    ) -> None:
        self._router = router
        self._terminator = terminator
        self._recent = recent
        self._metrics = metrics
        self._frontend_id = frontend_id
        self.num_open = 0
        metrics.in_flight.set_function(lambda: self.num_open)
        self._is_cut = False
        self.all_closed = asyncio.Event()  # set while none is open
        self.all_closed.set()

    def open(
        self,
        generation: Generation,
        headers: Mapping[str, str],
        *,
        stream: bool,
        resumed: bool = False,
        starting_after: int = -1,
    ) -> Answer:
        """`starting_after`: the number of the last event that the reader of a response has."""
        self.num_open += 1
        self.all_closed.clear()
        if self._is_cut:  # it was on its way when the others were
            generation.cut(Interrupt.SHUTDOWN)
        latency = self._metrics.latency.inter_token
        surface = generation.surface
        feed: Feed
        if generation.response is not None:
            feed = ResponseFeed(generation, generation.response, latency, starting_after)
        elif surface is Surface.MESSAGES:
            feed = UnnumberedFeed(generation, MessageEvents(generation.streams[0]), latency)
        elif surface in (Surface.OLLAMA_CHAT, Surface.OLLAMA_GENERATE):
            feed = UnnumberedFeed(generation, OllamaEvents(generation), latency)
        else:
            feed = EventFeed(generation, latency)
        return Answer(generation, feed, stream, resumed, headers, self)

    def keep_alive(self, generation: Generation, interval_s: float) -> None:
        """Its reader is woken whenever nothing was sent for so long."""
        generation.last_sent_at = now = asyncio.get_running_loop().time()
        generation.keepalive_s = interval_s
        self._router.to_look_after.set(generation, now)

    def close(self, answer: Answer, status: int, transport: str) -> None:
        """The transport is done with it: nobody reads it here any more."""
        generation = answer.generation
        self.num_open -= 1
        if not self.num_open:
            self.all_closed.set()
        generation.keepalive_s = 0.0
        generation.is_watched = False
        request = RecentRequest.of(generation, status)
        log_finished(request, generation, transport, self._frontend_id)
        end_with_answer(answer, status, transport)
        if not generation.looks_on:
            self._recent.note_finished(request)
            self._observe(request, generation)
        if generation.is_finished:
            self._router.remove(generation)
            for text_stream in generation.streams:
                self._terminator.delete_prompt_later(text_stream.rid, text_stream.reply)
        elif generation.looks_on or generation.interrupt in (
            Interrupt.SHUTDOWN,
            Interrupt.NO_RESULT,
        ):
            self._router.remove(generation)
        elif generation.is_detached:
            self._terminator.let_run(generation)
        else:
            if answer.feed.error is not None:
                generation.grace_s = 0.0
            self._terminator.client_gone(generation)

    def cut_all(self) -> None:
        """Close what is open, and what is about to be: its requests run on."""
        self._is_cut = True
        for generation in self._router.generations:
            generation.cut(Interrupt.SHUTDOWN)

    def _observe(self, request: RecentRequest, generation: Generation) -> None:
        model, latency = request.model, self._metrics.latency
        success = self._metrics.request_success
        for stream in generation.streams:
            if stream.finish is not None:
                success.labels(model, stream.finish.reason.value).inc()
        if generation.is_resumed:
            return
        self._metrics.tokens.generated.labels(model).inc(request.num_output_tokens)
        if request.ttft_s is not None:
            latency.first_token.of(model).observe(request.ttft_s)
            token_s = generation.token_s
            if token_s is not None:
                latency.per_token.of(model).observe(token_s)
        if generation.is_finished and request.e2e_s is not None:
            num_hand_overs = sum(each.num_hand_overs for each in generation.streams)
            self._metrics.hand_overs.labels(model).inc(num_hand_overs)
            latency.whole.of(model).observe(request.e2e_s)
            self._metrics.tokens.of_request.of(model).observe(request.num_output_tokens)
