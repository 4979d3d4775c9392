"""What the store of an own nats-server still tells of a `jetflock serve` that was killed."""

from __future__ import annotations

import socket
import time

from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.machine.process_age import process_age_s
from shared.protocol.codec import decode
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerCard

_SLACK_S = 0.05  # the kernel counts the starts of processes in hundredths of a second


async def forget_last_time(cluster: Cluster, model_name: str | None) -> list[str]:
    """Heartbeats that nobody writes, and models that nobody serves, but `model_name`.

    Returns the ids of the workers. Raises BrokerError.
    """
    dead_workers = await _forget_workers(cluster)
    await _forget_supervisors(cluster)
    catalog = ModelCatalog(cluster)
    for card in await catalog.cards():
        if card.name != model_name:
            await catalog.withdraw(card.pool)
    return dead_workers


async def _forget_workers(cluster: Cluster) -> list[str]:
    """Forgets those of this host: those of others, and what cannot be read, expire when nobody
    writes them.
    """
    workers = cluster.bucket(cluster.subjects.workers_bucket)
    dead = []
    for entry in await workers.entries():
        try:
            card = decode(WorkerCard, entry.value)
        except ProtocolError:
            continue
        if _has_died(card.host, card.pid, card.at):
            await workers.delete(entry.key, entry.revision)
            dead.append(card.worker)
    return dead


async def _forget_supervisors(cluster: Cluster) -> None:
    roles = cluster.bucket(cluster.subjects.roles_bucket)
    for entry in await roles.entries():
        try:
            card = decode(RoleCard, entry.value)
        except ProtocolError:
            continue
        if card.role == SUPERVISOR and _has_died(card.host, card.pid, card.started_at):
            await roles.delete(entry.key, entry.revision)


def _has_died(host: str, pid: int, lived_at: float) -> bool:
    """Whether it ran here, and its pid is nobody's now, or that of a younger process: in a
    container, which counts from 1, it often is.
    """
    if host != socket.gethostname():
        return False
    age_s = process_age_s(pid)
    return age_s is None or time.time() - age_s > lived_at + _SLACK_S
