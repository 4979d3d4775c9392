"""One worker incarnation of a story, as far as its only request goes."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shared.checkpoint.model_files import ModelFiles
from shared.cluster import Cluster
from shared.liveness.heartbeat import Writability
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import TokenEntry
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from tests.simulation.rule_log import Later, NoMetrics
from tests.worker.io_stage import make_card
from worker.claims.claim_flow import Claimant
from worker.claims.claim_steps import Over, Postponed, Taken
from worker.claims.claimer import Claimer
from worker.held.delivery import Delivery
from worker.held.held_request import HeldRequest, HoldState
from worker.runs.token_log import PartitionWriter
from worker.settlement.settler import Settler
from worker.weights.checkpoint import Checkpoint
from worker.weights.worker_model import ServedWeights

if TYPE_CHECKING:
    from tests.simulation.rules import RuleStory

_LETTERS = 14
_WEIGHTS = ServedWeights(Checkpoint(ModelFiles(Path(), {}, {}), make_card(), ""))


class RuleWorker:
    """One worker incarnation, as far as this request goes."""

    def __init__(self, story: RuleStory, number: int) -> None:
        self.id = f"worker-{number}"
        self.writer = PartitionWriter(self.id, 4, self._on_finish_confirmed)
        self.held: HeldRequest | None = None
        self.unsent: deque[tuple[int, bytes]] = deque()  # frames on their way, in order
        self.unheard: deque[tuple[int, int]] = deque()  # their acknowledgements
        self._story = story
        self._rng = random.Random(story.rng.getrandbits(32))
        cluster = cast(Cluster, story)
        history = loras = cast(Any, self)
        claimant = Claimant(self.id, _WEIGHTS, 1.0, 1.0)
        self.claimer = Claimer(cluster, history, claimant, loras, Writability())
        metrics, acks = cast(Any, NoMetrics()), cast(Any, story)
        self._settler = Settler(
            self.id, cast(Any, self), story.ownership, acks, cast(Any, None), metrics
        )

    # What its parts ask of it

    async def ensure(self, revision: str) -> bool:
        """Of a LoRA adapter."""
        return revision == ""

    async def read(self, rid: str, records: list[StoredRecord], claim_seq: int) -> RequestFold:
        """In place of `LogHistory`: what is before our claim, read backwards."""
        await Later()
        fold = self._story.read_back(records, claim_seq)
        await Later()
        return fold

    def drop(self, held: HeldRequest) -> None:
        held.drop()
        if self.held is held:
            self.held = None

    def _on_finish_confirmed(self, entry: TokenEntry, seq: int) -> None:
        held = self.held
        if held is None or held.epoch != entry.epoch:
            return
        if not self._settler.leave_to_reader(held):
            self._story.spawn(self, self._settler.settle(held, seq))

    # What it does

    async def take(self, delivery: Delivery) -> None:
        story = self._story
        held = HeldRequest(story.request, delivery, story.visible())
        self.held = held
        result = await self.claimer.take(self.claimer.flow(story.request, delivery))
        if isinstance(result, Taken):
            held.run_under(result.epoch, is_acked_by_reader=result.is_acked_by_reader)
            held.resume_from(result.prefix, story.visible())
            self._log_new(held)
            return
        self.drop(held)
        if isinstance(result, Over):
            await story.ack(delivery)
        elif isinstance(result, Postponed) and not delivery.is_shared:
            await story.nak(delivery)

    def step(self) -> None:
        """The engine makes a token."""
        held, story = self.held, self._story
        if held is None or held.state is not HoldState.RUNNING or held.finish is not None:
            return
        tokens = [*held.tokens, self._rng.randint(1, _LETTERS)]
        story.record.add(story.request.prompt_ids, tokens)
        held.tokens = tokens
        if held.visible is not None and held.visible.add(tokens[-1]):
            held.finish = Finish(FinishReason.STOP, matched=held.visible.matched_stop)
        elif len(tokens) >= story.max_tokens:
            held.finish = Finish(FinishReason.LENGTH)
        self._log_new(held)

    def _log_new(self, held: HeldRequest) -> None:
        entry = held.next_entry(0.0)
        if entry is not None:
            self.writer.append(entry)

    def restate(self) -> None:
        """In two frames: a writer may die between them."""
        held = self.held
        if held is None or held.state is not HoldState.RUNNING or held.num_logged < 2:
            return
        whole = held.restate(0.0)
        cut = self._rng.randint(1, len(whole.token_ids) - 1)
        for start, end in ((0, cut), (cut, len(whole.token_ids))):
            ids = whole.token_ids[start:end]
            restates = None if start else whole.restates
            self.writer.append(TokenEntry(whole.rid, whole.epoch, start, ids, restates=restates))
            self.send()

    def send(self) -> None:
        while (frame := self.writer.next_frame(0.0)) is not None:
            self.unsent.append((frame.number, frame.payload))

    def resend(self) -> None:
        for frame in self.writer.frames_to_resend(0.0, all_of_them=True):
            self.unsent.append((frame.number, frame.payload))

    def lose_connection(self) -> None:
        """From some frame on nothing arrives, and no acknowledgement comes back."""
        for _ in range(self._rng.randint(0, len(self.unsent))):
            self.unsent.pop()
        self.unheard.clear()

    def arrive(self) -> None:
        """The next frame is stored."""
        if self.unsent:
            number, payload = self.unsent.popleft()
            seq = self._story.log.store(self._story.token_subject(self.id), payload)
            self.unheard.append((number, seq))

    def hear(self) -> None:
        if self.unheard:
            self.writer.on_ack(*self.unheard.popleft())

    def hand_on(self) -> None:
        """Its prompt is computed: another worker is to go on with it."""
        held = self.held
        if held is not None and held.state is HoldState.RUNNING and held.has_progressed:
            self.drop(held)
            self._story.spawn(self, self._hand_on(held))

    async def _hand_on(self, held: HeldRequest) -> None:
        """The other one may never hear of it, and may not answer although it has claimed."""
        if not await self._settler.record_release(held, has_crashed=False):
            return
        await Later()
        story, rng = self._story, self._rng
        delivery = dataclasses.replace(held.delivery.once_more, is_shared=True)
        other = rng.choice([each for each in story.workers if each is not self])
        if rng.random() < 0.8 and other.held is None:
            story.spawn(other, other.take(delivery))
        if rng.random() < 0.4 and self.held is None:
            await self.take(delivery)

    def drain(self) -> None:
        held = self.held
        if held is not None and held.state is HoldState.RUNNING:
            self.drop(held)
            self._story.spawn(self, self._settler.release(held, has_crashed=False))
