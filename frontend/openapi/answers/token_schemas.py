"""JSON Schema of what tokenizers say."""

from __future__ import annotations

from typing import Any

from frontend.openapi.answers.schema_words import COUNT, OPTIONAL_TEXT, TEXT, list_of, object_of
from frontend.tokens.tokenizer_facts import SPECIAL_TOKENS


def token_schemas() -> dict[str, dict[str, Any]]:
    """Ids of a prompt, the prompt of ids, and what a tokenizer is."""
    strings = {"type": ["array", "null"], "items": OPTIONAL_TEXT}
    tokenized = {
        "count": COUNT,
        "max_model_len": COUNT,
        "tokens": list_of(COUNT),
        "token_strs": strings,
    }
    info = {
        "model": TEXT,
        "max_model_len": COUNT,
        "vocab_size": COUNT,
        "tokenizer_hash": TEXT,
        "tokenizer_class": OPTIONAL_TEXT,
        **dict.fromkeys(SPECIAL_TOKENS, OPTIONAL_TEXT),
        "chat_template": OPTIONAL_TEXT,
    }
    return {
        "Tokenized": object_of(tokenized),
        "Detokenized": object_of({"prompt": TEXT}),
        "TokenizerInfo": object_of(info),
    }
