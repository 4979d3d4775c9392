"""Fields about the prefix cache: who shares it, what stays in it, and what belongs together."""

from __future__ import annotations

from typing import Literal

import msgspec

from frontend.fields.field_ranges import Range
from frontend.fields.grammar_fields import GrammarFields
from shared.errors import InvalidRequest
from shared.protocol.request import KeepPrefix

MAX_SALT_CHARS = 256
MAX_SESSION_CHARS = 256
MAX_KEEP_S = 24 * 3600
DEFAULT_KEEP_S = 300.0
KEEP_TOKENS = Range(low=1)
KEEP_SECONDS = Range(above=0, high=MAX_KEEP_S)


class KeepPrefixField(msgspec.Struct, omit_defaults=True):
    """`keep_prefix`: the beginning of the prompt is evicted after all others."""

    tokens: int | None = None  # all
    seconds: float | None = None


class CacheFields(GrammarFields, omit_defaults=True):
    """None means default. Structs have one base: these stand behind those of a grammar."""

    cache_salt: str | None = None
    keep_prefix: KeepPrefixField | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None


def checked_salt(salt: str | None) -> str:
    """Raises InvalidRequest."""
    return _checked_text("cache_salt", salt, MAX_SALT_CHARS)


def checked_session(name: str, session: str | None) -> str:
    """Raises InvalidRequest."""
    return _checked_text(name, session, MAX_SESSION_CHARS)


def session_of(fields: CacheFields) -> str:
    """Raises InvalidRequest."""
    session = checked_session("session_id", fields.session_id)
    return session or checked_session("prompt_cache_key", fields.prompt_cache_key)


def keep_of(fields: CacheFields) -> KeepPrefix | None:
    """OpenAI's "24h" is all of the prompt for so long. Raises InvalidRequest."""
    keep = fields.keep_prefix
    if keep is None:
        return KeepPrefix(MAX_KEEP_S) if fields.prompt_cache_retention == "24h" else None
    if fields.prompt_cache_retention == "24h":
        raise InvalidRequest(
            "'keep_prefix' and 'prompt_cache_retention' of '24h' exclude each other",
            param="prompt_cache_retention",
        )
    KEEP_TOKENS.check("keep_prefix.tokens", keep.tokens)
    KEEP_SECONDS.check("keep_prefix.seconds", keep.seconds)
    seconds = DEFAULT_KEEP_S if keep.seconds is None else keep.seconds
    return KeepPrefix(float(seconds), keep.tokens or 0)


def _checked_text(name: str, text: str | None, max_chars: int) -> str:
    if text is not None and not 1 <= len(text) <= max_chars:
        raise InvalidRequest(
            f"'{name}' has {len(text)} characters, must have 1 to {max_chars}",
            param=name,
        )
    return text or ""
