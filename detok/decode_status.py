"""One live request: what the log says of it, its text, and how much of that was sent."""

from __future__ import annotations

import time
from collections import deque

from tokenizers import Tokenizer

from detok.tokenizer_cache import TokenizerCache
from shared.protocol.bills import Bill
from shared.protocol.finish import Finish
from shared.protocol.log_records import Claim, End, OwnershipRecord, TokenEntry
from shared.protocol.reply import SealedReply, TextParams
from shared.protocol.text import TextChunk, checksum
from shared.token_log.fold import RequestFold
from shared.token_log.visible_text import TokenizerDecoder, VisibleText

_MAX_EXTRA_SUBJECTS = 4
_MAX_UNDECODED = 64  # tokens of an answer that is sent whole: its end must not take long


class RebuildPoint:
    """The latest sequence from which all tokens of a request can be folded again.

    An entry at position 0 only opens a candidate: a writer restates over several frames, and may
    die in between. The candidate replaces `seq` once a fold that started there would hold every
    token known here. Behind a claim nothing counts before its own entry at position 0.
    """

    __slots__ = ("_candidate", "_candidate_len", "seq")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self._candidate = 0  # sequence of its first message; 0: none
        self._candidate_len = 0  # tokens that a fold from the candidate on would hold

    @property
    def is_restating(self) -> bool:
        return self._candidate != 0

    def restart_at(self, seq: int) -> None:
        """Nothing before `seq` was read here."""
        self.seq, self._candidate = seq, 0

    def on_claim(self, seq: int, num_tokens: int) -> None:
        """A claim at `seq` was folded while `num_tokens` tokens were known."""
        if not num_tokens:
            self.seq = seq

    def on_counted_entry(self, seq: int, position: int, end: int, num_tokens: int) -> None:
        """Only entries that counted: those at position 0, and all while `is_restating`."""
        if position == 0:
            self._candidate, self._candidate_len = seq, end
        elif position <= self._candidate_len:
            self._candidate_len = max(self._candidate_len, end)
        if self._candidate and self._candidate_len >= num_tokens:
            self.seq, self._candidate = self._candidate, 0


class DecodeStatus:
    """A request from its first record until its DONE is stored.

    `is_partial`: the log was read from the middle, and nothing at position 0 has counted yet.
    """

    def __init__(self, rid: str, seq: int, *, is_partial: bool = False) -> None:
        self.fold = RequestFold(rid)
        self.rebuild_point = RebuildPoint(seq)
        self.is_partial = is_partial
        self.met_at = time.monotonic()  # when its first record was read here
        self.checked_at = self.met_at  # while partial: against the whole log
        self.seemed_over = False  # at that look
        self.claim: Claim | None = None  # the latest
        self.num_claims = 0  # read here
        self.claimed_at = 0.0  # by the monotonic clock, when it was read here
        self.reply: SealedReply | None = None
        self.was_ended = False  # by an `end`, not by its writer
        self.reported_at = 0.0  # when the log last said what it takes: by the broker, as the next
        self.unreported_s = 0.0  # from there to an `end` that says nothing of it
        self.place = 0  # of its end in the log; 0: it is not there
        self.ended_at = 0.0
        self.bill: Bill | None = None  # made when its end is read
        self.has_failed = False  # its finish is not in the log
        self.nakked_epoch = 0
        self.is_dirty = False
        self.is_finishing = False  # its finish chunk was sent, DONE is being written
        self.subjects: list[str] = []  # where its chunks go
        self._extra_subjects: deque[str] = deque(maxlen=_MAX_EXTRA_SUBJECTS)
        self._is_followed = False  # somebody has asked to be sent what comes
        self._visible: VisibleText | None = None
        self._num_decoded = 0
        self._sent_len = 0
        self._sent_position = 0
        self._sent_checksum = 0

    @property
    def rid(self) -> str:
        return self.fold.rid

    @property
    def text(self) -> str:
        """What may be seen of the tokens decoded so far."""
        return "" if self._visible is None else self._visible.text

    def add_subject(self, subject: str) -> None:
        """An additional listener; the oldest gives way."""
        self._is_followed = self._is_followed or bool(subject)
        if subject and subject not in self._extra_subjects:
            self._extra_subjects.append(subject)
            self._update_subjects()

    def _update_subjects(self) -> None:
        own = [] if self.reply is None or not self.reply.subject else [self.reply.subject]
        self.subjects = own + [subject for subject in self._extra_subjects if subject not in own]

    @property
    def waits_for_end(self) -> bool:
        """Whether nobody is to be sent text before the finish is there."""
        is_whole = self.reply is not None and self.reply.is_whole
        return is_whole and not self._is_followed and self.fold.finish is None

    @property
    def is_worth_a_look(self) -> bool:
        """Whether new tokens are to be decoded or sent now."""
        if not self.waits_for_end:
            return True
        return len(self.fold.tokens) - self._num_decoded >= _MAX_UNDECODED

    @property
    def is_for_us_to_ack(self) -> bool:
        """Whether the log says that it is over, and its worker leaves it to us to acknowledge."""
        is_over = self.fold.finish is not None and not self.has_failed
        return is_over and self.claim is not None and self.claim.is_acked_by_reader

    # Reading the log

    def apply_record(self, seq: int, record: OwnershipRecord, time_s: float = 0.0) -> None:
        """`time_s`: when it was stored, in unix seconds."""
        was_finished, was_held = self.fold.finish is not None, bool(self.fold.writer)
        self.fold.apply_record(seq, record)
        if was_finished:
            return
        if isinstance(record, End) and record.cost is None and was_held:
            self.unreported_s = max(0.0, time_s - self.reported_at)
        self.reported_at = time_s
        if isinstance(record, Claim):
            self.claim = record
            self.num_claims += 1
            self.reply = record.reply
            self.rebuild_point.on_claim(seq, len(self.fold.tokens))
        elif isinstance(record, End):
            self.was_ended = True
            self.reply = self.reply or record.reply
        self._update_subjects()

    def apply_entry(self, seq: int, worker: str, entry: TokenEntry) -> int:
        """Returns how many tokens were appended."""
        num_new = self.fold.apply_entry(worker, entry)
        if entry.position == 0 or self.rebuild_point.is_restating:
            self._track_restatement(seq, worker, entry)
        return num_new

    def _track_restatement(self, seq: int, worker: str, entry: TokenEntry) -> None:
        fold = self.fold
        end = entry.position + len(entry.token_ids)
        counted = entry.epoch == fold.epoch and worker == fold.writer and end <= fold.epoch_len
        if not counted:
            return
        self.is_partial = False
        if fold.finish is None:  # the way to the finish stays as it was
            self.rebuild_point.on_counted_entry(seq, entry.position, end, len(fold.tokens))

    def adopt(self, fold: RequestFold) -> None:
        """Replace what was read in part by a fold of the whole log of this request."""
        self.fold = fold
        self.is_partial = False
        self._visible = None  # what was sent stays: its text is a prefix of the whole
        self._num_decoded = 0

    def fail(self, finish: Finish) -> None:
        """End it for a reason outside the log, unless it has ended."""
        if self.fold.finish is None:
            self.fold.finish = finish
            self.has_failed = True

    # Text

    def bring_up_to_date(self, tokenizers: TokenizerCache) -> bool:
        """Decode what is new. False while the tokenizer is on the way."""
        visible = self._visible
        if visible is None:
            if self.claim is None or not self.fold.tokens:
                return True
            tokenizer = tokenizers.get(self.claim.tokenizer_hash)
            if tokenizer is None:
                return False
            visible = self._visible = make_visible_text(tokenizer, self.claim.text)
        tokens = self.fold.tokens
        visible.extend(tokens[self._num_decoded :])
        self._num_decoded = len(tokens)
        if self.fold.finish is not None:
            visible.finish()
        return True

    def next_chunk(self) -> TextChunk | None:
        """What is new since the last chunk: text, or the finish; None when there is neither, or
        nobody is to be sent it yet.
        """
        if self.waits_for_end:
            return None
        finish = self.fold.finish
        visible = self._visible
        if visible is None:
            visible_len, text = 0, ""
        else:
            visible_len = visible.visible_len
            text = visible.text_from(self._sent_len)
        if not text and finish is None:
            return None
        tokens = self.fold.tokens
        chunk = TextChunk(
            self.fold.rid,
            len(tokens),
            self._sent_len,
            text,
            tokens[self._sent_position :],
            finish,
            self._logprobs_from(self._sent_position),
            b"" if self._sent_position else self.fold.prompt_logprobs,
            self._sent_checksum,
        )
        self._sent_checksum = checksum(text, self._sent_checksum)
        self._sent_len = visible_len
        self._sent_position = len(tokens)
        return chunk

    def has_published(self, text_len: int, text_checksum: int) -> bool:
        """Whether who has this text has all that was sent, and nothing is to be sent."""
        visible = self._visible
        return (
            visible is not None
            and self.fold.finish is None
            and text_len == self._sent_len == visible.visible_len
            and text_checksum == self._sent_checksum
        )

    def replay_chunk(self, offset: int) -> TextChunk:
        """All text from `offset` on, with every token id; starts earlier if there is less text."""
        text = self.text
        start = min(offset, len(text))
        tokens = self.fold.tokens
        return TextChunk(
            self.rid,
            len(tokens),
            start,
            text[start:],
            list(tokens),
            self.fold.finish,
            bytes(self.fold.logprobs),
            self.fold.prompt_logprobs,
            checksum(text[:start]),
        )

    def _logprobs_from(self, position: int) -> bytes:
        logprobs = self.fold.logprobs
        if not logprobs:
            return b""
        return bytes(logprobs[len(logprobs) // len(self.fold.tokens) * position :])


def make_visible_text(tokenizer: Tokenizer, params: TextParams) -> VisibleText:
    """An empty text of a request."""
    return VisibleText(TokenizerDecoder(tokenizer, params), params)
