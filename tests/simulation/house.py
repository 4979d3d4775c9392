"""What all schedules share and none changes: names, configurations, a tokenizer, metrics."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from detok.config import DetokConfig
from frontend.config import FrontendConfig
from frontend.metrics import FrontendMetrics
from shared.protocol.model_cards import ModelCard
from shared.storage.streams import stream_configs
from shared.subjects import LANES, Subjects
from tests.worker.io_stage import POOL, make_card, make_tokenizer
from worker.config import WorkerConfig
from worker.metrics.worker_metrics import WorkerMetrics

ACK_WAIT_S = 2.0
ORPHAN_WAIT_S = 3.0


@dataclass(frozen=True)
class House:
    """Made once: building it costs more than a schedule."""

    subjects: Subjects
    streams: tuple[dict[str, Any], ...]
    consumers: tuple[dict[str, Any], ...]
    worker_config: WorkerConfig
    detok_config: DetokConfig
    frontend_config: FrontendConfig
    worker_metrics: WorkerMetrics
    frontend_metrics: FrontendMetrics
    tokenizer: Tokenizer
    card: ModelCard


@functools.cache
def house(num_partitions: int) -> House:
    common: dict[str, Any] = {"ack_wait_s": ACK_WAIT_S, "num_partitions": num_partitions}
    subjects = Subjects("jf", num_partitions)
    worker_config = WorkerConfig(**common, drain_timeout_s=0.5, bills_ttl_s=86_400.0)
    consumers = tuple(
        {
            "durable_name": subjects.consumer(POOL, lane.token),
            "filter_subject": subjects.requests(POOL, lane.token),
            "ack_wait": int(ACK_WAIT_S * 1e9),
        }
        for lane in LANES
    )
    return House(
        subjects=subjects,
        streams=tuple(stream_configs(worker_config, subjects)),
        consumers=consumers,
        worker_config=worker_config,
        detok_config=DetokConfig(**common),
        frontend_config=FrontendConfig(**common, orphan_wait_s=ORPHAN_WAIT_S),
        worker_metrics=WorkerMetrics(CollectorRegistry(), "m"),
        frontend_metrics=FrontendMetrics(CollectorRegistry()),
        tokenizer=make_tokenizer(),
        card=make_card(),
    )
