"""How long a request has waited in the queue, and whether that was too long."""

from __future__ import annotations

from shared.cluster import Cluster
from shared.protocol.request import GenerateRequest
from worker.held.delivery import Delivery

_READING_S = 5.0  # one look at the clock serves all deliveries of so many seconds


async def waited_s(cluster: Cluster, request: GenerateRequest, delivery: Delivery) -> float:
    """Seconds since it was queued, and never more where they are more than its deadline.

    Raises BrokerError.
    """
    js, stream = cluster.js, cluster.subjects.requests_stream
    age_s = (await js.clock(stream, _READING_S)).age_s(delivery.queued_at)
    if age_s > request.deadline_s:
        age_s = (await js.clock(stream)).age_s(delivery.queued_at)
    return age_s


async def is_overdue(cluster: Cluster, request: GenerateRequest, delivery: Delivery) -> bool:
    """Whether the deadline has passed of a request that nobody here runs. Raises BrokerError."""
    return await waited_s(cluster, request, delivery) > request.deadline_s
