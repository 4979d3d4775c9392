"""Bodies of /v1/responses: what is wrong is refused, and named."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.jobs.job import Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.surfaces.responses.request import ResponseRequests
from shared.errors import InvalidRequest
from tests.frontend.directory import make_directory, make_image_loader

BODY: dict[str, Any] = {"model": "tiny", "input": "Hi"}
TOOL: dict[str, Any] = {"type": "function", "name": "now"}
CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "c1",
    "name": "now",
    "arguments": "{}",
}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,xxxx"}
CALL_OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "noon"}


async def job_of(fields: dict[str, Any]) -> Job:
    """Without a store: no case here asks for an earlier response."""
    requests = ResponseRequests(
        make_directory(),
        PromptEncoder(),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        make_image_loader(),
    )
    job = await requests.job({**BODY, **fields}, Caller())
    job.requests(
        "0" * 32,
        Caller(),
        created=0,
        subject="",
        frontend_id="f",
        max_logprob_bytes=9**9,
        cache_salt=job.sampling.cache_salt,
    )
    return job


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "missing_field"),
        ({"input": None}, "input", "missing_field"),
        ({"input": 3}, "input", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
            "missing_field",
        ),
        (
            {"input": [{"role": "user", "content": ["x", IMAGE]}]},
            "input[0].content[1]",
            "unsupported_parameter",
        ),
        ({"input": [{"type": "mcp_call"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [{"type": ["message"]}]}, "input[0].type", "invalid_type"),
        ({"input": [{**CALL, "name": None}]}, "input[0].name", "invalid_type"),
        ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id", "invalid_value"),
        ({"input": [{**CALL, "arguments": 1}]}, "input[0].arguments", "invalid_type"),
        ({"input": [{**CALL, "arguments": "[]"}]}, "input[0].arguments", "invalid_type"),
        ({"input": [CALL_OUTPUT]}, "input[0].call_id", "invalid_value"),
        ({"input": [CALL_OUTPUT, CALL]}, "input[0].call_id", "invalid_value"),
        ({"input": [CALL, {**CALL_OUTPUT, "output": 3}]}, "input[1].output", "invalid_type"),
        (
            {"input": [CALL, {**CALL_OUTPUT, "output": [{"type": "input_image"}]}]},
            "input[1].output[0].image_url",
            "missing_field",
        ),
        (
            {"input": [CALL, {**CALL_OUTPUT, "output": [IMAGE]}]},
            "input[1].output[0]",
            "unsupported_parameter",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
            "unsupported_parameter",
        ),
        ({"input": [{"type": "reasoning", "content": 3}]}, "input[0].content", "invalid_type"),
        ({"instructions": 3}, "instructions", "invalid_type"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 9999}, "max_output_tokens", "context_length_exceeded"),
        ({"input": "x" * 600}, "input", "context_length_exceeded"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"include": ["x"]}, "include", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata", "invalid_type"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"a": "x" * 513}}, "metadata", "invalid_value"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "schema": 3}}},
            "text.format.schema",
            "invalid_type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].name", "missing_field"),
        ({"tools": [{**TOOL, "parameters": 1}]}, "tools[0].parameters", "invalid_type"),
        ({"tools": [{**TOOL, "strict": 1}]}, "tools[0].strict", "invalid_type"),
        (
            {"tools": [{**TOOL, "parameters": {"type": "string"}, "strict": True}]},
            "tools[0].parameters.type",
            "invalid_value",
        ),
        (
            {"tools": [{**TOOL, "defer_loading": True}]},
            "tools[0].defer_loading",
            "unsupported_parameter",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_field"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
            "tool_choice.name",
            "invalid_value",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "any"}},
            "tool_choice.mode",
            "invalid_value",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]},
            },
            "tool_choice.tools[0].name",
            "invalid_value",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": "required",
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
            },
            "text.format.schema",
            "invalid_value",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"conversation": 7}, "conversation", "invalid_type"),
        ({"conversation": {}}, "conversation.id", "missing_field"),
        (
            {"conversation": "c", "previous_response_id": "resp_x"},
            "conversation",
            "invalid_value",
        ),
        ({"conversation": "c", "store": False}, "store", "invalid_value"),
        ({"return_token_ids": True}, "return_token_ids", "unsupported_parameter"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"max_tokens": 2}, "max_tokens", "unsupported_parameter"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"store": False, "background": True}, "store", "invalid_value"),
    ],
)
async def test_what_is_refused(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await job_of(fields)
    assert (caught.value.param, caught.value.code) == (param, code)


async def test_what_agents_send_is_taken() -> None:
    job = await job_of(
        {
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "low"},
            "truncation": "disabled",
            "stream_options": {"include_obfuscation": False},
            "prompt_cache_key": "k",
            "user": "u",
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "service_tier": "auto",
            "input": [
                {"role": "developer", "content": "Be kind."},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
                },
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "?"}],
                },
            ],
        }
    )
    assert job.response is not None
    assert job.response.params.reasoning == {"effort": "low", "summary": None}
    assert [item["role"] for item in job.response.items] == ["developer", "assistant", "user"]
