"""Bodies of POST /generate, the native API: text or token ids in, both out."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.fields.logprob_fields import LogprobOptions, checked_num_top
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import (
    IGNORED,
    OF_OPENAI,
    BodyReader,
    Refused,
    convert,
)
from frontend.fields.sampling_fields import SamplingFields, resolve_sampling
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.job import AnswerOptions, Caller, Job
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.completions.completion_request import encoded_prompt, prompt_list
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

DEFAULT_MAX_TOKENS = 128


class GenerateBody(msgspec.Struct, omit_defaults=True):
    """Everything but the sampling fields."""

    model: str | None = None
    text: Any = None
    input_ids: Any = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    logprob_start_len: int | None = None
    logprobs: int | None = None


ALIASES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
_OWN: Refused = {
    **OF_OPENAI,
    "logprob_start_len": lambda value: value not in (-1, 0),
}
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
        nested = raw.get("sampling_params")
        if nested is not None and not isinstance(nested, dict):
            raise InvalidRequest(
                "'sampling_params' must be an object", param="sampling_params", code="invalid_type"
            )
        flat = {**raw, **(nested or {})}
        self._reader.check(flat, caller.unknown)
        uses_new_name = flat.get("max_new_tokens") is not None
        for alias, name in ALIASES.items():
            if flat.get(alias) is not None:
                flat[name] = flat[alias]
        body = convert(raw, GenerateBody)
        fields = convert(flat, SamplingFields)
        name = "input_ids" if body.input_ids is not None else "text"
        if body.text is not None and body.input_ids is not None:
            raise InvalidRequest("give 'text' or 'input_ids', not both", param="input_ids")
        prompts = prompt_list(body.text if name == "text" else body.input_ids, name)
        if any(isinstance(prompt, str) != (name == "text") for prompt in prompts):
            wanted = "text" if name == "text" else "token ids"
            raise InvalidRequest(f"'{name}' must hold {wanted}", param=name, code="invalid_type")
        if body.model:
            model = await self._models.model(body.model)
        else:
            model = await self._models.only_model()
        sampling = resolve_sampling(
            fields,
            model.card,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            prompt_param=name,
            max_tokens_param="max_new_tokens" if uses_new_name else "max_tokens",
            use_model_defaults=self._models.use_model_defaults,
            tokenizer=model.text.tokenizer,
            breakers=await dry_breakers(fields, self._encoder, caller, model),
            logprobs=_logprob_options(convert(flat, GenerateBody), fields),
        )
        return Job(
            surface=Surface.GENERATE,
            model=model,
            prompts=tuple(
                [await encoded_prompt(self._encoder, caller, model, item, name) for item in prompts]
            ),
            sampling=sampling,
            stream=bool(body.stream),
            options=AnswerOptions(
                is_list=_is_list(body.text if name == "text" else body.input_ids)
            ),
        )


def _is_list(prompt: Any) -> bool:
    """Whether it is a list of prompts: of texts, or of lists of ids."""
    return isinstance(prompt, list) and not isinstance(prompt[0], int)


def _logprob_options(body: GenerateBody, fields: SamplingFields) -> LogprobOptions:
    """By SGLang's names, or by vLLM's. Raises InvalidRequest."""
    num_top = checked_num_top("logprobs", body.logprobs)
    num_prompt_top = checked_num_top("prompt_logprobs", fields.prompt_logprobs)
    if body.return_logprob:
        num_top = checked_num_top("top_logprobs_num", body.top_logprobs_num or 0)
        num_prompt_top = num_top if body.logprob_start_len == 0 else num_prompt_top
    elif body.top_logprobs_num or body.logprob_start_len is not None:
        name = "top_logprobs_num" if body.top_logprobs_num else "logprob_start_len"
        raise InvalidRequest(
            f"'{name}' is {getattr(body, name)}, and 'return_logprob' is not true", param=name
        )
    return LogprobOptions(num_top=num_top, num_prompt_top=num_prompt_top)
