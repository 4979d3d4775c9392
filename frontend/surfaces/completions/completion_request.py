"""Bodies of POST /v1/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frontend.fields.field_ranges import RANGES
from frontend.fields.logprob_fields import (
    LogprobOptions,
    checked_num_top,
    checked_prompt_top,
    named_ids,
)
from frontend.fields.peer_fields import peer_refusals
from frontend.fields.request_body import IGNORED, BodyReader, required_model
from frontend.fields.sampling_fields import resolve_sampling
from frontend.fields.token_rules import check_token_ids
from frontend.jobs.beam_fields import beam_params, with_beams
from frontend.jobs.dry_fields import dry_breakers
from frontend.jobs.embedded_prompt import check_reads_no_prompt, embedded_prompt, embeds_list
from frontend.jobs.job import Caller, Job, Prompt
from frontend.jobs.openai_fields import OpenAIFields, answer_options, check_echo, prompt_room
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.models.tokenizer_facts import FillInMiddle
from shared.errors import InvalidRequest
from shared.protocol.reply import Surface

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256


class CompletionBody(OpenAIFields, omit_defaults=True):
    """The fields that have an effect; None means default."""

    model: str | None = None
    prompt: Any = None
    prompt_embeds: Any = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    best_of: int | None = None


# Beside fields of sampling.
_READ_PROMPTS = ("echo", "suffix", "truncate_prompt_tokens", "return_token_ids")
REFUSED = peer_refusals(CompletionBody, {}, ignored=IGNORED)


class CompletionRequests:
    """Turns bodies into jobs."""

    def __init__(
        self,
        models: ModelDirectory,
        encoder: PromptEncoder,
        *,
        default_max_tokens: int | None = DEFAULT_MAX_TOKENS,
    ) -> None:
        """`default_max_tokens`: None is the rest of the context."""
        self._default_max_tokens = default_max_tokens
        self._models = models
        self._encoder = encoder
        self._reader = BodyReader(CompletionBody, REFUSED)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        name = required_model(body.model)
        beam = beam_params(body, body.best_of)
        if beam is not None:
            body.n = body.best_of = None
        options = replace(
            answer_options(body),
            num_kept=_num_kept(body),
            hides_logprobs=body.logprobs is None or body.logprobs is False,
        )
        embeds = (
            []
            if body.prompt_embeds is None
            else embeds_list(body.prompt_embeds, "prompt_embeds", MAX_PROMPTS)
        )
        prompts = [] if embeds and body.prompt is None else prompt_list(body.prompt, "prompt")
        model = await self._models.model(name)
        logprobs = named_ids(body, _logprob_options(body), model.card.vocab_size)
        if options.num_kept:
            body.n = body.best_of
            logprobs = replace(logprobs, num_top=logprobs.num_top or 0)
        echo = bool(body.echo)
        if body.suffix:
            prompts = _with_gap(body, prompts, model.fill_in_middle())
        if echo and body.truncate_prompt_tokens is not None:
            raise InvalidRequest(
                "'truncate_prompt_tokens' and 'echo' exclude each other",
                param="truncate_prompt_tokens",
            )
        sampling = resolve_sampling(
            body,
            model.card,
            default_max_tokens=self._default_max_tokens,
            prompt_param="prompt",
            use_model_defaults=self._models.use_model_defaults,
            tokenizer=model.text.tokenizer,
            breakers=await dry_breakers(body, self._encoder, caller, model),
            logprobs=logprobs,
            may_be_empty=echo,
        )
        if embeds:
            others = [(name, getattr(body, name)) for name in _READ_PROMPTS]
            check_reads_no_prompt(sampling.params, logprobs, others)
        room = prompt_room(body, model.card, sampling.max_tokens)
        return Job(
            surface=Surface.COMPLETIONS,
            model=model,
            prompts=(
                *[
                    await embedded_prompt(self._encoder, caller, model, given, "prompt_embeds")
                    for given in embeds
                ],
                *[await self._encoded(body, caller, model, prompt, room) for prompt in prompts],
            ),
            sampling=with_beams(sampling, beam),
            stream=bool(body.stream),
            options=options,
        )

    async def _encoded(
        self,
        body: CompletionBody,
        caller: Caller,
        model: ServedModel,
        prompt: str | list[int],
        max_tokens: int | None,
    ) -> Prompt:
        return await encoded_prompt(
            self._encoder,
            caller,
            model,
            prompt,
            "prompt",
            echo=bool(body.echo),
            add_special_tokens=body.add_special_tokens is not False,
            max_tokens=max_tokens,
        )


def _with_gap(
    body: CompletionBody, prompts: list[str | list[int]], marks: FillInMiddle
) -> list[str | list[int]]:
    """The prompts with what follows their gap; marks end the output. Raises InvalidRequest."""
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise InvalidRequest(f"'suffix' and '{name}' exclude each other", param=name)
    body.stop_token_ids = [*(body.stop_token_ids or ()), *marks.end_ids]
    return [_around_gap(prompt, body.suffix or "", marks) for prompt in prompts]


def _around_gap(prompt: str | list[int], suffix: str, marks: FillInMiddle) -> str:
    if isinstance(prompt, str):
        return marks.prompt(prompt, suffix)
    raise InvalidRequest("'prompt' is token ids, with 'suffix' it must be text", param="prompt")


def _logprob_options(body: CompletionBody) -> LogprobOptions:
    """Raises InvalidRequest."""
    if body.logprobs is True:
        raise InvalidRequest(
            "'logprobs' is true, must be a number of alternatives",
            param="logprobs",
            code="invalid_type",
        )
    num_top = None if body.logprobs is False else body.logprobs
    return LogprobOptions(
        num_top=checked_num_top("logprobs", num_top),
        num_prompt_top=checked_prompt_top(body.prompt_logprobs, is_stream=bool(body.stream)),
        echo=bool(body.echo) and num_top is not None,
    )


def _num_kept(body: CompletionBody) -> int:
    """How many of `best_of` choices are told; 0: all. Raises InvalidRequest."""
    n = 1 if body.n is None else body.n
    RANGES["n"].check("n", n)
    RANGES["best_of"].check("best_of", body.best_of)
    if body.best_of is None or body.best_of == n:
        return 0
    if body.best_of < n:
        raise InvalidRequest(
            f"'best_of' is {body.best_of}, must be at least 'n', {n}", param="best_of"
        )
    if body.stream:
        raise InvalidRequest(
            f"'best_of' is {body.best_of}, and 'stream' is true: choices are ranked at their end",
            param="best_of",
        )
    return n


def prompt_list(prompt: Any, name: str, *, max_prompts: int = MAX_PROMPTS) -> list[str | list[int]]:
    """Text, ids, or a list of either. Raises InvalidRequest."""
    if prompt is None:
        raise InvalidRequest(f"'{name}' is required", param=name, code="missing_field")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt) or all(
            isinstance(item, list) and item and _are_ids(item) for item in prompt
        ):
            if len(prompt) > max_prompts:
                raise InvalidRequest(
                    f"'{name}' holds {len(prompt)} prompts, at most {max_prompts}", param=name
                )
            return prompt
    raise InvalidRequest(
        f"'{name}' must be text, a list of texts, a list of token ids or a list of such lists",
        param=name,
        code="invalid_type",
    )


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


async def encoded_prompt(
    encoder: PromptEncoder,
    caller: Caller,
    model: ServedModel,
    prompt: str | list[int],
    name: str,
    *,
    echo: bool = False,
    add_special_tokens: bool = True,
    max_tokens: int | None = None,
) -> Prompt:
    """Cut to its last `max_tokens`; special tokens of a text stay.

    Raises InvalidRequest for an empty prompt, unknown ids, or an echo that is too long.
    """
    if isinstance(prompt, str):
        token_ids = await encoder.encode(
            caller,
            model,
            prompt,
            name,
            add_special_tokens=add_special_tokens,
            max_tokens=max_tokens,
        )
        text = prompt
    else:
        check_token_ids(name, prompt, model.card.vocab_size)
        token_ids = prompt if max_tokens is None else prompt[-max_tokens:]
        text = await encoder.decode(caller, model, prompt) if echo else ""
    if not token_ids:
        raise InvalidRequest(f"'{name}' has no tokens", param=name)
    if echo:
        check_echo(text)
    return Prompt(token_ids, text if echo else "")
