"""What of a prompt does not travel inside its request: many tokens, pixels, embeddings, audio."""

from __future__ import annotations

import msgspec

from shared.errors import MalformedMessage
from shared.protocol.codec import decode, encode
from shared.protocol.request import GenerateRequest
from shared.subjects import is_rid

INLINE_PROMPT_BYTES = 256 * 1024
_PROMPT, _DEAD_PROMPT = "prompt-", "dead-prompt-"


class PromptData(msgspec.Struct, frozen=True):
    """All that a run of a request needs besides the request."""

    prompt_ids: bytes  # little-endian uint32
    pixels: tuple[
        bytes, ...
    ] = ()  # of each image of the request, or the rows of its embeddings, or its audio


def is_large(num_prompt_tokens: int, *, has_images: bool) -> bool:
    """Whether something of it does not travel inside its request."""
    return has_images or 4 * num_prompt_tokens > INLINE_PROMPT_BYTES


def prompt_object(rid: str, num_prompt_tokens: int, *, has_images: bool = False) -> str:
    """Object store name of what does not travel inline; "" when all does."""
    return f"{_PROMPT}{rid}" if is_large(num_prompt_tokens, has_images=has_images) else ""


def rid_of_prompt(name: str) -> str:
    """The id of the request whose prompt an object of this name holds; "" for another object."""
    rid = name.removeprefix(_PROMPT)
    return rid if rid != name and is_rid(rid) else ""


def dead_prompt_object(rid: str) -> str:
    """The name of the copy that a dead request keeps: the frontend deletes the other one."""
    return f"{_DEAD_PROMPT}{rid}"


def rid_of_dead_prompt(name: str) -> str:
    """The id of the dead request whose prompt this object holds; "" for another object."""
    rid = name.removeprefix(_DEAD_PROMPT)
    return rid if rid != name and is_rid(rid) else ""


def without_large_parts(
    request: GenerateRequest, pixels: tuple[bytes, ...]
) -> tuple[GenerateRequest, bytes]:
    """The request as it is queued, and its object; b"" when it has none.

    Prompts of an ordinary length stay in a request with images: their prefix may be looked up.
    """
    num_prompt_tokens = len(request.prompt_ids) // 4
    name = prompt_object(request.rid, num_prompt_tokens, has_images=bool(pixels))
    if not name:
        return request, b""
    is_long = bool(prompt_object(request.rid, num_prompt_tokens))
    prompt_ids = request.prompt_ids
    queued = msgspec.structs.replace(
        request, prompt_object=name, prompt_ids=b"" if is_long else prompt_ids
    )
    return queued, encode(PromptData(prompt_ids, pixels)) if pixels else prompt_ids


def prompt_data(request: GenerateRequest, stored: bytes) -> PromptData:
    """The prompt of a queued request, with its object. Raises MalformedMessage."""
    num_parts = len(request.images) + (request.embeds is not None) + (request.audio is not None)
    if not num_parts:
        return PromptData(stored if request.prompt_object else request.prompt_ids)
    data = decode(PromptData, stored)
    if len(data.pixels) != num_parts:
        raise MalformedMessage(f"{len(data.pixels)} parts beside tokens for {num_parts} places")
    return data
