"""Forgets a model that nobody serves: its card, its adapters, its queue."""

from __future__ import annotations

import contextlib

from shared.admin.control_plane import ControlPlane
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError, ConfigError, NotFound
from shared.protocol.model_cards import ModelCard

_NO_SUCH_CONSUMER = 10014


async def forget_model(cluster: Cluster, plane: ControlPlane, name: str) -> int:
    """End what is queued for it, then delete all of it; returns how many requests were ended.

    Its tokenizer files stay as long as results that are kept are read with them; a frontend deletes
    them then, if no other card names them. Raises NotFound, ConfigError when it is being served, or
    BrokerError.
    """
    catalog = ModelCatalog(cluster)
    card = next((card for card in await catalog.cards() if card.name == name), None)
    if card is None:
        raise NotFound(f"There is no model {name!r}.", param="model")
    if (await catalog.heartbeats()).has(card.pool):
        raise _served(name)
    num_ended = await plane.abort_all(name)
    for adapter in card.adapters:
        with contextlib.suppress(NotFound):
            await AdapterCatalog(cluster).remove(card.pool, adapter.name)
    if not await catalog.delete(card.pool):
        raise _served(name)
    await _delete_queue(cluster, card)
    return num_ended


def _served(name: str) -> ConfigError:
    return ConfigError(f"the model {name!r} is being served: stop its workers first")


async def _delete_queue(cluster: Cluster, card: ModelCard) -> None:
    """Only `end` records are left of its requests: nobody waits for what is in there."""
    subjects, js = cluster.subjects, cluster.js
    stream = subjects.requests_stream
    await js.purge(stream, subjects.requests(card.pool, "*"))
    for name in subjects.consumers(card.pool):
        await _delete_consumer(cluster, name)


async def _delete_consumer(cluster: Cluster, name: str) -> None:
    try:
        await cluster.js.api(f"CONSUMER.DELETE.{cluster.subjects.requests_stream}.{name}")
    except BrokerError as exc:
        if exc.err_code != _NO_SUCH_CONSUMER:
            raise
