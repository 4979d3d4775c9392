"""JSON Schema of what tokenizers say."""

from __future__ import annotations

from typing import Any

from frontend.fields.sampling_fields import SAMPLING_DEFAULTS
from frontend.models.tokenizer_facts import SPECIAL_TOKENS
from frontend.openapi.schemas.schema_words import COUNT, OPTIONAL_TEXT, TEXT, list_of, object_of


def token_schemas() -> dict[str, dict[str, Any]]:
    """Ids of a prompt, the prompt of ids, and what a tokenizer and its model are."""
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
    flag = {"type": "boolean"}
    names = [name.replace("repetition", "repeat") for name in SAMPLING_DEFAULTS]
    params = object_of({name: {"type": "number"} for name in names})
    props = {
        "default_generation_settings": object_of({"n_ctx": COUNT, "params": params}),
        "model_alias": TEXT,
        "modalities": object_of({"vision": flag, "audio": flag}),
        **dict.fromkeys(("chat_template", "bos_token", "eos_token"), TEXT),
    }
    return {
        "Tokenized": object_of(tokenized),
        "Detokenized": object_of({"prompt": TEXT}),
        "Templated": object_of({"prompt": TEXT}),
        "TokenizerInfo": object_of(info),
        "Props": object_of(props),
    }
