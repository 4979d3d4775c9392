"""Reads server-sent events in tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class SseEvent:
    event_id: str
    data: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.data)
        return value

    @property
    def text(self) -> str:
        """The text that this event adds, of chat or completions."""
        if self.data == "[DONE]" or not self.json["choices"]:
            return ""
        choice = self.json["choices"][0]
        return str(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])


async def sse_events(response: httpx.Response) -> AsyncIterator[SseEvent]:
    event_id, data = "", []
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            data.append(line[6:])
        elif not line and data:
            yield SseEvent(event_id, "\n".join(data))
            data = []


async def events_after(client: httpx.AsyncClient, url: str, last: SseEvent) -> list[SseEvent]:
    """The rest of a stream, from the frontend at `url`."""
    rid = last.event_id.split(".")[0]
    async with client.stream(
        "GET", f"{url}/v1/streams/{rid}", headers={"Last-Event-ID": last.event_id}
    ) as response:
        assert response.status_code == 200
        return [event async for event in sse_events(response)]


def text_of(events: list[SseEvent]) -> str:
    return "".join(event.text for event in events)
