"""What answers without text have in common: an object an input, and a list of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from frontend.text.event_writer import encode_json
from frontend.text.text_stream import TextStream
from frontend.text.wire_struct import WireStruct


class PooledEvents(ABC):
    """The list; streamed, each object when its input is done, and an empty list at the end."""

    def __init__(self, streams: Sequence[TextStream]) -> None:
        self._streams = streams
        self._reply = streams[0].reply

    @abstractmethod
    def _object(self, stream: TextStream) -> WireStruct:
        """The object of one input."""

    @abstractmethod
    def _list(self, streams: Sequence[TextStream]) -> WireStruct:
        """The list of these, beside the usage of all."""

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        raise AssertionError("nothing has text here")

    def finish(self, stream: TextStream) -> bytes:
        return encode_json(self._object(stream))

    def closing(self) -> list[bytes]:
        return [encode_json(self._list(()))]

    def whole(self, texts: Sequence[str]) -> bytes:
        return encode_json(self._list(self._streams))
