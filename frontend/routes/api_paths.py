"""The paths of routes that have several: without /v1 for clients whose base URL has none."""

from __future__ import annotations

CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
EMBEDDING_PATHS = ("/v1/embeddings", "/embeddings")
RESPONSE_PATHS = ("/v1/responses", "/responses")
MODEL_PATHS = ("/v1/models", "/models")
SCORE_PATHS = ("/v1/score", "/score")
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")
