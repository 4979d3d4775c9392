"""What `jetflock chat` is told."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetflock.running.running_service import chosen_key, frontend_urls

SAMPLING = {  # field of the request -> how its text is read
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "stop": str,
}


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """Flags of `jetflock chat`."""

    url: str = ""
    """Of a frontend; of several, comma separated, a cut answer goes on at the next one. nats:// is
    a NATS server. By default that of the jetflock serve that runs here, else
    http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key to send."""
    api_key_file: Path | None = None
    """File that holds the key."""
    model: str | None = None
    """Model to talk to; by default the first that is served."""
    system: str | None = None
    """System prompt."""
    temperature: float | None = None
    """0 is greedy; by default the model's own, as for all below."""
    top_p: float | None = None
    """Share of the probability that is chosen from."""
    top_k: int | None = None
    """Number of tokens that are chosen from."""
    min_p: float | None = None
    """Least probability, as a share of the greatest."""
    max_tokens: int | None = None
    """Length of an answer, at most."""
    seed: int | None = None
    """The same seed, the same answer."""
    stop: str | None = None
    """Text that ends an answer."""
    load: Path | None = None
    """Conversation to go on with, as /save wrote it."""
    stats: bool = False
    """Print the numbers of the answer to stderr when there is no terminal, too."""

    def urls(self) -> list[str]:
        """The URLs without the /v1 that SDKs want.

        Raises ConfigError when several services run here.
        """
        return frontend_urls(self.url)

    def key(self) -> str | None:
        """Raises ConfigError."""
        return chosen_key(self.api_key, self.api_key_file)

    def sampling(self) -> dict[str, Any]:
        """What differs from the model's defaults."""
        values = {name: getattr(self, name, None) for name in SAMPLING}
        return {name: value for name, value in values.items() if value is not None}
