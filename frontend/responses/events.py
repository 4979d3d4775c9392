"""The typed events of a response: a function of its record, tokens and finish alone.

So every frontend numbers them alike, and a client goes on behind any number at any frontend.
"""

from __future__ import annotations

from typing import Any

from frontend.answers.event_writer import encode_json
from frontend.answers.logprob_view import chat_logprobs
from frontend.answers.text_pieces import Piece, TextPieces
from frontend.generation import error_of
from frontend.responses.items import message_id, output_message, output_text
from frontend.responses.object import finished_response, unfinished_response
from frontend.responses.stored_response import ResponseView
from frontend.text_stream import TextStream
from shared.errors import InternalError
from shared.protocol import FinishReason

_PLACE = {"output_index": 0, "content_index": 0}
_LAST = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",  # OpenAI has no event for it; the object says which
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
        self._number = 0
        self._is_open = False  # the message has begun
        self._item_id = message_id(self._record.rid)
        self._delta_tail = (
            b',"item_id":' + encode_json(self._item_id) + b',"output_index":0,"content_index":0}'
        )

    def opening(self) -> list[NamedEvent]:
        """Before any text."""
        status = "queued" if self._record.params.background else "in_progress"
        return [
            self._of_response("response.created", unfinished_response(self._record, status)),
            self._of_response(
                "response.in_progress", unfinished_response(self._record, "in_progress")
            ),
        ]

    def more(self) -> list[NamedEvent]:
        """What the tokens add that came since the last call; with the finish, all that is left.

        Raises InternalError when tokens and text do not fit: nobody is told what is not so.
        """
        stream = self._stream
        tokens = stream.tell_tokens()
        pieces = self._pieces.add(stream.token_ids[tokens])
        if stream.finish is not None:
            pieces += self._pieces.finish()
            if len(self._pieces.text) != stream.have:
                raise InternalError("The text of this response is not that of its tokens.")
        events = []
        for piece in pieces:
            events += self._opened()
            events.append(self._delta(piece))
        return events + self._ending() if stream.finish is not None else events

    def response(self) -> dict[str, Any]:
        """The response object as of now."""
        stream, finish = self._stream, self._stream.finish
        if finish is None:
            status = "in_progress" if stream.position else "queued"
            return unfinished_response(self._record, status)
        error = error_of(stream)
        return finished_response(
            self._record,
            finish,
            self._pieces.text,
            stream.position,
            self._logprobs(stream.all_tokens),
            "" if error is None else error.message,
        )

    def _opened(self) -> list[NamedEvent]:
        """The beginning of the message, once."""
        if self._is_open:
            return []
        self._is_open = True
        item = output_message(self._record.rid, "", is_whole=False)
        return [
            self._event(
                "response.output_item.added",
                {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}},
            ),
            self._of_part("response.content_part.added", {"part": output_text("")}),
        ]

    def _ending(self) -> list[NamedEvent]:
        finish = self._stream.finish
        assert finish is not None
        response = self.response()
        events = []
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            events += self._opened()
        if self._is_open:
            (item,) = response["output"]
            (part,) = item["content"]
            done = {"text": part["text"], "logprobs": part["logprobs"]}
            events += [
                self._of_part("response.output_text.done", done),
                self._of_part("response.content_part.done", {"part": part}),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
            ]
        return [*events, self._of_response(_LAST[response["status"]], response)]

    def _delta(self, piece: Piece) -> NamedEvent:
        """The hot path: what is the same in all of them is made once."""
        name, number = b"response.output_text.delta", self._next_number()
        data = (
            b'{"type":"response.output_text.delta","sequence_number":%d,"delta":' % number
            + encode_json(piece.text)
            + b',"logprobs":'
            + encode_json(self._logprobs(piece.tokens))
            + self._delta_tail
        )
        return NamedEvent(number, name, data)

    def _logprobs(self, tokens: slice) -> list[dict[str, Any]]:
        records = self._stream.records(tokens)
        content: list[dict[str, Any]] = chat_logprobs(records, self._texts)["content"]
        return content

    def _of_part(self, name: str, fields: dict[str, Any]) -> NamedEvent:
        return self._event(name, {"item_id": self._item_id, **_PLACE, **fields})

    def _of_response(self, name: str, response: dict[str, Any]) -> NamedEvent:
        return self._event(name, {"response": response})

    def _event(self, name: str, fields: dict[str, Any]) -> NamedEvent:
        number = self._next_number()
        data = encode_json({"type": name, "sequence_number": number, **fields})
        return NamedEvent(number, name.encode(), data)

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1
