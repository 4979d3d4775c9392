"""A stream, folded together, is the answer that is not streamed: for whatever parameters.

Each example runs on a real engine twice with one seed, streamed and whole, and the stream's own
request is fetched once more as a whole.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.e2e.role_stack import MODEL_NAME, REAL_ENGINE, RoleStack

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

NUM_EXAMPLES = 20
LOGPROB_TOLERANCE = 1e-3  # two runs share their steps with different requests

texts = st.sampled_from(["Tell me a story.", "1 + 1 =", "Once upon a time", "Name a colour é 🙂"])
stops = st.lists(st.sampled_from([" ", ".", " the", "on", "!", "dragon"]), min_size=1, max_size=3)
sampling = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1 << 40),
        "temperature": st.sampled_from([0, 0.8, 1.7]),
        "max_tokens": st.integers(1, 30),
        "n": st.integers(1, 3),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
    },
    optional={
        "stop": stops,
        "top_p": st.sampled_from([0.5, 0.95]),
        "min_tokens": st.just(1),
        "frequency_penalty": st.sampled_from([-1, 1]),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "ignore_eos": st.booleans(),
    },
)
chats = st.fixed_dictionaries(
    {"messages": texts.map(lambda text: [{"role": "user", "content": text}])},
    optional={"logprobs": st.just(True), "truncate_prompt_tokens": st.just(8)},
)
ids = st.lists(st.integers(300, 1200), min_size=1, max_size=12)
completions = st.fixed_dictionaries(
    {"prompt": texts | ids | st.lists(texts, min_size=1, max_size=2)},
    optional={"logprobs": st.integers(0, 3), "echo": st.booleans()},
)
# A stop string and an end token whose tokens come with the finish, and without text.
STOPPED: dict[str, Any] = {"seed": 1, "temperature": 0, "max_tokens": 30, "return_token_ids": True}
AT_STOP_STRING = {**STOPPED, "prompt": "Once upon a time", "logprobs": 1, "stop": [" "]}
AT_END_TOKEN = {
    **STOPPED,
    "messages": [{"role": "user", "content": "1 + 1 ="}],
    "logprobs": True,
    "max_tokens": 60,
}

requests = st.tuples(st.just("chat/completions"), st.builds(dict.__or__, chats, sampling)) | (
    st.tuples(st.just("completions"), st.builds(dict.__or__, completions, sampling))
)


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that the events of a stream make up."""
    answer: dict[str, Any] = {"choices": {}}
    for data in events:
        if data["usage"] is not None:
            answer["usage"] = data["usage"]
        if "prompt_token_ids" in data:
            answer["prompt_token_ids"] = data["prompt_token_ids"]
        for piece in data["choices"]:
            choice = answer["choices"].setdefault(piece["index"], {"text": "", "logprobs": {}})
            choice["text"] += piece.get("text") or piece.get("delta", {}).get("content") or ""
            choice["finish_reason"] = piece["finish_reason"]
            for name, values in (piece["logprobs"] or {}).items():
                choice["logprobs"][name] = choice["logprobs"].get(name, []) + (values or [])
            if "token_ids" in piece:
                choice["token_ids"] = choice.get("token_ids", []) + piece["token_ids"]
            if "prompt_token_ids" in piece:
                choice["prompt_token_ids"] = piece["prompt_token_ids"]
    return answer


def as_told(whole: dict[str, Any]) -> dict[str, Any]:
    """A whole answer in the form of `folded`."""
    answer: dict[str, Any] = {"choices": {}, "usage": whole["usage"]}
    if "prompt_token_ids" in whole:
        answer["prompt_token_ids"] = whole["prompt_token_ids"]
    for told in whole["choices"]:
        choice = answer["choices"][told["index"]] = {
            "text": told["text"] if "text" in told else told["message"]["content"],
            "finish_reason": told["finish_reason"],
            "logprobs": {name: values or [] for name, values in (told["logprobs"] or {}).items()},
        }
        for name in ("token_ids", "prompt_token_ids"):
            if name in told:
                choice[name] = told[name]
    return answer


def assert_close(one: Any, other: Any) -> None:
    """Equal, but for the rounding of logprobs."""
    if isinstance(one, float):
        assert other == pytest.approx(one, abs=LOGPROB_TOLERANCE)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name, value in one.items():
            assert_close(value, other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for value, twin in zip(one, other, strict=True):
            assert_close(value, twin)
    else:
        assert one == other


def check(client: httpx.Client, route: str, body: dict[str, Any]) -> None:
    path = f"/v1/{route}"
    body = {"model": MODEL_NAME, **body}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = client.post(path, json={**body, **streaming})
    assert streamed.status_code == 200, streamed.text
    lines = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    told = folded([json.loads(line) for line in lines])
    rid = streamed.headers["x-request-id"]
    again = as_told(client.get(f"/v1/streams/{rid}?stream=false").json())
    assert told == again
    whole = as_told(client.post(path, json=body).json())
    del told["usage"]["prompt_tokens_details"], whole["usage"]["prompt_tokens_details"]
    told["choices"] = dict(sorted(told["choices"].items()))
    assert_close(whole["usage"], told["usage"])
    assert whole["choices"].keys() == told["choices"].keys()
    for index, choice in whole["choices"].items():
        assert choice.keys() == told["choices"][index].keys()
        for name, value in choice.items():
            assert_close(value, told["choices"][index][name])


async def test_a_stream_is_its_whole_answer_in_pieces(tmp_path: Path) -> None:
    async with RoleStack(tmp_path) as stack:
        stack.start_worker(*REAL_ENGINE)
        await stack.wait_ready(1)
        with httpx.Client(base_url=stack.url(), timeout=60) as client:

            @settings(
                max_examples=NUM_EXAMPLES,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @example(("completions", AT_STOP_STRING))
            @example(("completions", {**AT_STOP_STRING, "stop": ["dragon", " little"]}))
            @example(("completions", {**AT_STOP_STRING, "stop": ["."], "n": 2}))
            @example(("chat/completions", AT_END_TOKEN))
            @given(requests)
            def holds(request: tuple[str, dict[str, Any]]) -> None:
                check(client, *request)

            await asyncio.to_thread(holds)
