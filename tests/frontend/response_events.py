"""Reads the events of responses in tests."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import openai.types.responses as openai_types
from pydantic import TypeAdapter

_EVENTS: TypeAdapter[Any] = TypeAdapter(openai_types.ResponseStreamEvent)
_RESPONSE = TypeAdapter(openai_types.Response)


async def events_of(response: httpx.Response, limit: int = 1 << 20) -> list[dict[str, Any]]:
    """The first so many; each has the type that its `event:` line says."""
    events: list[dict[str, Any]] = []
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            events.append(json.loads(line[6:]))
            assert events[-1]["type"] == name
            if len(events) == limit:
                break
    return events


def check_events(events: list[dict[str, Any]]) -> None:
    """Each is what OpenAI's client calls one, and none is missing."""
    for event in events:
        _EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def check_response(response: dict[str, Any]) -> None:
    _RESPONSE.validate_python(response)


def item_of(response: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """The output item that an event is about: the last one."""
    assert event["output_index"] == len(response["output"]) - 1
    item: dict[str, Any] = response["output"][-1]
    assert item["id"] == event["item_id"]
    return item


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a client builds from all events but the last one's object."""
    response: dict[str, Any] = {}
    for event in copy.deepcopy(events[:-1]):
        match event["type"]:
            case "response.created" | "response.in_progress":
                response = event["response"]
            case "response.output_item.added":
                assert event["output_index"] == len(response["output"])
                assert all(item["status"] != "in_progress" for item in response["output"])
                response["output"].append(event["item"])
            case "response.content_part.added":
                content = item_of(response, event)["content"]
                assert event["content_index"] == len(content)
                content.append(event["part"])
            case "response.output_text.delta":
                part = item_of(response, event)["content"][event["content_index"]]
                part["text"] += event["delta"]
                part["logprobs"] += event["logprobs"]
            case "response.reasoning_text.delta":
                item_of(response, event)["content"][event["content_index"]]["text"] += event[
                    "delta"
                ]
            case "response.reasoning_text.done":
                part = item_of(response, event)["content"][event["content_index"]]
                assert part["text"] == event["text"]
            case "response.function_call_arguments.delta":
                item_of(response, event)["arguments"] += event["delta"]
            case "response.function_call_arguments.done":
                item = item_of(response, event)
                assert (item["name"], item["arguments"]) == (event["name"], event["arguments"])
            case "response.output_text.done":
                part = item_of(response, event)["content"][event["content_index"]]
                assert part["text"] == event["text"]
                told = len(part["logprobs"])
                assert part["logprobs"] == event["logprobs"][:told]
                part["logprobs"] = event["logprobs"]  # the end token has no text
            case "response.content_part.done":
                part = item_of(response, event)["content"][event["content_index"]]
                assert part == event["part"]
            case "response.output_item.done":
                item = response["output"][event["output_index"]]
                item["status"] = event["item"]["status"]
                assert item == event["item"]
            case other:
                raise AssertionError(f"unknown event {other}")
    last = events[-1]["response"]
    ending = ("status", "usage", "error", "incomplete_details")
    return {**response, **{name: last[name] for name in ending if name in last}}
