"""Turns the bodies of forks into jobs: those of their sources, with tokens to begin with."""

from __future__ import annotations

import secrets
from typing import Any

from frontend.fields.logprob_fields import LogprobOptions, checked_prompt_top
from frontend.fields.sampling_fields import Sampling
from frontend.jobs.job import AnswerOptions, Caller, Fork, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.forks.fork_body import (
    SEED_OF_SOURCE,
    STREAM_FIELD,
    ForkBodies,
    ForkBody,
    ForkSampling,
    changed,
)
from frontend.surfaces.forks.fork_place import ForkPlace, ForkPlaces, check_append, check_goes_on
from frontend.surfaces.forks.fork_source import ForkSource, ForkSources
from frontend.text.event_id import EventId, parse_event_id
from shared.errors import InvalidRequest, NotForkable
from shared.protocol.reply import Surface
from shared.protocol.request import GivenOutput
from shared.protocol.token_ids import pack_token_ids, unpack_token_ids

_MANY = (Surface.CHAT, Surface.COMPLETIONS, Surface.GENERATE, Surface.GENERATE_SO_FAR)
_ONE = (Surface.MESSAGES, Surface.OLLAMA_CHAT, Surface.OLLAMA_GENERATE, Surface.INFILL)
_CHARS_A_TOKEN = 4


class ForkRequests:
    """A fork speaks the API of its source."""

    def __init__(
        self, models: ModelDirectory, encoder: PromptEncoder, sources: ForkSources
    ) -> None:
        self._models = models
        self._encoder = encoder
        self._sources = sources
        self._bodies = ForkBodies()
        self._alike: dict[tuple[str, str], bool] = {}  # tokenizers' hashes: their ids mean the same

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body, fields = self._bodies.read(raw, caller.unknown)
        if not body.stream_id:
            raise InvalidRequest(
                f"'{STREAM_FIELD}' is required: the id of a stream", param=STREAM_FIELD
            )
        event_id = _event_id(body)
        source = await self._sources.find(body.stream_id, body.choice or 0, caller)
        _check_kind(source, body)
        model = await self._models.model(body.model or source.reply.model)
        if model.name == source.reply.model:
            _check_model(source, model)
        else:
            await self._check_other_model(source, model, caller)
        place = await self._place(body, event_id, source, model, caller)
        token_ids = source.token_ids[: place.num_tokens]
        if body.append is not None:
            check_append(source)
            token_ids = token_ids + await self._encoder.encode(
                caller, model, body.append, "append", add_special_tokens=False
            )
            check_goes_on(token_ids, source.request.text, model.text.tokenizer)
        given = None
        if token_ids:
            given = GivenOutput(
                pack_token_ids(token_ids),
                source.logprobs_of(place.num_tokens),
                source.prompt_logprobs,
            )
            _check_logprobs(source, fields)
        surface = source.reply.surface
        if surface is Surface.GENERATE_SO_FAR and caller.transport == "nats":
            surface = Surface.GENERATE  # there events that repeat the text would outgrow a message
        return self._job(surface, body, fields, source, model, place, given)

    async def _place(
        self,
        body: ForkBody,
        event_id: EventId | None,
        source: ForkSource,
        model: ServedModel,
        caller: Caller,
    ) -> ForkPlace:
        def find() -> ForkPlace:
            places = ForkPlaces(source, model.text.tokenizer)
            if event_id is not None:
                return places.by_mark(event_id.marks[source.reply.choice_idx])
            if body.text_offset is not None:
                return places.by_text(body.text_offset)
            assert body.at is not None, "one of them is given"
            return places.at(body.at)

        if event_id is not None and len(event_id.marks) != source.reply.num_choices:
            raise InvalidRequest(
                f"'event_id' describes {len(event_id.marks)} choices, the stream has "
                f"{source.reply.num_choices}",
                param="event_id",
            )
        return await self._encoder.run(caller, _CHARS_A_TOKEN * len(source.token_ids), find)

    async def _check_other_model(
        self, source: ForkSource, model: ServedModel, caller: Caller
    ) -> None:
        """Whether a model that the source did not ask can go on with its tokens.

        Raises NotForkable or ServiceUnavailable.
        """
        ours, theirs = source.request.tokenizer_hash, model.card.tokenizer_hash
        if ours != theirs and (ours, theirs) not in self._alike:
            # Their chat templates may differ: what is compared is what ids stand for.
            known, other = (await self._models.text(ours)).tokenizer, model.text.tokenizer
            num_chars = _CHARS_A_TOKEN * model.card.vocab_size
            self._alike[ours, theirs] = await self._encoder.run(
                caller, num_chars, lambda: known.get_vocab() == other.get_vocab()
            )
        if ours != theirs and not self._alike[ours, theirs]:
            raise NotForkable(
                f"'model' is {model.name!r}, whose tokenizer is not that of {source.reply.model!r}",
                param="model",
            )
        _check_fits(source, model)

    def _job(
        self,
        surface: Surface,
        body: ForkBody,
        fields: ForkSampling,
        source: ForkSource,
        model: ServedModel,
        place: ForkPlace,
        given: GivenOutput | None,
    ) -> Job:
        request, reply, sampling = source.request, source.reply, source.request.sampling
        max_tokens = sampling.max_tokens if fields.max_tokens is None else fields.max_tokens
        num_given = 0 if given is None else given.num_tokens
        if max_tokens <= num_given:
            raise InvalidRequest(
                f"'sampling.max_tokens' is {max_tokens}, and the fork begins with {num_given} "
                "tokens, which count: no token is left to be made",
                param="sampling.max_tokens",
            )
        checked_prompt_top(reply.num_prompt_top, is_stream=bool(body.stream))
        is_other = model.name != reply.model
        return Job(
            surface=surface,
            model=model,
            prompts=(
                Prompt(
                    unpack_token_ids(source.prompt.prompt_ids),
                    reply.echo,
                    images=request.images,
                    pixels=source.prompt.pixels,
                ),
            ),
            sampling=_sampling(body, fields, source, model, max_tokens),
            stream=bool(body.stream),
            options=AnswerOptions(
                include_usage=reply.include_usage,
                continuous_usage=reply.continuous_usage,
                token_ids=reply.tells_token_ids,
                tokens_as_ids=reply.tokens_as_ids,
                hides_logprobs=reply.hides_logprobs,
            ),
            answer=reply.answer,
            fork=Fork(
                given, request.cache_salt, 0 if is_other else request.num_public_tokens,
                place.num_tokens, place.text_offset, is_rerun=fields.seed == SEED_OF_SOURCE,
            ),
        )  # fmt: skip


def _sampling(
    body: ForkBody, fields: ForkSampling, source: ForkSource, model: ServedModel, max_tokens: int
) -> Sampling:
    """That of the source, with what the body says otherwise."""
    request, reply, sampling = source.request, source.reply, source.request.sampling
    is_other = model.name != reply.model
    return Sampling(
        params=changed(sampling, fields, _seed(fields, sampling.seed), model.card.vocab_size),
        text=request.text,
        max_tokens=max_tokens,
        # What there was room for is less where logprobs or a smaller context take it.
        max_tokens_is_default=fields.max_tokens is None
        and (is_other or fields.logprobs is not None),
        max_tokens_param="sampling.max_tokens",
        prompt_param=STREAM_FIELD,
        n=1 if body.n is None else body.n,
        priority=request.priority,
        cache_salt="",
        grammar_param="sampling",
        logprobs=LogprobOptions(
            reply.num_top if fields.logprobs is None else fields.logprobs,
            reply.num_prompt_top,
            sampling.logprob_ids,
            reply.prompt_start,
            reply.echo_logprobs,
            "sampling.logprobs",
        ),
        keep=request.keep,
        session=request.session,
    )


def _seed(fields: ForkSampling, of_source: int) -> int:
    if fields.seed is None:
        return secrets.randbits(63)
    return of_source if isinstance(fields.seed, str) else fields.seed & ((1 << 64) - 1)


def _event_id(body: ForkBody) -> EventId | None:
    """Raises InvalidRequest."""
    if body.event_id is None:
        return None
    try:
        event_id = parse_event_id(body.event_id)
    except InvalidRequest as exc:
        raise InvalidRequest(
            f"'event_id' is {body.event_id[:100]!r}, must be the id of an event of the stream",
            param="event_id",
        ) from exc
    if event_id.group_id != body.stream_id:
        raise InvalidRequest(f"'event_id' belongs to stream {event_id.group_id}", param="event_id")
    return event_id


def _check_kind(source: ForkSource, body: ForkBody) -> None:
    """Raises NotForkable or InvalidRequest."""
    reply, n = source.reply, body.n or 1
    if reply.surface not in (*_MANY, *_ONE) or reply.num_beams:
        what = "a beam search" if reply.num_beams else f"'{reply.surface.value}'"
        goes_on = "; a response goes on by 'previous_response_id'"
        raise NotForkable(
            f"The stream is of {what}, which cannot be forked"
            + (goes_on if reply.surface is Surface.RESPONSES else ".")
        )
    if n > 1 and reply.surface in _ONE:
        raise InvalidRequest(
            f"'n' is {n}, and answers of '{reply.surface.value}' have one choice", param="n"
        )


def _check_logprobs(source: ForkSource, fields: ForkSampling) -> None:
    """What is given has those of the source. Raises NotForkable."""
    has = source.request.sampling.logprobs
    if fields.logprobs not in (None, has):
        words = "none" if has is None else f"{has} alternatives"
        raise NotForkable(
            f"'sampling.logprobs' is {fields.logprobs}, and the tokens that the fork begins with "
            f"have {words}",
            param="sampling.logprobs",
        )


def _check_model(source: ForkSource, model: ServedModel) -> None:
    """Whether its tokens mean the same there. Raises NotForkable."""
    adapter = "" if model.adapter is None else model.adapter.revision
    if model.card.tokenizer_hash != source.request.tokenizer_hash:
        raise NotForkable(f"The model '{model.name}' has another tokenizer now.")
    if adapter != source.request.adapter:
        raise NotForkable(f"The LoRA adapter '{model.name}' is another one now.")


def _check_fits(source: ForkSource, model: ServedModel) -> None:
    """Whether another model of this tokenizer has all that the source asks for.

    Raises NotForkable.
    """
    request, sampling, card = source.request, source.request.sampling, model.card
    if request.images:
        raise NotForkable(
            f"'model' is {model.name!r}, and the stream has images or audio, as "
            f"{source.reply.model!r} takes them",
            param="model",
        )
    named = (
        *unpack_token_ids(source.prompt.prompt_ids),
        *source.token_ids,
        *sampling.stop_token_ids,
        *(token_id for token_id, _ in sampling.logit_bias),
        *sampling.allowed_token_ids,
        *(token_id for word in sampling.bad_words for token_id in word),
        *sampling.logprob_ids,
    )
    if (highest := max(named, default=0)) >= card.vocab_size:
        raise NotForkable(
            f"'model' is {model.name!r}, which has {card.vocab_size} tokens, and the stream names "
            f"token {highest}",
            param="model",
        )
    unknown = [each.name for each in sampling.logits_processors]
    unknown = [name for name in unknown if name not in card.logits_processors]
    if unknown:
        raise NotForkable(
            f"'model' is {model.name!r}, whose workers have no logits processor {unknown[0]!r}",
            param="model",
        )
