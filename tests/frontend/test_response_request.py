"""Bodies of /v1/responses: what is wrong is refused, and named."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.job import Caller, Job
from frontend.prompt_encoder import PromptEncoder
from frontend.responses.request import ResponseRequests
from shared.errors import InvalidRequest
from tests.frontend.directory import make_directory

BODY: dict[str, Any] = {"model": "tiny", "input": "Hi"}


async def job_of(fields: dict[str, Any]) -> Job:
    """Without a store: no case here asks for an earlier response."""
    requests = ResponseRequests(
        make_directory(),
        PromptEncoder(),
        None,  # type: ignore[arg-type]
        use_model_defaults=True,
    )
    job = await requests.job({**BODY, **fields}, Caller())
    job.requests("0" * 32, Caller(), created=0, subject="", frontend_id="f", max_logprob_bytes=9**9)
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
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        ({"input": [{"type": "function_call"}]}, "input[0]", "unsupported_parameter"),
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
        ({"tools": [{"type": "web_search"}]}, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
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
    assert job.response.params.reasoning == {"effort": "low"}
    assert [item["role"] for item in job.response.items] == ["developer", "assistant", "user"]
