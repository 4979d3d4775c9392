"""What the store of an own nats-server still tells of a `jetflock serve` that was killed."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import ProtocolError
from shared.protocol.codec import decode
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerCard

_SLACK_S = 0.05  # the kernel counts the starts of processes in hundredths of a second
_DEAD_STATES = "ZXx"
_STATE, _START_TICKS = 0, 19  # places behind the name of the program, which may hold blanks


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
    started = started_at(pid, time.time())
    return started is None or started > lived_at + _SLACK_S


def started_at(pid: int, now: float) -> float | None:
    """When a process of this host began, as /proc tells it, by the clock that shows `now`.

    None when there is no such process, or it only waits to be reaped.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[_STATE] in _DEAD_STATES:
        return None
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return now - uptime_s + int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
