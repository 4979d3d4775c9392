"""One accepted request: its text as it comes, resumed as often as it takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Generator

from jetflock.errors import ClientError, ServerError, StreamLost
from jetflock.link import (
    EVENT_BEFORE_HEADER,
    EVENT_ID_HEADER,
    ConnectionChanged,
    Inbox,
    Link,
    Message,
    NoFrontend,
)
from jetflock.result import Choice, Chunk, Piece, Result, Usage, pieces_of, usage_of

SILENCE_S = 6.0  # a frontend gives a sign of life every 2 s
ASK_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class _Gap(Exception):
    """An event starts beyond the text that we have: one before it was lost."""


class Job:
    """An accepted request. `await job` gives its result; `async for chunk in job` its text.

    Nothing runs in the background: a job that nobody reads still runs on the service, and its text
    waits here. When the stream falls silent or the connection was lost, the job asks any frontend
    to go on after the last event, so no text is repeated or left out.
    """

    def __init__(
        self,
        link: Link,
        service: str,
        inbox: Inbox,
        request_id: str,
        deadline: float,
        *,
        event_id: str | None = None,
        expects_usage: bool = False,
        is_shared: bool = False,
    ) -> None:
        self.request_id = request_id
        self.event_id = event_id  # of the last event
        self.usage: Usage | None = None
        self.is_done = False
        self.num_resumes = 0
        self.is_shared = is_shared  # by an idempotency key: others may read it too
        self._link = link
        self._service = service
        self._inbox = inbox
        self._deadline = deadline  # of the event loop's clock
        self._expects_usage = expects_usage
        self._choices: list[Choice] = []
        self._text_lens = [] if event_id is None else text_lens(event_id)  # by choice
        self._chunks: list[Chunk] = []  # received and not yet handed out
        self._reading = asyncio.Lock()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._iterate()

    def __await__(self) -> Generator[object, None, Result]:
        return self.result().__await__()

    async def result(self) -> Result:
        """Wait for the end. After a resume by event id the text is what came after that event.

        Raises ApiError or StreamLost.
        """
        async with self._reading:
            while not self.is_done:
                await self._advance()
        return Result(self.request_id, tuple(self._choices) or (Choice(),), self.usage)

    async def _iterate(self) -> AsyncIterator[Chunk]:
        while True:
            async with self._reading:
                while not self._chunks and not self.is_done:
                    await self._advance()
            if not self._chunks:
                return
            yield self._chunks.pop(0)

    async def _advance(self) -> None:
        """Take one message, or resume."""
        try:
            message = await self._inbox.next(SILENCE_S)
            if message.status == "interrupted":
                await self._resume()
            elif message.status == "end":
                await self._end()
            elif message.status is None:
                self._take(message)
        except (TimeoutError, ConnectionChanged, _Gap):
            await self._resume()
        except ClientError:
            self._close()
            raise

    def _take(self, message: Message) -> None:
        event = json.loads(message.data)
        event_id = message.headers.get(EVENT_ID_HEADER, "")
        lens = text_lens(event_id)
        if not self._text_lens:
            self._text_lens = [0] * len(lens)
        event_before = message.headers.get(EVENT_BEFORE_HEADER)
        if event_before is not None and self.event_id not in (None, event_before):
            raise _Gap
        for piece in pieces_of(event):
            if event_before is not None or self._is_news(piece, lens[piece.choice_idx]):
                self._add(piece, event_id)
        if event_before is not None:
            self._text_lens = lens
        self.event_id = event_id
        if (usage := usage_of(event)) is not None:
            self.usage = self._sum(usage) if "meta_info" in event else usage

    def _is_news(self, piece: Piece, len_after: int) -> bool:
        """Whether a piece continues our text. Raises _Gap."""
        if not piece.text:
            return True
        have = self._text_lens[piece.choice_idx]
        start = len_after - len(piece.text)
        if start > have:
            raise _Gap
        # The prompt that `echo` repeats comes before everything and counts as nothing.
        is_echo = len_after == have == 0
        if start < have and not is_echo:
            return False
        self._text_lens[piece.choice_idx] = len_after
        return True

    def _add(self, piece: Piece, event_id: str) -> None:
        while len(self._choices) < len(self._text_lens):
            self._choices.append(Choice())
        choice = self._choices[piece.choice_idx]
        choice.text += piece.text
        choice.token_ids.extend(piece.token_ids)
        choice.logprobs.extend(piece.logprobs)
        choice.prompt_logprobs = list(piece.prompt_logprobs) or choice.prompt_logprobs
        choice.embedding = piece.embedding or choice.embedding
        is_finish = piece.finish_reason is not None and choice.finish_reason is None
        choice.finish_reason = piece.finish_reason or choice.finish_reason
        if piece.text or piece.logprobs or is_finish:
            self._chunks.append(
                Chunk(
                    piece.text,
                    piece.choice_idx,
                    piece.finish_reason,
                    piece.token_ids,
                    event_id,
                    piece.logprobs,
                )
            )

    def _sum(self, usage: Usage) -> Usage:
        """/generate tells the usage of each choice by itself."""
        if self.usage is None:
            return usage
        return Usage(
            usage.prompt_tokens,
            usage.completion_tokens + self.usage.completion_tokens,
            usage.cached_tokens,
        )

    async def _end(self) -> None:
        is_complete = bool(self._choices) and all(
            choice.finish_reason is not None for choice in self._choices
        )
        if not is_complete or (self._expects_usage and self.usage is None):
            await self._resume()  # the last events were lost
        else:
            self._close()

    async def _resume(self) -> None:
        """Go on after the last event, at whatever frontend answers. Raises ClientError."""
        body = {"rid": self.request_id} if self.event_id is None else {"event_id": self.event_id}
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        reason = "the service is silent"
        while clock() < self._deadline and not self._link.is_closed:
            self._inbox.close()
            self._inbox = self._link.inbox()
            try:
                await self._link.wait_connected(max(0.1, self._deadline - clock()))
                await self._link.ask(
                    f"{self._service}.resume",
                    json.dumps(body).encode(),
                    {},
                    self._inbox,
                    ASK_TIMEOUT_S,
                )
            except (TimeoutError, ConnectionChanged):
                reason = "no frontend answered"
            except NoFrontend:
                reason = "no frontend is there"
            except ServerError as exc:
                reason = exc.message
            else:
                self.num_resumes += 1
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._close()
        raise StreamLost(
            f"request {self.request_id} could not be resumed: {reason}",
            self.request_id,
            self.event_id,
        )

    def _close(self) -> None:
        self.is_done = True
        self._inbox.close()


def text_lens(event_id: str) -> list[int]:
    """Code points of text that each choice has after this event."""
    try:
        marks = event_id.partition(".")[2].split("_")
        return [int(mark.split(".")[1]) for mark in marks]
    except (ValueError, IndexError) as exc:
        raise ClientError(f"{event_id!r} is not an event id") from exc
