"""A request's log as faulty workers would write it: zombies, lost frames, resends, restatements.

Tokens are a function of everything before them and of the epoch that made them, so that a token
counted behind the wrong prefix, or from the wrong writer, is seen at once.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field

from hypothesis import strategies as st

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import (
    Claim,
    End,
    OwnershipRecord,
    Release,
    Restatement,
    TokenEntry,
)
from shared.protocol.logprobs import TokenLogprob, pack_logprobs, record_bytes
from shared.protocol.reply import ReplyParams, Surface, TextParams
from shared.protocol.sealed_replies import seal
from shared.token_log.fold import RequestFold

RID = "0" * 32
REPLY = seal(ReplyParams("jf.out.f", Surface.CHAT, "m", 1, 3, RID))


def next_token(tokens: list[int], epoch: int) -> int:
    text = f"{tokens}/{epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=2).digest(), "big") % 1000


def logprobs_of(tokens: list[int], epoch: int) -> bytes:
    """Of the last token, as the worker of this epoch computes it."""
    return pack_logprobs([TokenLogprob(tokens[-1], epoch, 0.0)])


def make_claim(prev: int, worker: str) -> Claim:
    return Claim(prev, worker, "nonce", 1, "ack", "hash", TextParams(), REPLY, "pool")


@dataclass(frozen=True)
class LoggedEntry:
    seq: int
    worker: str
    entry: TokenEntry
    confirmed_seq: int  # of its frame


@dataclass(frozen=True)
class LoggedRecord:
    seq: int
    record: OwnershipRecord


@dataclass
class Writer:
    """One epoch's worker. It never learns that it was fenced."""

    worker: str
    epoch: int
    tokens: list[int]  # starts as the prefix it folded
    logprobs: bytearray
    prompt_logprobs: bytes
    num_prefix: int = 0
    progress_epoch: int = 0
    entries: list[TokenEntry] = field(default_factory=list)  # all it ever made, in order
    made_at: list[int] = field(default_factory=list)  # the log's end when each was made
    num_sent: int = 0  # entries[:num_sent] were published in order, unless lost
    is_finished: bool = False

    def make(self, num_new: int, finish: bool, end: int) -> None:
        if self.is_finished:
            return
        position = len(self.tokens) if self.entries else 0
        before = [] if self.entries else list(self.tokens)
        new: list[int] = []
        for _ in range(num_new):
            new.append(next_token(self.tokens, self.epoch))
            self.tokens.append(new[-1])
            self.logprobs += logprobs_of(self.tokens, self.epoch)
        self.is_finished = finish
        reason = Finish(FinishReason.STOP) if finish else None
        self._add(position, before + new, reason, end)

    def restate(self, num_pieces: int, end: int) -> None:
        if self.is_finished or not self.entries:
            return
        cuts = [len(self.tokens) * i // num_pieces for i in range(num_pieces + 1)]
        for start, stop in itertools.pairwise(cuts):
            self._add(start, self.tokens[start:stop], None, end)

    def _add(self, position: int, token_ids: list[int], finish: Finish | None, end: int) -> None:
        self.made_at.append(end)
        self.entries.append(self._entry(position, token_ids, finish))

    def _entry(self, position: int, token_ids: list[int], finish: Finish | None) -> TokenEntry:
        restates = Restatement(len(self.tokens), self.num_prefix, self.progress_epoch)
        records = record_bytes(0)
        logprobs = bytes(self.logprobs[position * records :][: len(token_ids) * records])
        prompt_logprobs = b"" if position else self.prompt_logprobs
        return TokenEntry(
            RID,
            self.epoch,
            position,
            token_ids,
            finish,
            logprobs,
            prompt_logprobs,
            None if position else restates,
        )


@dataclass
class SimulatedLog:
    """The log, and the fold of it."""

    items: list[LoggedEntry | LoggedRecord] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    fold: RequestFold = field(default_factory=lambda: RequestFold(RID))
    epoch_of_token: list[int] = field(default_factory=list)
    seq: int = 0
    last_record: int = 0

    def claim(self) -> None:
        worker = f"w{len(self.writers)}"
        self._record(make_claim(self.last_record, worker))
        # A worker resumes from what the log says up to its claim.
        if self.fold.finish is None:
            fold = self.fold
            prompt_logprobs = fold.prompt_logprobs if fold.tokens else b"prompt%d" % self.seq
            self.writers.append(
                Writer(
                    worker,
                    self.seq,
                    list(fold.tokens),
                    bytearray(fold.logprobs),
                    prompt_logprobs,
                    len(fold.tokens),
                    fold.progress_epoch,
                )
            )

    def release(self) -> None:
        self._record(Release(self.last_record, self.fold.writer))

    def end(self) -> None:
        self._record(End(self.last_record, FinishReason.CANCEL, "f"))

    def _record(self, record: OwnershipRecord) -> None:
        self.seq += 1
        self.last_record = self.seq
        self.items.append(LoggedRecord(self.seq, record))
        self.fold.apply_record(self.seq, record)

    def publish(self, writer: Writer, idx: int) -> None:
        entry = writer.entries[idx]
        self.seq += 1
        self.items.append(LoggedEntry(self.seq, writer.worker, entry, writer.made_at[idx]))
        num_new = self.fold.apply_entry(writer.worker, entry)
        self.epoch_of_token += [entry.epoch] * num_new

    def act(self, action: tuple[str, int, int]) -> None:
        kind, which, amount = action
        if kind == "claim":
            self.claim()
        elif kind == "release" and self.fold.writer:
            self.release()
        elif kind == "end":
            self.end()
        elif self.writers:
            # Mostly the newest writer; sometimes a zombie.
            self._writer_acts(kind, self.writers[-1 - which % len(self.writers)], amount)

    def _writer_acts(self, kind: str, writer: Writer, amount: int) -> None:
        if kind == "skip":
            # The broker was away: what was sent meanwhile is lost, and what comes next is not.
            writer.num_sent = min(len(writer.entries), writer.num_sent + 1)
            return
        if kind in ("step", "lost_step", "finish"):
            writer.make(amount, kind == "finish", self.seq)
        elif kind in ("restate", "restate_partly"):
            writer.restate(1 + amount, self.seq)
        if kind == "resend":
            # From the first unconfirmed entry on, whichever that is.
            writer.num_sent = max(0, writer.num_sent - amount)
        elif kind == "lost_step":
            writer.num_sent = len(writer.entries)
        limit = amount // 2 if kind.endswith("partly") else len(writer.entries)
        while writer.num_sent < len(writer.entries) and limit > 0:
            self.publish(writer, writer.num_sent)
            writer.num_sent += 1
            limit -= 1


KINDS = ["claim", "step", "step", "step", "restate", "resend", "lost_step", "release"]
KINDS += ["restate_partly", "partly", "skip"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([*KINDS, "finish", "end"]),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.integers(0, 4),
    ),
    max_size=40,
)


@st.composite
def simulated_logs(draw: st.DrawFn) -> SimulatedLog:
    log = SimulatedLog()
    log.claim()
    for action in draw(ACTIONS):
        log.act(action)
    return log
