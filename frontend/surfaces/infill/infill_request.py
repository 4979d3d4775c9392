"""Bodies of POST /infill, llama.cpp's: the text around a cursor, and pieces of other files."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.logprob_fields import LogprobOptions
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import IGNORED, OF_OPENAI, BodyReader, Refused, always
from frontend.fields.sampling_fields import SamplingFields, resolve_sampling
from frontend.fields.unknown_fields import UnknownFields
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.job import Caller, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.models.tokenizer_facts import FillInMiddle
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

MAX_EXTRA = 256
INFILL_SAMPLER = "infill"
# Editors send them with each request. They would end a text earlier, and the answer's header names
# them as unknown: `n_predict` and `stop` bound it.
WITHOUT_EFFECT = ("t_max_predict_ms", "n_indent")


class InfillExtra(msgspec.Struct):
    """A piece of another file."""

    text: str
    filename: str = ""


class InfillBody(SamplingFields, omit_defaults=True):
    """The fields that have an effect; None means default."""

    model: str | None = None
    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[InfillExtra] | None = None
    prompt: str | None = None
    n_predict: int | None = None
    stream: bool | None = None


_OWN: Refused = {
    **OF_OPENAI,
    "n": lambda value: value != 1,
    "max_tokens": always,
    "prompt_logprobs": always,
}
# All fields of an answer are always sent.
IGNORED_HERE = IGNORED | {"response_fields", *WITHOUT_EFFECT}
REFUSED = peer_refusals(InfillBody, _OWN, ignored=IGNORED_HERE)
_KNOWN = frozenset(InfillBody.__struct_fields__)


class InfillRequests:
    """Turns bodies into jobs."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder) -> None:
        self._models = models
        self._encoder = encoder
        self._reader = BodyReader(InfillBody, REFUSED, IGNORED_HERE)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(_without_infill_sampler(raw, caller.unknown), caller.unknown)
        _name_without_effect(raw, caller.unknown)
        _check(body)
        model = await (self._models.model(body.model) if body.model else self._models.only_model())
        marks = model.fill_in_middle("input_prefix")
        body.stop_token_ids = [*(body.stop_token_ids or ()), *marks.end_ids]
        is_bounded = body.n_predict is not None and body.n_predict >= 0
        body.max_tokens = body.n_predict if is_bounded else None
        sampling = resolve_sampling(
            body,
            model.card,
            default_max_tokens=None,
            prompt_param="input_prefix",
            max_tokens_param="n_predict",
            use_model_defaults=self._models.use_model_defaults,
            tokenizer=model.text.tokenizer,
            breakers=await dry_breakers(body, self._encoder, caller, model),
            logprobs=LogprobOptions(),
            may_be_empty=True,
        )
        token_ids = await self._encoder.encode(
            caller, model, _text_of(body, marks), "input_prefix", add_special_tokens=True
        )
        return Job(
            surface=Surface.INFILL,
            model=model,
            prompts=(Prompt(token_ids),),
            sampling=sampling,
            stream=bool(body.stream),
        )


def _text_of(body: InfillBody, marks: FillInMiddle) -> str:
    files = [(extra.filename, extra.text) for extra in body.input_extra or ()]
    gap = marks.prompt(body.input_prefix or "", body.input_suffix or "")
    return f"{marks.context(files)}{gap}{body.prompt or ''}"


def _check(body: InfillBody) -> None:
    """Raises InvalidRequest."""
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise InvalidRequest(f"'{name}' is required", param=name, code="missing_field")
    num_extra = len(body.input_extra or ())
    if num_extra > MAX_EXTRA:
        raise InvalidRequest(
            f"'input_extra' holds {num_extra} pieces, at most {MAX_EXTRA}", param="input_extra"
        )


def _without_infill_sampler(raw: dict[str, Any], unknown: UnknownFields) -> dict[str, Any]:
    """Editors name it among `samplers`; it is none that jetflock has, as a header says."""
    samplers = raw.get("samplers")
    if not isinstance(samplers, list) or INFILL_SAMPLER not in samplers:
        return raw
    unknown.meet(f"samplers.{INFILL_SAMPLER}", _KNOWN)
    return {**raw, "samplers": [name for name in samplers if name != INFILL_SAMPLER]}


def _name_without_effect(raw: dict[str, Any], unknown: UnknownFields) -> None:
    for name in WITHOUT_EFFECT:
        if raw.get(name):
            unknown.meet(name, _KNOWN)
