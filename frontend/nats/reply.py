"""Answers to one caller over NATS: of a generation as one message, or as a message an event."""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors
from nats.aio.client import Client
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from frontend.http.error_response import retry_headers
from frontend.streams.generation import Interrupt, Interrupted, error_of_interrupt
from frontend.surfaces.answer import Answer
from frontend.text.event_writer import error_body
from shared.errors import RequestError, RequestTooLarge
from shared.nats_client.watched_client import message_bytes

_HEADER_ROOM = 1024
STATUS_HEADER = "Jetflock-Status"
REQUEST_ID_HEADER = "Jetflock-Request-Id"
EVENT_ID_HEADER = "Jetflock-Event-Id"
EVENT_BEFORE_HEADER = "Jetflock-Event-Before"  # id of the event before: was one lost?
KEEPALIVE_S = 2.0


def max_body_bytes(nc: Client) -> int:
    """The most that a part of a file may have, beside its headers."""
    return nc.max_payload - _HEADER_ROOM


class Reply:
    """Messages to the inbox of one caller, in order."""

    def __init__(self, nc: Client, subject: str) -> None:
        self._nc = nc
        self._subject = subject

    @property
    def max_payload(self) -> int:
        """Bytes of one message: another server may take more, or less."""
        return self._nc.max_payload

    def fits(self, data: bytes, headers: dict[str, str]) -> bool:
        """Whether one message has room for it: ids of many choices make long headers."""
        return message_bytes(data, headers) <= self.max_payload

    async def send(self, data: bytes, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(nats.errors.Error):  # the caller finds the result by its id
            await self._nc.publish(self._subject, data, headers=headers)

    async def send_error(self, error: RequestError, headers: dict[str, str]) -> None:
        await self.send(error_body(error), {**headers, **error_headers(error)})

    async def send_body(
        self, body: bytes, headers: dict[str, str], remedy: str = "over HTTP"
    ) -> int:
        """One message, or the error that it is too large for one. Returns the status."""
        if not self.fits(body, headers):
            error = RequestTooLarge(
                f"The answer has {len(body)} bytes, one NATS message takes {self.max_payload} "
                f"with its headers: ask {remedy}.",
            )
            await self.send_error(error, headers)
            return error.status_code
        await self.send(body, headers)
        return 200


def error_headers(error: RequestError) -> dict[str, str]:
    """The error convention of NATS micro services, and what HTTP tells in headers."""
    return {
        ERROR_HEADER: " ".join(error.message.split())[:500],
        ERROR_CODE_HEADER: str(error.status_code),
        **retry_headers(error),
    }


async def send_answer(answer: Answer, reply: Reply) -> int:
    """Send it to its end, and close it. Returns the status of the outcome."""
    status = 500
    try:
        if answer.stream:
            status = await _send_stream(answer, reply)
        else:
            status = await _send_whole(answer, reply)
    except asyncio.CancelledError:
        answer.generation.cut(Interrupt.SHUTDOWN)
        raise
    finally:
        answer.close(status, "nats")
    return status


async def _send_whole(answer: Answer, reply: Reply) -> int:
    group_id = answer.generation.group_id
    headers = {REQUEST_ID_HEADER: group_id, **answer.headers}
    try:
        body = await answer.feed.whole()
    except RequestError as exc:
        await reply.send_error(exc, headers)
        return exc.status_code
    except Interrupted as exc:
        error = error_of_interrupt(exc.interrupt, group_id)
        await reply.send_error(error, headers)
        return error.status_code
    remedy = f"'resume' for {group_id}, which has run, or next time with 'stream': true"
    return await reply.send_body(body, headers, remedy)


async def _send_stream(answer: Answer, reply: Reply) -> int:
    generation, feed = answer.generation, answer.feed
    headers = {REQUEST_ID_HEADER: generation.group_id}
    await reply.send(b"", {**headers, **answer.headers, STATUS_HEADER: "accepted"})
    event_before = feed.event_id.decode()
    events = feed.opening(resumed=answer.resumed)
    answer.keep_alive(KEEPALIVE_S)
    try:
        while True:
            for event in events:
                event_headers = dict(headers)
                if event.event_id:  # those of a response have numbers in its place
                    event_headers[EVENT_ID_HEADER] = event.event_id.decode()
                if event.event_id and generation.reply.answer is not None:
                    event_headers[EVENT_BEFORE_HEADER] = event_before  # not all text is told
                    event_before = event_headers[EVENT_ID_HEADER]
                if feed.error is not None and event is events[-1]:
                    event_headers |= error_headers(feed.error)
                if not reply.fits(event.data, event_headers):
                    return await _end_too_large(len(event.data), reply, event_headers)
                await reply.send(event.data, event_headers)
            if feed.is_ended:
                break
            events = await feed.next()
            if not events:
                await reply.send(b"", {**headers, STATUS_HEADER: "waiting"})
    except Interrupted as exc:
        error = error_of_interrupt(exc.interrupt, generation.group_id)
        await reply.send(b"", {**headers, STATUS_HEADER: "interrupted", **error_headers(error)})
        return error.status_code
    except RequestError as exc:  # the answer cannot be read
        await reply.send_error(exc, headers)
        await reply.send(b"", {**headers, STATUS_HEADER: "end"})
        return exc.status_code
    await reply.send(b"", {**headers, STATUS_HEADER: "end"})
    return 200 if feed.error is None else feed.error.status_code


async def _end_too_large(num_bytes: int, reply: Reply, headers: dict[str, str]) -> int:
    """Only the logprobs of a long prompt make such an event; over HTTP it fits."""
    error = RequestTooLarge(
        f"An event of this answer has {num_bytes} bytes, one NATS message takes "
        f"{reply.max_payload}: ask over HTTP, or for fewer logprobs.",
    )
    await reply.send_error(error, headers)
    await reply.send(b"", {**headers, STATUS_HEADER: "end"})
    return error.status_code
