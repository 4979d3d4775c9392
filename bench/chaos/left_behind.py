"""What is still in the queue when every client has its answer, and what is known of it."""

from __future__ import annotations

from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError
from shared.protocol.codec import decode
from shared.protocol.log_records import Claim
from shared.protocol.request import GenerateRequest
from shared.subjects import LANES


async def tell_left_behind(cluster: Cluster, pool: str) -> list[str]:
    """A line for each request, and one for each consumer that counts any. Raises BrokerError."""
    subjects = cluster.subjects
    lines = []
    queue = subjects.requests("*", "*")
    async for message in cluster.js.proven_scan(subjects.requests_stream, queue):
        try:
            request = decode(GenerateRequest, message.data)
        except ProtocolError as exc:
            lines.append(f"sequence {message.seq} on {message.subject}: {exc}")
            continue
        lines.append(
            f"sequence {message.seq} on {message.subject}: {await _fate(cluster, request)}"
        )
    for lane in LANES:
        name = subjects.consumer(pool, lane.token)
        info = await cluster.js.api(f"CONSUMER.INFO.{subjects.requests_stream}.{name}")
        if info["num_pending"] or info["num_ack_pending"]:
            lines.append(
                f"consumer {name}: pending {info['num_pending']}, "
                f"unacknowledged {info['num_ack_pending']}, delivered {info['delivered']}, "
                f"acknowledged up to {info['ack_floor']}"
            )
    return lines


async def _fate(cluster: Cluster, request: GenerateRequest) -> str:
    """Who had it last, and whether its result is stored."""
    subjects = cluster.subjects
    records = await cluster.ownership.read(request.rid)
    chain = " ".join(
        f"{type(stored.record).__name__.lower()}@{stored.seq}"
        + (f" by {stored.record.worker}" if isinstance(stored.record, Claim) else "")
        for stored in records
    )
    done = await cluster.js.get_last(subjects.results_stream, subjects.done(request.rid))
    result = "no result" if done is None else f"result at {done.seq}"
    frontend = request.reply.frontend_id
    return f"{request.rid} of {frontend}, {chain or 'never claimed'}, {result}"


async def say_left_behind(cluster: Cluster, pool: str) -> str:
    """All of it; a broker that cannot tell is no error here."""
    try:
        return "; ".join(await tell_left_behind(cluster, pool))
    except BrokerError as exc:
        return f"and the broker does not tell more: {exc}"
