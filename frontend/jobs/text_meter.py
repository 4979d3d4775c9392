"""How much of a text can count, before it is encoded as a whole.

A text is encoded in one call that nothing can stop, in a second for four million characters. So a
long one is counted first, a piece at a time, until there are surely more tokens than matter. Only
what is left after that is encoded as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

from frontend.jobs.fair_threads import FairThreads
from frontend.models.model_directory import ServedModel

PIECE_CHARS = 64 * 1024
LONG_CHARS = 2 * PIECE_CHARS
# A cut may make tokens that the whole does not have: so many of each piece are not counted.
_CUT_TOKENS = 64
_MAX_CHAR_TOKENS = 4  # bytes that are a token each
_CUT_CHARS = 1024  # a blank that is so near is where a text is cut


class Part(NamedTuple):
    """The beginning or the end of a text."""

    text: str
    is_whole: bool  # else the part alone has more tokens than were asked for


class TextMeter:
    """Counts in pieces, each of which is a turn of the tenant's in the threads."""

    def __init__(self, threads: FairThreads) -> None:
        self._threads = threads

    async def head(self, tenant: str, model: ServedModel, text: str, max_tokens: int) -> Part:
        """The beginning of the text, up to where it surely has more tokens than `max_tokens`."""
        if len(text) <= max_tokens // _MAX_CHAR_TOKENS:
            return Part(text, True)
        most = _most_chars(model, max_tokens)
        end = num_tokens = 0
        while _is_long(text, most) and num_tokens <= max_tokens and end < len(text):
            start, end = end, _cut_before(text, min(end + PIECE_CHARS, len(text)))
            num_tokens += await self._num_tokens(tenant, model, text[start:end])
            if end > most:
                break
        return Part(text, True) if end in (0, len(text)) else Part(text[:end], False)

    async def tail(self, tenant: str, model: ServedModel, text: str, max_tokens: int) -> Part:
        """Its end, from where on it surely has more."""
        most = _most_chars(model, max_tokens)
        start, num_tokens = len(text), 0
        while _is_long(text, most) and num_tokens <= max_tokens and start > 0:
            end, start = start, _cut_behind(text, max(start - PIECE_CHARS, 0))
            num_tokens += await self._num_tokens(tenant, model, text[start:end])
            if len(text) - start > most:
                break
        return Part(text, True) if start in (0, len(text)) else Part(text[start:], False)

    async def _num_tokens(self, tenant: str, model: ServedModel, piece: str) -> int:
        tokenizer = model.text.tokenizer

        def work() -> int:
            (encoding,) = tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            return len(encoding)

        return await self._threads.run(tenant, work) - _CUT_TOKENS


def _most_chars(model: ServedModel, max_tokens: int) -> int:
    """So many characters are more than `max_tokens`, however long these tokens are."""
    return (max_tokens + 1) * model.text.max_token_chars


def _is_long(text: str, most: int) -> bool:
    """Else it is encoded in no more time than two pieces are."""
    return len(text) > LONG_CHARS or len(text) > most


def _cut_before(text: str, end: int) -> int:
    """The index behind the last blank, if there is one near."""
    if end == len(text):
        return end
    blank = max(text.rfind(mark, end - _CUT_CHARS, end) for mark in (" ", "\n"))
    return end if blank < 0 else blank + 1


def _cut_behind(text: str, start: int) -> int:
    """The index of the first blank, if there is one near."""
    if start == 0:
        return start
    blanks = (text.find(mark, start, start + _CUT_CHARS) for mark in (" ", "\n"))
    return min((blank for blank in blanks if blank >= 0), default=start)
