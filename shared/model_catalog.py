"""The models that are served: cards in KV, tokenizer files in the object store."""

from __future__ import annotations

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from shared.cluster import Cluster
from shared.codec import decode, encode
from shared.errors import (
    BrokerUnavailable,
    CasConflict,
    ConfigError,
    MalformedMessage,
    NotFound,
    ProtocolError,
)
from shared.log import get_logger
from shared.model_files import ModelFiles
from shared.protocol.model_cards import ModelCard
from shared.streams import ensure_consumers
from shared.tokenizer_bundle import TokenizerBundle

_MAX_REPLACED = 64

log = get_logger(__name__)


class ModelCatalog:
    """Reads and writes model cards. A card has its tokenizer files and its consumers before it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cards = cluster.bucket(cluster.subjects.models_bucket)
        self._told_revisions: set[int] = set()  # of cards that cannot be read

    async def register(
        self, files: ModelFiles, name: str, *, starts_over: bool = False
    ) -> ModelCard:
        """Make a checkpoint servable under `name`: idempotent, and before any worker.

        When an update has replaced this checkpoint by another one, the other one's card is given
        back: who registers shall serve that. With `starts_over` only while there are workers.
        Raises ConfigError when the name is taken by other weights.
        """
        bundle = files.tokenizer_bundle()
        await self.put_bundle(bundle)
        while True:
            try:
                return await self._register(files.card(name, bundle), starts_over=starts_over)
            except CasConflict:  # somebody has written it meanwhile
                continue

    async def _register(self, card: ModelCard, *, starts_over: bool) -> ModelCard:
        """Raises CasConflict, too."""
        existing = await self._cards.get(card.pool)
        stored = None if existing is None else decode(ModelCard, existing.value)
        if stored is not None:
            if (stored.revision, stored.tokenizer_hash) == (card.revision, card.tokenizer_hash):
                card = stored if stored.weights_path else _same_age(card, stored)
            elif card.revision in stored.replaced and not starts_over:
                return stored
            elif await self.has_workers(card.pool):
                if card.revision in stored.replaced:
                    return stored
                raise ConfigError(
                    f"model {card.name!r} is being served with other weights (revision "
                    f"{stored.revision}, this checkpoint is {card.revision}); "
                    "use another --model-name"
                )
            card = msgspec.structs.replace(card, adapters=stored.adapters)
        await ensure_consumers(
            self._cluster.js, self._cluster.subjects, card.pool, self._cluster.config.ack_wait_s
        )
        # Who may only read finds nothing to do where `jetflock setup` was before.
        if stored != card:
            await self._cards.put_if(card.pool, encode(card), existing.revision if existing else 0)
        return card

    async def replace_weights(self, successor: ModelCard, weights_path: str) -> ModelCard:
        """From now on workers of the model load the checkpoint there; returns the card before.

        Raises NotFound or BrokerError; CasConflict when somebody else has written it meanwhile.
        """
        entry = await self._cards.get(successor.pool)
        if entry is None:
            raise NotFound(f"No model {successor.name!r} is served.", param="model")
        before = decode(ModelCard, entry.value)
        replaced = dict.fromkeys((*before.replaced, before.revision))
        replaced.pop(successor.revision, None)
        card = msgspec.structs.replace(
            successor,
            created=before.created,
            adapters=before.adapters,
            weights_path=weights_path,
            replaced=tuple(replaced)[-_MAX_REPLACED:],
        )
        await self._cards.put_if(card.pool, encode(card), entry.revision)
        return before

    async def put_back(self, card: ModelCard) -> None:
        """The card that was there before a replacement of which nothing came."""
        now = await self._cards.get(card.pool)
        if now is not None:
            adapters = decode(ModelCard, now.value).adapters
            card = msgspec.structs.replace(card, adapters=adapters)
        await self._cards.put(card.pool, encode(card))

    async def cards(self) -> list[ModelCard]:
        """All models, oldest first. What is no card is told and left out: it concerns no model."""
        cards = []
        for entry in await self._cards.entries():
            try:
                cards.append(decode(ModelCard, entry.value))
            except ProtocolError as exc:
                if entry.revision not in self._told_revisions:  # the cards are read every second
                    self._told_revisions.add(entry.revision)
                    log.error("model_card_unreadable", key=entry.key, error=str(exc))
        return sorted(cards, key=lambda card: (card.created, card.name))

    async def put_bundle(self, bundle: TokenizerBundle) -> None:
        """Store tokenizer files under their hash, once."""
        if not await self.has_object(bundle.content_hash):
            await self.put_object(bundle.content_hash, bundle.to_bytes())

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

    async def has_object(self, name: str) -> bool:
        try:
            await (await self._object_store()).get_info(name)
        except (NotFoundError, ObjectNotFoundError):
            return False
        return True

    async def put_object(self, name: str, data: bytes) -> None:
        await (await self._object_store()).put(name, data)

    async def delete_object(self, name: str) -> None:
        await (await self._object_store()).delete(name)

    async def has_workers(self, pool: str) -> bool:
        workers = self._cluster.bucket(self._cluster.subjects.workers_bucket)
        return any(entry.key.startswith(f"{pool}.") for entry in await workers.entries())

    async def _object_store(self) -> ObjectStore:
        return await self._cluster.nc.jetstream().object_store(
            self._cluster.subjects.objects_bucket
        )


def _same_age(card: ModelCard, stored: ModelCard) -> ModelCard:
    return msgspec.structs.replace(card, created=stored.created)
