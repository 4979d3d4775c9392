"""The requests that this frontend answers, or has answered lately."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from frontend.streams.generation import Generation
from frontend.streams.reply_router import ReplyRouter
from frontend.text.usage import PromptCounts

_MAX_FINISHED = 40
_MAX_OPEN = 20
_MAX_CHOICES = 4  # of a request, whose path is looked up


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """What is shown of it: no text of it, and nothing that would name its client's key."""

    group_id: str
    rids: tuple[str, ...]  # of its choices, the first of them
    owner: str
    tenant: str
    model: str
    route: str
    arrived_at: float  # unix seconds
    status: int | None  # of HTTP; None: it runs
    finish: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    ttft_s: float | None
    e2e_s: float | None

    @classmethod
    def of(cls, generation: Generation, status: int | None) -> RecentRequest:
        """As of now."""
        now, timings = asyncio.get_running_loop().time(), generation.timings
        arrived_at = timings.arrived_at
        prompts, reply = PromptCounts.of(generation.streams), generation.reply
        return cls(
            group_id=generation.group_id,
            rids=tuple(stream.rid for stream in generation.streams[:_MAX_CHOICES]),
            owner=reply.owner,
            tenant=generation.tenant,
            model=reply.model,
            route=generation.route,
            arrived_at=time.time() - (now - arrived_at),
            status=status,
            finish="" if status is None else finish_of(generation),
            num_prompt_tokens=prompts.num_tokens,
            num_cached_tokens=prompts.num_cached,
            num_output_tokens=sum(each.num_output_tokens for each in generation.streams),
            ttft_s=_first_token_s(generation),
            e2e_s=None if status is None else now - arrived_at,
        )


class RecentRequests:
    """The last ones that have ended, and those that are open now."""

    def __init__(self, router: ReplyRouter) -> None:
        self._router = router
        self._finished: deque[RecentRequest] = deque(maxlen=_MAX_FINISHED)

    def note_finished(self, request: RecentRequest) -> None:
        """Its client has its answer, or is gone."""
        self._finished.append(request)

    def seen(self) -> Sequence[RecentRequest]:
        """Oldest first; of one that was read twice, what its last reader got."""
        open_ones = [each for each in self._router.generations if each.is_watched]
        running = [each for each in open_ones if not each.looks_on][-_MAX_OPEN:]
        found = [*self._finished, *(RecentRequest.of(each, None) for each in running)]
        by_id = {request.group_id: request for request in found}
        return sorted(by_id.values(), key=lambda request: request.arrived_at)


def _first_token_s(generation: Generation) -> float | None:
    """From its arrival to its first text. None of what comes in one piece has text before its end:
    then to its first token, if one worker made it all and told how long the others took.
    """
    timings = generation.timings
    if not timings.first_text_at:
        return None
    shown_s = timings.first_text_at - timings.arrived_at
    if not generation.reply.is_whole or generation.is_resumed:
        return shown_s
    runs = [stream.finish.run for stream in generation.streams if stream.finish]
    decode_s = [run.decode_s for run in runs if run and len(run.workers) == 1]
    return max(0.0, shown_s - min(decode_s)) if decode_s else None


def finish_of(generation: Generation) -> str:
    """The reasons of all choices, each once; or why the answer was cut."""
    if generation.interrupt is not None and not generation.is_finished:
        return generation.interrupt.value
    reasons = {stream.finish.reason.value for stream in generation.streams if stream.finish}
    return ",".join(sorted(reasons)) or "open"
