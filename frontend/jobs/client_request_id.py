"""The id that a client gives its request: logged and told again, and never an id of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.errors import InvalidRequest

HEADER = "x-client-request-id"  # OpenAI's; proxies call theirs X-Request-Id
_NAMES = (HEADER, "x-request-id")
FIELDS = ("rid", "request_id")
_MAX_CHARS = 512
PATTERN = f"^[ -~]{{1,{_MAX_CHARS}}}$"


def client_request_id(headers: Mapping[str, str]) -> str:
    """The id among headers with lower-case names; "" for none. Raises InvalidRequest."""
    for name in _NAMES:
        value = headers.get(name)
        if value is None:
            continue
        if not _is_fine(value):
            raise InvalidRequest(
                f"header {name} is {value[:40]!r}, must be 1 to {_MAX_CHARS} printable ASCII "
                "characters",
                param=name,
            )
        return value
    return ""


def client_id_of_body(body: Mapping[str, Any], of_headers: str, *, may_be_list: bool) -> str:
    """SGLang's and vLLM's fields; a header goes before them. Raises InvalidRequest.

    `may_be_list`: the API takes a name for each prompt, and reads a list of them itself.
    """
    for name in FIELDS:
        value = body.get(name)
        if value is None or (may_be_list and isinstance(value, list)):
            continue
        if not isinstance(value, str) or not _is_fine(value):
            raise InvalidRequest(
                f"'{name}' is {str(value)[:40]!r}, must be text of 1 to {_MAX_CHARS} printable "
                "ASCII characters: one name for the whole request",
                param=name,
            )
        return of_headers or value
    return of_headers


def client_ids_of_prompts(body: Mapping[str, Any], num_prompts: int) -> tuple[str, ...]:
    """The name of each prompt: its own, or one for all; "" for none. Raises InvalidRequest."""
    for name in FIELDS:
        value = body.get(name)
        if not isinstance(value, list):
            if value is not None:
                return (value,) * num_prompts
            continue
        if len(value) != num_prompts or len({str(item) for item in value}) != num_prompts:
            raise InvalidRequest(
                f"'{name}' holds {len(value)} names of {num_prompts} prompts, must hold one for "
                "each, all different",
                param=name,
            )
        for i, item in enumerate(value):
            if not isinstance(item, str) or not _is_fine(item):
                raise InvalidRequest(
                    f"'{name}[{i}]' is {str(item)[:40]!r}, must be text of 1 to {_MAX_CHARS} "
                    "printable ASCII characters",
                    param=name,
                )
        return tuple(value)
    return ("",) * num_prompts


def _is_fine(value: str) -> bool:
    return 1 <= len(value) <= _MAX_CHARS and value.isascii() and value.isprintable()
