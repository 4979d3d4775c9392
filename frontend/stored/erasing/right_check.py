"""Whether the frontend may erase, asked before anybody relies on it."""

from __future__ import annotations

from shared.broker.settling import once_settled
from shared.cluster import Cluster
from shared.errors import BrokerError, BrokerUnavailable, ConfigError
from shared.nats_client.role_client import RoleClient

_NOBODY = "none"  # no request has such an id


async def check_right_to_erase(cluster: Cluster) -> None:
    """By a purge of nothing. Raises ConfigError."""
    try:
        await once_settled(lambda: _purge(cluster), cluster.config.nats_connect_timeout_s)
    except BrokerError as exc:
        raise ConfigError(f"JetStream at {cluster.config.nats_url} purges nothing: {exc}") from exc


async def _purge(cluster: Cluster) -> None:
    js, subjects = cluster.js, cluster.subjects
    try:
        await js.purge(subjects.responses_stream, subjects.response(_NOBODY))
    except BrokerUnavailable as exc:
        nc = js.erasing_nc
        if isinstance(nc, RoleClient) and subjects.responses_stream.lower() in nc.last_refusal:
            given = "the user of --nats-user" if nc is js.nc else "the user of --nats-eraser-user"
            raise ConfigError(
                f"{given} may not delete what frontends delete: NATS says {nc.last_refusal!r}; "
                "`jetflock nats-users` makes a user for it, which frontends are told by "
                "--nats-eraser-user (or nkey, or credentials)"
            ) from exc
        raise
