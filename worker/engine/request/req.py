"""The living state of one request in the engine."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import PoolingKind
from shared.protocol.token_ids import token_array
from worker.engine.cache.radix_cache import MatchResult
from worker.engine.cache.radix_node import RadixNode
from worker.engine.cache.state_snapshots import OwnSnapshots
from worker.engine.cache.window_pages import OwnWindow
from worker.engine.grammar.grammar_matcher import GrammarMatcher
from worker.engine.request.arrival import Arrival
from worker.engine.request.dry_penalty import DryPenalty
from worker.engine.request.logit_rules import LogitRules, ThoughtLimit
from worker.engine.request.stop_check import StopCheck

_OF_ALL_TOKENS = (PoolingKind.MEAN, PoolingKind.ENCODED)


class ReqStatus(enum.Enum):
    """Where a request stands."""

    WAITING = "waiting"  # holds nothing
    RUNNING = "running"  # has a row, pages and a lock
    FINISHED = "finished"  # holds nothing, and never runs again


class Req:
    """One run: its tokens, and what of the KV pool it holds.

    By token position, while it runs:
      [0, num_cached_pages * page_size)   in pages of the cache, kept by the lock on `lock_node`
      [.., num_pages * page_size)         in pages of its own
      [0, num_computed)                   keys and values are in the pool
      [num_computed, num_scheduled)       will be, by steps in flight
    The KV ledger alone changes row, pages and lock; the scheduler the rest.
    """

    __slots__ = (  # beyond thirty attributes, each access to a dict of them costs twice as much
        "_num_counted",
        "_prompt_logprobs",
        "_stop_check",
        "adapter",
        "arrival",
        "arrived_at_s",
        "dry",
        "embeds",
        "fault",
        "functions",
        "has_penalties",
        "hidden_sum",
        "images",
        "last_match",
        "last_step",
        "lock_node",
        "logit_rules",
        "matcher",
        "max_num_tokens",
        "needs_known_tokens",
        "num_awaited",
        "num_cached_pages",
        "num_cached_tokens",
        "num_computed",
        "num_in_flight",
        "num_pages",
        "num_prompt_tokens",
        "num_prompt_top",
        "num_slots",
        "options",
        "output_counts",
        "page_keys",
        "pooling",
        "prefix_hashes",
        "prompt_ids",
        "row",
        "run_id",
        "sampling",
        "snapshots",
        "status",
        "stop_token_ids",
        "thought_limit",
        "token_ids",
        "token_vectors",
        "window",
        "window_pages",
    )

    def __init__(
        self, arrival: Arrival, stop_check: StopCheck, matcher: GrammarMatcher | None = None
    ) -> None:
        command = arrival.command
        self.run_id = command.run_id
        self.options = command.options
        # Of the options, what each step asks for:
        self.sampling = sampling = command.options.sampling
        self.pooling = command.options.pooling
        self.images = arrival.images
        self.embeds = arrival.embeds
        self.window = arrival.window
        self.adapter = arrival.adapter  # on top of the model's weights
        self.arrival = arrival.number
        self.arrived_at_s = arrival.at_s
        self.stop_token_ids = stop_check.stop_token_ids(sampling)
        self.token_ids = token_array(command.prompt_ids)  # prompt and output
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = stop_check.max_num_tokens(sampling, self.num_prompt_tokens)
        self.functions = arrival.functions
        self.prompt_ids = tuple(self.token_ids) if arrival.functions else ()  # for these alone
        self.fault = ""  # what one of these has done wrong
        self.token_ids.extend(token_array(command.output_ids))
        self.status = ReqStatus.WAITING
        self.num_cached_tokens: int | None = None  # of the prompt, at the first admission
        self.output_counts: dict[int, int] = {}  # kept only for penalties, by `count_outputs`
        self.logit_rules = LogitRules.maybe_of(sampling)
        self.dry = DryPenalty.maybe_of(sampling)
        self.thought_limit = ThoughtLimit.maybe_of(sampling, self.num_prompt_tokens)
        # Alternatives to each prompt token; None: no prompt logprobs are (or any more) to be made.
        # A request that comes with output has them in the log.
        self.num_prompt_top = None if command.output_ids else sampling.prompt_logprobs
        self._prompt_logprobs = bytearray()
        self.matcher = matcher  # has read the output so far
        self.has_penalties = (
            sampling.repetition_penalty != 1.0
            or sampling.frequency_penalty != 0.0
            or sampling.presence_penalty != 0.0
            or self.dry is not None
        )
        # What it may choose depends on its last tokens: the host must have them before it chooses.
        self.needs_known_tokens = (
            matcher is not None
            or self.has_penalties
            or bool(self.functions)
            or self.window is not None
            or (self.logit_rules is not None and self.logit_rules.max_prefix_len > 0)
        )
        self._stop_check = stop_check
        self._num_counted = 0
        # Of the pooler, for a mean: [hidden_size], of the first `num_computed` tokens
        self.token_vectors: list[bytes] = []  # of each computed token, where they are wanted
        self.hidden_sum: npt.NDArray[np.float32] | None = None
        # Of steps in flight:
        self.num_in_flight = 0  # tokens that go through the model
        self.num_awaited = 0  # tokens that will be chosen: at most one, when another step follows
        self.last_step = -1  # that it decoded in
        # Of the KV ledger:
        self.row = -1
        self.num_pages = 0
        self.num_slots = 0  # tokens that these pages hold
        self.num_cached_pages = 0
        self.num_computed = 0
        self.lock_node: RadixNode | None = None
        self.snapshots: OwnSnapshots | None = None  # of a model that keeps states
        self.window_pages: OwnWindow | None = None  # of a model with windows, some of them short
        self.page_keys: list[bytes] = []  # of its first full pages, as far as they were needed
        self.prefix_hashes: list[int] = []  # of the tokens up to the end of each such page
        self.last_match: tuple[int, MatchResult] | None = None  # with the version of the cache

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def reads_cache(self) -> bool:
        """Whether a cached prefix spares it work: not, where all its tokens have a say."""
        pooling = self.pooling
        needs_all = pooling is not None and (pooling.each_token or pooling.kind in _OF_ALL_TOKENS)
        return self.num_prompt_top is None and not needs_all and not self.sampling.hidden_states

    @property
    def num_scheduled(self) -> int:
        """Where the next step begins."""
        return self.num_computed + self.num_in_flight

    @property
    def planned_len(self) -> int:
        """Its tokens when the steps in flight are done; the values of the awaited are unknown."""
        return len(self.token_ids) + self.num_awaited

    @property
    def is_decoding(self) -> bool:
        """One more token of input gives the next one of output."""
        num_scheduled = self.num_computed + self.num_in_flight
        return num_scheduled == len(self.token_ids) + self.num_awaited - 1

    @property
    def is_ending(self) -> bool:
        """The token that is awaited is its last."""
        return self.num_awaited > 0 and self.planned_len >= self.max_num_tokens

    @property
    def retraction_rank(self) -> tuple[int, int, int]:
        """The highest is retracted first."""
        return self.options.priority, -self.num_output_tokens, self.arrival

    def early_end_ids(self, num_output_tokens: int) -> frozenset[int]:
        """The tokens that would end it behind so many, against `min_tokens` or `ignore_eos`."""
        is_early = num_output_tokens < self.sampling.min_tokens
        early_ids = self.stop_token_ids if is_early else frozenset[int]()
        return early_ids | self._stop_check.eos_token_ids if self.sampling.ignore_eos else early_ids

    @property
    def must_know_next(self) -> bool:
        """Whether what may follow its next token depends on that, so that nobody chooses before."""
        if self.needs_known_tokens:
            return True
        limit = self.thought_limit
        return limit is not None and limit.may_force_behind(self.token_ids)

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self.matcher is not None:
            self.matcher.accept(token_id)

    def goes_on_behind(self, token_id: int) -> bool:
        """Whether it is clear, with one look, that this token does not end it."""
        return (
            token_id not in self.stop_token_ids
            and len(self.token_ids) + 1 < self.max_num_tokens
            and self.matcher is None
        )

    def finish_by_tokens(self) -> Finish | None:
        """Whether the tokens so far end it; not before its prompt logprobs are made."""
        if self.pooling is not None or self.num_prompt_top is not None:
            return None
        ending = self._stop_check.finish_of(
            self.sampling,
            self.stop_token_ids,
            self.num_prompt_tokens,
            self.num_output_tokens,
            self.token_ids[-1],
        )
        if self.matcher is None:
            return ending
        if self.matcher.error:
            return Finish(FinishReason.ERROR, message=f"the grammar stops: {self.matcher.error}")
        if self.matcher.is_terminated and (ending is None or ending.reason is FinishReason.LENGTH):
            return Finish(FinishReason.STOP)
        return ending

    def add_prompt_logprobs(self, start: int, records: bytes) -> None:
        """Keeps those of a prefill chunk that begins at `start`; a retraction begins them anew."""
        if start == 0:
            self._prompt_logprobs.clear()
        self._prompt_logprobs += records

    def take_prompt_logprobs(self) -> bytes:
        """The whole prompt has been computed: from here on they are not this run's business."""
        self.num_prompt_top = None
        records = bytes(self._prompt_logprobs)
        self._prompt_logprobs.clear()
        return records

    def count_outputs(self) -> dict[int, int]:
        """How often each id is in the output."""
        output_start = self.num_prompt_tokens + self._num_counted
        for token_id in self.token_ids[output_start:]:
            self.output_counts[token_id] = self.output_counts.get(token_id, 0) + 1
        self._num_counted = self.num_output_tokens
        return self.output_counts
