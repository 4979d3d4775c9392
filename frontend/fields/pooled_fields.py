"""What bodies without output tokens have in common: those of embeddings, scores and rankings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from frontend.fields.cache_fields import checked_salt
from frontend.fields.field_ranges import RANGES
from frontend.fields.peer_fields import Touches, changing, peer_refusals
from frontend.fields.request_body import IGNORED, OF_OPENAI, Refused, always
from frontend.fields.sampling_fields import Sampling
from shared.errors import InvalidRequest
from shared.protocol.model_cards import ModelCard
from shared.protocol.reply import TextParams
from shared.protocol.sampling import SamplingParams

MAX_INPUTS = 2048  # as OpenAI
MAX_STREAMED_INPUTS = 256  # the id of each event describes all of them

_OWN: Refused = {
    **{name: asks for name, asks in OF_OPENAI.items() if name != "truncate_prompt_tokens"},
    "keep_prefix": always,
}
# There is no output.
POOLED_IGNORED = IGNORED | changing(Touches.OUTPUT) - _OWN.keys()


def pooled_refusals(
    body_type: type[PooledFields], own: Refused | None = None
) -> dict[str, Callable[[Any], bool]]:
    """The checks of one of these bodies."""
    return peer_refusals(body_type, {**_OWN, **(own or {})}, ignored=POOLED_IGNORED)


class PooledFields(msgspec.Struct, omit_defaults=True):
    """The fields beside the inputs; None means default."""

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None


def max_input_tokens(fields: PooledFields, card: ModelCard) -> int | None:
    """To which an input is cut; None: not at all. Raises InvalidRequest."""
    name, value = "truncate_prompt_tokens", fields.truncate_prompt_tokens
    if value is None:
        return None
    RANGES[name].check(name, value)
    if value == 0:
        raise InvalidRequest(f"'{name}' is 0, must be -1 or at least 1", param=name)
    return card.max_context_len if value < 0 else value


def pooled_sampling(fields: PooledFields, prompt_param: str) -> Sampling:
    """Nothing is chosen: there are no output tokens. Raises InvalidRequest."""
    return Sampling(
        params=SamplingParams(max_tokens=0, seed=0),
        text=TextParams(),
        max_tokens=0,
        max_tokens_is_default=False,
        max_tokens_param="",
        prompt_param=prompt_param,
        n=1,
        priority=fields.priority or 0,
        cache_salt=checked_salt(fields.cache_salt),
    )
