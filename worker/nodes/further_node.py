"""A host that computes its share of a model's steps: ranks, and no requests of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from shared.broker.jetstream import JetStream
from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.cli.garbage import settle_garbage
from shared.cli.shutdown import Shutdown
from shared.cluster import Cluster, open_cluster
from shared.errors import BrokerError, ConfigError, ProtocolError
from shared.event_wait import beat_s
from shared.liveness.presence import is_absent
from shared.protocol.codec import decode, encode
from shared.protocol.notices import NodeAnswer, NodeHello
from shared.status.health import Checkup, HealthBoard
from shared.status.status_server import StatusAddress, serving_status
from shared.subjects import pool_slug
from shared.telemetry.log import get_logger
from shared.telemetry.metrics import new_registry
from worker.config import WorkerConfig
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.rank_links import CANNOT_LOAD, RankLink, connect_rank, start_rank
from worker.nodes.first_node import ANSWER_S, hello
from worker.work_place import work_place

_ASK_S = 1.0
_LOOK_S = 5.0

log = get_logger(__name__)


async def serve_node(config: WorkerConfig, node_id: str, path: Path, model_name: str) -> bool:
    """Run its ranks, start after start, until SIGTERM or SIGINT; True: its service has moved."""
    pool = pool_slug(model_name)

    async def choose(js: JetStream, prefix: str) -> str:
        return await work_place(js, prefix, pool)

    board, shutdown = HealthBoard(), Shutdown()
    async with (
        serving_status(new_registry("worker"), board, StatusAddress.of(config)),
        open_cluster(config, node_id, choose=choose) as cluster,
    ):
        shutdown.listen()
        node = FurtherNode(config, cluster, node_id, pool, path)
        board.watch(node.checkup)
        settle_garbage()
        tasks = [asyncio.create_task(work) for work in (node.run(), shutdown.asked.wait())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks[0] in done:
            tasks[0].result()
        return not shutdown.asked.is_set()


class FurtherNode:
    """Asks the first node where its ranks are awaited, and has them run until one of all ends."""

    def __init__(
        self, config: WorkerConfig, cluster: Cluster, node_id: str, pool: str, path: Path
    ) -> None:
        self._config = config
        self._node_id = node_id
        self._cluster = cluster
        self._pool = pool
        self._settings = config.engine_config(path)
        self._subject = cluster.subjects.nodes(pool, config.node_group)
        first = self._settings.node_rank * self._settings.num_local_ranks
        self._ranks = range(first, first + self._settings.num_local_ranks)
        self._waits_for = "node 0"

    def checkup(self) -> Checkup:
        return Checkup(not_ready=(f"it waits for {self._waits_for}",) if self._waits_for else ())

    async def run(self) -> None:
        """Until the service has moved. Raises ConfigError when this node can never take part."""
        while (answer := await self._find()) is not None:
            try:
                links = await asyncio.to_thread(self._connect, answer)
            except OSError as exc:
                await self._wait(f"node 0 at {answer.address}:{answer.port}: {exc}")
                continue
            await self._compute(answer, links)

    async def _find(self) -> NodeAnswer | None:
        """Where ranks are awaited; None: the first node is on the other side of a move."""
        said = await asyncio.to_thread(self._hello)
        while True:
            try:
                answer = await self._ask(said)
            except NoRespondersError:
                if await self._is_elsewhere():
                    return None
                await self._wait("node 0: nobody is")
                continue
            except (NatsError, ProtocolError) as exc:
                await self._wait(f"node 0: {exc!r}")
                continue
            if answer.why_never:
                raise ConfigError(answer.why_never)
            if not answer.why_not_yet:
                return answer
            await self._wait(answer.why_not_yet)

    async def _wait(self, what: str) -> None:
        if what != self._waits_for:
            log.info("node_waits", of=what)
        self._waits_for = what
        await asyncio.sleep(beat_s(_ASK_S))

    async def _ask(self, said: NodeHello) -> NodeAnswer:
        """Raises NatsError, ProtocolError."""
        reply = await self._cluster.nc.request(self._subject, encode(said), ANSWER_S)
        return decode(NodeAnswer, reply.data)

    async def _until_over(self, start: NodeAnswer) -> None:
        """Until node 0 awaits its ranks at another start: one of these may hang, and not end. NATS
        is not needed for what runs.
        """
        said = await asyncio.to_thread(self._hello)
        while True:
            await asyncio.sleep(beat_s(_LOOK_S))
            with contextlib.suppress(NatsError, ProtocolError):
                answer = await self._ask(said)
                if not answer.secret or answer.secret == start.secret:
                    continue
                nc, subjects = self._cluster.nc, self._cluster.subjects
                if answer.node == start.node or await is_absent(nc, subjects, start.node):
                    return

    def _hello(self) -> NodeHello:
        """With the weights that are there now, of which the ranks read their share."""
        files = ModelFiles.read(
            Path(self._settings.model_path),
            options=ModelOptions.of(self._config),
            has_dummy_weights=self._config.load_format == "dummy",
        )
        return hello(self._node_id, files.revision, self._settings)

    async def _is_elsewhere(self) -> bool:
        try:
            place = await work_place(self._cluster.js, self._config.prefix, self._pool)
        except BrokerError:
            return False
        return place != self._cluster.subjects.prefix

    def _connect(self, answer: NodeAnswer) -> list[RankLink]:
        """Raises OSError."""
        links: list[RankLink] = []
        try:
            links.extend(
                connect_rank(answer.address, answer.port, answer.secret, rank)
                for rank in self._ranks
            )
        except OSError:
            for link in links:
                link.close()
            raise
        return links

    async def _compute(self, answer: NodeAnswer, links: list[RankLink]) -> None:
        """Until the first rank ends, or its start is over, and all with it. Raises ConfigError."""
        config = dataclasses.replace(
            EngineConfig.from_json(answer.settings), model_path=self._settings.model_path
        )
        processes = [
            start_rank(config, rank, link) for rank, link in zip(self._ranks, links, strict=True)
        ]
        log.info(
            "ranks_started", ranks=list(self._ranks), of=config.num_ranks, node_0=answer.address
        )
        self._waits_for = ""
        ends = [asyncio.create_task(asyncio.to_thread(each.wait)) for each in processes]
        over = asyncio.create_task(self._until_over(answer))
        try:
            await asyncio.wait([*ends, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            for process in processes:
                process.kill()
                process.wait()
        returncodes = [process.returncode for process in processes]
        log.warning("ranks_ended", returncodes=returncodes)
        if CANNOT_LOAD in returncodes:
            raise ConfigError(
                f"ranks {self._ranks.start} to {self._ranks.stop - 1} cannot compute this model "
                "here: what they have said above tells why"
            )
