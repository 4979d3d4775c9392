"""The models that are served: cards in KV, tokenizer files in the object store."""

from __future__ import annotations

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from shared.cluster import Cluster
from shared.codec import decode, encode
from shared.errors import BrokerUnavailable, ConfigError, MalformedMessage, ProtocolError
from shared.log import get_logger
from shared.model_files import ModelFiles
from shared.protocol import ModelCard
from shared.streams import ensure_consumers
from shared.tokenizer_bundle import TokenizerBundle

log = get_logger(__name__)


class ModelCatalog:
    """Reads and writes model cards. A card has its tokenizer files and its consumers before it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cards = cluster.bucket(cluster.subjects.models_bucket)

    async def register(self, files: ModelFiles, name: str) -> ModelCard:
        """Make a checkpoint servable under `name`: idempotent, and before any worker.

        Raises ConfigError when the name is taken by other weights.
        """
        bundle = files.tokenizer_bundle()
        card = files.card(name, bundle)
        existing = await self._cards.get(card.pool)
        stored = None if existing is None else decode(ModelCard, existing.value)
        if stored is not None:
            if (stored.revision, stored.tokenizer_hash) == (card.revision, card.tokenizer_hash):
                card = msgspec.structs.replace(card, created=stored.created)
            elif await self._has_workers(card.pool):
                raise ConfigError(
                    f"model {name!r} is being served with other weights (revision "
                    f"{stored.revision}, this checkpoint is {card.revision}); "
                    "use another --model-name"
                )
        await self.put_bundle(bundle)
        await ensure_consumers(
            self._cluster.js, self._cluster.subjects, card.pool, self._cluster.config.ack_wait_s
        )
        # Who may only read finds nothing to do where `jetflock setup` was before.
        if stored != card:
            await self._cards.put(card.pool, encode(card))
        return card

    async def cards(self) -> list[ModelCard]:
        """All models, oldest first. What is no card is told and left out: it concerns no model."""
        cards = []
        for entry in await self._cards.entries():
            try:
                cards.append(decode(ModelCard, entry.value))
            except ProtocolError as exc:
                log.error("model_card_unreadable", key=entry.key, error=str(exc))
        return sorted(cards, key=lambda card: (card.created, card.name))

    async def put_bundle(self, bundle: TokenizerBundle) -> None:
        """Store tokenizer files under their hash, once."""
        store = await self._object_store()
        try:
            await store.get_info(bundle.content_hash)
        except (NotFoundError, ObjectNotFoundError):
            await store.put(bundle.content_hash, bundle.to_bytes())

    async def bundle(self, content_hash: str) -> TokenizerBundle:
        """Fetch tokenizer files. Raises BrokerUnavailable, ConfigError or MalformedMessage."""
        bundle = TokenizerBundle.from_bytes(await self.object(content_hash))
        if bundle.content_hash != content_hash:
            raise MalformedMessage(f"the object {content_hash} holds other tokenizer files")
        return bundle

    async def object(self, name: str) -> bytes:
        """An object's bytes. Raises ConfigError when it is not there, or BrokerUnavailable."""
        try:
            result = await (await self._object_store()).get(name)
        except (NotFoundError, ObjectNotFoundError) as exc:
            raise ConfigError(f"object {name} is not in the store") from exc
        except (NatsError, TimeoutError) as exc:  # also: pieces of it, from a replica that lags
            raise BrokerUnavailable(f"could not fetch object {name}: {exc!r}") from exc
        assert result.data is not None
        return result.data

    async def put_object(self, name: str, data: bytes) -> None:
        await (await self._object_store()).put(name, data)

    async def delete_object(self, name: str) -> None:
        await (await self._object_store()).delete(name)

    async def _has_workers(self, pool: str) -> bool:
        workers = self._cluster.bucket(self._cluster.subjects.workers_bucket)
        return any(entry.key.startswith(f"{pool}.") for entry in await workers.entries())

    async def _object_store(self) -> ObjectStore:
        return await self._cluster.nc.jetstream().object_store(
            self._cluster.subjects.objects_bucket
        )
