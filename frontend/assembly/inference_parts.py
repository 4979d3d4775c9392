"""What takes requests in on one set of streams, and sees them to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from frontend.assembly.background import Background
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.inference.acceptor import Acceptor, Keepers
from frontend.inference.admission.admission import Admission
from frontend.inference.admission.queue_limits import QueueLimits
from frontend.inference.answers.attachments import Attachments
from frontend.inference.answers.object_sweeper import ObjectSweeper
from frontend.inference.answers.open_answers import OpenAnswers
from frontend.inference.answers.orphan_sweeper import OrphanSweeper
from frontend.inference.answers.terminator import StreamWatch, Terminator
from frontend.inference.idempotency import IdempotencyStore, KeyedStarts
from frontend.inference.inference_side import InferenceSide
from frontend.inference.job_requests import JobRequests
from frontend.inference.public_prefixes import PublicPrefixes
from frontend.inference.resuming.known_requests import KnownRequests
from frontend.inference.resuming.resumer import Resumer
from frontend.inference.submitter import Submitter
from frontend.inference.telemetry.recent_requests import RecentRequests
from frontend.inference.telemetry.server_span import ServerSpans
from frontend.inference.tokenizing import Tokenizing
from frontend.surfaces.answer import Answer
from frontend.surfaces.anthropic.message_request import MessageRequests
from frontend.surfaces.chat.chat_batch import ChatBatches
from frontend.surfaces.chat.chat_request import ChatRequests
from frontend.surfaces.classes.class_request import ClassRequests, PoolingRequests
from frontend.surfaces.completions.completion_request import CompletionRequests
from frontend.surfaces.embeddings.embedding_request import EmbeddingRequests
from frontend.surfaces.embeddings.pooled_inputs import PooledInputs
from frontend.surfaces.forks.fork_request import ForkRequests
from frontend.surfaces.generate.generate_request import GenerateRequests
from frontend.surfaces.infill.infill_request import InfillRequests
from frontend.surfaces.job_reader import BodyReader, JobReader
from frontend.surfaces.ollama.requests import OllamaChats, OllamaCompletions, OllamaEmbeddings
from frontend.surfaces.responses.request import ResponseRequests
from frontend.surfaces.responses.request_keeper import RequestKeeper
from frontend.surfaces.responses.response_starts import ResponseStarts
from frontend.surfaces.scores.rerank_request import RerankRequests
from frontend.surfaces.scores.score_request import ScoreRequests
from frontend.surfaces.transcripts.transcript_request import TranscriptRequests
from shared.protocol.reply import Surface


@dataclass(frozen=True, slots=True)
class SurfaceParts:
    """`jobs` reads the bodies of all APIs; three readers are asked for tokens alone, too."""

    chats: ChatRequests
    messages: MessageRequests
    responses: ResponseRequests
    jobs: JobReader

    @classmethod
    def of(cls, process: ProcessParts, streams: StreamParts) -> Self:
        models, encoder, images = streams.models, process.encoder, process.images
        chats = ChatRequests(models, encoder, images, styles=process.styles)
        messages = MessageRequests(models, chats)
        responses = ResponseRequests(
            models,
            encoder,
            streams.responses,
            streams.conversations,
            images,
            styles=process.styles,
        )
        inputs = PooledInputs(models, encoder, chats)
        embeddings = EmbeddingRequests(inputs)
        open_ended = CompletionRequests(models, encoder, default_max_tokens=None)
        readers: dict[Surface, BodyReader] = {
            Surface.CHAT: chats,
            Surface.CHAT_BATCH: ChatBatches(chats),
            Surface.COMPLETIONS: CompletionRequests(models, encoder),
            Surface.EMBEDDINGS: embeddings,
            Surface.SCORE: ScoreRequests(models, encoder),
            Surface.RERANK: RerankRequests(models, encoder),
            Surface.CLASSIFY: ClassRequests(inputs),
            Surface.POOLING: PoolingRequests(inputs),
            Surface.GENERATE: GenerateRequests(models, encoder),
            Surface.INFILL: InfillRequests(models, encoder),
            Surface.RESPONSES: responses,
            Surface.MESSAGES: messages,
            Surface.OLLAMA_CHAT: OllamaChats(models, chats),
            Surface.OLLAMA_GENERATE: OllamaCompletions(models, chats, open_ended),
            Surface.OLLAMA_EMBED: OllamaEmbeddings(models, embeddings),
            **{
                surface: TranscriptRequests(models, encoder, process.audio, surface)
                for surface in (Surface.TRANSCRIPTION, Surface.TRANSLATION)
            },
            Surface.FORK: ForkRequests(models, encoder, streams.fork_sources),
        }
        return cls(chats, messages, responses, JobReader(readers, process.grammars))


@dataclass(frozen=True, slots=True)
class EndParts:
    """What ends requests on one set of streams: whoever has joined one there reads it."""

    attachments: Attachments
    terminator: Terminator
    recent: RecentRequests
    answers: OpenAnswers

    @classmethod
    def of(cls, process: ProcessParts, streams: StreamParts) -> Self:
        cluster, frontend_id = streams.cluster, process.frontend_id
        metrics = process.metrics.answers
        bucket = cluster.bucket(cluster.subjects.attached_bucket)
        attachments = Attachments(bucket, frontend_id)
        terminator = Terminator(
            cluster, streams.catalog, streams.router, attachments, metrics, frontend_id
        )
        recent = RecentRequests(streams.router)
        answers = OpenAnswers(streams.router, terminator, recent, metrics, frontend_id)
        return cls(attachments, terminator, recent, answers)


@dataclass(frozen=True, slots=True)
class InferenceParts:
    """`side` is asked by transports; some of its parts are asked by others, too."""

    surfaces: SurfaceParts
    ends: EndParts
    admission: Admission
    tokenizing: Tokenizing
    side: InferenceSide
    stream_watch: StreamWatch
    orphan_sweeper: OrphanSweeper
    object_sweeper: ObjectSweeper

    @classmethod
    def of(cls, process: ProcessParts, streams: StreamParts) -> Self:
        surfaces = SurfaceParts.of(process, streams)
        ends = EndParts.of(process, streams)
        admission = _admission(process, streams)
        resumer = _resumer(process, streams, ends, admission)
        side = InferenceSide(
            surfaces.jobs,
            _acceptor(process, streams, surfaces, ends, admission),
            resumer,
            KnownRequests(streams.router, streams.finder, ends.terminator, streams.responses),
            admission,
            _keyed_starts(process, streams),
            _spans(process),
            process.frontend_id,
        )
        return cls(
            surfaces=surfaces,
            ends=ends,
            admission=admission,
            tokenizing=Tokenizing(streams.models, process.encoder, surfaces.chats, admission),
            side=side,
            stream_watch=StreamWatch(streams.router, ends.terminator, streams.models),
            orphan_sweeper=_orphan_sweeper(process, streams, ends, resumer),
            object_sweeper=ObjectSweeper(streams.cluster, process.frontend_id),
        )

    @property
    def background(self) -> Sequence[Background]:
        return self.stream_watch, self.orphan_sweeper, self.object_sweeper


def _admission(process: ProcessParts, streams: StreamParts) -> Admission:
    metrics = process.metrics.acceptance
    limits = QueueLimits(streams.queue_watch, process.config.queue_limits(), streams.models.named)
    return Admission(process.ledger, streams.queue_watch, limits, streams.limits, metrics)


def _resumer(
    process: ProcessParts, streams: StreamParts, ends: EndParts, admission: Admission
) -> Resumer:
    return Resumer(
        streams.finder,
        streams.router,
        streams.models,
        ends.attachments,
        streams.responses,
        ends.answers,
        admission,
        process.metrics.streams,
    )


def _acceptor(
    process: ProcessParts,
    streams: StreamParts,
    surfaces: SurfaceParts,
    ends: EndParts,
    admission: Admission,
) -> Acceptor:
    return Acceptor(
        streams.models,
        _job_requests(process, streams, surfaces),
        admission,
        streams.router,
        ends.attachments,
        Keepers(
            ResponseStarts(streams.responses, streams.conversations),
            RequestKeeper(
                streams.responses, process.config.keep_requests, process.config.keep_share
            ),
        ),
        _submitter(process, streams, ends),
        ends.answers,
    )


def _submitter(process: ProcessParts, streams: StreamParts, ends: EndParts) -> Submitter:
    drain = streams.queue_watch.drain
    metrics = process.metrics.acceptance
    return Submitter(streams.cluster, streams.catalog, ends.terminator, drain, metrics)


def _job_requests(
    process: ProcessParts, streams: StreamParts, surfaces: SurfaceParts
) -> JobRequests:
    declared = process.config.declared_prefixes()
    return JobRequests(
        streams.cluster.nc,
        streams.router.subject,
        streams.cache_scope,
        PublicPrefixes(declared, surfaces.chats, process.encoder),
    )


def _keyed_starts(process: ProcessParts, streams: StreamParts) -> KeyedStarts[Answer]:
    cluster = streams.cluster
    bucket = cluster.bucket(cluster.subjects.idempotency_bucket)
    store = IdempotencyStore(bucket, streams.limits)
    return KeyedStarts(store, process.metrics.acceptance, process.frontend_id)


def _spans(process: ProcessParts) -> ServerSpans:
    return ServerSpans(process.tracer, process.frontend_id, process.config.host, process.port)


def _orphan_sweeper(
    process: ProcessParts, streams: StreamParts, ends: EndParts, resumer: Resumer
) -> OrphanSweeper:
    return OrphanSweeper(
        streams.cluster,
        ends.terminator,
        ends.attachments,
        process.frontend_id,
        process.config.orphan_wait_s,
        resumer.is_in_line,
        streams.heartbeat.writability,
    )
