"""Guesses with a small model, one token behind the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.drafting.draft_model import Draft
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import SamplePoint, ScheduledReq, StepSize
from worker.engine.sampling.sampler import Sampler
from worker.engine.sampling.sampling_batch import StepSampling
from worker.engine.speculation.draft_length import DraftLength

MAX_STEP_ROWS = 64  # of the large model
MAX_NEW_ROWS = 512  # of the small one: tokens that it has not read yet
MAX_USUAL_ROWS = 2  # of a request: its new token, and a guess that was right


class Pages(Protocol):
    """The books of the pages that both models share."""

    @property
    def req_to_token(self) -> ReqToTokenPool: ...

    def prefix_hashes(self, req: Req) -> list[int]:
        """Hashes of its namespace and tokens up to the end of each full page."""
        ...


@dataclass(slots=True)
class _Chain:
    """How far the small model has come with one request."""

    num_filled: int  # tokens whose keys and values it has made
    num_marked: int  # pages that are marked as filled
    pages: list[int]  # of the request, when they were filled


class ModelDrafter:
    """A `Drafter` that chooses as the large model will: by the request's rules, and with the noise
    of each position. So a guess is right not only where both models find the same token likeliest,
    but mostly wherever they find about the same tokens likely.

    What the small model lacks of a request it reads before it guesses, up to MAX_NEW_ROWS a step.
    """

    def __init__(
        self,
        model: Draft,
        pages: Pages,
        grammars: GrammarBackend | None,
        length: DraftLength,
        clock: Callable[[], float] = time.thread_time,  # what others do is no cost of guesses
    ) -> None:
        self._model = model
        self._pages = pages
        self._sampling = StepSampling(model.num_outputs, grammars)
        self._sampler = Sampler(model.num_outputs)
        self._clock = clock
        self._length = length
        self._chains: dict[int, _Chain] = {}  # by run_id
        self._planned: dict[Req, int] = {}  # guesses of the step that is being planned
        self._step_begun_s = 0.0  # by the clock, guesses not counted

    def step_budget(self, num_rows: int, num_tokens_left: int) -> int:
        return max(0, min(MAX_STEP_ROWS - num_rows, num_tokens_left))

    def wants(self, req: Req) -> bool:
        """It knows text alone, and an operator's functions are called once a token."""
        return not req.images and req.embeds is None and not req.functions

    def plan(self, req: Req, max_tokens: int) -> int:
        num_tokens = min(
            self._length.length, max_tokens, self._model.max_context_len - req.num_tokens
        )
        is_unknown = req.num_awaited or req.num_tokens <= self._model.num_ahead
        if num_tokens < 1 or is_unknown or (self._length.is_trial and self._planned):
            return 0
        self._planned[req] = num_tokens
        return num_tokens

    @torch.inference_mode()
    def guess(self) -> Mapping[Req, Sequence[int]]:
        planned, self._planned = self._planned, {}
        if not planned:
            return {}
        begin_s = self._clock()
        reqs, logits, num_new = self._read(planned)
        guesses: dict[Req, list[int]] = {req: [] for req in reqs}
        length = 0
        while reqs:
            self._choose(guesses, reqs, logits)
            length += 1
            reqs = [req for req in reqs if length == len(guesses[req]) < planned[req]]
            if reqs:
                logits = self._model.logits(
                    [self._behind_guess(req, guesses[req]) for req in reqs],
                    self._pages.req_to_token,
                )
        elapsed_s = self._clock() - begin_s
        self._step_begun_s += elapsed_s
        num_usual = MAX_USUAL_ROWS + self._model.num_ahead * length  # guesses are read again
        is_usual = length > 0 and num_new <= num_usual * len(guesses)
        self._length.on_guesses(len(guesses), max(1, length), elapsed_s, is_usual=is_usual)
        for guessed in guesses.values():
            if not guessed:  # there was nothing to choose: it has cost as much as a wrong one
                self._length.on_result(1, 0)
        return guesses

    def is_due(self, req: Req) -> bool:
        return self._length.length > 0 and self.wants(req)

    def sits_out(self, req: Req) -> bool:
        return False

    def on_result(self, req: Req, num_drafted: int, num_accepted: int) -> None:
        self._length.on_result(num_drafted, num_accepted)
        chain = self._chains.get(req.run_id)
        # The last guess was not read, and a head has read none as the large model knows it.
        if chain is not None and not self._model.num_ahead:
            chain.num_filled += min(num_accepted, num_drafted - 1)

    def on_step(self, size: StepSize) -> None:
        begun_s, self._step_begun_s = self._step_begun_s, self._clock()
        if size.num_prefilled == 0:
            elapsed_s = self._step_begun_s - begun_s
            self._length.on_step(size.num_decoding, size.num_tokens, elapsed_s)

    def forget(self, req: Req) -> None:
        self._chains.pop(req.run_id, None)

    def _read(self, reqs: Iterable[Req]) -> tuple[list[Req], torch.Tensor, int]:
        """What the small model lacks of them. Gives those of which it lacks nothing now, what it
        says comes next, [num_reqs, num_outputs], and how many tokens it has read.
        """
        entries: list[ScheduledReq] = []
        whole: list[Req] = []
        num_left = MAX_NEW_ROWS
        for req in reqs:
            num_readable = req.num_tokens - self._model.num_ahead
            chain = self._chains.get(req.run_id)
            if chain is None or not self._has_its_pages(req, chain):
                chain = self._begin(req)
            end = min(num_readable, chain.num_filled + num_left)
            if end == chain.num_filled:
                continue
            num_left -= end - chain.num_filled
            is_whole = end == num_readable
            entries.append(ScheduledReq(req, chain.num_filled, end, int(is_whole)))
            whole += [req] * is_whole
            chain.num_filled = end
        logits = self._model.logits(entries, self._pages.req_to_token)
        for entry in entries:
            self._mark(entry.req)
        return whole, logits, MAX_NEW_ROWS - num_left

    def _choose(
        self, guesses: Mapping[Req, list[int]], reqs: Sequence[Req], logits: torch.Tensor
    ) -> None:
        """Adds to those of each, unless there is nothing to choose."""
        points = [
            SamplePoint(req, req.num_tokens + len(guesses[req]), tuple(guesses[req]))
            for req in reqs
        ]
        samples = self._sampler.forward(logits, self._sampling.batch(points))
        for req, token_id in zip(reqs, samples.token_ids, strict=True):
            if isinstance(token_id, int):
                guesses[req].append(token_id)

    def _begin(self, req: Req) -> _Chain:
        """Behind the pages that were filled for others with the same prefix."""
        hashes = self._pages.prefix_hashes(req)
        pages = self._pages.req_to_token.read_pages(req.row, 0, len(hashes))
        num_pages = self._model.num_filled_pages(pages, hashes)
        num_filled = min(num_pages * self._model.page_size, req.num_tokens - 1)
        num_filled = max(0, num_filled - self._model.num_ahead)
        chain = self._chains[req.run_id] = _Chain(num_filled, num_pages, pages)
        return chain

    def _has_its_pages(self, req: Req, chain: _Chain) -> bool:
        """Another's page with the same tokens, which it may not have filled, can take the place of
        one of the request.
        """
        pages = self._pages.req_to_token.read_pages(req.row, 0, len(chain.pages))
        return pages == chain.pages

    def _mark(self, req: Req) -> None:
        chain = self._chains[req.run_id]
        chain.pages = self._pages.req_to_token.read_pages(req.row, 0, req.num_pages)
        start, end = chain.num_marked, chain.num_filled // self._model.page_size
        if start < end:
            self._model.mark(chain.pages[start:end], self._pages.prefix_hashes(req)[start:end])
            chain.num_marked = end

    def _behind_guess(self, req: Req, guesses: Sequence[int]) -> ScheduledReq:
        """It reads the last of them."""
        position = req.num_tokens + len(guesses) - 1 - self._model.num_ahead
        return ScheduledReq(req, position, position + 1, 1, guesses[-1:])
