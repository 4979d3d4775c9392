"""Bodies of all APIs: each becomes a job, or is refused."""

from __future__ import annotations

from typing import Any

from frontend.grammars.checker import GrammarChecker
from frontend.job import Caller, Job
from frontend.requests.chat_request import ChatRequests
from frontend.requests.completion_request import CompletionRequests
from frontend.requests.embedding_request import EmbeddingRequests
from frontend.requests.generate_request import GenerateRequests
from frontend.responses.request import ResponseRequests
from shared.errors import InvalidRequest
from shared.protocol import Surface


class JobReader:
    """Asks the reader of the body's API, then checks what all of them have in common."""

    def __init__(
        self,
        requests: dict[
            Surface, ChatRequests | CompletionRequests | GenerateRequests | EmbeddingRequests
        ],
        response_requests: ResponseRequests,
        grammar_checker: GrammarChecker,
    ) -> None:
        self._requests = requests
        self._response_requests = response_requests
        self._grammar_checker = grammar_checker

    async def job(self, surface: Surface, body: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        if surface is Surface.RESPONSES:
            job = await self._response_requests.job(body, caller)
        else:
            job = await self._requests[surface].job(body)
        if job.pooling is None and not job.model.card.can_generate:
            raise InvalidRequest(
                f"The model '{job.model.card.name}' makes embeddings, and generates nothing; "
                "use /v1/embeddings.",
                param="model",
            )
        grammar = job.sampling.params.grammar
        if grammar is not None:
            await self._grammar_checker.check(grammar, job.sampling.grammar_param)
        return job
