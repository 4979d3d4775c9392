"""What a request body asks for, whatever API it came through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from frontend.model_directory import ServedModel
from frontend.requests.sampling_fields import Sampling
from frontend.responses.stored_response import ResponseParams
from frontend.tenants.tenant import EVERYBODY, Tenant
from shared.errors import InvalidRequest
from shared.protocol.reply import (
    AnswerFormat,
    EncodingFormat,
    ReplyParams,
    ScoreMethod,
    Surface,
    TextParams,
)
from shared.protocol.request import GenerateRequest, ImageSpan
from shared.protocol.sampling import PoolingParams, SamplingParams
from shared.protocol.trace_context import TraceContext
from shared.subjects import JOB_CLASSES, choice_rid
from shared.token_ids import pack_token_ids
from shared.tracing import NO_SPAN, Span

MAX_TOLD_PROMPT_IDS = 16 * 1024  # they travel with every record of the request


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, tokenized."""

    token_ids: list[int]
    echo: str = ""  # its text, when the answer is to begin with it; of a pair, the text to be told
    second_start: int = 0  # of a pair, where the tokens of the second kind begin; 0: there are none
    images: tuple[ImageSpan, ...] = ()  # in their order
    pixels: tuple[bytes, ...] = ()  # of each of them


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what the headers of the request say."""

    owner: str = ""  # hash of the API key
    tenant: Tenant = EVERYBODY
    deadline_s: float = 600.0
    queue_timeout_s: float = 0.0  # until the first claim; 0: as long as the deadline
    detached_deadline_s: float = 3600.0  # of requests that their client does not wait for
    grace_s: float | None = None  # how long the request runs on without it; None: as it was told
    trace: TraceContext | None = None  # that it belongs to, as its client says
    span: Span = NO_SPAN  # of what it asks for, begun here
    transport: str = "http"
    client_id: str = ""  # what it calls its request, for the log
    idempotency_key: str = ""  # "": none
    job_class: str = JOB_CLASSES[0]
    session: str = ""  # to which it says that its request belongs


@dataclass(frozen=True, slots=True)
class AnswerWish:
    """What an answer tells beside its text, in OpenAI's formats."""

    include_usage: bool = False
    continuous_usage: bool = False  # every event tells the usage so far
    token_ids: bool = False  # of prompt and output
    tokens_as_ids: bool = False  # logprobs name tokens by their ids
    num_kept: int = 0  # of the choices of a prompt, the likeliest; 0: all
    hides_logprobs: bool = False  # they are there to rank choices by


@dataclass(frozen=True, slots=True)
class ResponseDraft:
    """What becomes of a response besides its request."""

    params: ResponseParams
    items: list[dict[str, Any]]  # the whole conversation


@dataclass(frozen=True, slots=True)
class Job:
    """A checked body: prompts times n choices, each of which becomes one request."""

    surface: Surface
    model: ServedModel
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    stream: bool
    wish: AnswerWish = AnswerWish()
    pooling: PoolingParams | None = None  # set: a vector or a score, and no output tokens
    encoding_format: EncodingFormat = EncodingFormat.FLOAT
    score_method: ScoreMethod | None = None
    answer: AnswerFormat | None = None  # of a chat
    response: ResponseDraft | None = None  # set for /v1/responses

    @property
    def is_detached(self) -> bool:
        """It runs on whatever becomes of its client and of the frontend."""
        return self.response is not None and self.response.params.background

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.sampling.n

    @property
    def pixels(self) -> list[tuple[bytes, ...]]:
        """Of each choice's images."""
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
        is_shared: bool = False,
    ) -> list[GenerateRequest]:
        """One request a choice, in the order of their index.

        Raises ContextLengthExceeded, or InvalidRequest when ids or logprobs take too many bytes.
        """
        card = self.model.card
        requests = []
        for choice_idx in range(self.num_choices):
            prompt = self.prompts[choice_idx // self.sampling.n]
            if self.wish.token_ids and len(prompt.token_ids) > MAX_TOLD_PROMPT_IDS:
                raise InvalidRequest(
                    f"'return_token_ids' tells prompts of up to {MAX_TOLD_PROMPT_IDS} tokens, this "
                    f"one has {len(prompt.token_ids)}",
                    param="return_token_ids",
                )
            prompt_ids = pack_token_ids(prompt.token_ids)
            sampling, text = self._params(prompt, choice_idx, max_logprob_bytes)
            reply = ReplyParams(
                subject=subject,
                surface=self.surface,
                model=self.model.name,
                created=created,
                num_prompt_tokens=len(prompt.token_ids),
                group_id=group_id,
                choice_idx=choice_idx,
                num_choices=self.num_choices,
                num_prompts=len(self.prompts),
                deadline_s=caller.deadline_s,
                include_usage=self.wish.include_usage,
                continuous_usage=self.wish.continuous_usage,
                tells_token_ids=self.wish.token_ids,
                prompt_ids=prompt_ids if self.wish.token_ids else b"",
                tokens_as_ids=self.wish.tokens_as_ids,
                num_kept=self.wish.num_kept,
                hides_logprobs=self.wish.hides_logprobs,
                num_beams=0 if sampling.beam is None else sampling.beam.num_kept,
                echo=prompt.echo,
                num_top=self.sampling.logprobs.num_top,
                num_prompt_top=self.sampling.logprobs.num_prompt_top,
                echo_logprobs=self.sampling.logprobs.echo,
                owner=caller.owner,
                frontend_id="" if self.is_detached else frontend_id,
                encoding_format=self.encoding_format,
                score_method=self.score_method,
                is_shared=is_shared,
                job_class=caller.job_class,
                queue_timeout_s=caller.queue_timeout_s,
                answer=self.answer,
                has_images=bool(prompt.images),
                trace=caller.span.context or caller.trace,
                base_model="" if self.model.adapter is None else card.name,
                grace_s=caller.grace_s or 0.0,
            )
            requests.append(
                GenerateRequest(
                    rid=choice_rid(group_id, choice_idx, self.num_choices),
                    pool=card.pool,
                    model=card.name,
                    revision=card.revision,
                    tokenizer_hash=card.tokenizer_hash,
                    sampling=sampling,
                    text=text,
                    reply=reply,
                    deadline_s=caller.deadline_s,
                    prompt_ids=prompt_ids,
                    images=prompt.images,
                    priority=self.sampling.priority,
                    cache_salt=self.sampling.cache_salt,
                    adapter="" if self.model.adapter is None else self.model.adapter.revision,
                    keep=self.sampling.keep,
                    session=self.sampling.session or caller.session,
                    pooling=self._pooling(prompt),
                )
            )
        return requests

    def _pooling(self, prompt: Prompt) -> PoolingParams | None:
        if self.pooling is None or not prompt.second_start:
            return self.pooling
        return msgspec.structs.replace(self.pooling, second_start=prompt.second_start)

    def _params(
        self, prompt: Prompt, choice_idx: int, max_logprob_bytes: int
    ) -> tuple[SamplingParams, TextParams]:
        """Raises ContextLengthExceeded or InvalidRequest; a vector needs no room for output."""
        if self.pooling is not None:
            return self.sampling.params, self.sampling.text
        return self.sampling.for_prompt(
            prompt.token_ids, self.model.card, choice_idx % self.sampling.n, max_logprob_bytes
        )
