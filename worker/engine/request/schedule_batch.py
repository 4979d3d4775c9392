"""One step as the scheduler plans it, and the places in it where a token is to be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from worker.engine.request.req import Req


class SamplePoint(msgspec.Struct, frozen=True, gc=False):
    """One row of logits: what comes at `position` of a request.

    Behind the tokens that the request has come `draft_ids`: guesses that count, for penalties and
    min_tokens, as if they were its output already.
    """

    req: Req
    position: int  # of the token to be chosen, prompt included
    draft_ids: Sequence[int] = ()

    @classmethod
    def after(cls, req: Req) -> Self:
        """Where a request goes on without guesses."""
        return cls(req, req.num_tokens)

    @property
    def num_output_tokens(self) -> int:
        """Before this one."""
        return self.position - self.req.num_prompt_tokens

    def output_tail(self, max_len: int) -> list[int]:
        """The last ids of the output before this place, guesses included."""
        req = self.req
        tail = req.token_ids[max(req.num_prompt_tokens, req.num_tokens - max_len) :].tolist()
        tail += self.draft_ids
        return tail[-max_len:] if max_len else []


class ScheduledReq(msgspec.Struct, frozen=True, gc=False):
    """Tokens [start, end) of one request go through the model.

    The last `num_samples` of them are each asked for the token that follows: none within a
    prompt, one at the end of what is known, one more for each draft; never one of an embedding.
    A struct is made five times as fast as a frozen dataclass, and each step has one a request.
    """

    req: Req
    start: int
    end: int
    num_samples: int
    draft_ids: Sequence[int] = ()  # the last of the tokens: guesses that this step confirms or not
    # The last token is what the step in flight will choose: the runner puts it in.
    has_awaited_input: bool = False

    @classmethod
    def up_to(cls, req: Req, end: int) -> Self:
        """From the first token that is neither computed nor in flight."""
        has_sample = end == req.planned_len and req.pooling is None
        has_awaited_input = end > req.num_tokens
        return cls(req, req.num_scheduled, end, int(has_sample), (), has_awaited_input)

    @classmethod
    def drafting(cls, req: Req, draft_ids: Sequence[int]) -> Self:
        """The entry of a request that decodes: its last token, and guesses of the next ones."""
        assert req.num_in_flight == 0, "guesses follow a known token"
        end = req.num_tokens + len(draft_ids)
        return cls(req, req.num_computed, end, 1 + len(draft_ids), draft_ids)

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def gives_embedding(self) -> bool:
        """Its prompt is whole behind this step."""
        return self.req.pooling is not None and self.end == self.req.num_tokens

    @property
    def input_ids(self) -> Sequence[int]:
        """[num_tokens], at launch. An awaited one is 0."""
        input_ids = self.req.token_ids[self.start : self.end]
        input_ids.extend(self.draft_ids)
        if self.has_awaited_input:
            input_ids.append(0)
        return input_ids

    @property
    def sample_points(self) -> list[SamplePoint]:
        """[num_samples], by position."""
        if self.num_samples == 1:
            return [SamplePoint(self.req, self.end)]
        first = self.end - self.num_samples + 1
        return [
            SamplePoint(self.req, first + idx, self.draft_ids[:idx])
            for idx in range(self.num_samples)
        ]


class StepSize(NamedTuple):
    """What a step has to do."""

    num_decoding: int  # requests
    num_prefilled: int  # tokens of prompts, and of what was retracted
    num_tokens: int  # all that go through the model: guesses, too


class StateCopy(NamedTuple):
    """Copies the state behind the first `num_tokens` tokens of a row: from a slot, or into one."""

    row: int
    snapshot: int  # slot
    num_tokens: int


class StateCopies(NamedTuple):
    """What a step copies of recurrent states."""

    restored: Sequence[StateCopy] = ()  # before it: rows go on behind what others have computed
    kept: Sequence[StateCopy] = ()  # when it comes by there


NO_COPIES = StateCopies()


@dataclass(frozen=True, slots=True)
class ScheduleBatch:
    """The requests of one step: those that decode first, then prefill chunks."""

    entries: list[ScheduledReq]
    num_plain: int  # of these, the first ones: each has one token, and a sample behind it
    fresh_pages: list[int]  # first written in this step: to be wiped before
    fresh_window_pages: Sequence[int] = ()  # the same of pages that layers with a window have
    may_await: bool = False  # planned while another step was in flight: inputs may be awaited
    # Somebody's choice depends on a token that is awaited: tokens are chosen when it is known.
    chooses_late: bool = False
    copies: StateCopies = NO_COPIES

    @property
    def others(self) -> list[ScheduledReq]:
        """Prefill chunks, and tokens with guesses."""
        return self.entries[self.num_plain :]

    @property
    def num_tokens(self) -> int:
        return self.num_plain + sum(entry.end - entry.start for entry in self.others)

    @property
    def size(self) -> StepSize:
        num_decoding, num_prefilled = self.num_plain, 0
        for entry in self.others:
            if entry.draft_ids:
                num_decoding += 1
            else:
                num_prefilled += entry.end - entry.start
        return StepSize(num_decoding, num_prefilled, self.num_tokens)

    @property
    def sample_points(self) -> list[SamplePoint]:
        """The sample points of all entries, in their order."""
        points = [SamplePoint(entry.req, entry.end) for entry in self.entries[: self.num_plain]]
        for entry in self.others:
            points += entry.sample_points
        return points
