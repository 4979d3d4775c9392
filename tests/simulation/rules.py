"""The rules alone: one request, without clock, network or event loop, many times as quick.

Claimer, Settler, OwnershipLog, PartitionWriter, HeldRequest, DecodeStatus and TextStream
are the real ones. What they wait for is answered when the seed says so: each `await` of theirs is
a point where anything else may happen first.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, cast

import structlog

from detok.tokenizer_cache import TokenizerCache
from frontend.text.text_stream import TextStream
from shared.protocol.codec import decode_ownership, decode_token_frame
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.reply import TextParams
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest, GivenOutput
from shared.protocol.sealed_replies import unseal
from shared.protocol.token_ids import pack_token_ids
from shared.subjects import LANES, Subjects
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import OwnershipLog, StoredRecord
from shared.token_log.request_past import RequestPast, StoredFrame
from shared.token_log.visible_text import TokenizerDecoder, VisibleText
from tests.simulation.house import house
from tests.simulation.invariants import PlainFold
from tests.simulation.rule_detok import RuleDetok
from tests.simulation.rule_log import Later, MemoryLog
from tests.simulation.rule_worker import RuleWorker
from tests.simulation.scripted_engine import TokenRecord
from tests.worker.io_stage import make_request
from worker.held.delivery import Delivery

RID = "0" * 32
_MAX_ROUNDS = 400
Work = Coroutine[Any, Any, Any]


class RuleStory:
    """One seed: what happens is drawn, then everybody comes to an end in peace."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        shared = house(1)
        self.subjects: Subjects = shared.subjects
        self.own_subject = self.subjects.ownership(RID)
        self.log = MemoryLog(rng, self.own_subject)
        self.js = self.log
        self.ownership = OwnershipLog(cast(Any, self.log), self.subjects)
        # Who acknowledges is a matter of the level in force: in half of the stories the worker.
        self.ownership.level._in_force = FEATURE_LEVEL if seed % 2 else 1
        self.record = TokenRecord()
        stop = rng.choice(((), (), ("d",), ("ab", "c e")))
        self.max_tokens = rng.randint(2, 12)
        self.given = _given(seed, self.max_tokens)
        self.request: GenerateRequest = make_request(
            RID,
            text=TextParams(stop=stop),
            deadline_s=1e9,
            given=GivenOutput(pack_token_ids(self.given)) if self.given else None,
        )
        for end in range(1, len(self.given) + 1):  # another request's engine has made them
            self.record.add(self.request.prompt_ids, self.given[:end])
        self.violations: list[str] = []
        self.floor = 1
        self._tokenizer = shared.tokenizer
        self.tokenizers = cast(TokenizerCache, {self.request.tokenizer_hash: shared.tokenizer})
        self.text = ""
        self.client = TextStream(
            RID, unseal(self.request.reply), lambda _: None, keep_token_ids=True
        )
        self._num_workers = 0
        self.workers = [self._new_worker(), self._new_worker()]
        self.detok = RuleDetok(self)
        self._work: list[tuple[RuleWorker, Work]] = []
        self._ghosts: list[RuleWorker] = []  # dead, with frames still on their way
        self._frozen: RuleWorker | None = None
        self._is_queued = True
        self._is_waiting = True  # in the queue, for whoever pulls it
        self._num_delivered = 0
        self._queued_at = datetime.datetime.now(datetime.UTC)

    # What the real parts see of the world

    def bucket(self, _: str) -> RuleStory:
        return self

    async def get(self, key: str) -> object | None:
        """A heartbeat."""
        await Later()
        return object() if any(key.endswith(worker.id) for worker in self.workers) else None

    async def ack(self, _: Delivery) -> None:
        await Later()
        self._remove()
        await Later()

    def acknowledge(self) -> None:
        """By the detokenizer, which does not ask whether it has arrived."""
        if self.log.is_calm or self.rng.random() < 0.85:
            self._remove()

    def _remove(self) -> None:
        if self._is_queued:
            self._is_queued = self._is_waiting = False
            if self.plain_fold().finish is None:
                self.violations.append("I6: it left the queue without a finish")

    async def nak(self, _: Delivery, delay_s: float = 0.0) -> None:
        await Later()
        self._is_waiting = self._is_queued

    def visible(self) -> VisibleText | None:
        if not self.request.text.stop:
            return None
        return VisibleText(TokenizerDecoder(self._tokenizer, self.request.text), self.request.text)

    def token_subject(self, worker: str) -> str:
        return self.subjects.tokens(0, worker)

    def spawn(self, worker: RuleWorker, work: Work) -> None:
        self._work.append((worker, work))

    @property
    def first_record(self) -> int:
        return next((seq for seq, _ in self.records()), 1 << 60)

    def records(self) -> list[tuple[int, Any]]:
        return [
            (seq, decode_ownership(data))
            for seq, (subject, data) in enumerate(self.log.messages, 1)
            if subject == self.own_subject
        ]

    def fold_into(self, fold: RequestFold, start: int, end: int) -> None:
        for seq in range(start, end):
            subject, data = self.log.messages[seq - 1]
            if subject == self.own_subject:
                fold.apply_record(seq, decode_ownership(data))
            else:
                frame = decode_token_frame(data)
                for entry in frame.entries:
                    fold.apply_entry(frame.worker, entry)

    def read_back(self, records: list[StoredRecord], end: int) -> RequestFold:
        """The fold up to `end`, read in windows of random sizes."""
        past = RequestPast(RID, records, end)
        while (wants := past.wants) is not None:
            start = max(wants.start, wants.end - self.rng.randint(1, 2))
            past.add(self._frames(wants.worker, start, wants.end), start)
        fold, whole = past.fold(), RequestFold(RID)
        self.fold_into(whole, 1, end)
        for what in ("tokens", "finish", "progress_epoch"):
            read, is_there = getattr(fold, what), getattr(whole, what)
            if read != is_there and (what != "progress_epoch" or whole.finish is None):
                self.violations.append(f"I12: {what} is {is_there}, read back {read}")
        return fold

    def look_back(self) -> None:
        """As a detokenizer does that does not know the request."""
        records = [StoredRecord(seq, self._queued_at, record) for seq, record in self.records()]
        if records:
            self.read_back(records, len(self.log.messages) + 1)

    def _frames(self, worker: str, start: int, end: int) -> list[StoredFrame]:
        subject = self.token_subject(worker)
        return [
            StoredFrame(seq, decode_token_frame(self.log.messages[seq - 1][1]))
            for seq in range(start, end)
            if self.log.messages[seq - 1][0] == subject
        ]

    def plain_fold(self) -> PlainFold:
        fold = PlainFold(RID)
        for seq, (subject, data) in enumerate(self.log.messages, 1):
            if subject == self.own_subject:
                fold.on_record(seq, decode_ownership(data))
            else:
                frame = decode_token_frame(data)
                for one in frame.entries:
                    fold.on_entry(
                        seq, frame.worker, one.epoch, one.position, one.token_ids, one.finish
                    )
        return fold

    # What happens

    def play(self) -> list[str]:
        """The violations."""
        rng, kinds, weights = self.rng, list(_ACTIONS.values()), list(_CHANCES)
        for act in rng.choices(kinds, weights, k=rng.randint(20, 90)):
            act(self)
        self._come_to_an_end()
        self._judge()
        for _, work in self._work:
            work.close()
        return self.violations

    def _new_worker(self) -> RuleWorker:
        self._num_workers += 1
        return RuleWorker(self, self._num_workers)

    def _any(self) -> RuleWorker:
        """One that is not stopped now; a stopped one has slept through what happened meanwhile."""
        worker = self.workers[int(self.rng.random() * len(self.workers))]
        return self.workers[0] if worker is self._frozen else worker

    def pull(self) -> None:
        worker = self._any()
        if self._is_waiting and worker.held is None:
            self._is_waiting = False
            self._num_delivered += 1
            count = self._num_delivered
            delivery = Delivery(b"", "ack", count, 1, self._queued_at, RID, LANES[0], 0)
            self.spawn(worker, worker.take(delivery))

    def redeliver(self) -> None:
        self._is_waiting = self._is_queued

    def advance(self) -> None:
        if self._work:
            idx = int(self.rng.random() * len(self._work))
            if self._work[idx][0] is not self._frozen:
                self._send(idx)

    def _send(self, idx: int) -> None:
        entry = self._work[idx]
        try:
            entry[1].send(None)
        except StopIteration:
            self._work.remove(entry)

    def freeze(self) -> None:
        self._frozen = self.rng.choice([None, *self.workers[1:]])

    def crash(self) -> None:
        self._kill(int(self.rng.random() * len(self.workers)))

    def die_restating(self) -> None:
        """The last piece of what it repeats is lost."""
        worker = self._run_undisturbed()
        worker.restate()
        while len(worker.unsent) > 1:
            worker.arrive()
        self._kill_unsent(worker)

    def die_resending(self) -> None:
        """What it repeats arrives a second time, what it wrote after it does not."""
        worker = self._run_undisturbed()
        worker.restate()
        worker.step()
        worker.send()
        while worker.unsent:
            worker.arrive()
        worker.resend()
        for _ in range(self.rng.randint(1, 2)):
            worker.arrive()
        self._kill_unsent(worker)

    def _run_undisturbed(self) -> RuleWorker:
        """For a while, until all that it wrote is confirmed."""
        worker = self.rng.choice(self.workers)
        for _ in range(self.rng.randint(1, 4)):
            worker.step()
            worker.send()
            while worker.unsent:
                worker.arrive()
                worker.hear()
        return worker

    def _kill_unsent(self, worker: RuleWorker) -> None:
        worker.unsent.clear()
        self.detok.read_all()
        self._kill(self.workers.index(worker))

    def _kill(self, idx: int) -> None:
        dead, self.workers[idx] = self.workers[idx], self._new_worker()
        for entry in [entry for entry in self._work if entry[0] is dead]:
            entry[1].close()
            self._work.remove(entry)
        dead.lose_connection()
        self._ghosts.append(dead)

    def arrive(self) -> None:
        self.rng.choice(self.workers + self._ghosts).arrive()

    def crash_detok(self) -> None:
        self.detok = RuleDetok(self)

    def end(self) -> None:
        end = End(0, FinishReason.CANCEL, by="frontend")
        self.spawn(self.workers[0], self.ownership.end(RID, end))

    def _come_to_an_end(self) -> None:
        self.log.is_calm = True
        self._frozen = None
        for number in range(_MAX_ROUNDS):
            is_read = self.detok.next_seq > len(self.log.messages)
            is_told = self.client.finish is not None
            if is_read and is_told and not self._is_queued and not self._work:
                return
            if number % 40 == 0:
                self.redeliver()
            self.pull()
            for idx in range(len(self._work) - 1, -1, -1):
                self._send(idx)
            for worker in self.workers:
                worker.step()
                worker.send()
                if not worker.unsent and not worker.unheard:
                    worker.resend()
                worker.arrive()
                worker.hear()
            self.detok.read()
            self.detok.speak()
            if self.client.has_gap or number % 10 == 0:
                self.detok.replay()

    def _judge(self) -> None:
        fold, violations = self.plain_fold(), self.violations
        violations += fold.violations
        if self._is_queued or fold.finish is None or self.client.finish is None:
            violations.append("I11: it has not ended")
            return
        if not self.record.holds(self.request.prompt_ids, fold.tokens):
            violations.append(f"I5: {fold.tokens} was made by no engine in this order")
        is_cut = fold.finish.reason is FinishReason.CANCEL
        if fold.tokens[: len(self.given)] != self.given and not is_cut:
            violations.append(f"I13: {self.given} was given, the log has {fold.tokens}")
        status = self.detok.status
        if status is None or status.fold.finish is None:
            violations.append("I11: the detokenizer has no end")
            return
        if status.fold.tokens != fold.tokens or status.fold.finish.reason != fold.finish.reason:
            violations.append(
                f"I9: the detokenizer has {status.fold.tokens}, the log {fold.tokens}"
            )
        if self.client.token_ids != fold.tokens:
            violations.append(f"I8: the client has {self.client.token_ids}, the log {fold.tokens}")
        decoder = TokenizerDecoder(self._tokenizer, self.request.text)
        visible = VisibleText(decoder, self.request.text)
        for token in fold.tokens:
            visible.add(token)
        visible.finish()
        text = self.client.take()
        if text != visible.text:
            violations.append(f"I8: the client has {text!r}, the text is {visible.text!r}")


def _given(seed: int, max_tokens: int) -> list[int]:
    """How the output begins, in one story of four: as a fork's. An "f" is in no stop string."""
    rng = random.Random(f"given {seed}")
    return [5] * rng.randint(1, max_tokens - 1) if rng.random() < 0.25 else []


_ACTIONS: dict[str, Callable[[RuleStory], None]] = {
    "advance": RuleStory.advance,
    "pull": RuleStory.pull,
    "step": lambda story: story._any().step(),
    "send": lambda story: story._any().send(),
    "arrive": RuleStory.arrive,
    "hear": lambda story: story._any().hear(),
    "read": lambda story: story.detok.read(),
    "speak": lambda story: story.detok.speak(),
    "replay": lambda story: story.detok.replay(),
    "floor": lambda story: story.detok.keep_floor(),
    "resend": lambda story: story._any().resend(),
    "restate": lambda story: story._any().restate(),
    "redeliver": RuleStory.redeliver,
    "break": lambda story: story._any().lose_connection(),
    "freeze": RuleStory.freeze,
    "crash": RuleStory.crash,
    "crash detok": RuleStory.crash_detok,
    "drain": lambda story: story._any().drain(),
    "hand on": lambda story: story._any().hand_on(),
    "end": RuleStory.end,
    "look back": RuleStory.look_back,
    "die restating": RuleStory.die_restating,
    "die resending": RuleStory.die_resending,
}
_CHANCES = (30, 8, 14, 8, 10, 6, 10, 4, 1, 6, 2, 5, 4, 2, 3, 2.5, 2.5, 1, 2, 0.7, 4, 1, 1)


def play_stories(seeds: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """Each seed with its violations."""
    config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        for seed in seeds:
            yield seed, RuleStory(seed).play()
    finally:
        structlog.configure(**config)
