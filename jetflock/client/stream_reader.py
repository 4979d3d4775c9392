"""Reads the events of one accepted request, resumed as often as it takes."""

from __future__ import annotations

import asyncio
import json

from jetflock.client.endpoints import Endpoints
from jetflock.client.link import (
    EVENT_BEFORE_HEADER,
    EVENT_ID_HEADER,
    ConnectionChanged,
    Inbox,
    Message,
    NoFrontend,
)
from jetflock.client.piece import Piece, pieces_of, usage_of
from jetflock.client.result import Choice, Chunk, Result, ToolCall, Usage
from jetflock.errors import ClientError, ServerError, StreamLost

SILENCE_S = 6.0  # a frontend gives a sign of life every 2 s
ASK_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class _Gap(Exception):
    """An event starts beyond the text that we have: one before it was lost."""


class StreamReader:
    """Lives in the client's event loop, and knows what has come so far.

    When the stream falls silent or the connection was lost, it asks any frontend to go on after the
    last event, so that no text is repeated or left out.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        inbox: Inbox,
        request_id: str,
        deadline: float,
        *,
        event_id: str | None = None,
        expects_usage: bool = False,
        is_shared: bool = False,
        looks_on: bool = False,
    ) -> None:
        """`looks_on`: beside who reads it, which stays so when it is resumed."""
        self.request_id = request_id
        self.event_id = event_id  # of the last event
        self.is_done = False
        self.num_resumes = 0
        # By an idempotency key, or as others read it: it is not ended when we leave.
        self.is_shared = is_shared or looks_on
        self._looks_on = looks_on
        self._endpoints = endpoints
        self._inbox = inbox
        self._deadline = deadline  # of the event loop's clock
        self._expects_usage = expects_usage
        self._usage: Usage | None = None
        self._choices: list[Choice] = []
        self._text_lens = [] if event_id is None else text_lens(event_id)  # by choice

    async def next(self) -> list[Chunk]:
        """Wait for news; empty when there is no more. Raises ApiError or StreamLost."""
        chunks: list[Chunk] = []
        while not chunks and not self.is_done:
            chunks = await self._advance()
        return chunks

    async def result(self) -> Result:
        """The whole answer; of one that was resumed after an event, what came behind that.

        Raises ApiError or StreamLost.
        """
        while not self.is_done:
            await self._advance()
        return Result(self.request_id, tuple(self._choices) or (Choice(),), self._usage)

    async def abort(self) -> int:
        """Returns how many choices were still running. Raises ClientError."""
        return await self._endpoints.abort(self.request_id)

    def lost(self, reason: str) -> StreamLost:
        """What to raise when nobody can read it here any more."""
        message = f"request {self.request_id} could not be resumed: {reason}"
        return StreamLost(message, self.request_id, self.event_id)

    def close(self) -> None:
        """Nobody reads it any more."""
        self.is_done = True
        self._inbox.close()

    async def _advance(self) -> list[Chunk]:
        """Take one message, or resume."""
        try:
            message = await self._inbox.next(SILENCE_S)
            if message.status == "interrupted":
                await self._resume()
            elif message.status == "end":
                await self._end()
            elif message.status is None:
                return self._take(message)
        except (TimeoutError, ConnectionChanged, _Gap):
            await self._resume()
        except ClientError:
            self.close()
            raise
        return []

    def _take(self, message: Message) -> list[Chunk]:
        event = json.loads(message.data)
        event_id = message.headers.get(EVENT_ID_HEADER, "")
        lens = text_lens(event_id)
        if not self._text_lens:
            self._text_lens = [0] * len(lens)
        event_before = message.headers.get(EVENT_BEFORE_HEADER)
        if event_before is not None and self.event_id not in (None, event_before):
            raise _Gap
        chunks: list[Chunk] = []
        for piece in pieces_of(event):
            if event_before is not None or self._is_news(piece, lens[piece.choice_idx]):
                chunks += self._add(piece, event_id)
        if event_before is not None:
            self._text_lens = lens
        self.event_id = event_id
        if (usage := usage_of(event)) is not None:
            self._usage = self._sum(usage) if "meta_info" in event else usage
        return chunks

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

    def _add(self, piece: Piece, event_id: str) -> list[Chunk]:
        while len(self._choices) < len(self._text_lens):
            self._choices.append(Choice())
        choice = self._choices[piece.choice_idx]
        is_finish = piece.finish_reason is not None and choice.finish_reason is None
        _extend(choice, piece)
        if not piece.has_news and not is_finish:
            return []
        return [
            Chunk(
                piece.text,
                piece.choice_idx,
                piece.finish_reason,
                piece.token_ids,
                event_id,
                piece.logprobs,
                piece.reasoning,
                piece.tool_calls,
            )
        ]

    def _sum(self, usage: Usage) -> Usage:
        """/generate tells the usage of each choice by itself."""
        if self._usage is None:
            return usage
        return Usage(
            usage.prompt_tokens,
            usage.completion_tokens + self._usage.completion_tokens,
            usage.cached_tokens,
        )

    async def _end(self) -> None:
        is_complete = bool(self._choices) and all(
            choice.finish_reason is not None for choice in self._choices
        )
        if not is_complete or (self._expects_usage and self._usage is None):
            await self._resume()  # the last events were lost
        else:
            self.close()

    async def _resume(self) -> None:
        """Go on after the last event, at whatever frontend answers. Raises ClientError."""
        body = {"rid": self.request_id} if self.event_id is None else {"event_id": self.event_id}
        asked = json.dumps(body | ({"watch": True} if self._looks_on else {})).encode()
        link = self._endpoints.link
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        reason = "the service is silent"
        while clock() < self._deadline and not link.is_closed:
            self._inbox.close()
            self._inbox = link.inbox()
            try:
                await link.wait_connected(max(0.1, self._deadline - clock()))
                await link.ask(
                    self._endpoints.subject("resume"),
                    asked,
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
        self.close()
        raise self.lost("the client was shut down" if link.is_closed else reason)


def _extend(choice: Choice, piece: Piece) -> None:
    choice.text += piece.text
    choice.reasoning += piece.reasoning
    choice.token_ids.extend(piece.token_ids)
    choice.logprobs.extend(piece.logprobs)
    choice.prompt_logprobs = list(piece.prompt_logprobs) or choice.prompt_logprobs
    choice.embedding = piece.embedding or choice.embedding
    choice.score = choice.score if piece.score is None else piece.score
    choice.finish_reason = piece.finish_reason or choice.finish_reason
    for diff in piece.tool_calls:
        while len(choice.tool_calls) <= diff.index:
            choice.tool_calls.append(ToolCall())
        call = choice.tool_calls[diff.index]
        call.id += diff.id
        call.name += diff.name
        call.arguments += diff.arguments


def text_lens(event_id: str) -> list[int]:
    """Code points of text that each choice has after this event."""
    try:
        marks = event_id.partition(".")[2].split("_")
        return [int(mark.split(".")[1]) for mark in marks]
    except (ValueError, IndexError) as exc:
        raise ClientError(f"{event_id!r} is not an event id") from exc
