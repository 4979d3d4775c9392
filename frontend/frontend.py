"""One frontend process: its parts, and how it starts, drains and stops."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from frontend.acceptor import Acceptor
from frontend.admission import Admission
from frontend.anthropic.message_request import MessageRequests
from frontend.app import App
from frontend.attachments import Attachments
from frontend.auth import ApiKeys
from frontend.batches.batches import Batches
from frontend.batches.driver import BatchParts
from frontend.batches.keeper import BatchKeeper
from frontend.batches.line_slots import LineSlots
from frontend.batches.results import BatchResults
from frontend.batches.routes import BatchRoutes
from frontend.batches.store import BatchStore
from frontend.cluster.cluster_board import ClusterBoard
from frontend.cluster.path_desk import PathDesk
from frontend.cluster.recent_requests import RecentRequests
from frontend.cluster.routes import ClusterRoutes
from frontend.config import FrontendConfig
from frontend.detok_client import DetokClient
from frontend.drain_rate import QueueWatch
from frontend.files.contents import FileContents
from frontend.files.files import Files
from frontend.files.routes import FileRoutes
from frontend.files.store import FileStore
from frontend.files.transfers import Transfers
from frontend.frontend_role import ROLE
from frontend.grammars.checker import GrammarChecker
from frontend.http_request import CallerReader
from frontend.idempotency.store import IdempotencyStore
from frontend.images.fetcher import ImageFetcher
from frontend.images.loader import ImageLoader
from frontend.inference import Inference
from frontend.listener import http_server
from frontend.loads.load_board import LoadBoard
from frontend.loads.queue_metrics import QueueMetrics
from frontend.loads.routes import LoadRoutes
from frontend.metrics import FrontendMetrics
from frontend.model_directory import ModelDirectory
from frontend.nats.answers import NatsAnswers
from frontend.nats.endpoints import NatsEndpoints
from frontend.nats.reply import max_body_bytes
from frontend.nats.service import NatsService
from frontend.open_answers import OpenAnswers
from frontend.orphan_sweeper import OrphanSweeper
from frontend.page_document import PageDocument
from frontend.prompt_encoder import PromptEncoder
from frontend.queue_limits import QueueLimits
from frontend.reply_router import ReplyRouter
from frontend.requests.chat_request import ChatRequests
from frontend.requests.completion_request import CompletionRequests
from frontend.requests.embedding_request import EmbeddingRequests
from frontend.requests.generate_request import GenerateRequests
from frontend.requests.job_reader import JobReader
from frontend.requests.rerank_request import RerankRequests
from frontend.requests.score_request import ScoreRequests
from frontend.responses.request import ResponseRequests
from frontend.responses.responses import Responses
from frontend.responses.store import ResponseStore
from frontend.resuming.replayer import Replayer
from frontend.resuming.resumer import Resumer
from frontend.resuming.stream_finder import StreamFinder
from frontend.resuming.stream_watch import StreamWatch
from frontend.server_span import ServerSpans
from frontend.submitter import Submitter
from frontend.tenants.exchange import TenantExchange
from frontend.tenants.key_watch import KeyWatch
from frontend.tenants.ledger import TenantLedger
from frontend.terminator import Terminator
from frontend.tokens.routes import TokenRoutes
from frontend.tokens.tokenizing import Tokenizing
from frontend.tools.answer_styles import AnswerStyles
from shared.cluster import Cluster
from shared.health import Checkup
from shared.heartbeat import Heartbeat
from shared.log import get_logger
from shared.loop_watch import LoopWatch
from shared.model_catalog import ModelCatalog
from shared.protocol.reply import Surface
from shared.protocol.role_cards import RoleCard
from shared.shutdown import Shutdown
from shared.tracing import NO_TRACER, Tracer

log = get_logger(__name__)


class Frontend:
    """Wires the parts; `run` serves until `shutdown` is asked for."""

    def __init__(
        self,
        config: FrontendConfig,
        cluster: Cluster,
        frontend_id: str,
        listener: socket.socket,
        metrics: FrontendMetrics,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        subjects = cluster.subjects
        catalog = ModelCatalog(cluster)
        self._config = config
        self._metrics = metrics
        self._cluster = cluster
        self._listener = listener
        self.shutdown = Shutdown()
        self.started = asyncio.Event()
        self._encoder = PromptEncoder()
        self._images = ImageLoader(config.image_limits(), ImageFetcher(config.fetch_policy()))
        self._grammar_checker = GrammarChecker()
        self._models = ModelDirectory(catalog)
        self.ledger = TenantLedger()
        self._router = ReplyRouter(
            cluster.nc, subjects.reply(frontend_id), self.ledger, cluster.malformed, metrics
        )
        detok = DetokClient(cluster.nc, subjects, self._router.subject)
        self._replayer = Replayer(self._router, detok, metrics)
        self.attachments = Attachments(cluster.bucket(subjects.attached_bucket), frontend_id)
        self._terminator = Terminator(
            cluster, catalog, self._router, self.attachments, metrics, frontend_id
        )
        self.queue_watch = QueueWatch(cluster)
        self._watch = StreamWatch(self._router, self._terminator)
        responses = ResponseStore(cluster, detok, config.max_response_bytes)
        self._styles = AnswerStyles(config.tool_parser, config.reasoning_parser)
        chats = ChatRequests(
            self._models,
            self._encoder,
            self._images,
            use_model_defaults=config.generation_config == "auto",
            styles=self._styles,
        )
        messages = MessageRequests(self._models, chats)
        tokenizing = Tokenizing(self._models, self._encoder, chats)
        recent = RecentRequests(self._router)
        self.answers = OpenAnswers(self._router, self._terminator, recent, metrics, frontend_id)
        finder = StreamFinder(cluster, detok)
        admission = Admission(
            self.ledger,
            self.queue_watch,
            QueueLimits(self.queue_watch, config.queue_limits()),
            metrics,
        )
        self.submitter = Submitter(
            cluster, catalog, self._terminator, self.queue_watch.drain, metrics
        )
        self.inference = Inference(
            self._job_reader(chats, messages, responses),
            Acceptor(
                self.submitter,
                self._router,
                self.ledger,
                admission,
                self.attachments,
                responses,
                self.answers,
                metrics,
            ),
            Resumer(finder, self._router, self._models, self.attachments, responses, self.answers),
            self.answers,
            admission,
            finder,
            self._router,
            self._terminator,
            IdempotencyStore(cluster.bucket(subjects.idempotency_bucket)),
            metrics,
            ServerSpans(tracer, frontend_id, config.host, self.port),
            frontend_id,
        )
        keys = ApiKeys(config.api_keys())
        callers = CallerReader(config, keys)
        self._exchange = TenantExchange(cluster, frontend_id, self.ledger)
        self._key_watch = (
            KeyWatch(config.api_keys_file, keys, config.api_keys) if config.api_keys_file else None
        )
        file_store = FileStore(cluster, contents := FileContents(cluster))
        files = Files(file_store, config.max_file_bytes)
        batch_store = BatchStore(cluster)
        parts = BatchParts(
            self.inference,
            self._models,
            file_store,
            batch_store,
            BatchResults(cluster, contents),
            config.batch_limits(),
            LineSlots(config.batch_max_in_flight),
            metrics,
        )
        self._batch_keeper = BatchKeeper(cluster, parts, keys, frontend_id)
        batches = Batches(batch_store, file_store, self._batch_keeper.look_soon, config.files_ttl_s)
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
        metrics.registry.register(self._queue_metrics)
        self.app = App(
            self.inference,
            kept,
            self._models,
            callers,
            metrics,
            self.checkup,
            FileRoutes(files),
            BatchRoutes(batches),
            TokenRoutes(tokenizing, config.max_body_bytes),
            loads,
            cluster_routes,
            PathDesk(finder, cluster.ownership),
            messages,
            PageDocument(config.page_origins()),
            max_body_bytes=config.max_body_bytes,
            ping_interval_s=config.ping_interval_s,
            cors_origins=config.cors_origins,
        )
        self._loop_watch = LoopWatch(metrics.registry)
        self._server = http_server(self.app)
        endpoints = NatsEndpoints(
            self.inference, kept, batches, files, self._models, tokenizing, loads
        )
        self._service = NatsService(
            cluster.nc,
            config.service_name,
            frontend_id,
            endpoints.handlers(),
            NatsAnswers(cluster.nc, self.inference),
            Transfers(files, max_body_bytes(cluster.nc)),
            callers,
            metrics,
        )
        self._sweeper = OrphanSweeper(
            cluster, self._terminator, self.attachments, frontend_id, config.orphan_wait_s
        )
        card = RoleCard(
            id=frontend_id,
            role=ROLE,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
        )
        roles = cluster.bucket(subjects.roles_bucket)
        self._heartbeat = Heartbeat(roles, frontend_id, lambda: card)

    def _job_reader(
        self, chats: ChatRequests, messages: MessageRequests, responses: ResponseStore
    ) -> JobReader:
        models, encoder, config = self._models, self._encoder, self._config
        use_defaults = config.generation_config == "auto"
        return JobReader(
            {
                Surface.CHAT: chats,
                Surface.MESSAGES: messages,
                Surface.COMPLETIONS: CompletionRequests(
                    models, encoder, use_model_defaults=use_defaults
                ),
                Surface.GENERATE: GenerateRequests(
                    models, encoder, use_model_defaults=use_defaults
                ),
                Surface.EMBEDDINGS: EmbeddingRequests(models, encoder),
                Surface.SCORE: ScoreRequests(models, encoder),
                Surface.RERANK: RerankRequests(models, encoder),
            },
            ResponseRequests(
                models,
                encoder,
                responses,
                self._images,
                use_model_defaults=use_defaults,
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
        """Serve until asked to stop, then drain."""
        await self._router.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(part.run())
                    for part in (
                        self._models,
                        self._replayer,
                        self._watch,
                        self.queue_watch,
                        self._heartbeat,
                        self._sweeper,
                        self._exchange,
                        self._key_watch,
                        self._batch_keeper,
                        self._loop_watch,
                        self._queue_metrics,
                    )
                    if part is not None
                ]
                tasks.create_task(self._server.serve([self._listener]))
                if self._config.service_name:
                    tasks.create_task(self._service.run())
                    await self._service.started.wait()
                self.started.set()
                self._metrics.startup.end()
                log.info("frontend_listening", host=self._config.host, port=self.port)
                await self.shutdown.asked.wait()
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            self._encoder.close()
            await self._images.close()
            self._grammar_checker.close()

    async def _drain(self) -> None:
        """Answer 503, let running streams finish, close the rest: clients resume elsewhere."""
        self.inference.is_draining = True
        self._service.stop()
        await self._batch_keeper.stop()
        log.info("frontend_drains", running=self.answers.num_open)
        await self.shutdown.grace(self.answers.all_closed, self._config.shutdown_timeout_s)
        log.info("frontend_stops", cut=self.answers.num_open)
        self.answers.cut_all()
        self._server.should_exit = True
        await self._terminator.close()

    def checkup(self) -> Checkup:
        """Ready: a request would be taken. That no worker is there is no reason not to be."""
        not_ready = []
        if self.inference.is_draining:
            not_ready.append("it is shutting down")
        if not self._cluster.nc.is_connected:
            not_ready.append("NATS cannot be reached")
        if not self._models.is_fresh:
            not_ready.append("the model cards cannot be read")
        if not self.queue_watch.is_fresh:
            not_ready.append("the queue cannot be seen")
        return Checkup(not_ready=tuple(not_ready))
