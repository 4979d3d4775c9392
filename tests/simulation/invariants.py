"""The invariants of docs/protocol.md, section 7, asked of the log, the queue and the clients.

The log is judged by a fold of its own: straight from the text of the protocol, and slow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shared.protocol.bills import Bill, decode_bills
from shared.protocol.codec import decode, decode_ownership, decode_token_frame
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.request import GenerateRequest
from shared.protocol.text import Done
from shared.protocol.token_ids import unpack_token_ids
from shared.subjects import Subjects, rid_of
from shared.token_log.visible_text import TokenizerDecoder, VisibleText
from tests.simulation.reader import Reader, ReaderState
from tests.simulation.scripted_engine import TokenRecord
from tests.simulation.stored_stream import StoredStream


@dataclass(slots=True)
class PlainFold:
    """One request, as the log tells it."""

    rid: str
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    finish_seq: int = 0
    owner: str = ""
    epoch: int = 0
    last_record: int = 0
    epoch_tokens: int = 0
    violations: list[str] = field(default_factory=list)
    num_claims: int = 0

    def on_record(self, seq: int, record: Claim | Release | End) -> None:
        if record.prev != self.last_record:
            self.violations.append(
                f"I1: record {seq} follows {record.prev}, not {self.last_record}"
            )
        self.last_record = seq
        match record:
            case Claim():
                self.num_claims += 1
                self.owner, self.epoch, self.epoch_tokens = record.worker, seq, 0
            case Release():
                self.owner, self.epoch = "", 0
            case End() if self.finish is None:
                self.finish, self.finish_seq = Finish(record.reason), seq

    def on_entry(
        self,
        seq: int,
        worker: str,
        epoch: int,
        position: int,
        ids: list[int],
        finish: Finish | None,
    ) -> None:
        if self.finish is not None:
            if epoch > self.finish_seq:
                self.violations.append(f"I10: entry {seq} of epoch {epoch} after the finish")
            return
        if worker != self.owner or epoch != self.epoch or position > self.epoch_tokens:
            return
        end = position + len(ids)
        known = self.tokens[position:end]
        if ids[: len(known)] != known:
            self.violations.append(f"I4: entry {seq} restates other tokens")
        self.tokens += ids[len(known) :]
        self.epoch_tokens = max(self.epoch_tokens, end)
        if finish is not None and end == len(self.tokens):
            self.finish, self.finish_seq = finish, seq


class Judge:
    """Reads the stores of the broker directly."""

    def __init__(
        self,
        subjects: Subjects,
        log: StoredStream,
        results: StoredStream,
        bills: StoredStream,
        record: TokenRecord,
    ) -> None:
        self._subjects = subjects
        self._log = log
        self._results = results
        self._bills = bills
        self._record = record

    def folds(self) -> dict[str, PlainFold]:
        folds: dict[str, PlainFold] = {}
        token_prefix = f"{self._subjects.prefix}.tok."
        for msg in self._log.messages.values():
            if msg.subject.startswith(token_prefix):
                frame = decode_token_frame(msg.data)
                for entry in frame.entries:
                    fold = folds.setdefault(entry.rid, PlainFold(entry.rid))
                    fold.on_entry(
                        msg.seq,
                        frame.worker,
                        entry.epoch,
                        entry.position,
                        entry.token_ids,
                        entry.finish,
                    )
            else:
                rid = rid_of(msg.subject)
                fold = folds.setdefault(rid, PlainFold(rid))
                fold.on_record(msg.seq, decode_ownership(msg.data))
        return folds

    def done(self, rid: str) -> Done | None:
        seq = self._results.last_of(self._subjects.done(rid))
        return decode(Done, self._results.messages[seq].data) if seq else None

    def bills(self) -> list[Bill]:
        """As they are stored."""
        batches = [decode_bills(message.data) for message in self._bills.messages.values()]
        return [bill for batch in batches for bill in batch.bills]

    def check_bills(self, folds: dict[str, PlainFold]) -> list[str]:
        """I14, when all is quiet: one bill for each request that is over, of the log's tokens, and
        numbered.
        """
        violations = []
        counts = Counter(bill.rid for bill in self.bills())
        for rid, fold in folds.items():
            if fold.finish is not None and counts[rid] != 1:
                violations.append(f"I14: {rid} has {counts[rid]} bills")
        for bill in self.bills():
            billed = (bill.num_output_tokens, bill.reason, bill.place)
            fold = folds[bill.rid]
            told = (len(fold.tokens), fold.finish and fold.finish.reason, fold.finish_seq)
            if billed != told:
                violations.append(f"I14: the bill of {bill.rid} says {billed}, the log {told}")
            if (
                bill.num_repeated_tokens > bill.num_computed_tokens
                or bill.engine_s < bill.repeated_s
            ):
                violations.append(f"I14: no sums: {bill}")
        numbers: Counter[int] = Counter()
        for batch in (decode_bills(message.data) for message in self._bills.messages.values()):
            if batch.first != numbers[batch.partition]:
                violations.append(f"I14: {batch.first} follows {numbers[batch.partition]} bills")
            numbers[batch.partition] += len(batch.bills)
        return violations

    def check_removed(self, request: GenerateRequest) -> list[str]:
        """I6: called at the moment at which the queue forgets a request."""
        fold = self.folds().get(request.rid)
        if fold is None or fold.finish is None:
            return [f"I6: {request.rid} left the queue without a finish"]
        return []

    def check_request(self, request: GenerateRequest, fold: PlainFold | None) -> list[str]:
        """One accepted request, when all is quiet: I1 to I5, I7, I9 to I11."""
        rid = request.rid
        if fold is None or fold.finish is None:
            return [f"I11: {rid} has not ended"]
        violations = [f"{violation} ({rid})" for violation in fold.violations]
        if not self._record.holds(request.prompt_ids, fold.tokens):
            violations.append(f"I5: {rid} has {fold.tokens}, which no engine made in this order")
        if fold.finish.reason is FinishReason.ERROR:
            violations.append(f"I4: {rid} ended in an error: {fold.finish.message}")
        done = self.done(rid)
        if done is None:
            violations.append(f"I9: {rid} has no result")
        elif unpack_token_ids(done.token_ids) != fold.tokens:
            violations.append(
                f"I9: the result of {rid} is {unpack_token_ids(done.token_ids)}, "
                f"the log says {fold.tokens}"
            )
        elif done.finish.reason is not fold.finish.reason:
            violations.append(f"I9: {rid} ends with {done.finish}, the log says {fold.finish}")
        return violations

    def check_reader(
        self, reader: Reader, request: GenerateRequest, fold: PlainFold, decoder: TokenizerDecoder
    ) -> list[str]:
        """I8: what a client holds is a prefix of the result, all of it when it was told the end."""
        visible = VisibleText(decoder, request.text)
        for token in fold.tokens:
            visible.add(token)
        visible.finish()
        text, name = visible.text, f"{reader.name} of {request.rid}"
        violations = list(reader.violations)
        if not text.startswith(reader.text):
            violations.append(f"I8: {name} holds {reader.text!r}, the text is {text!r}")
        if fold.tokens[: len(reader.token_ids)] != reader.token_ids:
            violations.append(f"I8: {name} holds {reader.token_ids}, the log {fold.tokens}")
        if reader.state is ReaderState.COMPLETE:
            if reader.text != text or reader.token_ids != fold.tokens:
                violations.append(f"I8: {name} was told the end, and holds {reader.text!r}")
            if fold.finish is None or fold.finish.reason not in (
                FinishReason.STOP,
                FinishReason.LENGTH,
            ):
                violations.append(f"I8: {name} was told an end that is not in the log")
        return violations
