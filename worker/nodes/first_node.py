"""Node 0's side: answers the other hosts of a model where they are awaited, or why they are not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout

from shared.broker.named_subjects import NamedSubjects
from shared.cluster import Cluster
from shared.errors import ConfigError, ProtocolError
from shared.machine.installation import own_version
from shared.protocol.codec import decode, encode
from shared.protocol.notices import NodeAnswer, NodeHello
from shared.telemetry.log import get_logger
from worker.engine_child.engine_host import EngineHost
from worker.engine_link.engine_config import EngineConfig

ANSWER_S = 2.0
# What a host may have of its own.
_OF_A_HOST = {
    *("model_path", "node_rank", "node_address", "node_port"),
    *("packed_folder", "packed_max_bytes", "profile_dir", "logits_processors"),
    *("log_level", "log_format"),
}

log = get_logger(__name__)


def hello(node: str, revision: str, settings: EngineConfig) -> NodeHello:
    """What a node says of itself."""
    return NodeHello(
        node,
        settings.node_rank,
        socket.gethostname(),
        own_version(),
        revision,
        settings.to_json(),
    )


class FirstNode:
    """Answers as long as its worker is there."""

    def __init__(
        self,
        cluster: Cluster,
        subject: str,
        own: Callable[[], NodeHello],
        engine: EngineHost,
    ) -> None:
        self._nc = cluster.nc
        self._named = NamedSubjects(cluster.subjects)
        self._malformed = cluster.malformed
        self._subject = subject
        self._own = own
        self._engine = engine
        self._is_sure = False  # that nobody else is the first one
        self._rival: NodeHello | None = None
        self._refused: dict[int, str] = {}

    async def run(self) -> None:
        """Until cancelled. Raises ConfigError when there is another first node."""
        subscription = await self._nc.subscribe(self._subject, cb=self._on_message)
        try:
            await self._make_sure()
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _make_sure(self) -> None:
        """Two that start at a time hear of each other, and one goes."""
        with contextlib.suppress(NatsTimeout):
            reply = await self._nc.request(self._subject, encode(self._own()), ANSWER_S)
            if why := decode(NodeAnswer, reply.data).why_never:
                raise ConfigError(why)
        if self._rival is not None:
            raise ConfigError(_taken(self._rival))
        self._is_sure = True

    async def _on_message(self, message: Msg) -> None:
        try:
            said = decode(NodeHello, message.data)
        except ProtocolError as exc:
            self._malformed.note(message.subject, exc)
            return
        answer = self._answer(said)
        if answer is not None and self._named.is_role_inbox(message.reply):
            with contextlib.suppress(NatsError):
                await message.respond(encode(answer))

    def _answer(self, said: NodeHello) -> NodeAnswer | None:
        """None: it is for another one to say."""
        own = self._own()
        if said.node_rank == 0:
            if said.node == own.node:
                return None
            if self._is_sure or own.node < said.node:
                return NodeAnswer(why_never=_taken(own))
            self._rival = said
            return None
        if why := mismatch(own, said):
            if self._refused.get(said.node_rank) != why:
                log.warning("node_refused", node_rank=said.node_rank, host=said.host, why=why)
            self._refused[said.node_rank] = why
            return NodeAnswer(why_never=why)
        awaited = self._engine.ranks_awaited
        if not self._is_sure or awaited is None:
            return NodeAnswer(own.node, why_not_yet=f"node 0 on {own.host} does not await it yet")
        return NodeAnswer(own.node, awaited.address, awaited.port, awaited.secret, awaited.config)


def mismatch(first: NodeHello, other: NodeHello) -> str:
    """Why they cannot share a model, in a sentence; "": they can."""
    who = f"node {other.node_rank} on {other.host} has"
    for name in ("version", "revision"):
        ours, theirs = getattr(first, name), getattr(other, name)
        if ours != theirs:
            what = {"version": "of jetflock", "revision": "of the weights"}[name]
            return f"{who} {name} {theirs} {what}, node 0 on {first.host} {ours}: give it the same"
    ours, theirs = map(_settings, (first, other))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in _OF_A_HOST and ours.get(name) != theirs.get(name):
            return (
                f"{who} {name}={theirs.get(name)}, node 0 on {first.host} "
                f"{name}={ours.get(name)}: give it the same"
            )
    return ""


def _settings(said: NodeHello) -> dict[str, object]:
    return msgspec.json.decode(said.settings, type=dict[str, object])


def _taken(first: NodeHello) -> str:
    return (
        f"{first.node} on {first.host} is node 0 of this model and node_group already; another "
        "node_group makes another worker"
    )
