"""The same over NATS: the Python client resumes by itself, whatever frontend dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from jetflock.chat.chat_backend import ChatEvent, first_model, nothing_to_chat_with
from jetflock.client import Client
from jetflock.client.job import Job
from jetflock.errors import ClientError
from jetflock.running.running_service import ServiceError


class NatsChat:
    """A connection to the frontends' NATS service."""

    def __init__(self, servers: str, api_key: str | None) -> None:
        self.url = servers
        self._client = Client(servers, api_key=api_key)

    def __enter__(self) -> NatsChat:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.shutdown()

    def models(self) -> list[dict[str, Any]]:
        """Raises ServiceError."""
        try:
            return self._client.models()
        except ClientError as exc:
            raise ServiceError(f"{self.url}: {exc}; is it running (jetflock serve)?") from exc

    def default_model(self) -> str:
        """Raises ServiceError."""
        model = first_model(self.models())
        if model is None:
            raise nothing_to_chat_with(self.url)
        return model

    def stream(self, body: dict[str, Any]) -> NatsChatStream:
        """An answer to be read."""
        return NatsChatStream(self._client.generate_async(**body))


class NatsChatStream:
    """The chunks of a job as events of HTTP's shape. Who leaves early ends the request."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> NatsChatStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._job.__exit__()

    @property
    def num_resumes(self) -> int:
        return self._job.num_resumes

    def __iter__(self) -> Iterator[ChatEvent]:
        """Raises ServiceError."""
        try:
            for chunk in self._job:
                yield _event(chunk.text_diff, chunk.reasoning_diff)
            result = self._job.result()
        except ClientError as exc:
            raise ServiceError(str(exc)) from exc
        usage = {} if result.usage is None else _usage(dataclasses.asdict(result.usage))
        yield _event("", "", result.finish_reason, usage)


def _event(
    text: str, reasoning: str, finish: str | None = None, usage: dict[str, Any] | None = None
) -> ChatEvent:
    delta = {"content": text, "reasoning_content": reasoning}
    return ChatEvent("", {"choices": [{"delta": delta, "finish_reason": finish}], "usage": usage})


def _usage(told: dict[str, Any]) -> dict[str, Any]:
    return told | {"prompt_tokens_details": {"cached_tokens": told.get("cached_tokens", 0)}}
