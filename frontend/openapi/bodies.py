"""JSON Schema of the request bodies: the types that read them, and what is checked beyond types."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from frontend.fields.cache_fields import (
    KEEP_SECONDS,
    KEEP_TOKENS,
    MAX_SALT_CHARS,
    MAX_SESSION_CHARS,
)
from frontend.fields.field_ranges import RANGES, Range
from frontend.fields.pooled_fields import MAX_INPUTS
from frontend.fields.processor_fields import MAX_PROCESSORS
from frontend.fields.request_body import Refused
from frontend.fields.sampler_order import SAMPLER_LETTERS, SAMPLER_NAMES
from frontend.fields.sampling_fields import MAX_STOP, SamplingFields
from frontend.inference.admission.queue_timeout import FIELD as QUEUE_TIMEOUT
from frontend.jobs.client_request_id import FIELDS as CLIENT_ID_FIELDS
from frontend.jobs.client_request_id import PATTERN as CLIENT_ID_PATTERN
from frontend.jobs.dry_fields import MAX_BREAKER_CHARS, MAX_BREAKERS
from frontend.jobs.idempotency_key import FIELD as IDEMPOTENCY_KEY
from frontend.jobs.idempotency_key import MAX_KEY_CHARS
from frontend.openapi.answers import schema_ref
from frontend.openapi.document_parts import (
    SOME_TEXT,
    STOP_STRING,
    list_of,
    object_with,
    optional,
)
from frontend.stored.batches.batch_body import WINDOW_PATTERN, BatchBody
from frontend.stored.batches.batch_record import ENDPOINTS
from frontend.stored.conversations import (
    MAX_NEW_ITEMS,
    ConversationBody,
    ConversationChange,
    ConversationItems,
)
from frontend.stored.files.file_record import SHORTEST_TTL_S, UPLOADED
from frontend.surfaces.anthropic.body import MessageBody
from frontend.surfaces.chat.chat_batch import MAX_CONVERSATIONS, ChatBatchBody
from frontend.surfaces.chat.chat_batch import REFUSED as BATCH_REFUSED
from frontend.surfaces.chat.chat_request import ChatBody
from frontend.surfaces.chat.messages import GivenMessage
from frontend.surfaces.classes.class_request import ClassBody, PoolingBody
from frontend.surfaces.completions.completion_request import MAX_PROMPTS, CompletionBody
from frontend.surfaces.embeddings.embedding_request import EmbeddingBody
from frontend.surfaces.forks.fork_body import (
    FROM_ZERO,
    MAX_APPEND_CHARS,
    PLACES,
    STREAM_FIELD,
    ForkBody,
    ForkSampling,
)
from frontend.surfaces.generate.generate_request import ALIASES, PROMPT_FIELDS, GenerateBody
from frontend.surfaces.infill.infill_request import MAX_EXTRA, InfillBody
from frontend.surfaces.infill.infill_request import REFUSED as INFILL_REFUSED
from frontend.surfaces.ollama.body import (
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaGenerateBody,
    OllamaOptions,
    OllamaShowBody,
)
from frontend.surfaces.responses.input_items import MAX_ITEMS, GivenItem
from frontend.surfaces.responses.request import INCLUDABLE, ResponseBody
from frontend.surfaces.responses.request import REFUSED as RESPONSE_REFUSED
from frontend.surfaces.scores.pair_request import MAX_INSTRUCTION_CHARS
from frontend.surfaces.scores.rerank_request import TOP_N, RerankBody
from frontend.surfaces.scores.score_request import ScoreBody
from frontend.surfaces.tokens import DetokenizeBody, TemplateBody, TokenizeBody
from frontend.surfaces.transcripts.transcript_request import TranscriptBody
from shared.protocol.reply import TranscriptFormat

Schemas = dict[str, dict[str, Any]]  # by name

_ID = {"type": "integer", "minimum": 0}
_SESSION = optional({"type": "string", "minLength": 1, "maxLength": MAX_SESSION_CHARS})
# Beside the ranges of numbers; a field that is not here is as its type says.
_FIELDS: dict[str, dict[str, Any]] = {
    "stop": optional(STOP_STRING, list_of(STOP_STRING, maxItems=MAX_STOP)),
    "dry_sequence_breakers": optional(
        list_of(
            {"type": "string", "minLength": 1, "maxLength": MAX_BREAKER_CHARS},
            minItems=1,
            maxItems=MAX_BREAKERS,
        )
    ),
    "samplers": optional(
        {"type": "array", "items": {"enum": sorted(SAMPLER_NAMES)}, "uniqueItems": True},
        {"type": "string", "pattern": f"^[{''.join(SAMPLER_LETTERS)}]*$"},
    ),
    "cache_salt": optional({"type": "string", "minLength": 1, "maxLength": MAX_SALT_CHARS}),
    **dict.fromkeys(("session_id", "prompt_cache_key"), _SESSION),
    "response_format": optional({"type": "object"}),
    "query": SOME_TEXT,
    "instruction": optional({"type": "string", "minLength": 1, "maxLength": MAX_INSTRUCTION_CHARS}),
    "logits_processors": optional(
        list_of(
            {"anyOf": [{"type": "string"}, {"type": "object", "required": ["qualname"]}]},
            maxItems=MAX_PROCESSORS,
        )
    ),
}
_CLIENT_ID = optional({"type": "string", "pattern": CLIENT_ID_PATTERN})
# Read before the route's own fields.
_OF_EVERY_BODY: dict[str, dict[str, Any]] = {
    QUEUE_TIMEOUT: optional({"type": "number", "exclusiveMinimum": 0}),
    IDEMPOTENCY_KEY: optional({"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS}),
    **dict.fromkeys(CLIENT_ID_FIELDS, _CLIENT_ID),
}
_MORE_RANGES = {
    "max_completion_tokens": RANGES["max_tokens"],
    **{alias: RANGES[name] for alias, name in ALIASES.items() if name in RANGES},
    "max_output_tokens": Range(low=1),
    "top_logprobs_num": RANGES["top_logprobs"],
    "logprob_start_len": Range(low=-1),
    "dimensions": Range(low=1),
    "top_n": TOP_N,
}
_STARTING = (
    "ResponseBody",
    "ChatBody", "ChatBatchBody", "InfillBody",
    "CompletionBody", "EmbeddingBody", "GenerateBody", "ScoreBody", "RerankBody", "ForkBody",
    "ClassBody", "PoolingBody",
)  # fmt: skip


_OF_CHATS = (
    "ChatBody", "EmbeddingBody", "ClassBody", "PoolingBody", "TokenizeBody", "TemplateBody",
)  # fmt: skip


_BODIES = [
    ChatBody,
    GivenMessage,
    ChatBatchBody,
    CompletionBody,
    InfillBody,
    TranscriptBody,
    EmbeddingBody,
    ScoreBody,
    RerankBody,
    ClassBody,
    PoolingBody,
    GenerateBody,
    ForkBody,
    ForkSampling,
    BatchBody,
    ResponseBody,
    list[GivenItem],
    ConversationBody,
    ConversationChange,
    ConversationItems,
    TokenizeBody,
    DetokenizeBody,
    TemplateBody,
    MessageBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaEmbedBody,
    OllamaShowBody,
    OllamaOptions,
    SamplingFields,
]


def body_schemas() -> Schemas:
    """Schemas by name, for the components of an OpenAPI document."""
    _, schemas = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    _add_sampling(schemas)
    for name in _STARTING:
        schemas[name]["properties"] |= _OF_EVERY_BODY
    for schema in schemas.values():
        for name, field in schema.get("properties", {}).items():
            schema["properties"][name] = _checked(name, field)
    _complete_chats(schemas)
    _complete_infill(schemas["InfillBody"])
    _complete_fork(schemas["ForkBody"])
    _complete_completion(schemas["CompletionBody"])
    _complete_generate(schemas["GenerateBody"])
    _complete_pooled(schemas)
    _complete_pairs(schemas)
    _complete_responses(schemas)
    _complete_conversations(schemas)
    _complete_tokens(schemas)
    schemas |= _message_bodies(schemas["MessageBody"])
    _complete_ollama_bodies(schemas)
    _complete_files(schemas)
    _complete_transcript(schemas["TranscriptBody"])
    return schemas


def _add_sampling(schemas: Schemas) -> None:
    """The fields of sampling are flat in most bodies; native ones have them in an object, too."""
    sampling = schemas.pop("SamplingFields")["properties"]
    params = schema_ref("SamplingParams")
    each = list_of(params, minItems=1, maxItems=MAX_PROMPTS)
    nested = {"sampling_params": optional(params, each)}
    new_names = {alias: sampling[name] for alias, name in ALIASES.items()}
    schemas["SamplingParams"] = {"type": "object", "properties": sampling | new_names}
    schemas["GenerateBody"]["properties"] |= sampling | new_names | nested
    schemas["KeepPrefixField"]["properties"] = {
        "tokens": optional({"type": "integer", **KEEP_TOKENS.json_schema()}),
        "seconds": optional({"type": "number", **KEEP_SECONDS.json_schema()}),
    }


def _complete_chats(schemas: Schemas) -> None:
    messages = list_of(schema_ref("GivenMessage"), minItems=1)
    for name in _OF_CHATS:
        schemas[name]["properties"]["messages"] = messages
    _require(schemas["ChatBody"], "model", "messages")
    _complete_chat_batch(schemas["ChatBatchBody"], messages)


def _complete_chat_batch(schema: dict[str, Any], messages: dict[str, Any]) -> None:
    chats = list_of(messages, minItems=1, maxItems=MAX_CONVERSATIONS)
    schema["properties"]["messages"] = chats
    _drop_refused(schema, BATCH_REFUSED)
    _require(schema, "model", "messages")


def _complete_infill(schema: dict[str, Any]) -> None:
    extra = schema_ref("InfillExtra")
    schema["properties"]["input_extra"] = optional(list_of(extra, maxItems=MAX_EXTRA))
    _drop_refused(schema, INFILL_REFUSED)
    _require(schema, "input_prefix", "input_suffix")


def _complete_completion(schema: dict[str, Any]) -> None:
    _require(schema, "model")
    schema["anyOf"] = [{"required": ["prompt"]}, {"required": ["prompt_embeds"]}]
    schema["properties"]["prompt"] = _prompts(MAX_PROMPTS)
    schema["properties"]["prompt_embeds"] = _embeds(MAX_PROMPTS)


def _complete_generate(schema: dict[str, Any]) -> None:
    fields = schema["properties"]
    rids = list_of({"type": "string", "pattern": CLIENT_ID_PATTERN}, maxItems=MAX_PROMPTS)
    for name in CLIENT_ID_FIELDS:
        fields[name] = {"anyOf": [*_CLIENT_ID["anyOf"], rids]}
    fields["text"] = {"anyOf": _texts(MAX_PROMPTS)}
    fields["input_ids"] = {"anyOf": _ids(MAX_PROMPTS)}
    fields["input_embeds"] = _embeds(MAX_PROMPTS)
    schema["oneOf"] = [{"required": [name]} for name in PROMPT_FIELDS]


def _complete_pooled(schemas: Schemas) -> None:
    for name in ("EmbeddingBody", "ClassBody", "PoolingBody"):
        _require(schemas[name], "model")
        schemas[name]["oneOf"] = [{"required": ["input"]}, {"required": ["messages"]}]
        schemas[name]["properties"]["input"] = _prompts(MAX_INPUTS)


def _complete_pairs(schemas: Schemas) -> None:
    """The bodies that score one text beside another."""
    document = schema_ref("RerankDocument")
    schemas["RerankBody"]["properties"]["documents"] = list_of(
        {"anyOf": [SOME_TEXT, document]}, minItems=1, maxItems=MAX_INPUTS
    )
    _require(schemas["RerankBody"], "model", "query", "documents")
    _require(schemas["ScoreBody"], "model")
    sides = (("text_1", "queries"), ("text_2", "items"))
    schemas["ScoreBody"]["allOf"] = [
        {"oneOf": [{"required": [name]} for name in names]} for names in sides
    ]
    for name in (*sides[0], *sides[1]):
        schemas["ScoreBody"]["properties"][name] = {"anyOf": _texts(MAX_INPUTS)}


def _complete_responses(schemas: Schemas) -> None:
    body = schemas["ResponseBody"]
    _require(body, "model", "input")
    _drop_refused(body, RESPONSE_REFUSED)
    body["properties"]["input"] = {"anyOf": [{"type": "string"}, _items(MAX_ITEMS)]}
    body["properties"]["include"] = optional(list_of({"enum": list(INCLUDABLE)}))
    schemas["MessageItem"]["required"].remove("type")


def _complete_tokens(schemas: Schemas) -> None:
    schemas["TokenizeBody"]["oneOf"] = [{"required": ["prompt"]}, {"required": ["messages"]}]
    schemas["DetokenizeBody"]["properties"]["tokens"] = list_of(_ID)
    schemas["DetokenizeBody"]["required"] = ["tokens"]
    _require(schemas["TemplateBody"], "messages")


def _complete_fork(schema: dict[str, Any]) -> None:
    """The path says which stream it is."""
    fields = schema["properties"]
    del fields[STREAM_FIELD]
    place = FROM_ZERO.json_schema()
    for name in ("at", "text_offset", "choice"):
        fields[name] = optional({"type": "integer", **place})
    fields["append"] = optional({"type": "string", "minLength": 1, "maxLength": MAX_APPEND_CHARS})
    fields["sampling"] = optional(schema_ref("ForkSampling"))
    schema["oneOf"] = [{"required": [name]} for name in PLACES]


def _complete_conversations(schemas: Schemas) -> None:
    items = _items(MAX_NEW_ITEMS)
    schemas["ConversationBody"]["properties"]["items"] = optional(items | {"minItems": 0})
    schemas["ConversationItems"]["properties"]["items"] = items
    _require(schemas["ConversationItems"], "items")
    _require(schemas["ConversationChange"], "metadata")


def _drop_refused(schema: dict[str, Any], refused: Refused) -> None:
    """Drops fields that the struct has for others, too."""
    for name in refused.keys() & schema["properties"].keys():
        del schema["properties"][name]


def _complete_files(schemas: Schemas) -> None:
    """Batches of requests, and the form that uploads them as multipart/form-data."""
    of_batch = schemas["BatchBody"]["properties"]
    of_batch["endpoint"] = {"enum": list(ENDPOINTS)}
    of_batch["completion_window"] = {"type": "string", "pattern": WINDOW_PATTERN}
    schemas["FileExpiry"]["properties"] = {
        "anchor": {"const": "created_at"},
        "seconds": {"type": "integer", "minimum": SHORTEST_TTL_S},
    }
    schemas["FileForm"] = object_with(
        {"purpose": {"enum": [UPLOADED]}, "file": {"type": "string", "format": "binary"}},
        {"expires_after[anchor]": {"const": "created_at"}, "expires_after[seconds]": _ID},
    )


def _complete_transcript(schema: dict[str, Any]) -> None:
    """Its fields are those of multipart/form-data."""
    fields = schema["properties"]
    fields["file"] = {"type": "string", "format": "binary"}
    fields["response_format"] = optional({"enum": [each.value for each in TranscriptFormat]})
    fields["timestamp_granularities[]"] = fields.pop("timestamp_granularities")
    _require(schema, "model", "file")


def _items(max_items: int) -> dict[str, Any]:
    """The schema of a conversation's items."""
    kinds = [schema_ref(kind.__name__) for kind in get_args(GivenItem)]
    return list_of({"anyOf": kinds}, minItems=1, maxItems=max_items)


def _message_bodies(schema: dict[str, Any]) -> Schemas:
    """Schemas of a message, and of its tokens' count, which needs no limit of the answer."""
    fields = schema["properties"] | {
        "model": {"type": "string"},
        "stop_sequences": optional(list_of(STOP_STRING, maxItems=MAX_STOP)),
        "messages": schema["properties"]["messages"]["anyOf"][0] | {"minItems": 1},
    }
    count = {**schema, "properties": fields, "required": ["model", "messages"]}
    limit = fields["max_tokens"]["anyOf"][0]
    fields = fields | {"max_tokens": limit} | _OF_EVERY_BODY
    required = ["model", "messages", "max_tokens"]
    return {
        "CountBody": {**count, "title": "CountBody"},
        "MessageBody": {**schema, "properties": fields, "required": required},
    }


def _complete_ollama_bodies(schemas: Schemas) -> None:
    options = schema_ref("OllamaOptions")
    for name in ("OllamaChatBody", "OllamaGenerateBody"):
        fields = schemas[name]["properties"]
        fields["options"] = optional(options)
        fields |= _OF_EVERY_BODY
    schemas["OllamaEmbedBody"]["properties"] |= _OF_EVERY_BODY
    schemas["OllamaEmbedBody"]["properties"]["input"] = {"anyOf": _texts(MAX_INPUTS)}
    for name in ("OllamaChatBody", "OllamaGenerateBody", "OllamaEmbedBody", "OllamaShowBody"):
        _require(schemas[name], "model")
    _require(schemas["OllamaEmbedBody"], "model", "input")


def _checked(name: str, field: dict[str, Any]) -> dict[str, Any]:
    if name in _FIELDS:
        return _FIELDS[name]
    bounds = RANGES.get(name) or _MORE_RANGES.get(name)
    if bounds is None:
        return field
    return field | {
        "anyOf": [
            option | bounds.json_schema() if option.get("type") in ("number", "integer") else option
            for option in field["anyOf"]
        ]
    }


def _require(schema: dict[str, Any], *names: str) -> None:
    """In the struct everything may be missing, so that our own words say what is."""
    schema["required"] = list(names)
    for name in names:
        field = schema["properties"][name]
        options = [option for option in field.get("anyOf", []) if option != {"type": "null"}]
        if len(options) == 1:
            schema["properties"][name] = options[0]


def _prompts(max_prompts: int) -> dict[str, Any]:
    return {"anyOf": _texts(max_prompts) + _ids(max_prompts)}


def _embeds(max_prompts: int) -> dict[str, Any]:
    """A tensor in base64 or rows of numbers, or a list of these."""
    rows = list_of(list_of({"type": "number"}, minItems=1), minItems=1)
    many = list_of({"anyOf": [SOME_TEXT, rows]}, minItems=1, maxItems=max_prompts)
    return optional(SOME_TEXT, rows, many)


def _texts(max_prompts: int) -> list[dict[str, Any]]:
    return [SOME_TEXT, list_of(SOME_TEXT, minItems=1, maxItems=max_prompts)]


def _ids(max_prompts: int) -> list[dict[str, Any]]:
    ids = list_of(_ID, minItems=1)
    return [ids, list_of(ids, minItems=1, maxItems=max_prompts)]
