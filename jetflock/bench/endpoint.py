"""The three routes that load is put on, and the bodies they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from jetflock.bench.prompt import Prompt
from shared.errors import ConfigError

EndpointName = Literal["chat", "completions", "embeddings"]

_PATHS: Mapping[str, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Makes the body of a request."""

    name: EndpointName
    model: str
    ignores_eos: bool = True  # the server takes `ignore_eos`, which OpenAI's API does not know
    extra_fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return _PATHS[self.name]

    @property
    def is_streamed(self) -> bool:
        return self.name != "embeddings"

    def body(self, prompt: Prompt) -> bytes:
        """JSON. `extra_fields` replace ours; those that are None are left out."""
        body: dict[str, Any] = {"model": self.model} | self._prompt_fields(prompt)
        if self.is_streamed:
            body |= {
                "max_tokens": prompt.output_len,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            if self.ignores_eos:
                body["ignore_eos"] = True
        body |= self.extra_fields
        return msgspec.json.encode({key: value for key, value in body.items() if value is not None})

    def _prompt_fields(self, prompt: Prompt) -> dict[str, Any]:
        if self.name == "chat":
            said = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
            return {"messages": said}
        if prompt.messages:
            raise ConfigError(f"the dataset has messages, which {self.path} does not take")
        return {"prompt" if self.name == "completions" else "input": prompt.text}
