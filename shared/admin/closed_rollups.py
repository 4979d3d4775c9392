"""Takes from writers of a bucket what lets them remove all that is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.cluster import Cluster
from shared.storage.streams import stream_configs
from shared.telemetry.log import get_logger

_FIELD = "allow_rollup_hdrs"

log = get_logger(__name__)


def takes_rollups(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a stream that is configured so has what the stream that is wanted has not."""
    return bool(config.get(_FIELD, False)) and not wanted.get(_FIELD, False)


async def close_rollups(cluster: Cluster) -> list[str]:
    """Of streams that an earlier version has made; those that were changed. Raises BrokerError.

    By a header of a message, its writer had all others of the stream removed.
    """
    changed = []
    for wanted in stream_configs(cluster.config, cluster.subjects):
        name = wanted["name"]
        config = (await cluster.js.api(f"STREAM.INFO.{name}"))["config"]
        if takes_rollups(config, wanted):
            await cluster.js.api(f"STREAM.UPDATE.{name}", config | {_FIELD: False})
            changed.append(name)
    if changed:
        log.info("rollups_closed", streams=changed)
    return changed
