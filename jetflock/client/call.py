"""What is asked of the service: an endpoint and a body, made from the client's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_DEADLINE_S = 600.0
ASK_TIMEOUT_S = 60.0  # of what is answered in one message, which may be a whole generation
GRACE_S = 30.0  # how long a request runs on while we are away
ITEMS_AT_ONCE = 256  # inputs or pairs of one request
_WITHOUT_TEXT = ("embed", "score", "rerank")

Message = Mapping[str, Any]
Conversation = Sequence[Message]
Sampling = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request to be started."""

    endpoint: str
    body: dict[str, Any]
    deadline_s: float

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Request-Timeout": f"{self.deadline_s:g}", "X-Resume-Grace": f"{GRACE_S:g}"}

    @property
    def is_keyed(self) -> bool:
        """It may be sent twice, and others may read it too."""
        return self.body.get("idempotency_key") is not None

    @property
    def needs_model(self) -> bool:
        """/generate takes the only one by itself."""
        return self.endpoint != "generate" and self.body.get("model") is None

    @property
    def expects_usage(self) -> bool:
        return "stream_options" in self.body or self.endpoint in _WITHOUT_TEXT


def generate_call(
    prompt: str | Sequence[int] | None,
    messages: Conversation | None,
    params: Mapping[str, Any],
    deadline_s: float,
) -> Call:
    """The call of one prompt or conversation; `input_embeds` is a prompt, too. Raises TypeError."""
    given = (prompt, messages, params.get("input_embeds"))
    if sum(each is not None for each in given) != 1:
        raise TypeError("give either a prompt or messages, or input_embeds")
    body = {**params, "stream": True}
    if body.get("model") is None:
        body.pop("model", None)
    if messages is not None:
        body |= {"messages": list(messages), "stream_options": {"include_usage": True}}
        return Call("chat.completions", body, deadline_s)
    if prompt is not None:
        body |= {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    return Call("generate", body, deadline_s)


def fork_call(place: str, params: Mapping[str, Any], deadline_s: float) -> Call:
    """The call of a fork at an event, or of a request by its id."""
    stream_id, is_event, _ = place.partition(".")
    body = {**params, "stream_id": stream_id, "stream": True}
    return Call("fork", body | ({"event_id": place} if is_event else {}), deadline_s)


def embed_calls(
    inputs: str | Sequence[Any], params: Mapping[str, Any], deadline_s: float
) -> list[Call]:
    """The calls of one input, or of however many; those of one key have keys of their own."""
    body = {**params, "encoding_format": "base64"}
    parts = [{"input": part} for part in _parts(inputs)] if is_many(inputs) else [{"input": inputs}]
    return _calls("embed", body, parts, deadline_s)


def score_calls(
    text_1: str | Sequence[str],
    text_2: str | Sequence[str],
    params: Mapping[str, Any],
    deadline_s: float,
) -> list[Call]:
    """The calls of one text with one or several, or of each with its own. Raises ValueError."""
    texts = [text_2] if isinstance(text_2, str) else list(text_2)
    firsts = [text_1] * len(texts) if isinstance(text_1, str) else list(text_1)
    if len(firsts) != len(texts):
        raise ValueError(f"{len(firsts)} texts cannot be paired with {len(texts)}")
    parts = [
        {"text_1": first, "text_2": second}
        for first, second in zip(_parts(firsts), _parts(texts), strict=True)
    ]
    return _calls("score", params, parts, deadline_s)


def rerank_calls(
    query: str, documents: Sequence[str], params: Mapping[str, Any], deadline_s: float
) -> list[Call]:
    """The calls of however many documents; who reads the answers ranks all of them."""
    parts = [{"query": query, "documents": part} for part in _parts(documents)]
    return _calls("rerank", params, parts, deadline_s)


def _calls(
    endpoint: str,
    params: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    deadline_s: float,
) -> list[Call]:
    """One a part; those of one key have keys of their own."""
    body = {**params, "stream": True}
    calls = []
    for idx, part in enumerate(parts):
        if body.get("idempotency_key") is not None and idx:
            part = {**part, "idempotency_key": f"{body['idempotency_key']}+{idx * ITEMS_AT_ONCE}"}
        calls.append(Call(endpoint, {**body, **part}, deadline_s))
    return calls


def _parts(items: Sequence[Any]) -> list[list[Any]]:
    """Parts of a list, at least one, so that the service says what it thinks of an empty list."""
    starts = range(0, max(1, len(items)), ITEMS_AT_ONCE)
    return [list(items[start : start + ITEMS_AT_ONCE]) for start in starts]


def is_many(items: object) -> bool:
    """Whether they are prompts or conversations, and not one of them."""
    return isinstance(items, Sequence) and not isinstance(items, str) and not _is_one(items)


def _is_one(items: Sequence[Any]) -> bool:
    """Token ids, or the messages of a conversation."""
    return bool(items) and all(isinstance(item, int | Mapping) for item in items)
