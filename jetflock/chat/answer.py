"""An answer as it grows, with its numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """Times are of this process's clock, from the sending of the request on."""

    started_at: float = field(default_factory=time.monotonic)
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    num_resumes: int = 0
    _first_at: float | None = None
    _last_at: float = 0.0

    def add(self, event: dict[str, Any]) -> None:
        """One chunk of the stream."""
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            text = delta.get("content") or ""
            reasoning = delta.get("reasoning_content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.text += text
            self.reasoning += reasoning
            if text or reasoning:
                self._last_at = time.monotonic()
                self._first_at = self._first_at or self._last_at

    def numbers(self) -> str:
        """One line for a person."""
        parts = []
        num_tokens = self.usage.get("completion_tokens")
        if num_tokens is not None:
            parts.append(f"{num_tokens} tokens")
        if self._first_at is not None:
            parts.append(f"first after {self._first_at - self.started_at:.2f} s")
            if num_tokens and num_tokens > 1 and self._last_at > self._first_at:
                rate = (num_tokens - 1) / (self._last_at - self._first_at)
                parts.append(f"then {rate:.1f} tokens/s")
        if "prompt_tokens" in self.usage:
            details = self.usage.get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens") or 0
            parts.append(f"prompt {self.usage['prompt_tokens']} ({cached} cached)")
        if self.num_resumes:
            parts.append(
                "resumed" if self.num_resumes == 1 else f"resumed {self.num_resumes} times"
            )
        parts.append(self.finish_reason or "stopped")
        return ", ".join(parts)
