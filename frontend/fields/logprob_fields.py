"""What a body asks for in logprobs, and how many tokens that leaves room for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from frontend.fields.field_ranges import RANGES
from frontend.fields.token_rules import check_token_ids
from shared.errors import InvalidRequest
from shared.protocol.logprobs import MAX_TOP_LOGPROBS, bytes_per_output_token, prompt_bytes


class NamesTokens(Protocol):
    """A body with vLLM's field."""

    logprob_token_ids: list[int] | None


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """Alternatives to each token, None for no logprobs at all; checked."""

    num_top: int | None = None
    num_prompt_top: int | None = None  # shown as `prompt_logprobs`
    token_ids: tuple[int, ...] = ()  # told beside the likeliest of each
    prompt_start: int = 0  # the prompt's are told from this token on
    echo: bool = False  # the prompt's are shown before the output's, with as many alternatives
    param: str = "logprobs"
    prompt_param: str = "prompt_logprobs"

    @property
    def num_scored_top(self) -> int | None:
        """The number of alternatives to each token of the prompt, for either use."""
        if not self.echo or self.num_top is None:
            return self.num_prompt_top
        return max(self.num_top, self.num_prompt_top or 0)

    def max_output_tokens(self, num_prompt_tokens: int, max_bytes: int) -> int | None:
        """How many output tokens have room besides the prompt's logprobs; None: any number.

        Raises InvalidRequest when the prompt's do not fit.
        """
        num_scored_top = self.num_scored_top
        num_ids = len(self.token_ids)
        num_scored = None if num_scored_top is None else num_scored_top + num_ids
        left = max_bytes - prompt_bytes(num_prompt_tokens, num_scored)
        if left < 0:
            name = self.prompt_param if self.num_prompt_top is not None else self.param
            raise InvalidRequest(
                f"'{name}' of a prompt of {num_prompt_tokens} tokens with {num_scored} "
                f"alternatives take {max_bytes - left} bytes, at most {max_bytes}",
                param=name,
            )
        if self.num_top is None:
            return None
        return left // bytes_per_output_token(self.num_top + num_ids)


def checked_logprob_ids(
    name: str, token_ids: list[int] | None, num_top: int | None, vocab_size: int
) -> tuple[int, ...]:
    """Raises InvalidRequest. `num_top`: the likeliest that are told beside them."""
    if not token_ids:
        return ()
    most = MAX_TOP_LOGPROBS - (num_top or 0)
    if len(token_ids) > most:
        beside = f" beside {num_top} of the likeliest" if num_top else ""
        raise InvalidRequest(
            f"'{name}' holds {len(token_ids)} ids, at most {most}{beside}", param=name
        )
    if len(set(token_ids)) < len(token_ids):
        raise InvalidRequest(f"'{name}' holds an id twice", param=name)
    check_token_ids(name, token_ids, vocab_size)
    return tuple(token_ids)


def named_ids(body: NamesTokens, logprobs: LogprobOptions, vocab_size: int) -> LogprobOptions:
    """The ids that are told, with vLLM's `logprob_token_ids`, which take the place of the
    likeliest.

    Raises InvalidRequest.
    """
    name = "logprob_token_ids"
    if not body.logprob_token_ids:
        return logprobs
    if logprobs.num_top is None:
        raise InvalidRequest(f"'{name}' is given, and 'logprobs' is not", param=name)
    if logprobs.num_top not in (0, len(body.logprob_token_ids)):
        raise InvalidRequest(
            f"'{name}' holds {len(body.logprob_token_ids)} ids, and '{logprobs.param}' is "
            f"{logprobs.num_top}: they take the place of the likeliest",
            param=name,
        )
    token_ids = checked_logprob_ids(name, body.logprob_token_ids, None, vocab_size)
    return replace(logprobs, num_top=0, token_ids=token_ids)


def checked_num_top(name: str, value: int | None) -> int | None:
    """Raises InvalidRequest."""
    if value == -1:
        raise InvalidRequest(
            f"'{name}' is -1, which asks for the whole vocabulary: no answer has room for that; at "
            f"most {MAX_TOP_LOGPROBS}",
            param=name,
        )
    RANGES["top_logprobs"].check(name, value)
    return value


def checked_prompt_top(value: int | None, *, is_stream: bool) -> int | None:
    """vLLM's `prompt_logprobs`, which no event of a stream has a place for.

    Raises InvalidRequest.
    """
    if value is not None and is_stream:
        raise InvalidRequest(
            f"'prompt_logprobs' is {value}, and 'stream' is true: they exclude each other",
            param="prompt_logprobs",
        )
    return checked_num_top("prompt_logprobs", value)
