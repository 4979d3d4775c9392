"""What of a prompt is too large to travel inside its request: many tokens, pixels of images."""

from __future__ import annotations

import msgspec

from shared.codec import decode, encode
from shared.errors import MalformedMessage
from shared.protocol.request import GenerateRequest

INLINE_PROMPT_BYTES = 256 * 1024


class PromptData(msgspec.Struct, frozen=True):
    """All that a run of a request needs besides the request."""

    prompt_ids: bytes  # little-endian uint32
    pixels: tuple[bytes, ...] = ()  # of each image of the request


def prompt_object(rid: str, num_prompt_tokens: int, *, has_images: bool = False) -> str:
    """Object store name of what does not travel inline; "" when all does."""
    is_large = has_images or 4 * num_prompt_tokens > INLINE_PROMPT_BYTES
    return f"prompt-{rid}" if is_large else ""


def dead_prompt_object(rid: str) -> str:
    """Of the copy that a dead request keeps: the frontend deletes the other one."""
    return f"dead-prompt-{rid}"


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
    """Of a queued request and its object. Raises MalformedMessage."""
    if not request.images:
        return PromptData(stored if request.prompt_object else request.prompt_ids)
    data = decode(PromptData, stored)
    if len(data.pixels) != len(request.images):
        raise MalformedMessage(f"{len(data.pixels)} images for {len(request.images)} places")
    return data
