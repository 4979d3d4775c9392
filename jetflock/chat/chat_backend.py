"""What a chat asks of a service, over HTTP or NATS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from jetflock.running.running_service import ServiceError

_UNSERVED = ("failed", "absent")  # as /v1/models tells it


@dataclass(frozen=True, slots=True)
class ChatEvent:
    """One event of a stream, as `data` of HTTP's; over HTTP its id is enough to go on behind it."""

    id: str
    data: dict[str, Any]


class AnswerStream(Protocol):
    """The events of one answer. Iterating raises ServiceError."""

    @property
    def num_resumes(self) -> int: ...

    def __iter__(self) -> Iterator[ChatEvent]: ...


class ChatBackend(Protocol):
    """Any of the frontends behind it will do."""

    @property
    def url(self) -> str: ...

    def models(self) -> list[dict[str, Any]]: ...

    def default_model(self) -> str: ...

    def stream(self, body: dict[str, Any]) -> AbstractContextManager[AnswerStream]: ...


def first_model(models: Sequence[dict[str, Any]]) -> str | None:
    """The first that generates, of those that are served."""
    for model in models:
        can_generate = "generate" in model.get("tasks", ("generate",))
        if can_generate and model.get("parent") is None and model.get("status") not in _UNSERVED:
            return str(model["id"])
    return None


def nothing_to_chat_with(url: str, why: str = "") -> ServiceError:
    """What to raise where no model generates text. `why`: the service's own sentence."""
    told = why or "A worker may still be loading one (jetflock top); else start one."
    return ServiceError(f"{url} serves no model that generates text. {told}")
