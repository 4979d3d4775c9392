"""A request that this worker holds: its claim, its tokens so far, where it stands in the log."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Restatement, TokenEntry
from shared.protocol.prefix_chain import BLOCK_TOKENS, PrefixChain
from shared.protocol.request import GenerateRequest
from shared.protocol.token_ids import unpack_token_ids
from shared.token_log.fold import NO_EPOCH, RequestFold
from shared.token_log.visible_text import VisibleText
from worker.engine_link.engine_messages import RunOutput
from worker.held.delivery import Delivery
from worker.held.run_clock import RequestCost, RunClock
from worker.held.run_trace import RunTrace

_RESTATE_TOKENS = 512
_RESTATE_S = 20.0


class LoggedOutput(NamedTuple):
    """What earlier epochs have logged, or a fork was given: never computed again."""

    tokens: Sequence[int] = ()
    logprobs: bytes = b""  # a record for each token, if the request asks
    prompt_logprobs: bytes = b""
    progress_epoch: int = NO_EPOCH  # the last one that logged a new token

    @classmethod
    def of(cls, fold: RequestFold) -> Self:
        return cls(fold.tokens, bytes(fold.logprobs), fold.prompt_logprobs, fold.progress_epoch)

    @classmethod
    def given(cls, request: GenerateRequest) -> Self:
        """What a request begins with that nobody has run."""
        given = request.given
        if given is None:
            return cls()
        return cls(unpack_token_ids(given.token_ids), given.logprobs, given.prompt_logprobs)

    @classmethod
    def known(cls, request: GenerateRequest, fold: RequestFold) -> Self:
        """The longer of both: an epoch may have died while it restated what was given, and to
        restate that is no progress.
        """
        given, logged = cls.given(request), cls.of(fold)
        return logged if len(given.tokens) <= len(logged.tokens) else given


class HoldState(enum.Enum):
    """How far a held request is."""

    CLAIMING = "claiming"  # delivered; the engine may run already, nothing is logged
    RUNNING = "running"  # claimed under `epoch`: tokens go to the log
    FINISHING = "finishing"  # its finish is queued for the log
    DROPPED = "dropped"  # fenced, ended or handed back: write nothing more, ever


_ACTIVE = (HoldState.CLAIMING, HoldState.RUNNING)


class Redelivery(enum.Enum):
    """What a delivery of a request means that is held already."""

    DUPLICATE = "duplicate"  # it is another message of the same request
    AWAITED = "awaited"  # our claim is on its way: it was asked for under another delivery
    DOUBTED = "doubted"  # only the ownership log knows whether the request is still ours


class AfterClaim(enum.Enum):
    """What becomes of a request whose claim is stored."""

    RUN = "run"
    RELEASE = "release"  # nobody may run it here: it goes back to the queue
    LEAVE = "leave"  # it was ended: it leaves the queue


@dataclass(slots=True)
class HeldRequest:
    """What the I/O process knows of one request: it alone changes where the request stands.

    `tokens` are all output tokens, those of earlier epochs included; tokens[:num_logged] have been
    given to the token log under the current epoch.
    """

    request: GenerateRequest
    delivery: Delivery
    visible: VisibleText | None  # decides on stop strings; None when there are none
    state: HoldState = HoldState.CLAIMING
    run_id: int = 0  # of its run in the engine; 0: none was started
    chain: PrefixChain | None = None  # of the prompt, at the end with the output; None: none yet
    num_cached_blocks: int = 0  # of the chain that was here when the run started, as we believe
    epoch: int = 0
    is_acked_by_reader: bool = False  # its finish, by the detokenizer
    tokens: list[int] = field(default_factory=list)
    logprobs: bytearray = field(default_factory=bytearray)  # a record for each token, if it asks
    prompt_logprobs: bytes = b""
    workers: tuple[str, ...] = ()  # that have claimed it, the last ones, in order
    clock: RunClock | None = None  # of its run
    # Tokens of its prompt that were cached for its first run, as a release said; None: none did
    num_cached_before: int | None = None
    cost: RequestCost = field(default_factory=RequestCost)
    num_prefix: int = 0  # tokens that earlier epochs had logged, or that were given
    progress_epoch: int = 0  # the last of them that logged a new one
    num_logged: int = 0
    finish: Finish | None = None
    is_ended: bool = False  # while claiming: an `end` was seen, maybe behind our claim
    is_revoked: bool = False  # while claiming: release it as soon as the claim is stored
    has_crashed: bool = False  # while claiming: the engine died with its run
    trace: RunTrace | None = None  # None: nobody records it
    watched: asyncio.Event | None = None  # set at its first progress, or when it is gone
    stays_until: float = 0.0  # before, nobody else is asked to decode it
    is_kept: bool = False  # nobody else had room to decode it, when last asked
    queued_by: float = field(default_factory=time.monotonic)  # by then it was in the queue
    num_restated: int = 0
    restated_at: float = field(default_factory=time.monotonic)
    kept_at: float = field(default_factory=time.monotonic)  # last time the ack wait was restarted

    @property
    def rid(self) -> str:
        return self.request.rid

    def meaning_of(self, delivery: Delivery) -> Redelivery:
        """The meaning of a further delivery of this request."""
        if delivery.request_seq != self.delivery.request_seq:
            return Redelivery.DUPLICATE
        return Redelivery.AWAITED if self.state is HoldState.CLAIMING else Redelivery.DOUBTED

    def revoke(self, *, has_crashed: bool) -> None:
        """Its claim is on its way: it is released as soon as that is stored."""
        self.is_revoked = True
        self.has_crashed |= has_crashed and self.run_id > 0 and self.finish is None

    def note_end(self) -> bool:
        """Somebody has ended it. False while claiming, when nothing can be done about it yet: a
        claim behind the `end` finds it, one before it does not.
        """
        if self.state is HoldState.CLAIMING:
            self.is_ended = True
            return False
        return True

    def after_claim(self, *, can_run: bool) -> AfterClaim:
        """What has happened while the claim was on its way counts now."""
        if self.is_ended:
            return AfterClaim.LEAVE
        if self.is_revoked or not can_run:
            return AfterClaim.RELEASE
        return AfterClaim.RUN

    def run_under(
        self,
        epoch: int,
        workers: tuple[str, ...] = (),
        waited_s: float = 0.0,
        *,
        is_acked_by_reader: bool = False,
    ) -> None:
        """Its claim is stored, and from now on its tokens go to the log."""
        self.epoch = epoch
        self.is_acked_by_reader = is_acked_by_reader
        self.state = HoldState.RUNNING
        self.workers = workers
        self.queued_by = time.monotonic() - waited_s

    def drop(self) -> None:
        """Nothing more is written of it, ever."""
        self.state = HoldState.DROPPED
        if self.watched is not None:
            self.watched.set()

    @property
    def num_cached_tokens(self) -> int | None:
        """Prompt tokens that its first run found cached: what another run has computed for it
        meanwhile is nothing that its client saved. None: no run has begun.
        """
        if self.num_cached_before is not None:
            return self.num_cached_before
        return self.clock.num_cached_tokens if self.clock and self.clock.has_begun else None

    @property
    def num_output_tokens(self) -> int:
        """The tokens of all outputs, where it is a beam search."""
        return len(self.tokens) + (0 if self.finish is None else self.finish.num_beam_tokens)

    @property
    def is_active(self) -> bool:
        """Whether it needs the engine."""
        return self.state in _ACTIVE

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens that the engine may still have to prefill for it."""
        if len(self.tokens) > self.num_prefix or not self.is_active:
            return 0
        num_cached = self.num_cached_blocks * BLOCK_TOKENS
        return self.request.reply.num_prompt_tokens + self.num_prefix - num_cached

    @property
    def has_progressed(self) -> bool:
        """Whether this epoch has given the log a token that no earlier one had, or its finish."""
        return self.num_logged > self.num_prefix or self.state is HoldState.FINISHING

    def resume_from(self, prefix: LoggedOutput, visible: VisibleText | None) -> None:
        """Start with the output that is there: rebuilds the stop state, a fresh `visible`, by
        replay. What a run made without it is forgotten.
        """
        self.cost.repeat()
        self.run_id = 0
        self.clock = None
        self.finish = None
        self.visible = visible
        self.tokens = list(prefix.tokens)
        self.logprobs = bytearray(prefix.logprobs)
        self.prompt_logprobs = prefix.prompt_logprobs
        self.num_prefix = len(prefix.tokens)
        self.progress_epoch = prefix.progress_epoch
        if self.visible is not None:
            for token_id in prefix.tokens:
                if self.visible.add(token_id):
                    self.finish = Finish(FinishReason.STOP, matched=self.visible.matched_stop)
                    break

    def accept(self, output: RunOutput, finish: Finish | None) -> bool:
        """Take new tokens from the engine. True when a stop string ended it: abort the run.

        Tokens behind the stop string are dropped: they never reach the log.
        """
        token_ids = output.token_ids
        if output.prompt_logprobs:
            self.prompt_logprobs = output.prompt_logprobs
        if self.visible is None:
            self.tokens += token_ids
            self.logprobs += output.logprobs
            self.finish = finish
            return False
        record_bytes = len(output.logprobs) // (len(token_ids) or 1)
        for idx, token_id in enumerate(token_ids):
            self.tokens.append(token_id)
            self.logprobs += output.logprobs[idx * record_bytes : (idx + 1) * record_bytes]
            if self.visible.add(token_id):
                cached = 0 if finish is None else finish.num_cached_tokens
                self.finish = Finish(
                    FinishReason.STOP,
                    matched=self.visible.matched_stop,
                    num_cached_tokens=cached,
                )
                return finish is None
        self.finish = finish
        return False

    def next_entry(self, now: float) -> TokenEntry | None:
        """What the log does not have yet, under the current epoch; None when it has all.

        With its finish the request is FINISHING.
        """
        if self.num_logged == len(self.tokens) and self.finish is None:
            return None
        entry = self._entry(self.num_logged, len(self.tokens), self.finish, now)
        self.num_logged = len(self.tokens)
        if self.finish is not None:
            self.state = HoldState.FINISHING
        return entry

    def _entry(self, start: int, end: int, finish: Finish | None, now: float) -> TokenEntry:
        """An entry of tokens [start, end)."""
        token_ids = self.tokens[start:end]
        restates = None if start else Restatement(end, self.num_prefix, self.progress_epoch)
        is_due = not start or finish is not None or self.cost.is_due(now)
        cost = self.cost.report(now) if is_due else None
        if not self.logprobs and not self.prompt_logprobs:
            return TokenEntry(
                self.rid, self.epoch, start, token_ids, finish, restates=restates, cost=cost
            )
        record_bytes = len(self.logprobs) // (len(self.tokens) or 1)
        return TokenEntry(
            self.rid,
            self.epoch,
            start,
            token_ids,
            finish,
            bytes(self.logprobs[start * record_bytes : end * record_bytes]),
            b"" if start else self.prompt_logprobs,
            restates,
            cost,
        )

    @property
    def age_s(self) -> float:
        """Since it was queued, as far as it is known."""
        return time.monotonic() - self.queued_by

    def is_restatement_due(self, now: float) -> bool:
        """Every 512 tokens or 20 s, less often as the output grows: the cost stays linear."""
        num_new = self.num_logged - self.num_restated
        if num_new >= max(_RESTATE_TOKENS, self.num_logged // 4):
            return True
        return num_new > self.num_logged // 8 and now - self.restated_at > _RESTATE_S

    def restate(self, now: float) -> TokenEntry:
        """All that the log has been given, to be given once more."""
        self.num_restated = self.num_logged
        self.restated_at = now
        return self._entry(0, self.num_logged, None, now)
