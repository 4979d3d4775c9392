"""What `jetflock tail` prints of the events of each API."""

from __future__ import annotations

from typing import Any

import pytest

from jetflock.commands.tail import new_text

RID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"choices": [{"index": 1, "text": "ab"}]}, "ab"),
        ({"choices": [{"index": 0, "text": "no"}]}, ""),
        ({"choices": [{"index": 1, "delta": {"content": "ab"}}]}, "ab"),
        ({"choices": [{"index": 1, "delta": {"reasoning_content": "hm"}}]}, "hm"),
        ({"choices": [{"index": 1, "delta": {"role": "assistant", "content": ""}}]}, ""),
        ({"choices": [], "usage": {}}, ""),
        ({"text": "ab", "meta_info": {}, "index": 1}, "ab"),  # what is new
        ({"text": "xyzab", "meta_info": {}, "index": 1}, "ab"),  # all so far
        ({"text": "xyz", "meta_info": {}, "index": 0}, ""),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ab"}}, "ab"),
        ({"type": "message_start", "message": {"content": []}}, ""),
        ({"type": "response.output_text.delta", "delta": "ab"}, "ab"),
        ({"type": "response.function_call_arguments.delta", "delta": "ab"}, ""),
        ({"message": {"role": "assistant", "content": "ab"}, "done": False}, "ab"),
        ({"response": "ab", "done": False}, "ab"),
        ({"content": "ab", "stop": False}, "ab"),
    ],
)
def test_an_event_tells_what_is_new(event: dict[str, Any], text: str) -> None:
    assert new_text(f"{RID}.1.1.0_2.5.0", event, 1, 3) == text
