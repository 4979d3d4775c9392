"""What a body asks for in logprobs, and how many tokens that leaves room for."""

from __future__ import annotations

from dataclasses import dataclass

from frontend.fields.field_ranges import RANGES
from shared.errors import InvalidRequest
from shared.protocol.logprobs import bytes_per_output_token, prompt_bytes


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """Alternatives to each token, None for no logprobs at all; checked."""

    num_top: int | None = None
    num_prompt_top: int | None = None  # shown as `prompt_logprobs`
    echo: bool = False  # the prompt's are shown before the output's, with as many alternatives
    param: str = "logprobs"
    prompt_param: str = "prompt_logprobs"

    @property
    def num_scored_top(self) -> int | None:
        """The number of alternatives to each token of the prompt, for either use."""
        counts = [self.num_prompt_top, self.num_top if self.echo else None]
        return max((count for count in counts if count is not None), default=None)

    def max_output_tokens(self, num_prompt_tokens: int, max_bytes: int) -> int | None:
        """How many output tokens have room besides the prompt's logprobs; None: any number.

        Raises InvalidRequest when the prompt's do not fit.
        """
        num_scored_top = self.num_scored_top
        left = max_bytes - prompt_bytes(num_prompt_tokens, num_scored_top)
        if left < 0:
            name = self.prompt_param if self.num_prompt_top is not None else self.param
            raise InvalidRequest(
                f"'{name}' of a prompt of {num_prompt_tokens} tokens with {num_scored_top} "
                f"alternatives take {max_bytes - left} bytes, at most {max_bytes}",
                param=name,
            )
        return None if self.num_top is None else left // bytes_per_output_token(self.num_top)


def checked_num_top(name: str, value: int | None) -> int | None:
    """Raises InvalidRequest."""
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
