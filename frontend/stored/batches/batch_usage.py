"""What the answers of a batch cost."""

from __future__ import annotations

import msgspec

from frontend.text.usage import InputTokensDetails, OutputTokensDetails, TokenUsage


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of all lines that have an answer."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output

    def with_line(self, line: bytes) -> BatchUsage:
        """And those of a line of the output file."""
        response = msgspec.json.decode(line, type=_Line).response
        usage = None if response is None else response.body.usage
        if usage is None:
            return self
        read = usage.input_tokens_details or usage.prompt_tokens_details
        made = usage.output_tokens_details or usage.completion_tokens_details
        return BatchUsage(
            self.input_tokens + (usage.input_tokens or usage.prompt_tokens),
            self.cached_tokens + (read.cached_tokens if read else 0),
            self.output_tokens + (usage.output_tokens or usage.completion_tokens),
            self.reasoning_tokens + (made.reasoning_tokens if made else 0),
        )

    def view(self) -> TokenUsage:
        """OpenAI's object."""
        return TokenUsage(
            input_tokens=self.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=self.cached_tokens),
            output_tokens=self.output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self.reasoning_tokens),
            total_tokens=self.input_tokens + self.output_tokens,
        )


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """Of an answer: responses have names of their own."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    response: _Response | None = None
