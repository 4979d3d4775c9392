"""A worker and a detokenizer in one, by script: takes requests and sends their text as frames."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError

from shared.cluster import Cluster
from shared.errors import CasConflict, ProtocolError
from shared.protocol.codec import (
    decode,
    decode_control,
    decode_ownership,
    encode,
    encode_text_frame,
)
from shared.protocol.finish import Beam, Finish, FinishReason
from shared.protocol.log_records import End
from shared.protocol.model_cards import ModelCard
from shared.protocol.notices import Cancel, TenantCost
from shared.protocol.reply import SealedReply, Surface
from shared.protocol.request import GenerateRequest
from shared.protocol.sealed_replies import unseal
from shared.protocol.text import (
    Done,
    ReplayReply,
    ReplayRequest,
    ReplayStatus,
    TextChunk,
    TextFrame,
)
from shared.protocol.token_ids import pack_token_ids, unpack_token_ids
from shared.subjects import LANES
from shared.token_log.visible_text import TokenizerDecoder, VisibleText
from tests.eventually import Looks, eventually
from tests.frontend.tiny_model import make_tokenizer
from worker.engine.scripted.scripted_logprobs import scripted_logprobs, scripted_prompt_logprobs

STOP = Finish(FinishReason.STOP)


@dataclass
class Script:
    """What the fake says to a request: pieces of text, one token each."""

    pieces: list[str]
    finish: Finish = STOP
    delay_s: float = 0.0  # before each piece
    gate: asyncio.Event | None = None  # waited for after the first piece
    lose: frozenset[int] = frozenset()  # pieces that are not sent, only replayed
    twice: bool = False  # each piece is sent again, with the one before
    never_finish: bool = False
    piece_ids: list[list[int]] | None = None  # of each piece; None: one made up


@dataclass
class Run:
    """A request that the fake has taken."""

    request: GenerateRequest
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    subjects: list[str] = field(default_factory=list)  # who hears it
    is_paid: bool = False

    @property
    def reply(self) -> SealedReply:
        return self.request.reply

    def logprobs_from(self, position: int) -> bytes:
        """As the scripted engine makes them up."""
        sampling = self.request.sampling
        return b"".join(
            scripted_logprobs(token_id, idx, sampling.logprobs, sampling.logprob_ids)
            for idx, token_id in enumerate(self.token_ids[position:], start=position)
        )

    @property
    def prompt_logprobs(self) -> bytes:
        prompt_ids = unpack_token_ids(self.request.prompt_ids)
        sampling = self.request.sampling
        return scripted_prompt_logprobs(prompt_ids, sampling.prompt_logprobs, sampling.logprob_ids)


def beams_of(request: GenerateRequest, script: Script) -> tuple[Beam, ...]:
    """What the fake says, and how good it is: the first that stops, then those that do not."""
    assert request.sampling.beam is not None
    text = "".join(script.pieces)
    return tuple(
        Beam(
            pack_token_ids([65 + idx] * (idx + 1)),
            -1.5 * (idx + 1),
            FinishReason.LENGTH if idx else FinishReason.STOP,
            f"{text}{idx}",
        )
        for idx in range(request.sampling.beam.num_kept)
    )


class FakeBackend:
    """Serves one card until cancelled. `runs` holds every request taken, in order."""

    def __init__(
        self, cluster: Cluster, card: ModelCard, script: Callable[[GenerateRequest], Script]
    ) -> None:
        self._cluster = cluster
        self._card = card
        self._tokenizer = make_tokenizer()
        self.script = script
        self.runs: dict[str, Run] = {}
        self.is_over = False  # a cancelled task of nats-py may go on
        self._queued: dict[str, GenerateRequest] = {}
        self.num_served = 0  # messages taken from the queue
        self.cancelled: list[str] = []  # rids of the cancel notices heard
        self.replays: list[ReplayRequest] = []
        self.answer_replays = True
        self.hold = asyncio.Event()  # nothing is taken from the queue while it is not set
        self.hold.set()

    async def run(self) -> None:
        subjects, nc = self._cluster.subjects, self._cluster.nc
        await nc.subscribe(subjects.control(self._card.pool), cb=self._on_notice)
        await nc.subscribe(subjects.requests("*", "*"), cb=self._on_queued)
        await nc.subscribe(f"{subjects.prefix}.own.*.*", cb=self._on_ownership)
        for partition in range(subjects.num_partitions):
            await nc.subscribe(subjects.replay(partition), cb=self._on_replay)
        async with asyncio.TaskGroup() as tasks:
            for lane in LANES:
                tasks.create_task(self._pull(lane.token, tasks))

    async def _pull(self, lane: str, tasks: asyncio.TaskGroup) -> None:
        subjects = self._cluster.subjects
        consumer = await self._cluster.nc.jetstream().pull_subscribe_bind(
            subjects.consumer(self._card.pool, lane), subjects.requests_stream
        )
        while not self.is_over:
            await self.hold.wait()
            with contextlib.suppress(NatsTimeoutError):
                for message in await consumer.fetch(1, timeout=0.5):
                    if self.hold.is_set():
                        tasks.create_task(self._serve(message))
                    else:  # this pull was under way before
                        await message.nak()

    async def _serve(self, message: Msg) -> None:
        request = decode(GenerateRequest, message.data)
        self.num_served += 1
        if request.rid not in self.runs:
            run = self.runs[request.rid] = Run(request, subjects=[request.reply.subject])
            await self._restate_given(run)
            if not await self._apply_end(run):
                await self._answer(run)
        await message.ack()

    async def _restate_given(self, run: Run) -> None:
        if (given := run.request.given) is None:
            return
        run.token_ids = unpack_token_ids(given.token_ids)
        visible = VisibleText(TokenizerDecoder(self._tokenizer, run.request.text), run.request.text)
        for token_id in run.token_ids:
            visible.add(token_id)
        run.text = visible.text
        chunk = TextChunk(
            run.request.rid,
            len(run.token_ids),
            0,
            run.text,
            list(run.token_ids),
            None,
            given.logprobs,
            given.prompt_logprobs,
        )
        await self._publish(run, [chunk])

    async def _answer(self, run: Run) -> None:
        request = run.request
        script = self.script(request)
        if request.sampling.beam is not None and script.finish == STOP:
            script = Script([], Finish(FinishReason.STOP, beams=beams_of(request, script)))
        for i, piece in enumerate(script.pieces):
            await asyncio.sleep(script.delay_s)
            if run.finish is not None:
                break
            is_last = i == len(script.pieces) - 1 and not script.never_finish
            await self._say(run, piece, script.finish if is_last else None, script, i)
            if i == 0 and script.gate is not None:
                await script.gate.wait()
        if script.never_finish:
            await eventually(lambda: run.finish is not None, 600)
        if not script.pieces and run.finish is None:
            await self._say(run, "", script.finish, script, 0)
        await self._write_done(run)

    async def _on_queued(self, message: Msg) -> None:
        with contextlib.suppress(ProtocolError):
            request = decode(GenerateRequest, message.data)
            self._queued[request.rid] = request

    async def _on_ownership(self, message: Msg) -> None:
        """A detokenizer tells of the end of what nobody has taken."""
        rid = message.subject.rpartition(".")[2]
        if rid in self.runs or rid not in self._queued:
            return
        record = decode_ownership(message.data)
        if not isinstance(record, End):
            return
        # It is heard before it is stored.
        async for _ in Looks(60):
            if await self._last_seq(rid) != record.prev:
                break
        run = Run(request := self._queued[rid], subjects=[request.reply.subject])
        if await self._apply_end(run):  # what a compare-and-set refused is heard, too
            self.runs.setdefault(rid, run)

    async def _last_seq(self, rid: str) -> int:
        last = await self._cluster.ownership.last(rid)
        return 0 if last is None else last.seq

    async def _say(
        self, run: Run, piece: str, finish: Finish | None, script: Script, i: int
    ) -> None:
        before, ids = len(run.text), self._ids_of(run, piece, script, i)
        run.text += piece
        run.token_ids += ids
        run.finish = finish
        if i in script.lose:
            return
        chunk = TextChunk(
            run.request.rid,
            len(run.token_ids),
            before,
            piece,
            ids,
            finish,
            run.logprobs_from(len(run.token_ids) - len(ids)),
            run.prompt_logprobs if len(run.token_ids) == len(ids) else b"",
        )
        await self._publish(run, [chunk])
        if script.twice:
            whole = TextChunk(
                run.request.rid,
                len(run.token_ids),
                0,
                run.text,
                list(run.token_ids),
                finish,
                run.logprobs_from(0),
                run.prompt_logprobs,
            )
            await self._publish(run, [whole, chunk])

    def _ids_of(self, run: Run, piece: str, script: Script, i: int) -> list[int]:
        if script.piece_ids is not None:
            return script.piece_ids[i]
        if unseal(run.reply).surface is Surface.RESPONSES:  # is decoded again, to cut it
            ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False).ids
            return ids
        return [65 + i % 26] if piece else []

    async def _keep(self, run: Run) -> None:
        """The result of a kept response, as the detokenizer writes it."""
        subject = self._cluster.subjects.response(run.request.rid)
        await self._store(subject, run, run.reply.kept_at)

    async def _write_done(self, run: Run) -> None:
        await self._store(self._cluster.subjects.done(run.request.rid), run, 0)

    async def _store(self, subject: str, run: Run, expected_last: int) -> None:
        assert run.finish is not None
        done = Done(
            run.request.rid,
            pack_token_ids(run.token_ids),
            run.text,
            run.finish,
            run.reply,
            run.logprobs_from(0),
            run.prompt_logprobs,
        )
        with contextlib.suppress(CasConflict):
            await self._cluster.js.publish(subject, encode(done), expected_last=expected_last)

    async def _publish(self, run: Run, chunks: list[TextChunk]) -> None:
        if run.finish is not None and run.reply.kept_at:
            await self._keep(run)
        if run.finish is not None and not run.is_paid:
            run.is_paid = True
            cost = TenantCost(run.reply.owner, len(run.token_ids))
            await self._cluster.nc.publish(self._cluster.subjects.costs, encode(cost))
        for subject in run.subjects:
            await self._cluster.nc.publish(subject, encode_text_frame(TextFrame("fake", chunks)))

    async def _apply_end(self, run: Run) -> bool:
        last = await self._cluster.ownership.last(run.request.rid)
        if last is None or not isinstance(last.record, End):
            return False
        if run.finish is None:
            run.finish = Finish(last.record.reason, message=last.record.message)
            chunk = TextChunk(
                run.request.rid, len(run.token_ids), len(run.text), "", [], run.finish
            )
            await self._publish(run, [chunk])
            await self._write_done(run)
        return True

    async def _on_notice(self, message: Msg) -> None:
        notice = decode_control(message.data)
        if isinstance(notice, Cancel):
            self.cancelled.append(notice.rid)
            if (run := self.runs.get(notice.rid)) is not None:
                await self._apply_end(run)

    async def _on_replay(self, message: Msg) -> None:
        request = decode(ReplayRequest, message.data)
        self.replays.append(request)
        if not self.answer_replays:
            return
        run = self.runs.get(request.rid)
        if run is None:
            reply = ReplayReply(ReplayStatus.QUEUED)
        else:
            if request.subject and request.subject not in run.subjects:
                run.subjects.append(request.subject)
            text = run.text[request.offset :]
            ids = list(run.token_ids)
            chunk = TextChunk(
                request.rid,
                len(ids),
                request.offset,
                text,
                ids,
                run.finish,
                run.logprobs_from(0),
                run.prompt_logprobs,
            )
            status = ReplayStatus.RUNNING if run.finish is None else ReplayStatus.DONE
            reply = ReplayReply(status, run.reply, chunk)
        await message.respond(encode(reply))
