"""What a test of the worker's I/O side needs: a broker with one model's queue, and builders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models

from shared.admin.control import ControlReply, ControlRequest, decode_control_reply, encode_control
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.errors import ProtocolError
from shared.protocol.codec import decode_ownership, decode_token_frame, encode, encode_token_frame
from shared.protocol.finish import Finish, RunFacts
from shared.protocol.log_records import Claim, OwnershipRecord, TokenEntry, TokenFrame
from shared.protocol.model_cards import ModelCard
from shared.protocol.reply import ReplyParams, SealedReply, Surface, TextParams
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest
from shared.protocol.role_cards import WorkerCard, WorkerState
from shared.protocol.sampling import SamplingParams
from shared.protocol.sealed_replies import seal
from shared.protocol.token_ids import pack_token_ids
from shared.storage.streams import ensure_consumers
from shared.subjects import new_rid
from shared.telemetry.startup_phases import StartupPhases
from shared.token_log.fold import RequestFold
from shared.token_log.ownership import StoredRecord
from tests.eventually import PATIENCE_S, eventually_async
from tests.worker.finish_acker import FinishAcker
from worker.engine_child.engine_host import Engine, EngineHost
from worker.held.delivery import Delivery
from worker.weights.adapters import Adapters
from worker.weights.lora_folder import LoraFolder

POOL = "pool-1"
REVISION = "rev"
TOKENIZER_HASH = "hash"
ALPHABET = "abcdefghijklmnopqrstuvwxyz .!"


def make_tokenizer() -> Tokenizer:
    """One token a character."""
    tokenizer = Tokenizer(
        models.WordLevel({char: idx for idx, char in enumerate(ALPHABET)}, unk_token="a")
    )
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def ids(text: str) -> list[int]:
    return [ALPHABET.index(char) for char in text]


def make_card() -> ModelCard:
    return ModelCard("m", POOL, REVISION, TOKENIZER_HASH, 1000, len(ALPHABET), (0,), 1)


def _no_engine(*_: Any) -> Engine:
    raise AssertionError("no engine is started here")


def make_adapters(cluster: Cluster) -> Adapters:
    """For requests without one."""
    engine = EngineHost(_no_engine, Path(), StartupPhases())
    return Adapters(AdapterCatalog(cluster), POOL, engine, LoraFolder(Path()))


def make_rid(cluster: Cluster, partition: int = 0) -> str:
    while True:
        rid = new_rid()
        if cluster.subjects.partition(rid) == partition:
            return rid


def make_reply(rid: str, num_prompt_tokens: int = 3) -> SealedReply:
    return seal(ReplyParams("jf.out.f", Surface.CHAT, "m", 1, num_prompt_tokens, rid))


def make_request(rid: str = "", **changes: Any) -> GenerateRequest:
    rid = rid or new_rid()
    request = GenerateRequest(
        rid=rid,
        pool=POOL,
        model="m",
        revision=REVISION,
        tokenizer_hash=TOKENIZER_HASH,
        sampling=SamplingParams(max_tokens=100, seed=1),
        text=TextParams(),
        reply=make_reply(rid),
        deadline_s=60.0,
        prompt_ids=pack_token_ids([1, 2, 3]),
    )
    return msgspec.structs.replace(request, **changes)


def make_claim(request: GenerateRequest, worker: str, prev: int = 0, **changes: Any) -> Claim:
    claim = Claim(
        prev=prev,
        worker=worker,
        nonce=new_rid(),
        request_seq=1,
        ack_subject="ack.none",
        tokenizer_hash=request.tokenizer_hash,
        text=request.text,
        reply=request.reply,
        pool=request.pool,
    )
    return msgspec.structs.replace(claim, **changes)


@dataclass
class Stage:
    """A connected cluster whose queue belongs to one model."""

    config: ClusterConfig
    cluster: Cluster
    runs: dict[str, RunFacts | None] = field(default_factory=dict)  # of finished requests

    async def submit(self, request: GenerateRequest, job_class: str = "interactive") -> int:
        """Returns the request's sequence in the queue."""
        subject = self.cluster.subjects.request(POOL, job_class, "", request.rid)
        ack = await self.cluster.js.publish(subject, encode(request))
        return ack.seq

    async def pull(self, job_class: str = "interactive", timeout_s: float = 5.0) -> Delivery:
        """The next delivery, as another worker would get it."""
        subjects = self.cluster.subjects
        consumer = subjects.consumer(POOL, job_class)
        nc = self.cluster.nc
        inbox = nc.new_inbox()
        subscription = await nc.subscribe(inbox)
        query = msgspec.json.encode({"batch": 1, "expires": int(timeout_s * 1e9)})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.requests_stream}.{consumer}"
        try:
            await nc.publish(subject, query, reply=inbox)
            message = await subscription.next_msg(timeout_s + 1)
        finally:
            await subscription.unsubscribe()
        assert message.reply, f"no delivery: {message.headers}"
        return Delivery.from_msg(message)

    async def submit_and_pull(self, request: GenerateRequest) -> Delivery:
        await self.submit(request)
        return await self.pull()

    async def redeliver(self, delivery: Delivery) -> Delivery:
        await self.cluster.nc.publish(delivery.ack_subject, b"-NAK")
        return await self.pull()

    async def num_queued(self) -> int:
        """Requests that the queue still holds, waiting or running."""
        stream = self.cluster.subjects.requests_stream
        info = await self.cluster.js.api(f"STREAM.INFO.{stream}")
        return int(info["state"]["messages"])

    async def until_queue_is_empty(self, timeout_s: float = PATIENCE_S) -> None:
        async def is_empty() -> bool:
            return await self.num_queued() == 0

        await eventually_async(is_empty, timeout_s)

    async def append(self, rid: str, record: OwnershipRecord) -> int:
        return await self.cluster.ownership.append(rid, record)

    async def write(
        self,
        worker: str,
        rid: str,
        epoch: int,
        position: int,
        token_ids: list[int],
        finish: Finish | None = None,
    ) -> int:
        """One frame with one entry, written as `worker`; returns its sequence."""
        frame = TokenFrame(worker, 1, [TokenEntry(rid, epoch, position, token_ids, finish)])
        subject = self.cluster.subjects.tokens(self.cluster.subjects.partition(rid), worker)
        return (await self.cluster.js.publish(subject, encode_token_frame(frame))).seq

    async def show_heartbeat(self, worker: str) -> None:
        """As if the worker were alive."""
        card = WorkerCard(worker, POOL, "m", REVISION, WorkerState.READY)
        bucket = self.cluster.bucket(self.cluster.subjects.workers_bucket)
        await bucket.put(f"{POOL}.{worker}", encode(card))

    async def tell(self, request: ControlRequest, worker: str | None = None) -> ControlReply:
        """As an operator: to one worker, or to all; the first answer."""
        subjects = self.cluster.subjects
        subject = subjects.admin_worker(POOL, worker) if worker else subjects.admin(POOL)
        answer = await self.cluster.nc.request(subject, encode_control(request), 10.0)
        return decode_control_reply(answer.data)

    async def records(self, rid: str) -> list[StoredRecord]:
        """The ownership log; asserts that it is one CAS chain."""
        records = await self.cluster.ownership.read(rid)
        prev = 0
        for stored in records:
            assert stored.record.prev == prev
            prev = stored.seq
        return records

    async def fold(self, rid: str, from_seq: int = 1) -> RequestFold:
        """What the log says of a request, to a reader that starts at `from_seq`.

        How its last run went, which no two runs have in common, is put into `runs`.
        """
        fold = RequestFold(rid)
        subjects = self.cluster.subjects
        async for message in self.cluster.js.direct_scan(subjects.tokens_stream, ">"):
            if message.subject == subjects.ownership(rid):
                with contextlib.suppress(ProtocolError):  # what nobody can read is no record
                    fold.apply_record(message.seq, decode_ownership(message.data))
            elif message.subject.startswith(f"{subjects.prefix}.tok."):
                frame = decode_token_frame(message.data)
                for entry in frame.entries:
                    if entry.rid == rid and message.seq >= from_seq:
                        fold.apply_entry(frame.worker, entry)
        if fold.finish is not None:
            self.runs[rid] = fold.finish.run
            fold.finish = msgspec.structs.replace(fold.finish, run=None)
        return fold

    async def entries(self, rid: str) -> list[tuple[int, TokenEntry]]:
        """Every logged entry of a request with its sequence, counted or not."""
        subjects = self.cluster.subjects
        entries: list[tuple[int, TokenEntry]] = []
        async for message in self.cluster.js.direct_scan(subjects.tokens_stream, ">"):
            if message.subject.startswith(f"{subjects.prefix}.tok."):
                frame = decode_token_frame(message.data)
                entries += [(message.seq, entry) for entry in frame.entries if entry.rid == rid]
        return entries

    async def until_finished(self, rid: str, timeout_s: float = PATIENCE_S) -> RequestFold:
        async def has_finished() -> bool:
            return (await self.fold(rid)).finish is not None

        await eventually_async(has_finished, timeout_s)
        return await self.fold(rid)

    async def until_logged(self, rid: str, num_tokens: int) -> None:
        async def is_logged() -> bool:
            return len((await self.fold(rid)).tokens) >= num_tokens

        await eventually_async(is_logged)


@asynccontextmanager
async def open_stage(
    nats_url: str, ack_wait_s: float = 8.0, first_level: int = FEATURE_LEVEL
) -> AsyncIterator[Stage]:
    config = ClusterConfig(nats_url=nats_url, num_partitions=2, ack_wait_s=ack_wait_s)
    async with open_cluster(config, "test", first_level=first_level) as cluster:
        await ensure_consumers(cluster.js, cluster.subjects, POOL, ack_wait_s)
        acking = asyncio.create_task(FinishAcker(cluster).run())
        try:
            yield Stage(config, cluster)
        finally:
            acking.cancel()
            await asyncio.wait([acking])
