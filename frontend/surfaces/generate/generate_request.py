"""Bodies of POST /generate, the native API: text or token ids in, both out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.fields.field_ranges import Range
from frontend.fields.logprob_fields import LogprobOptions, checked_logprob_ids, checked_num_top
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import IGNORED, OF_OPENAI, BodyReader, Refused, convert
from frontend.fields.sampling_fields import Sampling, SamplingFields, resolve_sampling
from frontend.jobs.client_request_id import client_ids_of_prompts
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.embedded_prompt import (
    check_reads_no_prompt,
    embedded_prompt,
    embeds_list,
    is_matrix,
)
from frontend.jobs.job import AnswerOptions, Caller, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.completions.completion_request import (
    MAX_PROMPTS,
    encoded_prompt,
    prompt_list,
)
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.reply import Surface

DEFAULT_MAX_TOKENS = 128


class GenerateBody(msgspec.Struct, omit_defaults=True):
    """Everything but the sampling fields."""

    model: str | None = None
    text: Any = None
    input_ids: Any = None
    input_embeds: Any = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    logprob_start_len: int | None = None
    token_ids_logprob: list[int] | None = None
    logprobs: int | None = None
    incremental_streaming_output: bool | None = None
    return_hidden_states: bool | None = None


PROMPT_FIELDS = ("text", "input_ids", "input_embeds")
ALIASES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
_OWN: Refused = {**OF_OPENAI}
# Read from a body that has them beside its own fields, or in `sampling_params`.
_OTHERS = frozenset(SamplingFields.__struct_fields__) | ALIASES.keys() | {"sampling_params"}
REFUSED = peer_refusals(GenerateBody, _OWN, ignored=IGNORED, taken=_OTHERS)


class GenerateRequests:
    """Turns bodies into jobs."""

    def __init__(self, models: ModelDirectory, encoder: PromptEncoder) -> None:
        self._models = models
        self._encoder = encoder
        self._reader = BodyReader(GenerateBody, REFUSED, IGNORED | _OTHERS)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        flats = _flattened(raw)
        for flat in flats:
            self._reader.check(flat, caller.unknown)
        body = convert(raw, GenerateBody)
        name, prompts = _prompts_of(body)
        if isinstance(raw.get("sampling_params"), list):
            _check_num_params(len(flats), len(prompts))
        rids = client_ids_of_prompts(raw, len(prompts))
        surface = _surface_of(body, caller)
        if body.model:
            model = await self._models.model(body.model)
        else:
            model = await self._models.only_model()
        samplings = [await self._sampling(flat, name, model, caller) for flat in flats]
        _check_common(samplings)
        if name == "input_embeds":
            for sampling in samplings:
                check_reads_no_prompt(sampling.params, sampling.logprobs, ())
        encoded = [await self._encoded(item, name, model, caller) for item in prompts]
        for prompt in encoded:
            _check_start(samplings[0].logprobs.prompt_start, len(prompt.token_ids))
        return Job(
            surface=surface,
            model=model,
            prompts=tuple(encoded),
            sampling=samplings[0],
            samplings=tuple(samplings) if len(samplings) > 1 else (),
            stream=bool(body.stream),
            options=AnswerOptions(is_list=_is_list(getattr(body, name), name)),
            rids=rids,
        )

    async def _encoded(self, given: Any, name: str, model: ServedModel, caller: Caller) -> Prompt:
        if name == "input_embeds":
            return await embedded_prompt(self._encoder, caller, model, given, name)
        return await encoded_prompt(self._encoder, caller, model, given, name)

    async def _sampling(
        self, flat: dict[str, Any], prompt_name: str, model: ServedModel, caller: Caller
    ) -> Sampling:
        uses_new_name = flat.get("max_new_tokens") is not None
        for alias, name in ALIASES.items():
            if flat.get(alias) is not None:
                flat[name] = flat[alias]
        fields = convert(flat, SamplingFields)
        body = convert(flat, GenerateBody)
        await asyncio.sleep(0)  # others have their turn between the many of one body
        sampling = resolve_sampling(
            fields,
            model.card,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            prompt_param=prompt_name,
            max_tokens_param="max_new_tokens" if uses_new_name else "max_tokens",
            use_model_defaults=self._models.use_model_defaults,
            tokenizer=model.text.tokenizer,
            breakers=await dry_breakers(fields, self._encoder, caller, model),
            logprobs=_logprob_options(body, fields, model.card.vocab_size),
        )
        if not body.return_hidden_states:
            return sampling
        _check_hidden(sampling, model)
        params = msgspec.structs.replace(sampling.params, hidden_states=True)
        return msgspec.structs.replace(sampling, params=params)


def _flattened(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The body with the fields of `sampling_params` beside its own: once, or once for each of a
    list. Raises InvalidRequest.
    """
    nested = raw.get("sampling_params")
    params = nested if isinstance(nested, list) else [{} if nested is None else nested]
    if not params or not all(isinstance(each, dict) for each in params):
        raise InvalidRequest(
            "'sampling_params' must be an object, or a list of objects, one for each prompt",
            param="sampling_params",
            code="invalid_type",
        )
    if len(params) > MAX_PROMPTS:
        raise InvalidRequest(
            f"'sampling_params' holds {len(params)} objects, at most {MAX_PROMPTS}",
            param="sampling_params",
        )
    return [{**raw, **each} for each in params]


def _check_num_params(num_params: int, num_prompts: int) -> None:
    """Raises InvalidRequest."""
    if num_params != num_prompts:
        raise InvalidRequest(
            f"'sampling_params' holds {num_params} objects for {num_prompts} prompts, must hold "
            "one for each",
            param="sampling_params",
        )


def _prompts_of(body: GenerateBody) -> tuple[str, list[Any]]:
    """The field that has them, and they. Raises InvalidRequest."""
    given = [each for each in PROMPT_FIELDS if getattr(body, each) is not None]
    if len(given) > 1:
        raise InvalidRequest(f"give '{given[0]}' or '{given[1]}', not both", param=given[1])
    name = given[0] if given else "text"
    if name == "input_embeds":
        return name, embeds_list(body.input_embeds, name, MAX_PROMPTS)
    prompts = prompt_list(getattr(body, name), name)
    if any(isinstance(prompt, str) != (name == "text") for prompt in prompts):
        wanted = "text" if name == "text" else "token ids"
        raise InvalidRequest(f"'{name}' must hold {wanted}", param=name, code="invalid_type")
    return name, prompts


def _surface_of(body: GenerateBody, caller: Caller) -> Surface:
    """Whether events repeat what came before: as SGLang's do, but not over NATS, where they would
    outgrow what one message takes. Raises InvalidRequest.
    """
    is_nats = caller.transport == "nats"
    if is_nats and body.incremental_streaming_output is False and body.stream:
        raise InvalidRequest(
            "'incremental_streaming_output' is false: over NATS each event holds what is new",
            param="incremental_streaming_output",
        )
    is_incremental = is_nats or bool(body.incremental_streaming_output)
    return Surface.GENERATE if is_incremental else Surface.GENERATE_SO_FAR


def _check_common(samplings: Sequence[Sampling]) -> None:
    """What all prompts of a body have in common. Raises InvalidRequest."""
    first = samplings[0]
    for i, sampling in enumerate(samplings):
        for name in ("n", "cache_salt", "logprobs"):
            if getattr(sampling, name) != getattr(first, name):
                raise InvalidRequest(
                    f"'sampling_params[{i}]' has another '{name}' than 'sampling_params[0]': it "
                    "must be the same for all prompts",
                    param="sampling_params",
                )


def _is_list(given: Any, name: str) -> bool:
    """Whether it is a list of prompts: of texts, of lists of ids, or of embeddings."""
    if name == "input_embeds":
        return isinstance(given, list) and not is_matrix(given)
    return isinstance(given, list) and not isinstance(given[0], int)


def _logprob_options(body: GenerateBody, fields: SamplingFields, vocab_size: int) -> LogprobOptions:
    """Reads SGLang's names, or vLLM's. Raises InvalidRequest."""
    num_top = checked_num_top("logprobs", body.logprobs)
    num_prompt_top = checked_num_top("prompt_logprobs", fields.prompt_logprobs)
    start = body.logprob_start_len
    if body.return_logprob:
        num_top = checked_num_top("top_logprobs_num", body.top_logprobs_num or 0)
        Range(low=-1).check("logprob_start_len", start)
        num_prompt_top = num_prompt_top if start is None or start < 0 else num_top
    elif body.top_logprobs_num or body.token_ids_logprob or start is not None:
        given = (name for name in ("top_logprobs_num", "token_ids_logprob") if getattr(body, name))
        name = next(given, "logprob_start_len")
        raise InvalidRequest(
            f"'{name}' is {getattr(body, name)}, and 'return_logprob' is not true", param=name
        )
    name = "token_ids_logprob"
    return LogprobOptions(
        num_top=num_top,
        num_prompt_top=num_prompt_top,
        token_ids=checked_logprob_ids(name, body.token_ids_logprob, num_top, vocab_size),
        prompt_start=max(0, start or 0),
    )


def _check_hidden(sampling: Sampling, model: ServedModel) -> None:
    """Raises UnsupportedParameter."""
    name, logprobs = "return_hidden_states", sampling.logprobs
    if model.limits.tells_no_hidden:
        raise UnsupportedParameter(
            name, f"is not possible: no worker of the model '{model.name}' tells them now"
        )
    for other, is_given in (
        ("stop", sampling.text.stop),  # is found in the text, by a process that has no states
        ("return_logprob", logprobs.num_top is not None or logprobs.num_scored_top is not None),
    ):
        if is_given:
            raise UnsupportedParameter(name, f"does not work with '{other}'")


def _check_start(prompt_start: int, num_tokens: int) -> None:
    """Raises InvalidRequest."""
    if prompt_start and prompt_start >= num_tokens:
        raise InvalidRequest(
            f"'logprob_start_len' is {prompt_start}, and a prompt has {num_tokens} tokens: must be "
            "one of these",
            param="logprob_start_len",
        )
