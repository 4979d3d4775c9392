"""What a test of the detokenizer needs: a scripted worker, a listener, a small tokenizer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.msg import Msg
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from detok.config import DetokConfig
from detok.detokenizer import Detokenizer
from detok.owner_table import OwnerTable
from detok.replay_service import read_done
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.cluster import Cluster, open_cluster
from shared.config import ClusterConfig
from shared.protocol.codec import decode, decode_text_frame, encode, encode_token_frame
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, Release, TokenEntry, TokenFrame
from shared.protocol.reply import ReplyParams, SealedReply, Surface, TextParams
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.sealed_replies import seal
from shared.protocol.text import Done, ReplayReply, ReplayRequest, TextChunk
from shared.subjects import new_incarnation, new_rid
from tests.eventually import Looks, eventually_async
from tests.forked_program import REPOSITORY, ForkedProgram

POOL = "pool-1"
# Longer than a busy machine takes, shorter than what is done again unasked (30 s and more).
PATIENCE_S = 25.0
_CORPUS = ["the quick brown fox jumps over the lazy dog", "héllo wörld 🙂 日本語 stop END"]


def make_tokenizer(vocab_size: int = 400) -> Tokenizer:
    """A byte-level BPE: characters beyond ASCII span several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|end|>"],
            show_progress=False,
        ),
    )
    return tokenizer


def make_bundle(tokenizer: Tokenizer) -> TokenizerBundle:
    return TokenizerBundle({"tokenizer.json": tokenizer.to_str().encode()})


def make_rid(cluster: Cluster, partition: int = 0) -> str:
    while True:
        rid = new_rid()
        if cluster.subjects.partition(rid) == partition:
            return rid


@dataclass
class Listener:
    """A frontend's ear: keeps the text of each request as the protocol says."""

    cluster: Cluster
    frontend_id: str = "frontend-x"
    chunks: list[TextChunk] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    gaps: list[TextChunk] = field(default_factory=list)

    @property
    def subject(self) -> str:
        return self.cluster.subjects.reply(self.frontend_id)

    async def start(self) -> None:
        await self.cluster.nc.subscribe(self.subject, cb=self._on_message)
        await self.cluster.nc.flush()

    async def _on_message(self, message: Msg) -> None:
        for chunk in decode_text_frame(message.data).chunks:
            self.chunks.append(chunk)
            self.take(chunk)

    def take(self, chunk: TextChunk) -> None:
        have = self.texts.setdefault(chunk.rid, "")
        if chunk.offset > len(have):
            self.gaps.append(chunk)
            return
        overlap = len(have) - chunk.offset
        assert chunk.text[:overlap] == have[chunk.offset : chunk.offset + len(chunk.text)]
        self.texts[chunk.rid] = have + chunk.text[overlap:]
        if chunk.finish is not None and overlap <= len(chunk.text):
            self.finishes[chunk.rid] = chunk.finish

    def text(self, rid: str) -> str:
        return self.texts.get(rid, "")

    def has_finished(self, rid: str) -> Callable[[], bool]:
        return lambda: rid in self.finishes

    def has_text(self, rid: str, text: str) -> Callable[[], bool]:
        return lambda: self.text(rid) == text


class ScriptedWorker:
    """Writes what a worker would write, exactly when the test says so."""

    def __init__(
        self, cluster: Cluster, tokenizer_hash: str, subject: str, name: str = "worker"
    ) -> None:
        self.cluster = cluster
        self.id = new_incarnation(name)
        self._tokenizer_hash = tokenizer_hash
        self._subject = subject
        self._numbers: dict[int, int] = {}

    async def claim(
        self, rid: str, prev: int = 0, text: TextParams | None = None, ack_subject: str = "ack.none"
    ) -> int:
        """Returns the epoch."""
        return await self.cluster.ownership.append(
            rid,
            Claim(
                prev=prev,
                worker=self.id,
                nonce=new_rid(),
                request_seq=1,
                ack_subject=ack_subject,
                tokenizer_hash=self._tokenizer_hash,
                text=text or TextParams(),
                reply=make_reply(self._subject, rid),
                pool=POOL,
            ),
        )

    async def release(self, rid: str, prev: int) -> int:
        return await self.cluster.ownership.append(rid, Release(prev=prev, worker=self.id))

    async def write(
        self,
        rid: str,
        epoch: int,
        position: int,
        token_ids: list[int],
        finish: Finish | None = None,
    ) -> int:
        """One frame with one entry; returns its sequence."""
        return await self.write_entries([TokenEntry(rid, epoch, position, token_ids, finish)])

    async def write_entries(self, entries: list[TokenEntry]) -> int:
        partition = self.cluster.subjects.partition(entries[0].rid)
        number = self._numbers[partition] = self._numbers.get(partition, 0) + 1
        payload = encode_token_frame(TokenFrame(self.id, number, entries))
        subject = self.cluster.subjects.tokens(partition, self.id)
        return (await self.cluster.js.publish(subject, payload)).seq

    async def finish(self, rid: str, epoch: int, position: int) -> int:
        return await self.write(rid, epoch, position, [], Finish(FinishReason.STOP))


def make_reply(subject: str, rid: str) -> SealedReply:
    return seal(
        ReplyParams(
            subject=subject,
            surface=Surface.CHAT,
            model="m",
            created=1,
            num_prompt_tokens=3,
            group_id=rid,
        )
    )


async def wait_for_done(cluster: Cluster, rid: str, timeout_s: float = PATIENCE_S) -> Done:
    return await eventually_async(lambda: read_done(cluster, rid), timeout_s)


async def ask_replay(
    cluster: Cluster, rid: str, offset: int, subject: str, timeout_s: float = PATIENCE_S
) -> ReplayReply:
    request = encode(ReplayRequest(rid, offset, subject))
    partition = cluster.subjects.partition(rid)
    answer = await cluster.nc.request(cluster.subjects.replay(partition), request, timeout_s)
    return decode(ReplayReply, answer.data)


@asynccontextmanager
async def running_detok(config: ClusterConfig) -> AsyncIterator[Detokenizer]:
    """A detokenizer with a connection of its own, inside this process."""
    detok_config = DetokConfig(
        nats_url=config.nats_url, num_partitions=config.num_partitions, prefix=config.prefix
    )
    async with open_cluster(detok_config, "detok") as cluster:
        detok = Detokenizer(cluster, detok_config)
        task = asyncio.create_task(detok.run())
        try:
            yield detok
        finally:
            detok.shutdown.ask()
            await asyncio.wait_for(task, PATIENCE_S)


def start_detok_process(nats_url: str) -> ForkedProgram:
    """`python -m detok`, for what can only be done to a process."""
    return ForkedProgram(
        [sys.executable, "-m", "detok", "--nats-url", nats_url],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        out=Path(os.devnull),
        err=Path(os.devnull),
    )


async def owners(cluster: Cluster) -> dict[str, str]:
    """Partition -> detokenizer, by the leases."""
    holders = await OwnerTable(cluster.js, cluster.subjects).holders()
    return {str(partition): holder for partition, holder in holders.items()}


async def wait_for_owners(
    cluster: Cluster, other_than: set[str], timeout_s: float = PATIENCE_S
) -> float:
    """Seconds until every partition belongs to somebody else."""
    started = time.monotonic()
    async for _ in Looks(timeout_s, "partitions stay with their owners"):
        now = await owners(cluster)
        if len(now) == cluster.subjects.num_partitions and not other_than & set(now.values()):
            break
    return time.monotonic() - started


@dataclass
class Stage:
    """A cluster with one tokenizer stored, and a listener."""

    config: ClusterConfig
    cluster: Cluster
    tokenizer: Tokenizer
    tokenizer_hash: str
    listener: Listener

    def worker(self, name: str = "worker") -> ScriptedWorker:
        return ScriptedWorker(self.cluster, self.tokenizer_hash, self.listener.subject, name)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids


@asynccontextmanager
async def open_stage(
    nats_url: str,
    num_partitions: int = 2,
    first_level: int = FEATURE_LEVEL,
    bills_ttl_s: float = 0.0,
) -> AsyncIterator[Stage]:
    config = ClusterConfig(
        nats_url=nats_url, num_partitions=num_partitions, bills_ttl_s=bills_ttl_s
    )
    async with open_cluster(config, "test", first_level=first_level) as cluster:
        tokenizer = make_tokenizer()
        bundle = make_bundle(tokenizer)
        await ModelCatalog(cluster).put_bundle(bundle)
        listener = Listener(cluster)
        await listener.start()
        yield Stage(config, cluster, tokenizer, bundle.content_hash, listener)
