"""Tokenizer files as one object: named by content, so that no role needs a model on disk."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from shared.checkpoint.tekken import TEKKEN_FILE, tekken_files
from shared.checkpoint.tiktoken_files import tiktoken_file_in, tiktoken_files
from shared.errors import ConfigError, MalformedMessage

# Late where it is used: commands that only look at a service carry bundles about as bytes.
if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HASH = re.compile(r"[0-9a-f]{64}")
UNKNOWN_NUMBER = "0"  # what a word that is no token id becomes

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """The files of a fast tokenizer, by name. `content_hash` names the bundle everywhere."""

    files: dict[str, bytes]

    @classmethod
    def from_model_dir(cls, path: Path) -> TokenizerBundle:
        """Read a model folder. Its tokenizer may be Mistral's (tekken.json), or one of tiktoken's;
        transformers converts a slow one. Raises ConfigError.
        """
        files = {name: (path / name).read_bytes() for name in _FILES if (path / name).is_file()}
        if "tokenizer.json" in files:
            return cls(files)
        if (path / TEKKEN_FILE).is_file():
            return cls(tekken_files(path) | files)
        if (file := tiktoken_file_in(path)) is not None:
            return cls(files | tiktoken_files(file))
        return cls._converted(path)

    @classmethod
    def of_numbers(cls, vocab_size: int) -> TokenizerBundle:
        """A bundle of no model: words are token ids in digits, and each id's text is its number."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocabulary = {str(token_id): token_id for token_id in range(vocab_size)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_NUMBER))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls({"tokenizer.json": tokenizer.to_str().encode()})

    @classmethod
    def is_in(cls, path: Path) -> bool:
        """Whether the folder has the files of a tokenizer, fast or slow."""
        patterns = ("tokenizer.json", TEKKEN_FILE, "vocab.*", "*.model", "*.tiktoken")
        return any(any(path.glob(pattern)) for pattern in patterns)

    @classmethod
    def _converted(cls, path: Path) -> TokenizerBundle:
        if not cls.is_in(path):  # transformers would make an empty one for some families
            raise ConfigError(f"no usable tokenizer in {path}: there is no tokenizer.json")
        from transformers import AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            try:
                AutoTokenizer.from_pretrained(path, use_fast=True).save_pretrained(folder)
            except (OSError, ValueError, ImportError) as exc:
                raise ConfigError(f"no usable tokenizer in {path}: {exc}") from exc
            if not (Path(folder) / "tokenizer.json").is_file():
                raise ConfigError(f"the tokenizer in {path} has no fast (tokenizer.json) form")
            return cls.from_model_dir(Path(folder))

    @classmethod
    def from_bytes(cls, data: bytes) -> TokenizerBundle:
        try:
            files = msgpack.unpackb(data)
        except (ValueError, msgpack.UnpackException) as exc:
            raise MalformedMessage(f"not a tokenizer bundle: {exc}") from exc
        if not isinstance(files, dict) or "tokenizer.json" not in files:
            raise MalformedMessage("not a tokenizer bundle: it has no tokenizer.json")
        return cls(files)

    def to_bytes(self) -> bytes:
        """The same bytes for the same files."""
        return msgpack.packb(dict(sorted(self.files.items())))  # type: ignore[no-any-return]

    def with_chat_template(self, source: str) -> TokenizerBundle:
        """The same tokenizer with another chat template, in Jinja."""
        return TokenizerBundle(self.files | {"chat_template.jinja": source.encode()})

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """A new tokenizer, without padding or truncation. Slow. Raises ConfigError."""
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self.files["tokenizer.json"].decode())
        except Exception as exc:  # the tokenizers library raises bare Exception
            raise ConfigError(f"tokenizer.json cannot be read: {exc}") from exc
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @property
    def config(self) -> dict[str, Any]:
        """tokenizer_config.json."""
        config: dict[str, Any] = json.loads(self.files.get("tokenizer_config.json", b"{}"))
        return config

    @property
    def chat_template(self) -> str | None:
        """The Jinja source, from its own file or from tokenizer_config.json."""
        if "chat_template.jinja" in self.files:
            return self.files["chat_template.jinja"].decode()
        if "chat_template.json" in self.files:  # of processors, before they had a file for it
            holder = json.loads(self.files["chat_template.json"])
        else:
            holder = self.config
        template: Any = holder.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = {item["name"]: item["template"] for item in template}
            template = named.get("default")
        return None if template is None else str(template)

    def special_token(self, name: str) -> str | None:
        """Text of `bos_token`, `eos_token`, ...: what a chat template may refer to."""
        token = self.config.get(name)
        return token.get("content") if isinstance(token, dict) else token


def is_bundle_hash(text: str) -> bool:
    """Whether it may be the `content_hash` of a bundle."""
    return _HASH.fullmatch(text) is not None
