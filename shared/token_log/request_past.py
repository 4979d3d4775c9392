"""What a request's log says up to some place, found by reading backwards: no further than to where
its tokens were told from position 0 on for the last time.

docs/protocol.md, "Reading back", has the rule and why it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.protocol.log_records import Claim, Restatement, TokenEntry, TokenFrame
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord


class StoredFrame(NamedTuple):
    """A token frame with its place in the stream."""

    seq: int
    frame: TokenFrame


class Wanted(NamedTuple):
    """Frames of a worker at sequences in [start, end)."""

    worker: str
    start: int
    end: int


@dataclass(slots=True)
class _Epoch:
    """Entries of one epoch, as far back as they have been read: those at `read_from` and later."""

    seq: int  # of its claim
    writer: str
    end: int  # nothing at or beyond it counts: the next ownership record
    read_from: int
    entries: list[tuple[int, TokenEntry]] = field(default_factory=list)  # with `confirmed_seq`

    @property
    def is_read(self) -> bool:
        return self.read_from <= self.seq + 1

    def fold_into(self, fold: RequestFold) -> None:
        for _, entry in self.entries:
            fold.apply_entry(self.writer, entry)

    def last_restatement(self) -> Restatement | None:
        """The last one behind which nothing can be missing: all that was written after it has been
        read, in every copy.
        """
        for confirmed_seq, entry in reversed(self.entries):
            if entry.restates is not None and max(confirmed_seq, self.seq) + 1 >= self.read_from:
                return entry.restates
        return None

    def is_whole_without(self, restatement: Restatement) -> bool:
        """Whether the entries alone, with none from before, make every token known."""
        fold = RequestFold("", epoch=self.seq, writer=self.writer)
        self.fold_into(fold)
        longest = max(entry.position + len(entry.token_ids) for _, entry in self.entries)
        if fold.finish is None and any(entry.finish is not None for _, entry in self.entries):
            return False
        return fold.epoch_len >= max(restatement.num_tokens, longest)


class RequestPast:
    """Given frames window by window, newest first, until it `wants` no more: then `fold` is that of
    the whole log up to `end`.
    """

    def __init__(self, rid: str, records: Sequence[StoredRecord], end: int) -> None:
        """`records`: the ownership log up to `end`, from its first record on."""
        self.rid = rid
        self._records = [stored for stored in records if stored.seq < end]
        ends = [*(stored.seq for stored in self._records[1:]), end]
        self._older = [
            _Epoch(stored.seq, stored.record.worker, until, until)
            for stored, until in zip(self._records, ends, strict=False)
            if isinstance(stored.record, Claim)
        ]
        self._read: list[_Epoch] = []  # oldest first; all but the first are read wholly
        self._restatement: Restatement | None = None  # that the first of them stands on
        self._is_whole = not self._older
        self._begin_older()

    @property
    def wants(self) -> Wanted | None:
        """What must be read next, as much of its end as there is; None: nothing."""
        if self._is_whole:
            return None
        epoch = self._read[0]
        return Wanted(epoch.writer, epoch.seq + 1, epoch.read_from)

    def add(self, frames: Iterable[StoredFrame], read_from: int) -> None:
        """All frames of the wanted worker from `read_from` to the wanted end, in order."""
        epoch = self._read[0]
        epoch.entries[:0] = [
            (frame.confirmed_seq, entry)
            for seq, frame in frames
            if max(epoch.seq + 1, read_from) <= seq < epoch.read_from
            and frame.worker == epoch.writer
            for entry in frame.entries
            if entry.rid == self.rid and entry.epoch == epoch.seq
        ]
        epoch.read_from = min(epoch.read_from, read_from)
        restatement = epoch.last_restatement()
        if restatement is not None and epoch.is_whole_without(restatement):
            self._restatement = restatement
            self._is_whole = True
        elif epoch.is_read:
            self._is_whole = not self._older
            self._begin_older()

    def _begin_older(self) -> None:
        while not self._is_whole:
            self._read.insert(0, self._older.pop())
            if not self._read[0].is_read:
                return
            self._is_whole = not self._older  # nothing was stored under that claim

    def fold(self) -> RequestFold:
        """The fold of all that counts. Ask only when nothing is wanted any more."""
        assert self._is_whole, "called while something is missing"
        fold = RequestFold(self.rid)
        epochs = {epoch.seq: epoch for epoch in self._read}
        first_seq = self._read[0].seq if self._read else 0
        for stored in self._records:
            if stored.seq < first_seq:
                continue
            fold.apply_record(stored.seq, stored.record)
            if (epoch := epochs.get(stored.seq)) is not None:
                epoch.fold_into(fold)
            if stored.seq == first_seq and self._restatement is not None:
                self._note_progress(fold, self._restatement)
        return fold

    def _note_progress(self, fold: RequestFold, restatement: Restatement) -> None:
        """To fold a restatement is no progress of its epoch."""
        if len(fold.tokens) <= restatement.num_prefix:
            fold.progress_epoch = restatement.progress_epoch
