"""Puts together who cares for the requests of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.admin.dead_requests import DeadRequests
from shared.broker.named_subjects import NamedSubjects
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.liveness.heartbeat import Writability
from shared.liveness.log_watch import LogWatch
from shared.protocol.log_records import TokenEntry
from shared.storage.stream_room import StreamRoom
from shared.telemetry.tracing import Tracer
from worker.affinity.page_peers import PagePeers
from worker.affinity.pool_prefixes import PoolPrefixes
from worker.affinity.pool_roles import PoolRoles
from worker.affinity.prefix_reporter import PrefixReporter
from worker.capacity.capacity import Capacity
from worker.capacity.hang_watch import HangWatch
from worker.claims.claim_flow import Claimant, takes_parts
from worker.claims.claimer import Claimer
from worker.claims.log_history import LogHistory
from worker.claims.quarantine import Quarantine
from worker.claims.taker import Taker
from worker.config import WorkerConfig
from worker.engine_child.engine_host import EngineHost
from worker.held.delivery import Acknowledger
from worker.held.held_requests import HeldRequests
from worker.held.run_trace import RunTraces
from worker.intake.decode_hand_over import DecodeHandOver
from worker.intake.intake import Intake, Redeliveries
from worker.intake.offer_handler import OfferHandler
from worker.intake.offer_maker import OfferMaker
from worker.intake.screening import Screening
from worker.metrics.worker_metrics import WorkerMetrics
from worker.requests.request_tasks import RequestTasks
from worker.runs.engine_pause import EnginePause
from worker.runs.runs import Runs
from worker.runs.token_log import OnFinishConfirmed, TokenLog
from worker.settlement.dead_letters import DeadLetters
from worker.settlement.hand_over import HandOver
from worker.settlement.settler import Settler
from worker.transfer.page_server import PageServer
from worker.transfer.page_wire import Endpoint
from worker.weights.adapters import Adapters
from worker.weights.worker_model import WorkerModel

_LOOK_S = 0.5  # at the streams that every request writes to


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One process of a worker, under an id that is never used again."""

    worker_id: str
    config: WorkerConfig
    cluster: Cluster
    model: WorkerModel
    adapters: Adapters
    engine: EngineHost
    heartbeats: Writability  # whether its own can be written: else those of others may be missed
    metrics: WorkerMetrics
    tracer: Tracer

    def pages(self) -> str:
        """Where those of its engine are, that others may read."""
        return "" if self.engine.ready is None else self.engine.ready.pages


@dataclass(frozen=True, slots=True)
class RunParts:
    """From the engine to the log and out of the queue: what a request needs that runs here."""

    held_requests: HeldRequests
    acks: Acknowledger
    settler: Settler
    token_log: TokenLog
    log_watch: LogWatch
    stream_room: StreamRoom
    pause: EnginePause
    prefixes: PoolPrefixes
    runs: Runs
    hang_watch: HangWatch
    capacity: Capacity
    hand_over: HandOver
    roles: PoolRoles
    peers: PagePeers


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """From a delivery to a run: what a request needs that comes to this worker."""

    dead_letters: DeadLetters
    taker: Taker
    intake: Intake
    offer_handler: OfferHandler
    prefix_reporter: PrefixReporter
    decode_hand_over: DecodeHandOver


def run_parts(of: Incarnation, tasks: RequestTasks) -> RunParts:
    """Each part is given some of those before it."""
    cluster, config, metrics = of.cluster, of.config, of.metrics
    nc, subjects = cluster.nc, cluster.subjects
    held_requests = HeldRequests(of.engine)
    acks = Acknowledger(nc)
    catalog = ModelCatalog(cluster)
    settler = Settler(
        of.worker_id, held_requests, cluster.ownership, acks, catalog, metrics.requests, of.pages
    )
    token_log = TokenLog(
        nc,
        subjects,
        of.worker_id,
        _settling(held_requests, settler, tasks),
        window=config.frame_window,
        max_stall_s=config.ack_wait_s / 2,
    )
    stream_room = StreamRoom(cluster.js, (subjects.tokens_stream, subjects.results_stream), _LOOK_S)
    pause = EnginePause(of.engine, token_log, stream_room)
    prefixes = PoolPrefixes(of.model.weights)
    peers = PagePeers(nc, subjects, of.model.card.pool, of.worker_id, _page_server(of))
    traces = RunTraces(of.tracer, of.worker_id)
    hang_watch = HangWatch(of.engine, held_requests, config.hang_timeout_s, config.max_step_s)
    return RunParts(
        held_requests,
        acks,
        settler,
        token_log,
        LogWatch(cluster, lambda: token_log.last_confirmed),
        stream_room,
        pause,
        prefixes,
        Runs(
            held_requests,
            of.engine,
            token_log,
            of.model.tokenizer,
            prefixes,
            peers,
            traces,
            metrics,
        ),
        hang_watch,
        Capacity(of.engine, held_requests, pause, token_log, hang_watch),
        HandOver(held_requests, token_log, settler),
        PoolRoles(
            cluster,
            of.model.card.pool,
            of.worker_id,
            config.role,
            of.heartbeats,
            has_pages=config.kv_disk_dir is not None,
            sends_pages=peers.server is not None,
        ),
        peers,
    )


def _page_server(of: Incarnation) -> PageServer | None:
    """None where none is wanted. Raises ConfigError."""
    bind, folder = of.config.kv_transfer_bind, of.config.kv_disk_dir
    if bind is None or folder is None:
        return None
    return PageServer(Endpoint.parse(bind), Path(folder).expanduser(), of.metrics.pages)


def _claimant(of: Incarnation) -> Claimant:
    return Claimant(
        of.worker_id,
        of.model.weights,
        of.config.ack_wait_s,
        of.config.revision_grace_s,
        takes=lambda request: of.engine.ready is None or takes_parts(of.engine.ready, request),
        device=lambda: "" if of.engine.gpu is None else of.engine.gpu.name,
    )


def claim_parts(of: Incarnation, parts: RunParts) -> ClaimParts:
    """Each part is given some of those before it."""
    cluster, config, metrics, card = of.cluster, of.config, of.metrics, of.model.card
    held_requests, capacity, settler, acks = (
        parts.held_requests,
        parts.capacity,
        parts.settler,
        parts.acks,
    )
    claimer = Claimer(cluster, LogHistory(cluster), _claimant(of), of.adapters, of.heartbeats)
    quarantine = Quarantine(
        held_requests,
        capacity,
        parts.hand_over,
        parts.token_log,
        metrics.requests,
        config.drain_timeout_s,
    )
    dead_letters = DeadLetters(
        DeadRequests(cluster), config.dead_ttl_s, held_requests, settler, metrics.requests
    )
    taker = Taker(
        claimer, ModelCatalog(cluster), parts.runs, capacity, settler, quarantine, dead_letters
    )
    redeliveries = Redeliveries(
        of.worker_id, cluster.ownership, held_requests, settler, acks, config.ack_wait_s
    )
    screening = Screening(of.worker_id, card, cluster, acks)
    offers = OfferMaker(
        cluster.nc, cluster.subjects, card.pool, parts.prefixes, capacity, metrics.offers
    )
    intake = Intake(screening, redeliveries, capacity, acks, offers, taker, metrics.requests)
    named = NamedSubjects(cluster.subjects)
    return ClaimParts(
        dead_letters,
        taker,
        intake,
        OfferHandler(intake, capacity, parts.prefixes, metrics.offers, cluster.malformed, named),
        PrefixReporter(cluster, card.pool, of.worker_id, parts.prefixes),
        DecodeHandOver(
            parts.roles,
            offers,
            held_requests,
            parts.hand_over,
            intake,
            capacity,
            of.model.weights,
            metrics.decodes,
        ),
    )


def _settling(
    held_requests: HeldRequests, settler: Settler, tasks: RequestTasks
) -> OnFinishConfirmed:
    def on_finish_confirmed(entry: TokenEntry, seq: int) -> None:
        held = held_requests.get(entry.rid)
        if held is None or held.epoch != entry.epoch:
            return
        if not settler.leave_to_reader(held):
            tasks.spawn(settler.settle(held, seq))

    return on_finish_confirmed
