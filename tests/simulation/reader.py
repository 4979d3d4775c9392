"""A client: asks, reads, is cut off, resumes elsewhere with its last event id."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from frontend.streams.generation import Generation
from frontend.surfaces.event_feed import Event
from shared.errors import RequestError
from tests.simulation.schedule import Ask


class ReaderState(enum.Enum):
    """How far a client is."""

    ASKING = "asking"
    READING = "reading"
    AWAY = "away"  # cut off, about to resume
    COMPLETE = "complete"
    FAILED = "failed"  # told an error
    REFUSED = "refused"  # never accepted, as far as it knows
    GONE = "gone"  # it left


OVER = (ReaderState.COMPLETE, ReaderState.FAILED, ReaderState.REFUSED, ReaderState.GONE)


class Reader:
    """Holds what it has received: text and token ids, in the order of the events."""

    def __init__(self, idx: int, ask: Ask, body: dict[str, Any]) -> None:
        self.name = f"client{idx}"
        self.ask = ask
        self.body = body
        self.state = ReaderState.ASKING
        self.group_id = ""
        self.event_id = ""
        self.text = ""
        self.token_ids: list[int] = []
        self.error: RequestError | None = None
        self.generation: Generation | None = None
        self.frontend = ""
        self.num_connections = 0  # what comes on an earlier one than the last is not read
        self.was_cut_off = False
        self.violations: list[str] = []

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def on_open(self, generation: Generation, frontend: str) -> None:
        """The 200 has come."""
        self.state = ReaderState.READING
        if self.group_id and self.group_id != generation.group_id:
            self.violations.append("a resumed stream is of another group")
        self.group_id = generation.group_id
        self.generation = generation
        self.frontend = frontend

    def on_event(self, event: Event) -> None:
        body = msgspec.json.decode(event.data)
        if "error" in body:
            return
        self.text += body["text"]
        self.token_ids += body["output_ids"]
        self.event_id = event.event_id.decode()
        if body["meta_info"]["finish_reason"] is not None:
            self.state = ReaderState.COMPLETE

    def on_error(self, error: RequestError) -> None:
        self.error = error
        self.state = ReaderState.FAILED
