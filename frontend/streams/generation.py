"""One running group of requests as this frontend holds it: its streams, and who reads them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from frontend.jobs.job import Caller
from frontend.jobs.stored_response import ResponseView
from frontend.text.text_stream import TextStream, needs_token_texts
from frontend.text.token_texts import TokenTexts
from shared.errors import (
    DeadlineExceeded,
    InternalError,
    NotFound,
    Poisoned,
    RecordsLost,
    RequestCancelled,
    RequestError,
    ServiceUnavailable,
)
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.reply import ReplyParams, Surface
from shared.telemetry.histograms import EventHistogram
from shared.telemetry.tracing import NO_SPAN, Span

_WITH_TOKEN_IDS = (Surface.GENERATE, Surface.GENERATE_SO_FAR, Surface.RESPONSES)
_WITHOUT_TEXT = (
    Surface.EMBEDDINGS,
    Surface.OLLAMA_EMBED,
    Surface.SCORE,
    Surface.RERANK,
    Surface.CLASSIFY,
    Surface.POOLING,
)


class Interrupt(enum.Enum):
    """Why a stream is cut before its requests have finished."""

    CLIENT_GONE = "client_gone"
    SHUTDOWN = "shutdown"
    NO_RESULT = "no_result"  # ended long ago, and no detokenizer said so
    RECORDS_LOST = "records_lost"  # by NATS: what was shown, or the request itself


class Interrupted(Exception):
    """The stream must be closed now; the requests may run on."""

    def __init__(self, interrupt: Interrupt) -> None:
        super().__init__(interrupt.value)
        self.interrupt = interrupt


@dataclass(slots=True)
class Timings:
    """Readings of the event loop's clock."""

    arrived_at: float
    first_text_at: float = 0.0
    last_text_at: float = 0.0

    def note_text(self, now: float, inter_token_latency: EventHistogram) -> None:
        """Text goes to the client."""
        if self.first_text_at == 0.0:
            self.first_text_at = now
        else:
            inter_token_latency.observe(now - self.last_text_at)
        self.last_text_at = now


@dataclass(slots=True, eq=False)
class Generation:
    """One group of requests and the one client that reads it.

    `deadline_at` and all other times are of the event loop's clock. Streams with news wait in
    `_news`, each at most once, until `wait` has returned and `take_news` was called.
    """

    group_id: str
    pool: str
    timings: Timings
    deadline_at: float
    queue_timeout_at: float = float("inf")  # inf also when it has been dealt with
    grace_s: float = 0.0
    client_id: str = ""  # what its client calls it
    tenant: str = ""  # id of the one it counts for
    span: Span = NO_SPAN  # ends with the answer
    token_texts: TokenTexts | None = None  # where a choice tells logprobs
    labels: Sequence[str] = ()  # of /classify: the model's
    response: ResponseView | None = None  # of /v1/responses
    is_resumed: bool = False
    is_stored: bool = False  # its requests are in the queue, or have been
    streams: list[TextStream] = field(default_factory=list)
    interrupt: Interrupt | None = None
    is_expired: bool = False  # somebody is about to end it for its deadline
    is_hopeless: bool = False  # somebody is about to end what no worker has claimed
    looks_on: bool = False  # beside those who read it: nothing ends, or goes on, for its sake
    is_watched: bool = True  # false once nobody reads: no replays are asked for it
    keepalive_s: float = 0.0  # 0: none
    last_sent_at: float = 0.0
    _news: list[TextStream] = field(default_factory=list)
    _keepalive_due: bool = False
    _waiter: asyncio.Future[None] | None = None
    _take_at_once: Callable[[Sequence[TextStream]], bool] | None = None  # while its reader waits
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def age_s(self) -> float:
        """Since its requests were queued, by what is left of their time."""
        budget_s = self.streams[0].reply.deadline_s
        left_s = self.deadline_at - self._loop.time()
        return max(0.0, budget_s - left_s) if budget_s else 0.0

    @classmethod
    def of(
        cls,
        choices: Sequence[tuple[str, ReplyParams]],
        caller: Caller,
        *,
        pool: str,
        arrived_at: float,
        remaining_s: float,
        queue_timeout_s: float,
        token_texts: TokenTexts | None,
        labels: Sequence[str] = (),
    ) -> Self:
        """Makes it of all choices' rids and replies, in order.

        `remaining_s` and `queue_timeout_s` count from now; a queue timeout of 0 is none.
        """
        now = asyncio.get_running_loop().time()
        first = choices[0][1]
        generation = cls(
            group_id=first.group_id,
            pool=pool,
            timings=Timings(arrived_at),
            deadline_at=now + remaining_s,
            queue_timeout_at=now + queue_timeout_s if queue_timeout_s else float("inf"),
            grace_s=first.grace_s if caller.grace_s is None else caller.grace_s,
            tenant=caller.tenant.id,
            client_id=caller.client_id,
            span=caller.span,
            token_texts=token_texts if needs_token_texts(first) else None,
            labels=labels if first.surface is Surface.CLASSIFY else (),
        )
        by_tokens = first.surface in _WITH_TOKEN_IDS
        counts_reasoning = first.answer is not None and first.answer.reasoning_end_id is not None
        keep_token_ids = (
            by_tokens or counts_reasoning or first.tells_token_ids or needs_token_texts(first)
        )
        generation.streams.extend(
            TextStream(rid, reply, generation.on_news, keep_token_ids=keep_token_ids, now=now)
            for rid, reply in choices
        )
        return generation

    @property
    def reply(self) -> ReplyParams:
        """The reply data of the first choice: what all choices have in common."""
        return self.streams[0].reply

    @property
    def surface(self) -> Surface:
        return self.reply.surface

    @property
    def route(self) -> str:
        """The API that it came through, as logs name it."""
        surface = self.surface
        return (Surface.GENERATE if surface is Surface.GENERATE_SO_FAR else surface).value

    def is_called(self, client_id: str) -> bool:
        """Whether its client has this name for all of it, or for a prompt."""
        return self.client_id == client_id or bool(self.called(client_id))

    def called(self, client_id: str) -> list[TextStream]:
        """The choices of the prompt with this name; all of them where it names the whole."""
        if self.client_id == client_id:
            return self.streams
        return [stream for stream in self.streams if stream.reply.rid == client_id]

    @property
    def is_detached(self) -> bool:
        """It runs on without readers."""
        return not self.reply.frontend_id

    @property
    def is_finished(self) -> bool:
        for stream in self.streams:  # noqa: SIM110 - looked at often
            if stream.finish is None:
                return False
        return True

    @property
    def token_s(self) -> float | None:
        """The mean time of a token behind the first, of one choice that is streamed to its end."""
        text_s = self.timings.last_text_at - self.timings.first_text_at
        num_behind_first = self.streams[0].num_output_tokens - 1
        if len(self.streams) > 1 or not self.is_finished or not text_s or num_behind_first < 1:
            return None
        return text_s / num_behind_first

    def on_news(self, stream: TextStream) -> None:
        """A stream has text or its finish, or is torn."""
        if stream.is_torn:
            self.cut(Interrupt.RECORDS_LOST)
        elif stream not in self._news:
            self._news.append(stream)
        self._wake()

    def keepalive(self) -> None:
        """Nothing was sent for a while: let the reader say that the stream is alive."""
        self._keepalive_due = True
        self._wake()

    def cut(self, interrupt: Interrupt) -> None:
        """Make the reader stop. The first reason stays."""
        if self.interrupt is None:
            self.interrupt = interrupt
        self._wake()

    async def wait(
        self, take_at_once: Callable[[Sequence[TextStream]], bool] | None = None
    ) -> None:
        """Until there are news, or a keepalive is due. Raises Interrupted.

        Meanwhile `take_at_once` is called with news as they come: whether it has taken them, so
        that nobody need be woken. What it raises is raised here.
        """
        self._take_at_once = take_at_once
        try:
            while not self._news and not self._keepalive_due and self.interrupt is None:
                self._waiter = self._loop.create_future()
                await self._waiter
        finally:
            self._take_at_once = None
        if self.interrupt is not None:
            raise Interrupted(self.interrupt)
        self._keepalive_due = False

    async def wait_finished(self) -> None:
        """Until every choice has finished, or one of them failed. Raises Interrupted."""
        while not self.is_finished and self.failure() is None:
            await self.wait()
            self._news.clear()

    async def wait_news(self) -> None:
        """Until there are news; they are dropped. For when nobody reads any more."""
        while not self._news:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._news.clear()

    def take_news(self) -> Sequence[TextStream]:
        """The streams that have something to take, oldest news first."""
        news, self._news = self._news, []
        return news

    def failure(self) -> RequestError | None:
        """The error that a client gets when a choice did not end by itself."""
        for stream in self.streams:
            if stream.finish is not None:
                error = error_of(stream)
                if error is not None:
                    return error
        return None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None:
            return
        if waiter.done():
            self._waiter = None
            return
        try:
            if self._have_been_taken():
                return
        except Exception as exc:  # its reader's: who brings the news has others to tell
            waiter.set_exception(exc)
        else:
            waiter.set_result(None)
        self._waiter = None

    def _have_been_taken(self) -> bool:
        """Whether its reader has taken the news, and has nothing else to hear."""
        take = self._take_at_once
        if take is None or self._keepalive_due or self.interrupt is not None:
            return False
        if not take(self._news):
            return False
        self._news.clear()
        return True


def error_of(stream: TextStream) -> RequestError | None:
    """None when the stream ended by itself: stop or length."""
    assert stream.finish is not None
    return failure_of(stream.finish, stream.reply)


def failure_of(finish: Finish, reply: ReplyParams) -> RequestError | None:
    """The same of a finish alone."""
    match finish.reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            if reply.surface in _WITHOUT_TEXT and not finish.embedding:
                return InternalError("The worker's build makes no embeddings or scores.")
            if reply.num_beams and not finish.beams:
                return InternalError("The worker's build makes no beam search.")
            return None
        case FinishReason.CANCEL:
            return RequestCancelled(finish.message or "The request was cancelled.")
        case FinishReason.DEADLINE:
            return DeadlineExceeded(
                finish.message or "The request's deadline passed before it was finished."
            )
        case FinishReason.QUEUE_TIMEOUT:
            return DeadlineExceeded(
                "No worker could take the request within "
                f"{reply.queue_timeout_s:g} s (queue_timeout_s).",
                code="queue_timeout",
            )
        case FinishReason.UNSERVED:
            return ServiceUnavailable(
                finish.message or "Nobody serves the model.", code="model_not_served"
            )
        case FinishReason.POISON:
            return Poisoned(
                finish.message or "The request was given up: every worker that ran it crashed."
            )
        case FinishReason.WEIGHTS_REPLACED:
            return ServiceUnavailable(
                finish.message
                or "The model's weights were replaced before the request was finished.",
                code="weights_replaced",
            )
        case FinishReason.ADAPTER_UNLOADED:
            return NotFound(
                finish.message or "The LoRA adapter was unloaded before the request was finished.",
                code="adapter_unloaded",
            )
        case FinishReason.ERROR:
            return InternalError(finish.message or "The engine could not finish it.")


def error_of_interrupt(interrupt: Interrupt, group_id: str) -> RequestError:
    """What a client without a stream gets."""
    match interrupt:
        case Interrupt.CLIENT_GONE:
            return RequestCancelled("The client is gone.")
        case Interrupt.SHUTDOWN:
            return ServiceUnavailable(
                f"This frontend is shutting down; the request runs on: GET /v1/streams/{group_id}"
            )
        case Interrupt.NO_RESULT:
            return ServiceUnavailable(
                "The request's deadline passed, and no detokenizer has told its result: "
                f"GET /v1/streams/{group_id}"
            )
        case Interrupt.RECORDS_LOST:
            return RecordsLost(group_id)
