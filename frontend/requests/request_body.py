"""Request bodies: JSON to typed structs, with errors that name the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from shared.errors import InvalidRequest, RequestTooLarge, UnsupportedParameter
from shared.log import get_logger

T = TypeVar("T")

log = get_logger(__name__)

_PATH = re.compile(r" - at `\$\.?(.*)`$")
# Decoding keeps the event loop: so many lists take 30 ms, so many numbers 45 ms. Those in texts
# count as well; a text that has so many is longer than any context.
_MAX_CONTAINERS = 200_000
_MAX_COMMAS = 1_000_000

# Taken from OpenAI's API, without any effect here: SDKs and agents send them.
IGNORED = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "verbosity",
        "prediction",
        "moderation",
        "reasoning_effort",
        "user",
        # Only tokenizers of another kind put any there.
        "spaces_between_special_tokens",
        # A client names its request by a header, X-Client-Request-Id.
        "request_id",
        "rid",
    }
)


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest, or RequestTooLarge when it takes long to decode."""
    for what, most, num in (
        ("lists and objects", _MAX_CONTAINERS, data.count(b"[") + data.count(b"{")),
        ("commas", _MAX_COMMAS, data.count(b",")),
    ):
        if num > most:
            raise RequestTooLarge(f"The body has {num} {what}, at most {most}.")
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}", code="invalid_json") from exc
    except RecursionError as exc:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from exc
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return body


def convert(body: Mapping[str, Any], body_type: type[T], prefix: str = "") -> T:
    """Raises InvalidRequest that names the field."""
    try:
        return msgspec.convert(body, body_type)
    except msgspec.ValidationError as exc:
        message = str(exc)
        match = _PATH.search(message)
        if match is None:  # a required field is missing, at the top
            missing = re.search(r"missing required field `(.+)`", message)
            name = prefix + missing[1] if missing else None
            raise InvalidRequest(
                f"'{name}' is required" if name else message, param=name, code="missing_field"
            ) from exc
        name = prefix + match[1]
        raise InvalidRequest(
            f"'{name}' has the wrong type: {message[: match.start()]}",
            param=re.split(r"[.\[]", name)[0] if not prefix else name,
            code="invalid_type",
        ) from exc


def refuse_unsupported(body: Mapping[str, Any], table: Mapping[str, Callable[[Any], bool]]) -> None:
    """`table` says per field when its value asks for something. Raises UnsupportedParameter."""
    for name in body.keys() & table.keys():
        value = body[name]
        if value is not None and table[name](value):
            raise UnsupportedParameter(name, "is not supported here")


class UnknownFields:
    """Logs each field that nobody knows, once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, body: Mapping[str, Any], known: frozenset[str]) -> None:
        for name in body.keys() - known - self._seen:
            if len(self._seen) < 1000:
                self._seen.add(name)
                log.debug("unknown_field", field=name[:100])


def always(_: Any) -> bool:
    """Any value but null asks for something."""
    return True


def non_empty(value: Any) -> bool:
    """True, a number above 0, a filled string, list or object."""
    return bool(value)


# Known to some server of this kind, not supported by us yet: refused by name.
UNSUPPORTED: Mapping[str, Callable[[Any], bool]] = {
    "structural_tag": always,
    "logits_processors": non_empty,
    "custom_logit_processor": always,
    "return_hidden_states": non_empty,
    "detokenize": lambda value: value is not True,
    "lora_path": non_empty,
    "prompt_embeds": non_empty,
    "input_embeds": non_empty,
    "session_params": non_empty,
}

# What chat or completions take, and no other route.
OF_OPENAI: Mapping[str, Callable[[Any], bool]] = {
    "add_special_tokens": lambda value: value is not True,
    "beam_width": lambda value: value != 1,
    "best_of": lambda value: value != 1,
    "early_stopping": non_empty,
    "length_penalty": lambda value: value != 1,
    "use_beam_search": non_empty,
    "return_token_ids": non_empty,
    "return_tokens_as_token_ids": non_empty,
    "truncate_prompt_tokens": always,
}
