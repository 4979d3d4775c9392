"""Configuration of a detokenizer."""

# No `from __future__ import annotations` here: the fields' types are read at run time.

from dataclasses import dataclass
from typing import ClassVar

from shared.config import ClusterConfig


@dataclass(frozen=True, kw_only=True)
class DetokConfig(ClusterConfig):
    """What a detokenizer needs besides the cluster."""

    nats_role: ClassVar[str] = "detok"
    help_group: ClassVar[str] = "Detokenizer"

    detok_id: str | None = None
    """Id of this process; random when not given. Never use one twice."""
    tokenizer_cache_size: int = 16
    """Tokenizers kept in memory."""
