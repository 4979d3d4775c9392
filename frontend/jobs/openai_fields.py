"""Fields that chat and completions have in common, and the native API has not."""

from __future__ import annotations

from typing import Literal

import msgspec

from frontend.fields.field_ranges import RANGES
from frontend.fields.sampling_fields import SamplingFields
from frontend.jobs.job import AnswerOptions
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.model_cards import ModelCard

MAX_ECHO_CHARS = 64 * 1024  # it travels with every record of the request


class StreamOptions(msgspec.Struct, omit_defaults=True):
    """`stream_options` of OpenAI's streaming APIs; `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIFields(SamplingFields, omit_defaults=True):
    """How to read the prompt and what to tell, beside how to choose tokens; None means default."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    logprob_token_ids: list[int] | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None


def answer_options(fields: OpenAIFields) -> AnswerOptions:
    """What the client wants beside the text."""
    options = fields.stream_options or StreamOptions()
    return AnswerOptions(
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        token_ids=bool(fields.return_token_ids),
        tokens_as_ids=bool(fields.return_tokens_as_token_ids),
    )


def check_echo(text: str, what: str = "prompts") -> None:
    """Raises InvalidRequest for a text that is too long to be repeated."""
    if len(text) > MAX_ECHO_CHARS:
        raise InvalidRequest(
            f"'echo' repeats {what} of up to {MAX_ECHO_CHARS} characters, this one has {len(text)}",
            param="echo",
        )


def prompt_room(fields: OpenAIFields, card: ModelCard, max_tokens: int | None) -> int | None:
    """To how many tokens a prompt is cut, at its beginning; None: not at all.

    -1 is what the context leaves beside `max_tokens`. Raises InvalidRequest.
    """
    name, value = "truncate_prompt_tokens", fields.truncate_prompt_tokens
    if value is None:
        return None
    RANGES[name].check(name, value)
    if value == 0:
        raise InvalidRequest(f"'{name}' is 0, must be -1 or at least 1", param=name)
    if value > 0:
        return value
    if max_tokens is None:
        raise InvalidRequest(
            f"'{name}' is -1: without 'max_tokens' there is no room to leave", param=name
        )
    return max(1, card.max_context_len - max_tokens)


def refuse_truncation(fields: OpenAIFields) -> None:
    """Refuses to cut a prompt with images: it would cut into them. Raises UnsupportedParameter."""
    if fields.truncate_prompt_tokens is not None:
        raise UnsupportedParameter("truncate_prompt_tokens", "does not work with images")
