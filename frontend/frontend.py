"""One frontend process: its parts, and how it starts, drains and stops."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import socket
import time

from nats.aio.client import Client

from frontend.app import App
from frontend.cluster.cluster_board import ClusterBoard
from frontend.cluster.load_board import LoadBoard
from frontend.cluster.queue_metrics import QueueMetrics
from frontend.cluster.request_path_service import PathService
from frontend.config import FrontendConfig
from frontend.frontend_role import ROLE
from frontend.grammars.checker import GrammarChecker
from frontend.http.http_request import CallerReader
from frontend.http.listener import http_server
from frontend.images.fetcher import ImageFetcher
from frontend.images.loader import ImageLoader
from frontend.inference.acceptor import Acceptor
from frontend.inference.admission.admission import Admission
from frontend.inference.admission.drain_rate import QueueWatch
from frontend.inference.admission.queue_limits import QueueLimits
from frontend.inference.answers.attachments import Attachments
from frontend.inference.answers.object_sweeper import ObjectSweeper
from frontend.inference.answers.open_answers import OpenAnswers
from frontend.inference.answers.orphan_sweeper import OrphanSweeper
from frontend.inference.answers.terminator import Terminator
from frontend.inference.idempotency.idempotency_store import IdempotencyStore
from frontend.inference.idempotency.keyed_start import KeyedStarts
from frontend.inference.inference import Inference
from frontend.inference.inference_side import InferenceSide
from frontend.inference.job_requests import JobRequests
from frontend.inference.public_prefixes import PublicPrefixes
from frontend.inference.resuming.known_requests import KnownRequests
from frontend.inference.resuming.resumer import Resumer
from frontend.inference.resuming.stream_finder import StreamFinder
from frontend.inference.resuming.stream_watch import StreamWatch
from frontend.inference.submitter import Submitter
from frontend.inference.telemetry.recent_requests import RecentRequests
from frontend.inference.telemetry.server_span import ServerSpans
from frontend.inference.tokenizing import Tokenizing
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.limits.stream_limits import StreamLimits, limited_streams
from frontend.metrics import FrontendMetrics
from frontend.models.model_directory import ModelDirectory
from frontend.nats.endpoints import NatsEndpoints
from frontend.nats.reply import max_body_bytes
from frontend.nats.service import NatsService
from frontend.openapi.document_routes import DocumentRoutes
from frontend.page.page_document import PageDocument
from frontend.page.page_routes import PageRoutes
from frontend.routes.batch_routes import BatchRoutes
from frontend.routes.browser_guard import BrowserGuard
from frontend.routes.cluster_routes import ClusterRoutes
from frontend.routes.cors import Cors
from frontend.routes.entrance import Entrance
from frontend.routes.file_routes import FileRoutes
from frontend.routes.job_routes import JobRoutes
from frontend.routes.job_starts import JobStarts
from frontend.routes.load_routes import LoadRoutes
from frontend.routes.message_routes import MessageRoutes
from frontend.routes.model_routes import ModelRoutes
from frontend.routes.ollama_routes import OllamaRoutes
from frontend.routes.response_routes import ResponseRoutes
from frontend.routes.status_routes import StatusRoutes
from frontend.routes.stream_routes import StreamRoutes
from frontend.routes.token_routes import TokenRoutes
from frontend.stored.batches.batch_driver import BatchParts
from frontend.stored.batches.batch_keeper import BatchKeeper
from frontend.stored.batches.batch_results import BatchResults
from frontend.stored.batches.batch_store import BatchStore, MovingBatchStore
from frontend.stored.batches.batches import Batches
from frontend.stored.batches.line_slots import LineSlots
from frontend.stored.erasing.erasing_service import ErasingService
from frontend.stored.erasing.right_check import check_right_to_erase
from frontend.stored.files.file_contents import FileContents
from frontend.stored.files.file_store import FileStore
from frontend.stored.files.file_transfers import Transfers
from frontend.stored.files.files import Files
from frontend.stored.kept_responses import Responses
from frontend.streams.detok_client import DetokClient
from frontend.streams.lost_requests import LostRequests
from frontend.streams.replayer import Replayer
from frontend.streams.reply_router import ReplyRouter
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.chat.chat_request import ChatRequests
from frontend.surfaces.completions.completion_request import CompletionRequests
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.generate.generate_request import GenerateRequests
from frontend.surfaces.job_reader import JobReader
from frontend.surfaces.ollama.requests import OllamaChats, OllamaCompletions, OllamaEmbeddings
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.responses.store import ResponseStore
from frontend.surfaces.scores.rerank_request import RerankRequests
from frontend.surfaces.scores.score_request import ScoreRequests
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.tenants.auth import ApiKeys
from frontend.tenants.cache_scope import CacheScope
from frontend.tenants.caller_gate import CallerGate
from frontend.tenants.exchange import TenantExchange
from frontend.tenants.key_watch import KeyWatch
from frontend.tenants.ledger import TenantLedger
from shared.catalog.model_catalog import ModelCatalog
from shared.cli.shutdown import Shutdown
from shared.cluster import Cluster, open_cluster
from shared.errors import BrokerError, ConfigError
from shared.event_wait import wait_event
from shared.failover.server_watch import CUT_OFF
from shared.liveness.heartbeat import Heartbeat
from shared.liveness.move_watch import MoveWatch
from shared.protocol.reply import Surface
from shared.protocol.role_cards import RoleCard
from shared.status.health import Checkup
from shared.storage.stream_room import StreamRoom
from shared.telemetry.log import get_logger
from shared.telemetry.loop_watch import LoopWatch
from shared.telemetry.tracing import NO_TRACER, Tracer

_LOOK_S = 1.0  # at the streams that a request writes to
_MOVE_RETRY_S = 1.0
_MOVE_AT_START_S = 30.0  # for the other side, where a service moves: without it some are not found

log = get_logger(__name__)


class Frontend:
    """Wires the parts; `run` serves until `shutdown` is asked for.

    `service_nc` is the connection of the NATS service; None: there is none.

    Where a service moves to other streams, a frontend has a second set of parts, for these. `older`
    is the frontend that opens it: whose socket, NATS service and books of tenants it shares.
    """

    ledger: TenantLedger
    inference: Inference
    _catalog: ModelCatalog
    _responses: ResponseStore
    _file_store: FileStore
    _erasing: ErasingService
    _path_desk: PathService

    def __init__(
        self,
        config: FrontendConfig,
        cluster: Cluster,
        service_nc: Client | None,
        frontend_id: str,
        listener: socket.socket,
        metrics: FrontendMetrics,
        tracer: Tracer = NO_TRACER,
        older: Frontend | None = None,
    ) -> None:
        self._tracer = tracer
        self._frontend_id = frontend_id
        self._newer: Frontend | None = None
        self._knows_newer = asyncio.Event()
        self._move = MoveWatch(cluster)
        subjects = cluster.subjects
        self._catalog = catalog = ModelCatalog(cluster, None if older is None else older._catalog)
        self._config = config
        self._metrics = metrics
        self._cluster = cluster
        self._listener = listener
        self.shutdown = Shutdown()
        self.started = asyncio.Event()
        self._encoder = PromptEncoder()
        self._images = ImageLoader(config.image_limits(), ImageFetcher(config.fetch_policy()))
        self._grammar_checker = GrammarChecker()
        self._models = ModelDirectory(
            catalog, use_model_defaults=config.generation_config == "auto"
        )
        self.ledger = TenantLedger() if older is None else older.ledger
        self._router = ReplyRouter(
            cluster.nc, subjects.reply(frontend_id), self.ledger, cluster.malformed, metrics
        )
        detok = DetokClient(cluster.nc, subjects, self._router.subject)
        self._replayer = Replayer(self._router, detok, LostRequests(cluster), metrics)
        self.attachments = Attachments(cluster.bucket(subjects.attached_bucket), frontend_id)
        self._terminator = Terminator(
            cluster, catalog, self._router, self.attachments, metrics, frontend_id
        )
        self.queue_watch = QueueWatch(cluster)
        self._watch = StreamWatch(self._router, self._terminator, self._models)
        self._stream_room = StreamRoom(cluster.js, limited_streams(subjects), _LOOK_S)
        self._stream_limits = StreamLimits(self._stream_room, subjects)
        self._responses = responses = ResponseStore(
            cluster,
            detok,
            config.max_response_bytes,
            older=None if older is None else older._responses,
        )
        self._styles = AnswerStyles(config.tool_parser, config.reasoning_parser)
        chats = ChatRequests(
            self._models,
            self._encoder,
            self._images,
            styles=self._styles,
        )
        messages = MessageRequests(self._models, chats)
        recent = RecentRequests(self._router)
        self.answers = OpenAnswers(self._router, self._terminator, recent, metrics, frontend_id)
        finder = StreamFinder(cluster, detok)
        self.cache_scope = CacheScope(
            cluster.bucket(subjects.secrets_bucket), config.shared_prefix_models
        )
        admission = Admission(
            self.ledger,
            self.queue_watch,
            QueueLimits(self.queue_watch, config.queue_limits()),
            self._stream_limits,
            metrics,
        )
        tokenizing = Tokenizing(self._models, self._encoder, chats, admission)
        self.submitter = Submitter(
            cluster, catalog, self._terminator, self.queue_watch.drain, metrics
        )
        resumer = Resumer(
            finder,
            self._router,
            self._models,
            self.attachments,
            responses,
            self.answers,
            admission,
            metrics,
        )
        self._side = InferenceSide(
            self._job_reader(chats, messages, responses),
            Acceptor(
                self._models,
                JobRequests(
                    cluster.nc,
                    self._router.subject,
                    self.cache_scope,
                    PublicPrefixes(config.declared_prefixes(), chats, self._encoder),
                ),
                admission,
                self._router,
                self.attachments,
                responses,
                self.submitter,
                self.answers,
            ),
            resumer,
            KnownRequests(self._router, finder, self._terminator),
            admission,
            KeyedStarts(
                IdempotencyStore(cluster.bucket(subjects.idempotency_bucket), self._stream_limits),
                metrics,
                frontend_id,
            ),
            ServerSpans(tracer, frontend_id, config.host, self.port),
            frontend_id,
        )
        self.inference = (
            Inference(self._side, self._move.look_soon) if older is None else older.inference
        )
        keys = ApiKeys(config.api_keys())
        callers = CallerReader(config, keys)
        self._exchange = TenantExchange(cluster, frontend_id, self.ledger)
        self._key_watch = (
            KeyWatch(config.api_keys_file, keys, config.api_keys) if config.api_keys_file else None
        )
        self._file_store = file_store = FileStore(
            cluster,
            contents := FileContents(cluster),
            older=None if older is None else older._file_store,
        )
        files = Files(file_store, self._stream_limits, config.max_file_bytes)
        self._batch_store = batch_store = BatchStore(cluster)
        self._all_batches = MovingBatchStore(cluster, None if older is None else older._batch_store)
        parts = BatchParts(
            self.inference,
            file_store,
            batch_store,
            BatchResults(cluster, contents),
            config.batch_limits(),
            LineSlots(config.batch_max_in_flight),
            metrics,
        )
        card = RoleCard(
            id=frontend_id,
            role=ROLE,
            level=cluster.level.known,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
        )
        roles = cluster.bucket(subjects.roles_bucket)
        self._heartbeat = Heartbeat(roles, frontend_id, lambda: card)
        self._batch_keeper = BatchKeeper(
            cluster, parts, keys, frontend_id, self._heartbeat.writability
        )
        batches = Batches(
            self._all_batches,
            file_store,
            self._stream_limits,
            self._batch_keeper.look_soon,
            config.files_ttl_s,
        )
        kept = Responses(self.inference, responses, self._models)
        load_board = LoadBoard(cluster, frontend_id)
        loads = LoadRoutes(load_board, self._models)
        cluster_routes = ClusterRoutes(
            ClusterBoard(cluster, self._models, load_board, recent),
            callers,
            frontend_id,
            config.admin_url,
            over=self.shutdown.asked,
        )
        self._queue_metrics = QueueMetrics(cluster, load_board)
        if older is None:
            metrics.registry.register(self._queue_metrics)
        hosts = config.host_rule()
        self._erasing = erasing = ErasingService(
            cluster,
            self.inference,
            frontend_id,
            older=None if older is None else older._erasing,
        )
        self._path_desk = PathService(
            finder, cluster.ownership, older=None if older is None else older._path_desk
        )
        starts = JobStarts(
            self.inference,
            max_body_bytes=config.max_body_bytes,
            ping_interval_s=config.ping_interval_s,
        )
        tables = [
            PageRoutes(PageDocument(config.page_origins())),
            JobRoutes(starts, self._models),
            MessageRoutes(starts, self.inference, messages, config.max_body_bytes),
            OllamaRoutes(
                self.inference,
                self._models,
                importlib.metadata.version("jetflock"),
                max_body_bytes=config.max_body_bytes,
                ping_interval_s=config.ping_interval_s,
            ),
            ResponseRoutes(kept, config.ping_interval_s),
            StreamRoutes(
                self.inference,
                erasing,
                self._path_desk,
                max_body_bytes=config.max_body_bytes,
                ping_interval_s=config.ping_interval_s,
            ),
            ModelRoutes(self._models),
            FileRoutes(files),
            BatchRoutes(batches),
            TokenRoutes(tokenizing, config.max_body_bytes),
            loads,
            cluster_routes,
            StatusRoutes(self.checkup, metrics.registry),
            DocumentRoutes(),
        ]
        self.app = App(
            tables,
            self.inference,
            callers,
            metrics,
            Cors(config.cors_origins),
            None if hosts is None else BrowserGuard(hosts, config.cors_origins),
        )
        self._loop_watch = LoopWatch(metrics.registry) if older is None else None
        self._overload = admission.line.overload
        self._entrance = Entrance(self.app, self._overload)
        self._server = http_server(self._entrance, self._entrance.refusal)
        endpoints = NatsEndpoints(
            self.inference, kept, batches, files, self._models, tokenizing, loads, erasing
        )
        self._files = files
        self._nats_handlers = endpoints.handlers()
        self._service_nc: Client | None = service_nc if older is None else older._service_nc
        self._service = (
            None
            if service_nc is None
            else NatsService(
                service_nc,
                CallerGate(config.service_name, subjects, config.nats_callers),
                frontend_id,
                self._nats_handlers,
                Transfers(files, max_body_bytes(service_nc)),
                callers,
                metrics,
            )
        )
        self._object_sweeper = ObjectSweeper(cluster, frontend_id)
        self._sweeper = OrphanSweeper(
            cluster,
            self._terminator,
            self.attachments,
            frontend_id,
            config.orphan_wait_s,
            resumer.is_in_line,
            self._heartbeat.writability,
        )

    def _job_reader(
        self, chats: ChatRequests, messages: MessageRequests, responses: ResponseStore
    ) -> JobReader:
        models, encoder = self._models, self._encoder
        embeddings = EmbeddingRequests(models, encoder)
        open_ended = CompletionRequests(models, encoder, default_max_tokens=None)
        return JobReader(
            {
                Surface.OLLAMA_CHAT: OllamaChats(models, chats),
                Surface.OLLAMA_GENERATE: OllamaCompletions(models, chats, open_ended),
                Surface.OLLAMA_EMBED: OllamaEmbeddings(models, embeddings),
                Surface.CHAT: chats,
                Surface.MESSAGES: messages,
                Surface.COMPLETIONS: CompletionRequests(models, encoder),
                Surface.GENERATE: GenerateRequests(models, encoder),
                Surface.EMBEDDINGS: embeddings,
                Surface.SCORE: ScoreRequests(models, encoder),
                Surface.RERANK: RerankRequests(models, encoder),
            },
            ResponseRequests(
                models,
                encoder,
                responses,
                self._images,
                styles=self._styles,
            ),
            self._grammar_checker,
        )

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def on_reconnect(self) -> None:
        """The connection to the broker was lost and is back."""
        self._replayer.on_reconnect()

    async def run(self) -> None:
        """Serve until asked to stop, then drain.

        Raises OutdatedBuild when that was why, or ConfigError when it may not do its work.
        """
        await self._begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow_move())
                background = [
                    *self._background(tasks),
                    tasks.create_task(self._move.run()),
                    tasks.create_task(self.shutdown.ask_when(self._cluster.level.outdated)),
                ]
                await self._settle_move()
                forgetting = tasks.create_task(self._forget_when_over(background))
                tasks.create_task(self._server.serve([self._listener]))
                if self._service is not None:
                    tasks.create_task(self._service.run())
                    await self._service.started.wait()
                self.started.set()
                self._metrics.startup.end()
                log.info("frontend_listening", host=self._config.host, port=self.port)
                await self.shutdown.asked.wait()
                await self._drain()
                for task in (following, forgetting, *background):
                    task.cancel()
        finally:
            await self._end()
        self._cluster.level.check()

    async def _begin(self) -> None:
        """Raises ConfigError when it may not do its work."""
        await check_right_to_erase(self._cluster)
        await self._router.start()
        await self.cache_scope.start()

    def _background(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """What runs beside the server."""
        return [
            tasks.create_task(part.run())
            for part in (
                self._models,
                self._replayer,
                self._watch,
                self.queue_watch,
                self._stream_room,
                self._heartbeat,
                self._sweeper,
                self._object_sweeper,
                self._exchange,
                self.cache_scope,
                self._key_watch,
                self._batch_keeper,
                self._loop_watch,
                self._queue_metrics,
            )
            if part is not None
        ]

    async def _end(self) -> None:
        self._encoder.close()
        await self._images.close()
        self._grammar_checker.close()

    async def _follow_move(self) -> None:
        """To other streams, once they are announced, until cancelled."""
        await self._move.announced.wait()
        while True:
            try:
                await self._serve_newer()
            except (BrokerError, ConfigError) as exc:
                log.error("newer_streams_not_opened", error=str(exc))
            await asyncio.sleep(_MOVE_RETRY_S)

    async def _serve_newer(self) -> None:
        config = self._move.newer_config(self._config)
        async with open_cluster(config, self._frontend_id, self._on_newer_reconnect) as cluster:
            newer = Frontend(
                config,
                cluster,
                None,
                self._frontend_id,
                self._listener,
                self._metrics,
                self._tracer,
                older=self,
            )
            try:
                await newer._begin()
                async with asyncio.TaskGroup() as tasks:
                    newer._background(tasks)
                    tasks.create_task(self.shutdown.ask_when(cluster.level.outdated))
                    await newer._models.refresh()
                    self._newer = newer
                    self.inference.know(newer._side)
                    self._knows_newer.set()
                    await self._move.closed.wait()
                    self._go_over(newer)
                    await asyncio.Event().wait()
            finally:
                await newer._end()

    async def _on_newer_reconnect(self) -> None:
        if self._newer is not None:
            self._newer.on_reconnect()

    def _go_over(self, newer: Frontend) -> None:
        """The old queue is closed."""
        self.inference.go_over()
        self._entrance.lead_to(newer.app, newer._overload)
        self._metrics.registry.unregister(self._queue_metrics)
        self._metrics.registry.register(newer._queue_metrics)
        if self._service is not None:
            self._service.lead_to(newer._nats_handlers, newer._files)
        log.info("gone_over", prefix=newer._cluster.subjects.prefix)

    async def _settle_move(self) -> None:
        """Who comes to a service that moves serves both sides from the beginning."""
        await self._move.look()
        if self._move.announced.is_set():
            waited = self.inference.gone_over if self._move.closed.is_set() else self._knows_newer
            if not await wait_event(waited, _MOVE_AT_START_S):
                log.error("newer_streams_not_served", waited_s=_MOVE_AT_START_S)

    async def _forget_when_over(self, background: list[asyncio.Task[None]]) -> None:
        """The old streams are about to be deleted, and nothing is left there."""
        await self._move.over.wait()
        newer = self._newer
        if newer is None:
            return
        for part in (
            newer._catalog,
            newer._responses,
            newer._file_store,
            newer._all_batches,
            newer._erasing,
            newer._path_desk,
        ):
            part.forget_older()
        self.inference.forget_older()
        for task in background:
            task.cancel()

    async def _drain(self) -> None:
        """Answer 503, let running streams finish, close the rest: clients resume elsewhere."""
        self.inference.is_draining = True
        if self._service is not None:
            self._service.stop()
        sides = [self] if self._newer is None else [self, self._newer]
        for side in sides:
            await side._batch_keeper.stop()
        log.info("frontend_drains", running=sum(side.answers.num_open for side in sides))
        deadline = time.monotonic() + self._config.shutdown_timeout_s
        for side in sides:
            left_s = max(0.0, deadline - time.monotonic())
            await self.shutdown.grace(side.answers.all_closed, left_s)
        log.info("frontend_stops", cut=sum(side.answers.num_open for side in sides))
        for side in sides:
            side.answers.cut_all()
        self._server.should_exit = True
        for side in sides:
            await side._terminator.close()

    def checkup(self) -> Checkup:
        """Ready: a request for some model would be taken. It may wait for a worker, if one is
        expected.
        """
        not_ready = []
        if self.inference.is_draining:
            not_ready.append("it is shutting down")
        if not self._cluster.nc.is_connected:
            not_ready.append("NATS cannot be reached")
        elif self._cluster.server.is_cut_off:
            not_ready.append(CUT_OFF)
        elif self._service_nc is not None and not self._service_nc.is_connected:
            not_ready.append("the connection of the NATS service is down")
        elif not self._cluster.js.erasing_nc.is_connected:
            not_ready.append("the connection that deletes is down")
        if not self._models.is_fresh:
            not_ready.append("the model cards cannot be read")
        elif words := self._models.nothing_served:
            not_ready.append(words)
        if not self.queue_watch.is_fresh:
            not_ready.append("the queue cannot be seen")
        not_ready += self._stream_limits.why_full
        return Checkup(not_ready=tuple(not_ready))
