"""One owner of the partition of a story, as far as its only request goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detok.decode_status import DecodeStatus
from shared.protocol.codec import decode_ownership, decode_token_frame
from shared.token_log.fold import RequestFold

if TYPE_CHECKING:
    from tests.simulation.rules import RuleStory


class RuleDetok:
    """One owner of the partition, reading from the floor on."""

    def __init__(self, story: RuleStory) -> None:
        self._story = story
        self.next_seq = story.floor
        self.status: DecodeStatus | None = None
        self._has_acked = False

    def read(self) -> None:
        """One message of the log."""
        log = self._story.log.messages
        if self.next_seq > len(log):
            return
        seq, (subject, data) = self.next_seq, log[self.next_seq - 1]
        self.next_seq += 1
        if self.status is None:
            self.status = self._meet(seq)
        status = self.status
        was_finished = status.fold.finish is not None
        if subject == self._story.own_subject:
            status.apply_record(seq, decode_ownership(data))
        else:
            frame = decode_token_frame(data)
            for entry in frame.entries:
                status.apply_entry(seq, frame.worker, entry)
        if status.is_partial and status.fold.finish is not None and not was_finished:
            fold = RequestFold(self._story.request.rid)
            self._story.fold_into(fold, 1, len(log) + 1)
            status.adopt(fold)
        if status.is_for_us_to_ack and not self._has_acked:
            self._has_acked = True
            self._story.acknowledge()

    def read_all(self) -> None:
        while self.next_seq <= len(self._story.log.messages):
            self.read()

    def _meet(self, seq: int) -> DecodeStatus:
        """As `UnknownRequest` does it, when the first record is not where reading begins."""
        first = self._story.first_record
        status = DecodeStatus(self._story.request.rid, seq, is_partial=first < seq)
        for earlier, record in self._story.records():
            if earlier < seq:
                status.apply_record(earlier, record)
        if status.is_partial:
            status.rebuild_point.restart_at(seq)
        return status

    def speak(self) -> None:
        """New text for the client, of which some is lost."""
        story, status = self._story, self.status
        if status is None or (status.is_partial and status.fold.finish is not None):
            return
        status.bring_up_to_date(story.tokenizers)
        chunk = status.next_chunk()
        if chunk is not None and (story.log.is_calm or story.rng.random() < 0.85):
            story.client.receive(chunk, 0.0)

    def replay(self) -> None:
        status = self.status
        if status is not None and not status.is_partial:
            status.bring_up_to_date(self._story.tokenizers)
            self._story.client.receive(status.replay_chunk(0), 0.0)

    def keep_floor(self) -> None:
        if self.status is not None:
            self._story.floor = self.status.rebuild_point.seq
