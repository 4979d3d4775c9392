"""What a request body asks for, whatever API it came through."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import msgspec

from frontend.fields.sampling_fields import Sampling
from frontend.fields.unknown_fields import UnknownFields
from frontend.jobs.stored_response import Conversation, ResponseParams
from frontend.models.model_directory import ServedModel
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.tenants.tenant import EVERYBODY, Tenant
from shared.errors import InvalidRequest, RequestTooLarge
from shared.protocol.hearing_card import AUDIO_LEVEL
from shared.protocol.model_cards import ModelCard
from shared.protocol.prompt_object import is_large
from shared.protocol.reply import (
    CLASSIFY_LEVEL,
    START_LEVEL,
    AnswerFormat,
    EncodingFormat,
    Payer,
    ReplyParams,
    ScoreMethod,
    SealedReply,
    Surface,
    TextParams,
    TranscriptReply,
)
from shared.protocol.request import (
    EMBEDS_LEVEL,
    FORK_LEVEL,
    GenerateRequest,
    GivenOutput,
    ImageSpan,
    PromptAudio,
    PromptEmbeds,
)
from shared.protocol.sampling import PoolingKind, PoolingParams, SamplingParams
from shared.protocol.sealed_replies import seal
from shared.protocol.sight_card import SIGHT_LEVEL
from shared.protocol.sound_card import SOUND_LEVEL
from shared.protocol.token_ids import pack_token_ids
from shared.protocol.trace_context import TraceContext
from shared.protocol.video_card import VIDEO_LEVEL
from shared.subjects import JOB_CLASSES, choice_rid
from shared.telemetry.tracing import NO_SPAN, Span

_OF_CLASSES = (Surface.CLASSIFY, Surface.POOLING)
MAX_RETURNED_PROMPT_IDS = 16 * 1024  # they travel with every record of the request
# Of what the answer repeats: a message of a MiB has room for it beside the most logprobs.
MAX_RENDERING_BYTES = 360 * 1024
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, tokenized."""

    token_ids: list[int]
    echo: str = ""  # its text, when the answer is to begin with it; of a pair, the text to be told
    second_start: int = 0  # of a pair, where the tokens of the second kind begin; 0: there are none
    images: tuple[ImageSpan, ...] = ()  # in their order
    pixels: tuple[
        bytes, ...
    ] = ()  # of each of them, or the rows of `embeds`, or the frames of `audio`
    embeds: PromptEmbeds | None = None  # in the place of its tokens, which all are 0
    audio: PromptAudio | None = None  # that is transcribed

    @property
    def needed_level(self) -> int:
        """A role that knows less could not read what is no token in it."""
        if self.embeds is not None:
            return EMBEDS_LEVEL
        if not self.images:
            return 1
        eyes = VIDEO_LEVEL if any(each.num_frames for each in self.images) else 1
        return max(eyes, SOUND_LEVEL if self.num_audio_tokens else 1)

    @property
    def num_audio_tokens(self) -> int:
        """The tokens that the audio of a chat takes."""
        if not self.images:
            return 0
        return sum(each.num_tokens for each in self.images if each.num_sound_frames)


_SOON_S = 0.001  # is left at least

T = TypeVar("T")


class Presence(Protocol):
    """Whether somebody still waits."""

    async def during(self, work: Awaitable[T]) -> T:
        """Do it, as long as they do. Raises RequestCancelled when they are gone before it ends."""
        ...


class Unseen:
    """Nobody can tell: the work goes on."""

    async def during(self, work: Awaitable[T]) -> T:
        return await work


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what the headers of the request say."""

    tenant: Tenant = EVERYBODY
    key: str = ""  # name of the key that was sent
    metadata: dict[str, str] = field(default_factory=dict)  # for the bills of what it asks
    deadline_s: float = 600.0
    queue_timeout_s: float = 0.0  # until the first claim; 0: as long as the deadline
    detached_deadline_s: float = 3600.0  # of requests that their client does not wait for
    grace_s: float | None = None  # how long the request runs on without it; None: as it was told
    trace: TraceContext | None = None  # that it belongs to, as its client says
    span: Span = NO_SPAN  # of what it asks for, begun here
    transport: str = "http"
    nats_user: str = ""  # as the server knows it; "": by HTTP, or it knows none
    client_id: str = ""  # what it calls its request, for the log
    idempotency_key: str = ""  # "": none
    job_class: str = JOB_CLASSES[0]
    session: str = ""  # to which it says that its request belongs
    wants_kept: bool = False  # what it asks shall be kept for forks
    presence: Presence = Unseen()  # noqa: RUF009 (it has no state)
    unknown: UnknownFields = field(default_factory=UnknownFields)  # of its body, as they are met

    def later(self, waited_s: float) -> Self:
        """The same caller, with what is left to it of its times."""
        return replace(
            self,
            deadline_s=max(_SOON_S, self.deadline_s - waited_s),
            detached_deadline_s=max(_SOON_S, self.detached_deadline_s - waited_s),
            queue_timeout_s=self.queue_timeout_s and max(_SOON_S, self.queue_timeout_s - waited_s),
        )

    @property
    def owner(self) -> str:
        """Whose its requests are, in records."""
        return self.tenant.owner

    def may_read_kept(self, owner: str) -> bool:
        """Whether it is told of a kept request that is over."""
        return owner == self.owner or self.tenant.reads_kept

    @property
    def payer(self) -> Payer | None:
        """Who pays for them; None: nothing is known."""
        payer = Payer(self.tenant.id, self.key, self.metadata)
        return None if payer == Payer() else payer


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What an answer tells beside its text, in OpenAI's formats."""

    include_usage: bool = False
    continuous_usage: bool = False  # every event tells the usage so far
    token_ids: bool = False  # of prompt and output
    tokens_as_ids: bool = False  # logprobs name tokens by their ids
    num_kept: int = 0  # of the choices of a prompt, the likeliest; 0: all
    hides_logprobs: bool = False  # they are there to rank choices by
    is_list: bool = False  # of one prompt, too


@dataclass(frozen=True, slots=True)
class ResponseDraft:
    """What becomes of a response besides its request."""

    params: ResponseParams
    items: list[dict[str, Any]]  # the whole conversation
    conversation: Conversation | None = None  # that it goes on with


@dataclass(frozen=True, slots=True)
class Fork:
    """What a job has of the request that it goes on with."""

    given: GivenOutput | None  # how the output of each choice begins; None: with nothing
    cache_salt: str  # as it was queued
    num_public_tokens: int  # of the prompt
    at: int  # tokens of the source that it begins with
    text_offset: int  # code points of visible text that these show
    is_rerun: bool = False  # with the seed of its source, to be compared with it

    @property
    def num_given(self) -> int:
        return 0 if self.given is None else self.given.num_tokens

    @property
    def headers(self) -> dict[str, str]:
        """What the answer tells of the place."""
        return {"x-fork-at": str(self.at), "x-fork-text-offset": str(self.text_offset)}


class MadeRequest(NamedTuple):
    """A request, and its reply data before they were sealed."""

    request: GenerateRequest
    reply: ReplyParams


@dataclass(frozen=True, slots=True)
class Job:
    """A checked body: prompts times n choices, each of which becomes one request."""

    surface: Surface
    model: ServedModel
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    stream: bool
    options: AnswerOptions = AnswerOptions()
    pooling: PoolingParams | None = None  # set: a vector or a score, and no output tokens
    encoding_format: EncodingFormat = EncodingFormat.FLOAT
    score_method: ScoreMethod | None = None
    answer: AnswerFormat | None = None  # of a chat
    response: ResponseDraft | None = None  # set for /v1/responses
    samplings: tuple[Sampling, ...] = ()  # one a prompt where they differ, all with `sampling.n`
    rids: tuple[str, ...] = ()  # what the client calls each prompt, where its answer repeats that
    fork: Fork | None = None
    transcript: TranscriptReply | None = None

    @property
    def is_detached(self) -> bool:
        """It runs on whatever becomes of its client and of the frontend."""
        return self.response is not None and self.response.params.background

    @property
    def needed_level(self) -> int:
        """A role that knows less would draw other tokens, or could not read the answer."""
        readers = 1 if self.answer is None else AnswerParsers.of(self.answer).needed_level
        fork = FORK_LEVEL if self.fork is not None and self.fork.given is not None else 1
        starts = START_LEVEL if self.sampling.logprobs.prompt_start else 1
        classes = CLASSIFY_LEVEL if self.surface in _OF_CLASSES else 1
        ears = 1 if self.transcript is None else AUDIO_LEVEL
        samplings = [each.params.needed_level for each in self.samplings or (self.sampling,)]
        prompts = [prompt.needed_level for prompt in self.prompts]
        if any(prompt.images for prompt in self.prompts) and (
            self.model.card.own_sight is not None or _shows_results(self.response)
        ):
            prompts.append(SIGHT_LEVEL)
        return max(readers, fork, starts, classes, ears, *samplings, *prompts)

    def sampling_of(self, prompt_idx: int) -> Sampling:
        """How the outputs of one prompt are made."""
        return self.samplings[prompt_idx] if self.samplings else self.sampling

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.sampling.n

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of all prompts, and those that a fork begins with: nobody has to make them."""
        num_given = 0 if self.fork is None else self.fork.num_given
        return num_given + sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def has_prompt_objects(self) -> bool:
        """Whether a prompt does not travel inside its request."""
        return any(
            is_large(len(prompt.token_ids), has_images=bool(prompt.pixels))
            for prompt in self.prompts
        )

    @property
    def pixels(self) -> list[tuple[bytes, ...]]:
        """The pixels of each choice's images, or the rows of its embeddings."""
        return [prompt.pixels for prompt in self.prompts for _ in range(self.sampling.n)]

    def requests(
        self,
        group_id: str,
        caller: Caller,
        *,
        created: int,
        subject: str,
        frontend_id: str,
        max_logprob_bytes: int,
        cache_salt: str,
        num_public_tokens: Sequence[int] = (),
        is_shared: bool = False,
    ) -> list[MadeRequest]:
        """One request a choice, in the order of their index. `num_public_tokens` is of each prompt
        what it shares under no salt; empty: nothing.

        Raises ContextLengthExceeded, or InvalidRequest or RequestTooLarge when ids, logprobs or
        what the answer repeats take too many bytes.
        """
        card = self.model.card
        of_all = self._reply_of_all(
            caller,
            group_id=group_id,
            created=created,
            subject=subject,
            frontend_id=frontend_id,
            is_shared=is_shared,
        )
        requests = []
        for choice_idx in range(self.num_choices):
            prompt_idx = choice_idx // self.sampling.n
            prompt, fields = self.prompts[prompt_idx], self.sampling_of(prompt_idx)
            prompt_ids = pack_token_ids(prompt.token_ids)
            sampling, text = self._params(fields, prompt, choice_idx, max_logprob_bytes)
            reply = self._reply_of_one(of_all, choice_idx, sampling, prompt_ids)
            request = GenerateRequest(
                rid=choice_rid(group_id, choice_idx),
                pool=card.pool,
                model=card.name,
                revision=card.revision,
                tokenizer_hash=card.tokenizer_hash,
                sampling=sampling,
                text=text,
                reply=_sealed(reply),
                deadline_s=caller.deadline_s,
                prompt_ids=prompt_ids,
                images=prompt.images,
                priority=fields.priority,
                cache_salt=cache_salt,
                num_public_tokens=num_public_tokens[prompt_idx] if num_public_tokens else 0,
                adapter="" if self.model.adapter is None else self.model.adapter.revision,
                keep=fields.keep,
                session=fields.session or caller.session,
                pooling=self._pooling(prompt),
                given=None if self.fork is None else self.fork.given,
                embeds=prompt.embeds,
                audio=prompt.audio,
            )
            requests.append(MadeRequest(request, reply))
        return requests

    def _reply_of_all(
        self,
        caller: Caller,
        *,
        group_id: str,
        created: int,
        subject: str,
        frontend_id: str,
        is_shared: bool,
    ) -> ReplyParams:
        """What is the same for all choices of all prompts."""
        return ReplyParams(
            num_prompt_tokens=0,  # as the other fields of one choice, it is replaced
            subject=subject,
            surface=self.surface,
            model=self.model.name,
            created=created,
            group_id=group_id,
            num_choices=self.num_choices,
            num_prompts=len(self.prompts),
            deadline_s=caller.deadline_s,
            include_usage=self.options.include_usage,
            continuous_usage=self.options.continuous_usage,
            tells_token_ids=self.options.token_ids,
            tokens_as_ids=self.options.tokens_as_ids,
            num_kept=self.options.num_kept,
            hides_logprobs=self.options.hides_logprobs,
            is_list=self.options.is_list,
            num_top=self.sampling.logprobs.num_top,
            num_prompt_top=self.sampling.logprobs.num_prompt_top,
            echo_logprobs=self.sampling.logprobs.echo,
            num_logprob_ids=len(self.sampling.logprobs.token_ids),
            prompt_start=self.sampling.logprobs.prompt_start,
            is_by_token=self.pooling is not None and self.pooling.each_token,
            owner=caller.owner,
            frontend_id="" if self.is_detached else frontend_id,
            encoding_format=self.encoding_format,
            score_method=self.score_method,
            is_whole=not self.stream,
            is_shared=is_shared,
            job_class=caller.job_class,
            queue_timeout_s=caller.queue_timeout_s,
            answer=self.answer,
            trace=caller.span.context or caller.trace,
            payer=caller.payer,
            base_model="" if self.model.adapter is None else self.model.card.name,
            grace_s=caller.grace_s or 0.0,
            transcript=self.transcript,
        )

    def _repeated_ids(self, prompt: Prompt, prompt_ids: bytes) -> bytes:
        """What the answer repeats of a prompt's ids. Raises InvalidRequest."""
        if not self.options.token_ids:
            return b""
        if len(prompt.token_ids) > MAX_RETURNED_PROMPT_IDS:
            raise InvalidRequest(
                f"'return_token_ids' tells prompts of up to {MAX_RETURNED_PROMPT_IDS} tokens, "
                f"this one has {len(prompt.token_ids)}",
                param="return_token_ids",
            )
        return prompt_ids

    def _reply_of_one(
        self, of_all: ReplyParams, choice_idx: int, sampling: SamplingParams, prompt_ids: bytes
    ) -> ReplyParams:
        """Raises InvalidRequest."""
        prompt_idx = choice_idx // self.sampling.n
        prompt = self.prompts[prompt_idx]
        return msgspec.structs.replace(
            of_all,
            num_prompt_tokens=len(prompt.token_ids),
            choice_idx=choice_idx,
            prompt_ids=self._repeated_ids(prompt, prompt_ids),
            num_beams=0 if sampling.beam is None else sampling.beam.num_kept,
            echo=prompt.echo,
            has_images=bool(prompt.pixels),
            rid=self.rids[prompt_idx] if self.rids else "",
            eos_token_ids=_overridden_eos_ids(sampling, self.model.card),
            num_audio_tokens=prompt.num_audio_tokens,
        )

    def _pooling(self, prompt: Prompt) -> PoolingParams | None:
        if self.pooling is None or not prompt.second_start:
            return self.pooling
        return msgspec.structs.replace(self.pooling, second_start=prompt.second_start)

    def _params(
        self, sampling: Sampling, prompt: Prompt, choice_idx: int, max_logprob_bytes: int
    ) -> tuple[SamplingParams, TextParams]:
        """Raises ContextLengthExceeded or InvalidRequest; a vector needs no room in the context."""
        if self.pooling is not None:
            self._check_vectors(self.pooling, len(prompt.token_ids), max_logprob_bytes)
            return sampling.params, sampling.text
        if prompt.audio is not None:  # its output is of many windows
            return sampling.params, sampling.text
        params, text = sampling.for_prompt(
            prompt.token_ids, self.model.card, choice_idx % sampling.n, max_logprob_bytes
        )
        if params.hidden_states and self.model.card.embedding is not None:
            num_tokens = len(prompt.token_ids) + params.max_tokens - 1
            num_numbers = self.model.card.embedding.num_dimensions
            _check_rows("return_hidden_states", num_tokens, num_numbers, max_logprob_bytes)
        return params, text

    def _check_vectors(self, pooling: PoolingParams, num_tokens: int, max_bytes: int) -> None:
        """Raises InvalidRequest for those of each token that no message has room for."""
        card, num_numbers = self.model.card, 0
        if pooling.kind is PoolingKind.LOGITS and card.classifier is not None:
            num_numbers = len(card.classifier.labels)
        elif card.embedding is not None:
            num_numbers = pooling.dimensions or card.embedding.num_dimensions
        if pooling.each_token:
            _check_rows("task", num_tokens, num_numbers, max_bytes)


def _check_rows(name: str, num_tokens: int, num_numbers: int, max_bytes: int) -> None:
    """Raises InvalidRequest."""
    num_bytes = _FLOAT_BYTES * num_tokens * num_numbers
    if num_bytes > max_bytes:
        raise InvalidRequest(
            f"'{name}' asks for {num_numbers} numbers of each of {num_tokens} tokens: {num_bytes} "
            f"bytes, and an answer has room for {max_bytes} (NATS' max_payload)",
            param=name,
        )


def _sealed(reply: ReplyParams) -> SealedReply:
    """Raises RequestTooLarge."""
    sealed = seal(reply)
    if len(sealed.rendering) > MAX_RENDERING_BYTES:
        raise RequestTooLarge(
            f"What the answer repeats ('echo', 'return_token_ids', names in 'tools') takes "
            f"{len(sealed.rendering)} bytes in each record of the request, at most "
            f"{MAX_RENDERING_BYTES}"
        )
    return sealed


def _overridden_eos_ids(sampling: SamplingParams, card: ModelCard) -> tuple[int, ...] | None:
    if not sampling.stop_token_ids:
        return None
    return () if sampling.ignore_eos else card.eos_token_ids


def _shows_results(draft: ResponseDraft | None) -> bool:
    """Whether a conversation has images of tools, which an older frontend could not go on with."""
    items = () if draft is None else draft.items
    return any(isinstance(item.get("output"), list) for item in items)
