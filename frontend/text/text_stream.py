"""The text of one request as this frontend has received it: no piece twice, none missing."""

from __future__ import annotations

from collections.abc import Callable

from frontend.text.event_id import START, Mark
from shared.protocol.finish import Finish
from shared.protocol.logprobs import TokenLogprob, num_top_of, record_bytes, unpack_logprobs
from shared.protocol.reply import ReplyParams, Surface
from shared.protocol.text import Held, TextChunk, checksum


class TextStream:
    """Puts chunks together by their offsets.

    `have` only grows, and `finish` is set once. What came in since the last `take` waits in
    `_pending`; `mark` describes all that was taken. On the hot path: plain fields, no objects.

    A detokenizer that sends another text than the one at hand reads a log which has lost what was
    shown: the stream is torn, and nothing is taken any more.
    """

    __slots__ = (
        "_checksum",
        "_on_news",
        "_pending",
        "_taken_checksum",
        "_taken_len",
        "_taken_position",
        "ask_at",
        "asked_at",
        "backoff_s",
        "emitted_position",
        "finish",
        "has_gap",
        "have",
        "is_asking",
        "is_torn",
        "keeps_token_ids",
        "last_heard_at",
        "logprobs",
        "num_failed_asks",
        "num_missing",
        "position",
        "prompt_logprobs",
        "reply",
        "rid",
        "skipped",
        "token_ids",
    )

    def __init__(
        self,
        rid: str,
        reply: ReplyParams,
        on_news: Callable[[TextStream], None],
        *,
        keep_token_ids: bool = False,
        now: float = 0.0,
    ) -> None:
        self.rid = rid
        self.reply = reply
        self.have = 0  # code points received
        self._checksum = 0  # of these
        self.is_torn = False
        self.position = 0  # output tokens that they come from
        self.token_ids: list[int] = []  # only kept when asked for
        self.logprobs = bytearray()  # a record for each of them, if the request asks
        self.prompt_logprobs = b""
        self.emitted_position = 0  # tokens that events have carried, with their logprobs
        self.finish: Finish | None = None
        self._taken_position, self._taken_len, self._taken_checksum = START
        self.has_gap = False  # a chunk came before what precedes it
        self.last_heard_at = now
        self.ask_at = float("inf")  # when it is looked at whether a replay is to be asked for
        self.asked_at = now  # of the last replay, kept by the Replayer with the next three
        self.backoff_s = 1.0
        self.num_failed_asks = 0  # in a row
        self.is_asking = False
        self.num_missing = 0  # looks in a row at which neither queue nor log had the request
        self.skipped = ""  # what a resuming client has, where events are made from all text
        self._pending: list[str] = []
        self._on_news = on_news
        self.keeps_token_ids = keep_token_ids

    def receive(self, chunk: TextChunk, now: float) -> None:
        """Take from a chunk what lies beyond the text at hand."""
        self.last_heard_at = now
        if self.finish is not None or self.is_torn:
            return
        have, offset, text = self.have, chunk.offset, chunk.text
        if offset > have or (self.keeps_token_ids and self._misses_tokens(chunk)):
            self.has_gap = True
            return
        end = offset + len(text)
        if not self._fits(chunk, end):
            self.is_torn = True
            self._on_news(self)
            return
        if end > have:
            new = text if offset == have else text[have - offset :]
            self._pending.append(new)
            self._checksum = checksum(new, self._checksum)
            self.have = end
        elif chunk.finish is None:
            self._note_tokens(chunk)
            return
        self._note_tokens(chunk)
        self.has_gap = False
        self.finish = chunk.finish
        self._on_news(self)

    def take(self) -> str:
        """The text received since the last call."""
        pending = self._pending
        self._taken_position = self.position
        if not pending:
            return ""
        text = pending[0] if len(pending) == 1 else "".join(pending)
        pending.clear()
        self._taken_len = self.have
        self._taken_checksum = self._checksum
        return text

    @property
    def mark(self) -> Mark:
        """How far `take` has got."""
        return Mark(self._taken_position, self._taken_len, self._taken_checksum)

    @property
    def held(self) -> Held:
        """All that was received."""
        return Held(self.rid, self.have, self._checksum)

    def mark_bytes(self) -> bytes:
        """`str(mark)`, made without it."""
        return b"%d.%d.%08x" % (self._taken_position, self._taken_len, self._taken_checksum)

    @property
    def num_output_tokens(self) -> int:
        """The number that a client is given: of a beam search those of all choices."""
        if self.finish is None:
            return self.position
        return self.position + self.finish.num_beam_tokens

    @property
    def num_hand_overs(self) -> int:
        """Times that it went on at another worker, as the last one of them has logged."""
        run = None if self.finish is None else self.finish.run
        return 0 if run is None else max(0, len(run.workers) - 1)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def skip_to(self, mark: Mark) -> bool:
        """Drop the text that the client has. False: it has another text, splicing would lie."""
        assert self.have >= mark.text_len, "called before the text is here"
        text = "".join(self._pending)
        seen, rest = text[: mark.text_len], text[mark.text_len :]
        if checksum(seen) != mark.checksum:
            return False
        self._pending[:] = [rest] if rest else []
        self._taken_position, self._taken_len, self._taken_checksum = mark
        self.emitted_position = mark.position
        self.skipped = seen if self._needs_skipped else ""
        return True

    @property
    def _needs_skipped(self) -> bool:
        """Whether events are made from all text, that which the client has included."""
        reply = self.reply
        return reply.answer is not None or reply.surface is Surface.GENERATE_SO_FAR

    def hold_back(self, text_len: int, text_checksum: int) -> None:
        """Notes how much of what was taken has been sent: `mark` describes that."""
        self._taken_len, self._taken_checksum = text_len, text_checksum

    @property
    def all_tokens(self) -> slice:
        """All tokens, for an answer that is sent in one piece."""
        return slice(0, len(self.token_ids))

    @property
    def num_pending(self) -> int:
        """Tokens that no event has carried."""
        return len(self.token_ids) - self.emitted_position

    def emit_tokens(self, limit: int | None = None) -> slice:
        """The tokens of the next event: those that none has carried, up to a limit.

        Where it leaves some, `mark` describes what has been sent.
        """
        start, end = self.emitted_position, len(self.token_ids)
        if limit is not None and end - start > limit:
            end = self._taken_position = start + limit
        self.emitted_position = end
        return slice(start, end)

    def records(self, tokens: slice) -> list[TokenLogprob]:
        """Logprobs of output tokens; nothing when the request did not ask."""
        num = self.reply.num_alternatives
        if num is None:
            return []
        size = record_bytes(num)
        return unpack_logprobs(self.logprobs[tokens.start * size : tokens.stop * size], num)

    def prompt_records(
        self, num_top: int | None, *, with_named: bool = False
    ) -> list[TokenLogprob]:
        """Logprobs of the prompt with so many of the likeliest tokens; None: the client wants none.

        `with_named`: those that the request names stand behind them.
        """
        if num_top is None or not self.prompt_logprobs:
            return []
        size = len(self.prompt_logprobs) // self.reply.num_prompt_tokens
        num = num_top_of(size)
        records = unpack_logprobs(self.prompt_logprobs, num)
        first_named = num - self.reply.num_logprob_ids if with_named else num
        return [
            record._replace(top=record.top[:num_top] + record.top[first_named:])
            for record in records
        ]

    def _fits(self, chunk: TextChunk, end: int) -> bool:
        """Whether a chunk that begins in the text at hand, or right behind it, goes on from it."""
        if end < self.have:  # only an end of the text says that it has no more
            return chunk.finish is None
        if chunk.checksum or not chunk.offset:
            known = chunk.text[: self.have - chunk.offset]
            theirs_before = checksum(known, chunk.checksum) if known else chunk.checksum
            if theirs_before != self._checksum:
                return False
        if not self.keeps_token_ids:
            return True
        start = chunk.position - len(chunk.token_ids)
        theirs = chunk.token_ids[: len(self.token_ids) - start]
        return theirs == self.token_ids[start : start + len(theirs)]

    def _misses_tokens(self, chunk: TextChunk) -> bool:
        return chunk.position - len(chunk.token_ids) > len(self.token_ids)

    def _note_tokens(self, chunk: TextChunk) -> None:
        if chunk.position > self.position:
            self.position = chunk.position
        if self.keeps_token_ids:
            num_known = len(self.token_ids) - (chunk.position - len(chunk.token_ids))
            if 0 <= num_known < len(chunk.token_ids):
                self.token_ids.extend(chunk.token_ids[num_known:])
                size = len(chunk.logprobs) // len(chunk.token_ids)
                self.logprobs += chunk.logprobs[num_known * size :]
            self.prompt_logprobs = self.prompt_logprobs or chunk.prompt_logprobs


def needs_token_texts(reply: ReplyParams) -> bool:
    """Whether its answer is made of the texts of its tokens."""
    return reports_logprobs(reply) or reply.transcript is not None


def reports_logprobs(reply: ReplyParams) -> bool:
    """Whether its client asked for logprobs, of output or prompt."""
    return reply.num_top is not None or reply.num_prompt_top is not None
