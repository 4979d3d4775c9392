"""The fold: the only reader of the token log. A pure function of the records in stream order.

The detokenizer runs it over a partition for ever, a resuming worker over the stretch it reads.
docs/protocol.md, "The fold", says why each test is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.protocol.finish import NO_COST, Cost, Finish, FinishReason
from shared.protocol.log_records import Claim, End, OwnershipRecord, Release, TokenEntry

NO_EPOCH = 0


@dataclass(slots=True)
class RequestFold:
    """What the log says of one request.

    Invariants: `tokens` only grows; nothing changes once `finish` is set; `epoch_len` is the
    contiguous length, from position 0, that the current epoch has written; `logprobs` holds one
    record for each token, or nothing.
    """

    rid: str
    epoch: int = NO_EPOCH  # sequence of the claim in force
    writer: str = ""  # the worker that claimed; "" when nobody holds the request
    epoch_len: int = 0
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    last_record_seq: int = 0  # of the ownership log
    progress_epoch: int = NO_EPOCH  # the last one that appended tokens of its own making
    num_prefix: int = 0  # tokens that its writer began with: restated, whether they were logged
    num_fenced: int = 0  # entries of a past epoch, or of a worker that is not the writer
    num_holes: int = 0  # entries that came before what should precede them
    logprobs: bytearray = field(default_factory=bytearray)
    prompt_logprobs: bytes = b""
    cost: Cost = NO_COST  # the last that was told by who had it; it only grows

    def apply_record(self, seq: int, record: OwnershipRecord) -> None:
        """An ownership record stored at `seq`."""
        self.last_record_seq = seq
        if self.finish is not None:
            return
        match record:
            case Claim():
                self.epoch = seq
                self.writer = record.worker
                self.epoch_len = 0
            case Release():
                self._take_cost(record.cost)
                self.epoch = NO_EPOCH
                self.writer = ""
            case End():
                self._take_cost(record.cost)
                self.finish = Finish(record.reason, message=record.message)

    def apply_entry(self, worker: str, entry: TokenEntry) -> int:
        """An entry of a frame that `worker` wrote. Returns how many tokens were appended."""
        if self.finish is not None:
            return 0
        if entry.epoch != self.epoch or worker != self.writer or not self.epoch:
            self.num_fenced += 1
            return 0
        position, ids = entry.position, entry.token_ids
        if entry.restates is not None:
            self.num_prefix = entry.restates.num_prefix
        if entry.cost is not None:
            self._take_cost(entry.cost)
        if position == self.epoch_len == len(self.tokens):  # the usual case: what comes next
            if not self._take_logprobs(entry, 0):
                return self._fail("tells other logprobs")
            self.tokens += ids
            self.epoch_len = len(self.tokens)
            self.finish = entry.finish
            if ids and self.epoch_len > self.num_prefix:
                self.progress_epoch = self.epoch
            return len(ids)
        if not 0 <= position <= self.epoch_len:
            self.num_holes += 1
            return 0
        end = position + len(ids)
        overlap = len(self.tokens) - position
        if overlap > 0 and self.tokens[position:end] != ids[:overlap]:
            return self._fail("restates other tokens")
        if not self._take_logprobs(entry, overlap):
            return self._fail("restates other logprobs")
        num_new = max(0, len(ids) - max(0, overlap))
        if num_new:
            self.tokens.extend(ids[len(ids) - num_new :])
            if len(self.tokens) > self.num_prefix:
                self.progress_epoch = self.epoch
        self.epoch_len = max(self.epoch_len, end)
        if entry.finish is not None and end == len(self.tokens):
            self.finish = entry.finish
        return num_new

    def _take_cost(self, cost: Cost | None) -> None:
        """A late copy of a frame tells an earlier one."""
        if cost is not None and cost.held_s >= self.cost.held_s:
            self.cost = cost

    def _fail(self, what: str) -> int:
        message = f"the log is damaged: epoch {self.epoch} {what}"
        self.finish = Finish(FinishReason.ERROR, message=message)
        return 0

    def _take_logprobs(self, entry: TokenEntry, overlap: int) -> bool:
        """Append what is new. False when tokens and records do not fit together.

        `overlap` is how many tokens are known from the entry's position on.
        """
        if entry.prompt_logprobs:
            if self.tokens and self.prompt_logprobs != entry.prompt_logprobs:
                return False
            self.prompt_logprobs = entry.prompt_logprobs
        logprobs = entry.logprobs
        if not logprobs:
            return not self.logprobs or not entry.token_ids
        record_bytes, rest = divmod(len(logprobs), len(entry.token_ids) or 1)
        if rest or not entry.token_ids or len(self.logprobs) != record_bytes * len(self.tokens):
            return False
        known = self.logprobs[entry.position * record_bytes :][: len(logprobs)]
        if logprobs[: len(known)] != known:
            return False
        self.logprobs += logprobs[max(0, overlap) * record_bytes :]
        return True
