"""Text to prompt ids, without holding up the event loop or another tenant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from frontend.jobs.fair_threads import FairThreads
from frontend.jobs.job import Caller
from frontend.models.model_directory import ServedModel
from shared.errors import ContextLengthExceeded

T = TypeVar("T")

# Measured on a busy machine, inline against a thread: 0.14 and 0.17 ms for 200 characters, 0.56 and
# 0.53 ms for 1,000, 1.3 and 0.7 ms for 2,000. Longer texts would hold up the streams of others:
# they go to a thread, where `tokenizers` releases the GIL, in its functions for batches alone: its
# `encode` of 1.3 million characters kept everybody waiting for 0.8 s, its `encode_batch` for 0.03.
_INLINE_CHARS = 1024
_CHARS_OF_MARKS = 24
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
    """How much of a text can count, before it is encoded as a whole.

    A text is encoded in one call that nothing can stop, in a second for four million characters. So
    a long one is counted first, a piece at a time, until there are surely more tokens than matter.
    Each piece is a turn of the tenant's in the threads; what is left is encoded as a whole.
    """

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
    """How many characters are more than `max_tokens`, however long these tokens are."""
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


class PromptEncoder:
    """A few threads for long texts, in which tenants take turns; short ones are encoded at once.

    What is too long for the model is refused before it is encoded as a whole. A text whose client
    goes away is left where it is.
    """

    def __init__(self, num_threads: int = 2) -> None:
        self._threads = FairThreads(num_threads, "encode")
        self._meter = TextMeter(self._threads)

    def close(self) -> None:
        self._threads.close()

    async def encode(
        self,
        caller: Caller,
        model: ServedModel,
        text: str,
        param: str,
        *,
        add_special_tokens: bool,
        max_tokens: int | None = None,
        limit: int | None = None,
    ) -> list[int]:
        """The last `max_tokens` of it.

        Raises ContextLengthExceeded when a long text has more tokens than `limit`: the model's
        length, where none is given. A short one may have more.
        """
        if len(text) <= _INLINE_CHARS:
            return _encode(model.text.tokenizer, text, add_special_tokens, max_tokens)
        work = self._encode_long(caller, model, text, param, add_special_tokens, max_tokens, limit)
        return await caller.presence.during(work)

    async def _encode_long(
        self,
        caller: Caller,
        model: ServedModel,
        text: str,
        param: str,
        add_special_tokens: bool,
        max_tokens: int | None,
        limit: int | None,
    ) -> list[int]:
        tenant, tokenizer = caller.tenant.id, model.text.tokenizer
        if max_tokens is not None:
            part = await self._meter.tail(tenant, model, text, max_tokens)
        else:
            limit = model.card.max_context_len if limit is None else limit
            part = await self._meter.head(tenant, model, text, limit)
            if not part.is_whole:
                raise ContextLengthExceeded(None, limit, None, param)
        return await self._threads.run(
            tenant,
            lambda: _encode(tokenizer, part.text, add_special_tokens, max_tokens),
            is_long=len(part.text) > LONG_CHARS,
        )

    async def encode_batch(
        self,
        caller: Caller,
        model: ServedModel,
        texts: Sequence[str],
        names: Sequence[str],
        max_tokens: int | None = None,
    ) -> list[list[int]]:
        """Encodes texts with special tokens, as the model reads whole ones; the first `max_tokens`
        of each.

        Raises ContextLengthExceeded.
        """
        if sum(map(len, texts)) <= _INLINE_CHARS:
            return _encode_all(model.text.tokenizer, texts, max_tokens)
        return await caller.presence.during(
            self._encode_long_batch(caller, model, texts, names, max_tokens)
        )

    async def _encode_long_batch(
        self,
        caller: Caller,
        model: ServedModel,
        texts: Sequence[str],
        names: Sequence[str],
        max_tokens: int | None,
    ) -> list[list[int]]:
        tokenizer, encoded = model.text.tokenizer, []
        heads = [
            await self._head(caller, model, text, name, max_tokens)
            for text, name in zip(texts, names, strict=True)
        ]
        for group, num_chars in groups(heads, [len(text) for text in heads]):
            encoded += await self._threads.run(
                caller.tenant.id,
                functools.partial(_encode_all, tokenizer, group, max_tokens),
                is_long=num_chars > LONG_CHARS,
            )
        return encoded

    async def head(
        self, caller: Caller, model: ServedModel, text: str, name: str, max_tokens: int | None
    ) -> str:
        """What must be encoded to have its first `max_tokens`; None: all of it, if that fits.

        Raises ContextLengthExceeded.
        """
        if len(text) <= _INLINE_CHARS:
            return text
        return await caller.presence.during(self._head(caller, model, text, name, max_tokens))

    async def _head(
        self, caller: Caller, model: ServedModel, text: str, name: str, max_tokens: int | None
    ) -> str:
        limit = model.card.max_context_len if max_tokens is None else max_tokens
        part = await self._meter.head(caller.tenant.id, model, text, limit)
        if max_tokens is None and not part.is_whole:
            raise ContextLengthExceeded(None, limit, None, name, subject=f"'{name}'")
        return part.text

    async def decode(self, caller: Caller, model: ServedModel, token_ids: list[int]) -> str:
        """The text of a prompt that was given as ids."""
        tokenizer = model.text.tokenizer
        return await self.run(
            caller,
            4 * len(token_ids),
            lambda: str(tokenizer.decode_batch([token_ids], skip_special_tokens=False)[0]),
        )

    async def render_chat(
        self,
        caller: Caller,
        model: ServedModel,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: dict[str, Any],
    ) -> str:
        """What the model's template makes of it. Raises InvalidRequest."""
        template, sight = model.chat_template(), model.card.sight

        def render() -> str:
            text = template.render(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=template_kwargs,
                has_parts=sight is not None or model.card.sound is not None,
            )
            if sight is not None and sight.mark_text:
                text = text.replace(sight.mark_text, sight.image_text)
            return text

        size = sum(_num_chars(message) for message in messages)
        if template_kwargs.keys() & {"tools", "documents"}:  # nobody knows how long they are
            size = max(size, _INLINE_CHARS + 1)
        return await self.run(caller, size, render)

    async def run(self, caller: Caller, num_chars: int, work: Callable[[], T]) -> T:
        """Work that takes about as long as encoding so much text, which is not very much."""
        if num_chars <= _INLINE_CHARS:
            return work()
        turn = self._threads.run(caller.tenant.id, work, is_long=num_chars > LONG_CHARS)
        return await caller.presence.during(turn)


def groups(items: Sequence[T], sizes: Sequence[int]) -> Iterator[tuple[Sequence[T], int]]:
    """Neighbours, and their size: at most that of a piece together; what is longer goes alone."""
    start = num_chars = 0
    for idx, size in enumerate(sizes):
        if idx > start and num_chars + size > PIECE_CHARS:
            yield items[start:idx], num_chars
            start, num_chars = idx, 0
        num_chars += size
    if start < len(items):
        yield items[start:], num_chars


def _encode_all(tokenizer: Any, texts: Sequence[str], max_tokens: int | None) -> list[list[int]]:
    """The beginning of each, with special tokens."""
    if max_tokens is None:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [
        _cut(tokenizer, encoding, True, max_tokens, "right")[:max_tokens] for encoding in encodings
    ]


def _num_chars(message: dict[str, Any]) -> int:
    """About: a template puts marks around a message, and calls may be of any size."""
    calls = _INLINE_CHARS if message.get("tool_calls") else 0
    return _CHARS_OF_MARKS + len(message.get("content") or "") + calls


def _encode(
    tokenizer: Any, text: str, add_special_tokens: bool, max_tokens: int | None
) -> list[int]:
    """Encodes the text, with `max_tokens` its end: the special tokens around it stay."""
    if max_tokens is None:
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return _cut(tokenizer, encoding, add_special_tokens, max_tokens, "left")[-max_tokens:]


def _cut(
    tokenizer: Any, encoding: Any, add_special_tokens: bool, max_tokens: int, side: str
) -> list[int]:
    """The ids without what is too much on one side, unless the special tokens alone are longer."""
    num_special = tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
    num_kept = min(max(0, max_tokens - num_special), len(encoding))  # of any number that is asked
    encoding.truncate(num_kept, direction=side)
    ids: list[int] = tokenizer.post_process(encoding, None, add_special_tokens).ids
    return ids
