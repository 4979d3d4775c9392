"""The typed events of a response: a function of its record, tokens and finish alone.

So every frontend numbers them alike, and a client goes on behind any number at any frontend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontend.jobs.stored_response import ResponseView
from frontend.streams.generation import error_of
from frontend.surfaces.responses.event_answer import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    OutputTextDelta,
    OutputTextDone,
    PartAdded,
    PartDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ThoughtDelta,
    ThoughtDone,
)
from frontend.surfaces.responses.object import finished_response, unfinished_response
from frontend.surfaces.responses.output_items import ItemKind, OutputItem
from frontend.surfaces.responses.output_parser import Change, Closed, Grown, Opened, OutputParser
from frontend.surfaces.responses.response_answer import Response, ResponseStatus
from frontend.text.event_writer import encode_json
from frontend.text.logprob_view import TokenLogprobView, token_views
from frontend.text.text_pieces import TextPieces
from frontend.text.text_stream import TextStream
from shared.errors import InternalError

# Of an item's text, by what the item is: what tells more of it.
_MORE = {
    ItemKind.MESSAGE: OutputTextDelta.event_name().encode(),
    ItemKind.REASONING: ThoughtDelta.event_name().encode(),
    ItemKind.CALL: ArgumentsDelta.event_name().encode(),
}
_LAST: Mapping[ResponseStatus, type[ResponseEvent]] = {
    "completed": ResponseCompleted,
    "incomplete": ResponseIncomplete,
    "failed": ResponseFailed,
    "cancelled": ResponseFailed,  # OpenAI has no event for it; the object says which
}


class NamedEvent:
    """`number` is its `sequence_number`."""

    __slots__ = ("data", "name", "number")

    def __init__(self, number: int, name: bytes, data: bytes) -> None:
        self.number = number
        self.name = name
        self.data = data


class ResponseEvents:
    """Makes all events from the first one on, whatever a client has seen of them.

    The text is cut where tokens end: a delta is what one token made visible. Where one detokenizer
    chunk ends and the next begins is chance, and is not seen.
    """

    def __init__(self, view: ResponseView, stream: TextStream) -> None:
        self._record = view.record
        self._texts = view.model_text.token_texts
        self._stream = stream
        self._pieces = TextPieces(view.model_text.tokenizer, view.record.text)
        self._output = OutputParser(view.record, self._logprobs)
        self._number = 0
        self._delta_tail = b""  # of the item that is open

    def opening(self) -> list[NamedEvent]:
        """Before any text."""
        status: ResponseStatus = "queued" if self._record.params.background else "in_progress"
        created = unfinished_response(self._record, status)
        running = unfinished_response(self._record, "in_progress")
        return [
            self._event(ResponseCreated, response=created),
            self._event(ResponseInProgress, response=running),
        ]

    def more(self) -> list[NamedEvent]:
        """What the tokens add that came since the last call; with the finish, all that is left.

        Raises InternalError when tokens and text do not fit: nobody is sent what is not so.
        """
        stream = self._stream
        tokens = stream.emit_tokens()
        pieces = self._pieces.add(stream.token_ids[tokens])
        if stream.finish is not None:
            pieces += self._pieces.finish()
            if len(self._pieces.text) != stream.have:
                raise InternalError("The text of this response is not that of its tokens.")
        changes: list[Change] = []
        for piece in pieces:
            changes += self._output.add(piece.text, piece.tokens.stop)
        if stream.finish is None:
            return [event for change in changes for event in self._events_of(change)]
        changes += self._output.finish(stream.finish, stream.position)
        events = [event for change in changes for event in self._events_of(change)]
        response = self.response()
        return [*events, self._event(_LAST[response.status], response=response)]

    def response(self) -> Response:
        """The response object as of now."""
        stream, finish = self._stream, self._stream.finish
        if finish is None:
            return unfinished_response(self._record, "in_progress" if stream.position else "queued")
        error = error_of(stream)
        return finished_response(
            self._record,
            finish,
            self._output,
            stream.token_ids,
            "" if error is None else error.message,
        )

    def _events_of(self, change: Change) -> list[NamedEvent]:
        match change:
            case Grown(item, text, logprobs):
                return [self._delta(item, text, logprobs)]
            case Opened(item):
                return self._opened(item)
            case Closed(item):
                return self._closed(item)

    def _opened(self, item: OutputItem) -> list[NamedEvent]:
        place = self._place(item)
        self._delta_tail = b"," + encode_json(place)[1:]
        events = [self._event(ItemAdded, output_index=item.idx, item=item.begun())]
        if item.kind is not ItemKind.CALL:
            events.append(self._event(PartAdded, **place, part=item.begun_part()))
        return events

    def _delta(self, item: OutputItem, text: str, logprobs: list[TokenLogprobView]) -> NamedEvent:
        """The hot path: what is the same in all of them is made once."""
        name, number = _MORE[item.kind], self._next_number()
        data = b'{"type":"%b","sequence_number":%d,"delta":' % (name, number) + encode_json(text)
        if item.kind is ItemKind.MESSAGE:
            data += b',"logprobs":' + encode_json(logprobs)
        return NamedEvent(number, name, data + self._delta_tail)

    def _closed(self, item: OutputItem) -> list[NamedEvent]:
        place = self._place(item)
        match item.kind:
            case ItemKind.CALL:
                done = self._event(ArgumentsDone, **place, name=item.name, arguments=item.text)
            case ItemKind.REASONING:
                done = self._event(ThoughtDone, **place, text=item.text)
            case ItemKind.MESSAGE:
                done = self._event(OutputTextDone, **place, text=item.text, logprobs=item.logprobs)
        events = [done]
        if item.kind is not ItemKind.CALL:
            events.append(self._event(PartDone, **place, part=item.part()))
        return [*events, self._event(ItemDone, output_index=item.idx, item=item.view())]

    def _place(self, item: OutputItem) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": item.item_id, "output_index": item.idx}
        return place if item.kind is ItemKind.CALL else {**place, "content_index": 0}

    def _logprobs(self, tokens: slice) -> list[TokenLogprobView]:
        return token_views(self._stream.records(tokens), self._texts)

    def _event(self, kind: type[ResponseEvent], **fields: Any) -> NamedEvent:
        number = self._next_number()
        event = kind(sequence_number=number, **fields)
        return NamedEvent(number, kind.event_name().encode(), encode_json(event))

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1
