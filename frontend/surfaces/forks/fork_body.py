"""Bodies of POST /v1/streams/{id}/fork."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from frontend.fields.field_ranges import RANGES, Range
from frontend.fields.request_body import BodyReader, Refused, always
from frontend.fields.sampling_fields import SamplingFields
from frontend.fields.token_rules import checked_bias
from frontend.fields.unknown_fields import UnknownFields
from frontend.jobs.client_request_id import FIELDS as CLIENT_ID_FIELDS
from shared.errors import InvalidRequest
from shared.protocol.sampling import SamplingParams

STREAM_FIELD = "stream_id"  # where the path, or a NATS client, says which stream it is
PLACES = ("at", "text_offset", "event_id")
MAX_APPEND_CHARS = 64 * 1024
SEED_OF_SOURCE = "source"
FROM_ZERO = Range(low=0)


class ForkSampling(msgspec.Struct, omit_defaults=True):
    """What may change at a fork; None: as the source has it, but a seed of its own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    seed: int | Literal["source"] | None = None
    max_tokens: int | None = None


class ForkBody(msgspec.Struct, omit_defaults=True):
    """A stream, a place in it, and how to go on."""

    stream_id: str | None = None
    model: str | None = None  # None: the source's
    choice: int | None = None
    at: int | None = None
    text_offset: int | None = None
    event_id: str | None = None
    append: str | None = None
    n: int | None = None
    sampling: dict[str, Any] | None = None
    stream: bool | None = None
    store: bool | None = None


_SAMPLING = "sampling."
_STAYS: Refused = dict.fromkeys(
    set(SamplingFields.__struct_fields__) - set(ForkSampling.__struct_fields__), always
)


class ForkBodies:
    """Checks bodies, as far as that is possible without the stream."""

    def __init__(self) -> None:
        self._reader = BodyReader(ForkBody, {}, frozenset(CLIENT_ID_FIELDS))
        self._sampling_reader = BodyReader(ForkSampling, _STAYS, frozenset(), prefix=_SAMPLING)

    def read(self, raw: dict[str, Any], unknown: UnknownFields) -> tuple[ForkBody, ForkSampling]:
        """Raises InvalidRequest or UnsupportedParameter."""
        body = self._reader.read(raw, unknown)
        given = [name for name in PLACES if getattr(body, name) is not None]
        if len(given) != 1:
            said = " and ".join(f"'{name}'" for name in given) or "none"
            raise InvalidRequest(
                f"one of 'at', 'text_offset' and 'event_id' says where to fork: {said} is given",
                param=given[1] if given else "at",
            )
        for name in ("at", "text_offset", "choice"):
            FROM_ZERO.check(name, getattr(body, name))
        RANGES["n"].check("n", body.n)
        if body.append is not None and not 1 <= len(body.append) <= MAX_APPEND_CHARS:
            raise InvalidRequest(
                f"'append' has {len(body.append)} characters, must have 1 to {MAX_APPEND_CHARS}",
                param="append",
            )
        sampling = self._sampling_reader.read(body.sampling or {}, unknown)
        for name in ForkSampling.__struct_fields__:
            value = getattr(sampling, name)
            if name in RANGES and value != SEED_OF_SOURCE:
                RANGES[name].check(_SAMPLING + name, value)
        RANGES["top_logprobs"].check(f"{_SAMPLING}logprobs", sampling.logprobs)
        return body, sampling


def changed(params: SamplingParams, fields: ForkSampling, seed: int, vocab_size: int) -> Any:
    """The source's parameters with what is given, and the seed of the first choice.

    Raises InvalidRequest.
    """
    given = {
        name: value
        for name in ForkSampling.__struct_fields__
        if (value := getattr(fields, name)) is not None and name not in ("seed", "max_tokens")
    }
    if fields.top_k is not None:
        given["top_k"] = max(0, fields.top_k)
    if fields.logit_bias is not None:
        given["logit_bias"] = checked_bias(fields.logit_bias, vocab_size)
    return msgspec.structs.replace(params, **given, seed=seed)
