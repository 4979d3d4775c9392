"""Conversations: what earlier responses said, and all of it as chat templates read it."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from frontend.audio.audio_source import AudioData, AudioSource
from frontend.images.source import ImageSource, Source
from frontend.jobs.stored_response import KeptResponse
from frontend.models.message_parts import Seen, joined
from frontend.surfaces.responses.input_items import AUDIO, IMAGE
from frontend.surfaces.responses.output_parser import OutputParser
from frontend.surfaces.tools.calls import InvalidJson, read_arguments
from shared.errors import InvalidRequest
from shared.protocol.finish import FinishReason

_Item = dict[str, Any]
_SEEN = {IMAGE: Seen.IMAGE, AUDIO: Seen.AUDIO}
_FIELDS = {"message": "content", "function_call_output": "output"}  # that may hold more than text


def conversation_of(previous: KeptResponse) -> list[_Item]:
    """All that was said up to the end of a response. Raises InvalidRequest when it has none."""
    record, done = previous.record, previous.done
    if done is None or done.finish.reason not in (FinishReason.STOP, FinishReason.LENGTH):
        state = "still runs" if done is None else f"has no answer: {done.finish.reason.value}"
        raise InvalidRequest(
            f"'previous_response_id' names a response that {state}", param="previous_response_id"
        )
    output = OutputParser(record, lambda _: [])
    output.add(done.text, 0)
    output.finish(done.finish, 0)
    return [*record.items, *msgspec.to_builtins(output.views())]


def messages_of(items: list[_Item], instructions: str | None) -> list[_Item]:
    """As chat templates expect it: an answer, what preceded it in thought and its calls are one."""
    messages: list[_Item] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    turn: _Item | None = None  # of the assistant, to which more may belong
    for item in items:
        if item["type"] == "function_call_output":
            turn = None
            output = item["output"]
            content = output if isinstance(output, str) else _text_of(output)
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif item["type"] == "message" and item["role"] != "assistant":
            turn = None
            messages.append({"role": item["role"], "content": _text_of(item["content"])})
        else:
            if turn is None or not _belongs(item, turn):
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            _add(item, turn)
    return messages


def images_of(items: list[_Item], num_earlier: int, earlier: str) -> list[Source]:
    """And audio, in their order. The first `num_earlier` items are of the field `earlier`."""
    return [
        _source(part, earlier if i < num_earlier else f"input[{i - num_earlier}].{field}[{j}]")
        for i, item in enumerate(items)
        if (field := _FIELDS.get(item["type"])) is not None
        if isinstance(item[field], list)
        for j, part in enumerate(item[field])
        if part["type"] in _SEEN
    ]


def _source(part: _Item, where: str) -> Source:
    if part["type"] == IMAGE:
        return ImageSource(part["image_url"], where, part.get("detail") or "auto")
    return AudioSource(where, AudioData(**part["input_audio"]))


def _belongs(item: _Item, turn: _Item) -> bool:
    match item["type"]:
        case "reasoning":
            return not turn["content"] and "tool_calls" not in turn
        case "message":
            return not turn["content"] or "tool_calls" in turn
    return True


def _add(item: _Item, turn: _Item) -> None:
    match item["type"]:
        case "reasoning":
            texts = item["content"] or item["summary"]
            thought = "\n".join(part["text"] for part in texts)
            if thought:
                turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        case "message":
            turn["content"] += _text_of(item["content"])
        case _:
            turn.setdefault("tool_calls", []).append(_tool_call(item))


def _tool_call(item: _Item) -> _Item:
    """Templates want the arguments as an object."""
    arguments = item["arguments"]
    with contextlib.suppress(InvalidJson):  # a call that was cut stays text
        arguments = read_arguments(arguments or "{}")
    function = {"name": item["name"], "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _text_of(parts: list[_Item]) -> str:
    return joined([_SEEN.get(part["type"]) or part["text"] for part in parts])
