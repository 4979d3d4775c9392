"""Whether the deadline of a request that nobody here runs has passed."""

from __future__ import annotations

import datetime

from shared.cluster import Cluster
from shared.protocol.request import GenerateRequest
from worker.delivery import Delivery


async def is_overdue(cluster: Cluster, request: GenerateRequest, delivery: Delivery) -> bool:
    """By the server's clock; ours only tells whether it is worth asking. Raises BrokerError."""
    our_age_s = (datetime.datetime.now(datetime.UTC) - delivery.queued_at).total_seconds()
    if abs(our_age_s) < request.deadline_s / 2:
        return False
    now = await cluster.js.server_time(cluster.subjects.tokens_stream)
    return (now - delivery.queued_at).total_seconds() > request.deadline_s
