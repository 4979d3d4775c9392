"""The routes with bodies: what each takes, refuses and ignores, and what a field left out means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontend.fields.cache_fields import DEFAULT_KEEP_S
from frontend.fields.pooled_fields import POOLED_IGNORED
from frontend.fields.request_body import IGNORED, Refused
from frontend.surfaces import tokens
from frontend.surfaces.anthropic import body as message_body
from frontend.surfaces.chat import chat_request
from frontend.surfaces.classes.class_request import CLASS_REFUSED, POOLING_REFUSED
from frontend.surfaces.completions import completion_request
from frontend.surfaces.embeddings import embedding_request
from frontend.surfaces.generate import generate_request
from frontend.surfaces.infill import infill_request
from frontend.surfaces.ollama import body as ollama_body
from frontend.surfaces.responses import request as response_request
from frontend.surfaces.scores import rerank_request, score_request
from frontend.surfaces.transcripts import transcript_request
from shared.protocol.reply import TextParams
from shared.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class BodyRoute:
    """A route with a body: a column."""

    name: str
    path: str
    schema: str  # of its body, among the components of the OpenAPI document
    refused: Refused
    ignored: frozenset[str] = IGNORED


ROUTES = (
    BodyRoute("chat", "/v1/chat/completions", "ChatBody", chat_request.REFUSED),
    BodyRoute("completions", "/v1/completions", "CompletionBody", completion_request.REFUSED),
    BodyRoute("generate", "/generate", "GenerateBody", generate_request.REFUSED),
    BodyRoute(
        "embeddings", "/v1/embeddings", "EmbeddingBody", embedding_request.REFUSED, POOLED_IGNORED
    ),
    BodyRoute("score", "/v1/score", "ScoreBody", score_request.REFUSED, POOLED_IGNORED),
    BodyRoute("rerank", "/v1/rerank", "RerankBody", rerank_request.REFUSED, POOLED_IGNORED),
    BodyRoute("classify", "/classify", "ClassBody", CLASS_REFUSED, POOLED_IGNORED),
    BodyRoute("pooling", "/pooling", "PoolingBody", POOLING_REFUSED, POOLED_IGNORED),
    BodyRoute(
        "infill", "/infill", "InfillBody", infill_request.REFUSED, infill_request.IGNORED_HERE
    ),
    BodyRoute(
        "responses",
        "/v1/responses",
        "ResponseBody",
        response_request.REFUSED,
        response_request.IGNORED_HERE,
    ),
)
# Its fields have Anthropic's names and shapes: a table of its own.
MESSAGES = BodyRoute(
    "messages", "/v1/messages", "MessageBody", message_body.REFUSED, message_body.IGNORED
)
# And these have Ollama's.
OLLAMA = (
    BodyRoute("api/chat", "/api/chat", "OllamaChatBody", ollama_body.REFUSED, ollama_body.IGNORED),
    BodyRoute(
        "api/generate",
        "/api/generate",
        "OllamaGenerateBody",
        ollama_body.GENERATE_REFUSED,
        ollama_body.IGNORED,
    ),
    BodyRoute(
        "api/embed",
        "/api/embed",
        "OllamaEmbedBody",
        ollama_body.EMBED_REFUSED,
        ollama_body.EMBED_IGNORED,
    ),
)
OPTIONS = BodyRoute(
    "options",
    "/api/chat",
    "OllamaOptions",
    ollama_body.OPTIONS_REFUSED,
    ollama_body.OPTIONS_IGNORED,
)
# They generate nothing; of files the fields are those of a form.
TOKEN_ROUTES = (
    BodyRoute("tokenize", "/tokenize", "TokenizeBody", tokens.REFUSED, tokens.IGNORED),
    BodyRoute(
        "detokenize",
        "/detokenize",
        "DetokenizeBody",
        tokens.DETOKENIZE_REFUSED,
        tokens.DETOKENIZE_IGNORED,
    ),
    BodyRoute(
        "apply-template",
        "/apply-template",
        "TemplateBody",
        tokens.TEMPLATE_REFUSED,
        tokens.IGNORED,
    ),
)
OTHER_ROUTES = (
    BodyRoute("files", "/v1/files", "FileForm", {}, frozenset()),
    BodyRoute(
        "audio",
        "/v1/audio/transcriptions",
        "TranscriptBody",
        transcript_request.REFUSED,
        transcript_request.IGNORED_HERE,
    ),
    BodyRoute("batches", "/v1/batches", "BatchBody", {}, frozenset()),
    BodyRoute("conversations", "/v1/conversations", "ConversationBody", {}, frozenset()),
    *TOKEN_ROUTES,
)

_SAMPLING = SamplingParams(max_tokens=0, seed=0)
_OF_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos", "typical_p", "xtc_probability",
    "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n",
)  # fmt: skip
_OF_INPUTS = ("embeddings", "classify", "pooling")
# What leaving a field out, or null, is the same as; by field, or by route and field.
DEFAULTS: Mapping[str, Any] = {
    **{name: getattr(_SAMPLING, name) for name in _OF_SAMPLING},
    "min_new_tokens": _SAMPLING.min_tokens,
    "skip_special_tokens": TextParams().skip_special_tokens,
    "include_stop_str_in_output": TextParams().include_stop,
    "no_stop_trim": TextParams().include_stop,
    "n": 1,
    "priority": 0,
    "stream": False,
    "stream_options.include_usage": False,
    "stream_options.continuous_usage_stats": False,
    "echo": False,
    "return_token_ids": False,
    "prompt_cache_retention": "in_memory",
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "return_tokens_as_token_ids": False,
    "return_logprob": False,
    "incremental_streaming_output": False,
    "add_generation_prompt": True,
    **{f"{route} add_generation_prompt": False for route in _OF_INPUTS},
    "continue_final_message": False,
    "chat add_special_tokens": False,
    "completions add_special_tokens": True,
    "completions max_tokens": completion_request.DEFAULT_MAX_TOKENS,
    "generate max_tokens": generate_request.DEFAULT_MAX_TOKENS,
    "generate max_new_tokens": generate_request.DEFAULT_MAX_TOKENS,
    "encoding_format": "float",
    "return_documents": False,
    "chat logprobs": False,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "include_reasoning": True,
    "separate_reasoning": True,
    "background": False,
    "responses store": True,
    "responses top_logprobs": 0,
    "responses text.format": {"type": "text"},
    "messages tool_choice.type": "auto",
    "api/chat stream": True,
    "api/generate stream": True,
    "raw": False,
    "truncate": True,
    "options.num_predict": -1,
    **{f"options.{name}": getattr(_SAMPLING, name) for name in _OF_SAMPLING[:6]},
    "options.repeat_penalty": _SAMPLING.repetition_penalty,
}
DEFAULT_WORDS: Mapping[str, str] = {
    "model": "required",
    "generate model": "the only one",
    "messages": "required",
    "prompt": "required",
    "infill prompt": "none",
    "infill model": "the only one",
    "input_prefix": "required",
    "input_suffix": "required",
    "n_predict": "the rest of the context",
    "input": "required",
    **{f"{route} input": "required, or `messages`" for route in _OF_INPUTS},
    **{f"{route} messages": "none" for route in _OF_INPUTS},
    "task": "the model's",
    "text": "or `input_ids`",
    "input_ids": "or `text`",
    "chat max_tokens": "the rest of the context",
    "max_completion_tokens": "`max_tokens`",
    "best_of": "`n`",
    "beam_width": "`n`",
    "keep_prefix.tokens": "all",
    "keep_prefix.seconds": f"{DEFAULT_KEEP_S:g}",
    "seed": "random",
    "sampling_seed": "random",
    "pooling": "the model's",
    "normalize": "the model's",
    "dimensions": "all",
    "text_1": "required, or `queries`",
    "text_2": "required, or `items`",
    "queries": "or `text_1`",
    "items": "or `text_2`",
    "query": "required",
    "rerank documents": "required",
    "instruction": "the template's",
    "use_activation": "the model's",
    "top_n": "all",
    "queue_timeout_s": "`--queue-timeout-s`",
    "max_output_tokens": "the rest of the context",
    "purpose": "required",
    "file": "required",
    "language": "found out, from the first 30 seconds",
    "audio prompt": "none",
    "audio response_format": "json",
    "timestamp_granularities[]": "segment",
    "audio temperature": "0",
    "input_file_id": "required",
    "endpoint": "required",
    "completion_window": "required",
    "conversations items": "none",
    "tokenize model": "the only one",
    "detokenize model": "the only one",
    "apply-template model": "the only one",
    "tokenize prompt": "or `messages`",
    "tokenize messages": "or `prompt`",
    "tokens": "required",
    "messages max_tokens": "required",
    "thinking.type": "the model's",
    "think": "the model's",
    "api/generate prompt": "required",
    "options.seed": "random",
}
