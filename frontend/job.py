"""What a request body asks for, whatever API it came through."""

from __future__ import annotations

from dataclasses import dataclass

from frontend.model_directory import ServedModel
from frontend.sampling_fields import Sampling
from frontend.tenant import EVERYBODY, Tenant
from shared.protocol import (
    EncodingFormat,
    GenerateRequest,
    PoolingParams,
    ReplyParams,
    SamplingParams,
    Surface,
    TextParams,
)
from shared.subjects import JOB_CLASSES, choice_rid
from shared.token_ids import pack_token_ids


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, tokenized."""

    token_ids: list[int]
    echo: str = ""  # its text, when the answer is to begin with it


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what the headers of the request say."""

    owner: str = ""  # hash of the API key
    tenant: Tenant = EVERYBODY
    deadline_s: float = 600.0
    queue_timeout_s: float = 0.0  # until the first claim; 0: as long as the deadline
    grace_s: float = 0.0  # how long the request runs on without its client
    traceparent: str = ""
    transport: str = "http"
    idempotency_key: str = ""  # "": none
    job_class: str = JOB_CLASSES[0]


@dataclass(frozen=True, slots=True)
class Job:
    """A checked body: prompts times n choices, each of which becomes one request."""

    surface: Surface
    model: ServedModel
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool = False
    pooling: PoolingParams | None = None  # set: embeddings, and no output tokens
    encoding_format: EncodingFormat = EncodingFormat.FLOAT

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.sampling.n

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

        Raises ContextLengthExceeded, or InvalidRequest when logprobs would take more bytes.
        """
        card = self.model.card
        requests = []
        for choice_idx in range(self.num_choices):
            prompt = self.prompts[choice_idx // self.sampling.n]
            sampling, text = self._params(prompt, choice_idx, max_logprob_bytes)
            reply = ReplyParams(
                subject=subject,
                surface=self.surface,
                model=card.name,
                created=created,
                num_prompt_tokens=len(prompt.token_ids),
                group_id=group_id,
                choice_idx=choice_idx,
                num_choices=self.num_choices,
                num_prompts=len(self.prompts),
                deadline_s=caller.deadline_s,
                include_usage=self.include_usage,
                echo=prompt.echo,
                num_top=self.sampling.logprobs.num_top,
                num_prompt_top=self.sampling.logprobs.num_prompt_top,
                echo_logprobs=self.sampling.logprobs.echo,
                owner=caller.owner,
                frontend_id=frontend_id,
                encoding_format=self.encoding_format,
                is_shared=is_shared,
                job_class=caller.job_class,
                queue_timeout_s=caller.queue_timeout_s,
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
                    prompt_ids=pack_token_ids(prompt.token_ids),
                    priority=self.sampling.priority,
                    cache_salt=self.sampling.cache_salt,
                    traceparent=caller.traceparent,
                    pooling=self.pooling,
                )
            )
        return requests

    def _params(
        self, prompt: Prompt, choice_idx: int, max_logprob_bytes: int
    ) -> tuple[SamplingParams, TextParams]:
        """Raises ContextLengthExceeded or InvalidRequest; an embedding needs no room for output."""
        if self.pooling is not None:
            return self.sampling.params, self.sampling.text
        return self.sampling.for_prompt(
            prompt.token_ids, self.model.card, choice_idx % self.sampling.n, max_logprob_bytes
        )
