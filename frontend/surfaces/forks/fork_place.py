"""Where a stream is forked: a number of tokens, said as such, by text, or by an event's id."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Tokenizer

from frontend.surfaces.forks.fork_source import ForkSource
from frontend.text.event_id import Mark
from shared.errors import InvalidRequest, NotForkable, ResumeConflict
from shared.protocol.finish import FinishReason
from shared.protocol.reply import TextParams
from shared.protocol.text import checksum
from shared.token_log.visible_text import TokenizerDecoder, VisibleText


class ForkPlace(NamedTuple):
    """A border between two tokens."""

    num_tokens: int  # before it
    text_offset: int  # code points of visible text that they show


class ForkPlaces:
    """The places of one stream. Its text is made again from its tokens."""

    def __init__(self, source: ForkSource, tokenizer: Tokenizer) -> None:
        self._token_ids = source.token_ids
        self._text = source.request.text
        self._tokenizer = tokenizer
        # The last token of what has stopped is its end, or ends a stop string: nothing follows it.
        has_stopped = source.finish is not None and source.finish.reason is FinishReason.STOP
        self._is_over = source.finish is not None
        self._last = max(0, len(source.token_ids) - has_stopped)

    def at(self, num_tokens: int) -> ForkPlace:
        """Raises InvalidRequest."""
        if num_tokens > self._last:
            raise InvalidRequest(
                f"'at' is {num_tokens}, the stream can be forked at up to {self._last} tokens"
                + ("" if self._is_over else ": it has no more yet"),
                param="at",
            )
        return ForkPlace(num_tokens, len(self._shown(num_tokens)))

    def by_text(self, offset: int) -> ForkPlace:
        """The last border up to there; of several, the first. Raises InvalidRequest."""
        visible, place = self._visible(), ForkPlace(0, 0)
        for position, token_id in enumerate(self._token_ids[: self._last], start=1):
            visible.add(token_id)
            if visible.visible_len > offset:
                return place
            if visible.visible_len > place.text_offset:
                place = ForkPlace(position, visible.visible_len)
        if not self._is_over and visible.visible_len < offset:
            raise InvalidRequest(
                f"'text_offset' is {offset}, the stream has {visible.visible_len} code points of "
                "text so far",
                param="text_offset",
            )
        return place

    def by_mark(self, mark: Mark) -> ForkPlace:
        """As an event's id tells it; behind the last token of what has stopped: before that.

        Raises InvalidRequest or ResumeConflict.
        """
        text = self._shown(mark.position, is_whole=mark.position >= len(self._token_ids))
        if mark.position > len(self._token_ids) and not self._is_over:
            raise InvalidRequest(
                f"'event_id' is of token {mark.position}, the stream has {len(self._token_ids)} so "
                "far",
                param="event_id",
            )
        if len(text) < mark.text_len or checksum(text[: mark.text_len]) != mark.checksum:
            raise ResumeConflict(
                "The text that this event id describes is not the beginning of this stream.",
                param="event_id",
            )
        return self.at(min(mark.position, self._last))

    def _visible(self) -> VisibleText:
        return VisibleText(TokenizerDecoder(self._tokenizer, self._text), self._text)

    def _shown(self, num_tokens: int, *, is_whole: bool = False) -> str:
        """The text of so many tokens, with `is_whole` with what is held back of it."""
        visible = self._visible()
        for token_id in self._token_ids[:num_tokens]:
            visible.add(token_id)
        if is_whole:
            visible.finish()
        return visible.text


def check_goes_on(token_ids: list[int], text: TextParams, tokenizer: Tokenizer) -> None:
    """Whether anything may follow these: no stop string is complete. Raises InvalidRequest."""
    if not text.stop:
        return
    visible = VisibleText(TokenizerDecoder(tokenizer, text), text)
    if any(visible.add(token_id) for token_id in token_ids):
        raise InvalidRequest(
            f"'append' completes the stop string {visible.matched_stop!r}: nothing would follow",
            param="append",
        )


def check_append(source: ForkSource) -> None:
    """Whether words of somebody else may follow the tokens of the source. Raises NotForkable."""
    sampling = source.request.sampling
    for name, is_there in (
        ("logprobs", sampling.logprobs is not None or sampling.prompt_logprobs is not None),
        ("a grammar", sampling.grammar is not None),
    ):
        if is_there:
            raise NotForkable(
                f"'append' is given, and the stream has {name}: what is appended was made by no "
                "model",
                param="append",
            )
