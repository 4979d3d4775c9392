"""How many requests wait for a model, and how many workers have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from shared.broker.queue_age import oldest_wait_s
from shared.cluster import Cluster
from shared.protocol.model_cards import ModelCard
from shared.snapshot.cluster_snapshot import QueueDepth
from shared.subjects import JOB_CLASSES, LANES, Lane


async def queue_depths(cluster: Cluster, cards: Iterable[ModelCard]) -> Sequence[QueueDepth]:
    """Of each of these models, by class. Raises BrokerError."""
    depths = (_depth(cluster, card, each) for card in cards for each in JOB_CLASSES)
    return await asyncio.gather(*depths)


async def _depth(cluster: Cluster, card: ModelCard, job_class: str) -> QueueDepth:
    lanes = [lane for lane in LANES if lane.job_class == job_class]
    infos = await asyncio.gather(*(_lane_info(cluster, card.pool, lane) for lane in lanes))
    js, stream = cluster.js, cluster.subjects.requests_stream
    ages = await asyncio.gather(*(oldest_wait_s(js, stream, info) for info in infos))
    return QueueDepth(
        card.name,
        job_class,
        sum(int(info["num_pending"]) for info in infos),
        sum(int(info["num_ack_pending"]) for info in infos),
        round(max(ages), 3),
    )


async def _lane_info(cluster: Cluster, pool: str, lane: Lane) -> dict[str, Any]:
    subjects = cluster.subjects
    consumer = subjects.consumer(pool, lane.token)
    return await cluster.js.api(f"CONSUMER.INFO.{subjects.requests_stream}.{consumer}")
