"""The wire format of a stream of /generate as SGLang has it: each event holds all text so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frontend.surfaces.generate.generate_events import GenerateEvents
from frontend.text.event_writer import encode_json
from frontend.text.logprob_view import MAX_EVENT_LOGPROBS
from frontend.text.text_stream import TextStream
from frontend.text.token_texts import TokenTexts

_SMALL_BYTES = 16 << 10  # an event up to here is sent for each piece of text
_GROWTH = 32  # then one is sent when this part of the last one has come


class GrowingEvents:
    """The JSON of what came before is kept of each choice: an event costs a copy of it, and is
    not made anew. A resumed stream begins with what its client has.

    Long answers have fewer events, each larger than the one before by a share of it: all together
    are at most `_GROWTH + 1` times the last.
    """

    def __init__(self, streams: Sequence[TextStream], texts: TokenTexts | None) -> None:
        self._pieces = GenerateEvents(streams, texts)
        self._texts = texts
        self._is_list = len(streams) > 1 or streams[0].reply.is_list
        self._so_far = [SoFar() for _ in streams]
        for stream in streams:
            if stream.emitted_position:
                self._add(stream, stream.skipped, slice(0, stream.emitted_position))

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        limit = None if self._texts is None else MAX_EVENT_LOGPROBS
        self._add(stream, text, stream.emit_tokens(limit))
        if not self._so_far[stream.reply.choice_idx].is_due:
            return b""
        return self._event(stream, finished=False)

    def finish(self, stream: TextStream) -> bytes:
        self._add(stream, "", stream.emit_tokens())
        return self._event(stream, finished=True)

    def closing(self) -> list[bytes]:
        return []

    def whole(self, texts: Sequence[str]) -> bytes:
        return self._pieces.whole(texts)

    def _add(self, stream: TextStream, text: str, tokens: slice) -> None:
        so_far = self._so_far[stream.reply.choice_idx]
        so_far.add(text, stream.token_ids[tokens])
        for name, values in self._pieces.logprobs(stream, tokens).items():
            so_far.add_values(name, values)

    def _event(self, stream: TextStream, *, finished: bool) -> bytes:
        so_far = self._so_far[stream.reply.choice_idx]
        so_far.note_sent()
        meta_info = encode_json(self._pieces.meta_info(stream, finished=finished))
        index = b',"index":%d' % stream.reply.choice_idx if self._is_list else b""
        return b"".join((*so_far.parts(meta_info), index, b"}"))


class SoFar:
    """JSON of one choice, which only grows."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ids = bytearray()
        self._values: dict[str, bytearray] = {}  # of the lists in `meta_info`
        self._num_sent = 0  # bytes of the last event

    @property
    def num_bytes(self) -> int:
        return len(self._text) + len(self._ids) + sum(map(len, self._values.values()))

    @property
    def is_due(self) -> bool:
        """Whether enough has come since the last event."""
        num_bytes = self.num_bytes
        return num_bytes <= _SMALL_BYTES or (num_bytes - self._num_sent) * _GROWTH >= num_bytes

    def note_sent(self) -> None:
        self._num_sent = self.num_bytes

    def add(self, text: str, token_ids: list[int]) -> None:
        self._text += encode_json(text)[1:-1]
        _extend(self._ids, token_ids)

    def add_values(self, name: str, values: list[object]) -> None:
        _extend(self._values.setdefault(name, bytearray()), values)

    def parts(self, meta_info: bytes) -> Iterator[bytes | bytearray]:
        """The event up to its `meta_info`, in which the lists stand behind its own fields."""
        yield from (b'{"text":"', self._text, b'","output_ids":[', self._ids)
        yield from (b'],"meta_info":', meta_info[:-1])
        for name, values in self._values.items():
            yield from (b',"%b":[' % name.encode(), values, b"]")
        yield b"}"


def _extend(items: bytearray, values: list[object] | list[int]) -> None:
    if values:
        items += (b"," if items else b"") + encode_json(values)[1:-1]
