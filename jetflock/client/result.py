"""What the Python client returns: pieces of an answer as they come, and the whole at the end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its logprob, of the model's own distribution, and its likeliest rivals."""

    token: str
    logprob: float | None  # None for the first token of a prompt
    token_id: int | None = None  # None for requests by `messages`
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDiff:
    """What is new of a tool call: `id` and `name` come once and whole, the arguments in pieces."""

    index: int  # among the calls of its choice
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class ToolCall:
    """A function that the model calls; `arguments` is JSON, as the model wrote it."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is new of one choice. `str(chunk)` is the text."""

    text_diff: str
    choice_idx: int = 0
    finish_reason: str | None = None
    # Of requests by `prompt`; by `messages` with `return_token_ids=True`.
    token_ids_diff: tuple[int, ...] = ()
    event_id: str = ""  # `Client.resume(event_id)` goes on after this chunk
    logprobs_diff: tuple[TokenLogprob, ...] = ()  # if the request asked for them
    reasoning_diff: str = ""  # what the model thinks, set apart from its answer
    tool_calls_diff: tuple[ToolCallDiff, ...] = ()

    def __str__(self) -> str:
        return self.text_diff


@dataclass(slots=True)
class Choice:
    """One answer; a request with `n` has several."""

    text: str = ""
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)  # see `Chunk.token_ids_diff`
    logprobs: list[TokenLogprob] = field(default_factory=list)  # if the request asked for them
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # for requests by `prompt`
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    embedding: str = ""  # of `Client.embed`: base64 of little-endian float32
    score: float | None = None  # of `Client.score` and `Client.rerank`


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each input, in their order."""

    vectors: tuple[list[float], ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Scores:
    """One number for each pair, in their order: the higher, the better they fit."""

    scores: tuple[float, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document, where it stood in the list that was ranked, and how well it fits."""

    index: int
    score: float
    document: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents, best first."""

    results: tuple[Ranked, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request; what is not of all choices is that of the first one."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage | None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.choices[0].tool_calls

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason

    def __str__(self) -> str:
        return self.text
