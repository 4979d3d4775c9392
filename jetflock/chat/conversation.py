"""What has been said, and how it is asked for: saved, loaded, sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError


@dataclass(slots=True)
class Conversation:
    """Turns of user and assistant, in turn; the last one may be unanswered."""

    model: str | None = None
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)

    def ask(self, text: str) -> None:
        """The user's next turn; one that got no answer is forgotten."""
        self.take_back_question()
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def take_back_answer(self) -> bool:
        """Lets the last question be asked again; False when there is none."""
        if self.turns and self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        return bool(self.turns)

    def take_back_question(self) -> str | None:
        """The unanswered question, removed."""
        if self.turns and self.turns[-1]["role"] == "user":
            return self.turns.pop()["content"]
        return None

    def body(self) -> dict[str, Any]:
        """The body of the request for the next answer."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return {"model": self.model, "messages": [*system, *self.turns], **self.sampling}

    def save(self, path: Path) -> None:
        """Raises ConfigError."""
        try:
            path.write_text(json.dumps(self.body(), ensure_ascii=False, indent=2) + "\n")
        except OSError as exc:
            raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ConfigError when it is no conversation."""
        body = read_json(path, dict)
        messages = body.pop("messages", None)
        if not isinstance(messages, list) or not all(map(_is_turn, messages)):
            raise ConfigError(f"{path} is no conversation: it has no 'messages' of texts")
        system = None
        if messages and messages[0]["role"] == "system":
            system = messages.pop(0)["content"]
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in messages]
        return cls(body.pop("model", None), system, turns, body)


def _is_turn(turn: object) -> bool:
    return (
        isinstance(turn, dict)
        and turn.get("role") in ("system", "user", "assistant")
        and isinstance(turn.get("content"), str)
    )
