"""Configuration of a detokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ClusterConfig


@dataclass(frozen=True, kw_only=True)
class DetokConfig(ClusterConfig):
    """What a detokenizer needs besides the cluster."""

    detok_id: str = "detok"
    """Name of this detokenizer; a random part is added at each start."""
    tokenizer_cache_size: int = 16
    """Tokenizers kept in memory."""
