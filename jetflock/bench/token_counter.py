"""Who tells how many tokens a text has: the server, a tokenizer here, or nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from jetflock.bench.connection_pool import ConnectionPool
from jetflock.bench.json_call import CallFailed, json_call
from jetflock.bench.target import Target
from shared.errors import ConfigError


class TokenCounter(Protocol):
    """`name` is told to the reader of the figures."""

    name: str

    async def count(self, text: str) -> int:
        """Tokens of a request whose prompt is `text`."""
        ...


class ServerTokens:
    """The server's /tokenize, with the chat template where the request will have it."""

    def __init__(self, pool: ConnectionPool, target: Target, model: str, *, is_chat: bool) -> None:
        self._pool, self._target, self._model = pool, target, model
        self._is_chat = is_chat
        self.name = "tokens by the server's /tokenize"
        if is_chat:
            self.name += ", chat template included"

    async def count(self, text: str) -> int:
        """Raises CallFailed."""
        body: dict[str, object] = {"model": self._model}
        if self._is_chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        answer = await json_call(self._pool, self._target, "/tokenize", body)
        try:
            return int(answer["count"])
        except (KeyError, TypeError, ValueError) as exc:
            raise CallFailed(f"/tokenize told no count: {answer!r:.80}") from exc


class LocalTokens:
    """A tokenizer.json of this machine; it knows nothing of chat templates."""

    def __init__(self, path: Path) -> None:
        """`path` is the file, or the folder that has it. Raises ConfigError."""
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as exc:  # the library raises nothing narrower
            raise ConfigError(f"tokenizer {file} cannot be read: {exc}") from exc
        self.name = f"tokens by {file}, without a chat template"

    async def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)


class Words:
    """Words, where nobody knows the tokens."""

    name = "words: the server has no /tokenize; --tokenizer names a tokenizer.json"

    async def count(self, text: str) -> int:
        return len(text.split())


async def find_counter(
    pool: ConnectionPool, target: Target, model: str, tokenizer: Path | None, *, is_chat: bool
) -> TokenCounter:
    """The best there is. Raises ConfigError."""
    if tokenizer is not None:
        return LocalTokens(tokenizer)
    for with_template in (True, False) if is_chat else (False,):
        counter = ServerTokens(pool, target, model, is_chat=with_template)
        try:
            await counter.count("one")
        except CallFailed:
            continue
        return counter
    return Words()
