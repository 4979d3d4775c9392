"""The models that there are: cards in KV, tokenizer files in the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from shared.broker.kv_bucket import KvEntry
from shared.broker.objects import ObjectEntry
from shared.broker.settling import once_settled
from shared.catalog.model_status import PoolHeartbeats
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.cluster import Cluster
from shared.errors import (
    BrokerUnavailable,
    CasConflict,
    ConfigError,
    LimitReached,
    MalformedMessage,
    NotFound,
    ProtocolError,
)
from shared.protocol.codec import decode, encode
from shared.protocol.model_cards import ModelCard
from shared.storage.streams import ensure_consumers
from shared.telemetry.log import get_logger

CONFIRMED_S = 3600.0  # how long it holds that an object is in use
_MAX_REPLACED = 64

log = get_logger(__name__)


def read_card(entry: KvEntry) -> ModelCard:
    """The card as it is stored.

    Raises BrokerUnavailable for one that cannot be read: what it should say is unknown.
    """
    try:
        return decode(ModelCard, entry.value)
    except ProtocolError as exc:
        raise BrokerUnavailable(f"the card of {entry.key} cannot be read: {exc}") from exc


class ModelSource(Protocol):
    """What can be registered. Who only reads cards imports nothing that reads checkpoints."""

    def tokenizer_bundle(self) -> TokenizerBundle:
        """Raises ConfigError."""
        ...

    def card(self, name: str, bundle: TokenizerBundle) -> ModelCard:
        """The card under which it is served as `name`. Raises ConfigError."""
        ...


class ModelCatalog:
    """Reads and writes model cards. A card has its tokenizer files and its consumers before it."""

    def __init__(self, cluster: Cluster, older: ModelCatalog | None = None) -> None:
        """`older`: of the streams that the service moves away from, where workers may still be."""
        self._cluster = cluster
        self._objects = cluster.objects(cluster.subjects.objects_bucket)
        self._older = older
        self._cards = cluster.bucket(cluster.subjects.models_bucket)
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)
        self._roles = cluster.bucket(cluster.subjects.roles_bucket)
        self._reported_revisions: set[int] = set()  # of cards that cannot be read

    async def register(
        self,
        checkpoint: ModelSource,
        name: str,
        *,
        is_announced: bool = True,
        is_kept: bool = False,
        starts_over: bool = False,
    ) -> ModelCard:
        """Make a checkpoint servable under `name`: idempotent, and before any worker.

        Who is about to load it announces it afterwards. When an update has replaced this
        checkpoint by another one, the other one's card is given back: who registers shall serve
        that. With `starts_over` only while there are workers.
        Raises ConfigError when the name is taken by other weights.
        """
        bundle = checkpoint.tokenizer_bundle()
        card = msgspec.structs.replace(
            checkpoint.card(name, bundle),
            is_announced=is_announced or is_kept,
            is_kept=is_kept,
        )
        return await self.register_card(card, bundle, starts_over=starts_over)

    async def register_card(
        self, card: ModelCard, bundle: TokenizerBundle, *, starts_over: bool = False
    ) -> ModelCard:
        """`register`, with what was read before."""
        await self.put_bundle(bundle)
        while True:
            try:
                written = await self._register(card, starts_over=starts_over)
            except CasConflict:  # somebody has written it meanwhile
                continue
            await self.put_bundle(bundle)  # who saw no card a moment ago may have deleted it
            return written

    async def _register(self, card: ModelCard, *, starts_over: bool) -> ModelCard:
        """Raises CasConflict, too."""
        existing = await self._cards.get(card.pool)
        stored = None if existing is None else decode(ModelCard, existing.value)
        if stored is not None:
            told = {
                "is_announced": card.is_announced or stored.is_announced,
                "is_kept": card.is_kept or stored.is_kept,
            }
            if (stored.revision, stored.tokenizer_hash) == (card.revision, card.tokenizer_hash):
                card = stored if stored.weights_path else _same_age(card, stored)
            elif card.revision in stored.replaced and not starts_over:
                return stored
            elif await self.has_workers(card.pool):
                if card.revision in stored.replaced:
                    return stored
                raise ConfigError(
                    f"model {card.name!r} is being served with {_difference(stored, card)}; "
                    "use another --model-name"
                )
            card = msgspec.structs.replace(card, adapters=stored.adapters, **told)
        js, subjects, config = self._cluster.js, self._cluster.subjects, self._cluster.config
        await once_settled(
            lambda: ensure_consumers(js, subjects, card.pool, config.ack_wait_s),
            config.nats_connect_timeout_s,
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
            is_announced=before.is_announced,
            is_kept=before.is_kept,
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

    async def announce(self, pool: str, *, is_kept: bool = False) -> None:
        """A worker has loaded the model: it may be asked for. Raises BrokerError."""
        await self._change(
            pool,
            lambda card: msgspec.structs.replace(
                card, is_announced=True, is_kept=card.is_kept or is_kept
            ),
        )

    async def withdraw(self, pool: str, supervisor: str = "") -> bool:
        """Nobody shall ask for it, unless an operator keeps it or somebody serves it.

        `supervisor` is the one that leaves. What was loaded into it comes back with it. Returns
        whether it cannot be asked for now. Raises BrokerError.
        """
        if await self.has_workers(pool) or await self._is_supervised(pool, but_by=supervisor):
            return False
        card = await self._change(
            pool, lambda card: msgspec.structs.replace(card, is_announced=card.is_kept)
        )
        return card is not None and not card.is_announced

    async def _change(
        self, pool: str, change: Callable[[ModelCard], ModelCard]
    ) -> ModelCard | None:
        """Changes it by compare-and-set; returns the card then, None when there is none."""
        while True:
            entry = await self._cards.get(pool)
            if entry is None:
                return None
            card = read_card(entry)
            changed = change(card)
            if changed == card:
                return card
            try:
                await self._cards.put_if(pool, encode(changed), entry.revision)
            except CasConflict:
                continue
            return changed

    async def delete(self, pool: str) -> bool:
        """The card alone; False when somebody serves it, or has written it just now.

        Raises BrokerError.
        """
        entry = await self._cards.get(pool)
        if entry is None:
            return True
        if (await self.heartbeats()).has(pool):
            return False
        await self._cards.delete(pool, entry.revision)
        return await self._cards.get(pool) is None

    async def heartbeats(self) -> PoolHeartbeats:
        """The heartbeats of all workers and supervisors. Raises BrokerError."""
        workers, roles = await self._workers.entries(), await self._roles.entries()
        if (older := self._older) is not None:  # it may be forgotten while it is read
            workers += await older._workers.entries()
            roles += await older._roles.entries()
        return PoolHeartbeats.of(workers, roles)

    def forget_older(self) -> None:
        """Their streams are gone."""
        self._older = None

    async def cards(self) -> list[ModelCard]:
        """All models, oldest first. What is no card is told and left out: it concerns no model."""
        cards = []
        for entry in await self._cards.entries():
            try:
                cards.append(decode(ModelCard, entry.value))
            except ProtocolError as exc:
                # Once: the cards are read every second.
                if entry.revision not in self._reported_revisions:
                    self._reported_revisions.add(entry.revision)
                    log.error("model_card_unreadable", key=entry.key, error=str(exc))
        return sorted(cards, key=lambda card: (card.created, card.name))

    async def put_bundle(self, bundle: TokenizerBundle) -> None:
        """Store tokenizer files under their hash, once. Raises BrokerError."""
        await self.keep_object(bundle.content_hash, bundle.to_bytes)

    async def bundle(self, content_hash: str) -> TokenizerBundle:
        """Fetch tokenizer files. Raises BrokerUnavailable, ConfigError or MalformedMessage."""
        bundle = TokenizerBundle.from_bytes(await self.object(content_hash))
        if bundle.content_hash != content_hash:
            raise MalformedMessage(f"the object {content_hash} holds other tokenizer files")
        return bundle

    async def object(self, name: str) -> bytes:
        """An object's bytes. Raises ConfigError when it is not there, or BrokerUnavailable."""
        try:
            return await self._objects.get(name)
        except NotFound as exc:
            raise ConfigError(f"object {name} is not in the store") from exc

    async def has_object(self, name: str) -> bool:
        """Whether there is one, as the leader knows it. Raises BrokerError."""
        return await self.find_object(name) is not None

    async def put_object(self, name: str, data: bytes) -> None:
        """Raises LimitReached when the store is full, or BrokerUnavailable."""
        try:
            await self._objects.put(name, data)
        except LimitReached as exc:
            raise LimitReached(
                f"the object store has no room for {name} of {len(data)} bytes: raise "
                "--objects-max-bytes, and the limit of its stream (nats stream edit)",
                exc.err_code,
            ) from exc

    async def keep_object(
        self, name: str, data: Callable[[], bytes], *, anew: bool = False
    ) -> None:
        """What a card is about to name, or names: stored once, and not deleted as unused for an
        hour, in which the card has to be written. A confirmation that is fresh does; `anew`, for
        who may meet somebody that deletes at once, makes one of its own.

        Called before the card is written and once more behind it, so that whoever has not seen the
        card deletes nothing that it names. Raises LimitReached or BrokerError.
        """
        while (entry := await self._objects.find(name)) is not None:
            if not anew and entry.is_confirmed and entry.age_s < CONFIRMED_S:
                return
            if await self._objects.confirm(entry):
                return
            if (now := await self._objects.find(name)) is not None and now.seq == entry.seq:
                log.warning("object_not_confirmed", object=name, why="the object store is full")
                return
        await self.put_object(name, await asyncio.to_thread(data))

    async def find_object(self, name: str) -> ObjectEntry | None:
        """The object as the leader knows it. Raises BrokerError."""
        return await self._objects.find(name)

    async def delete_object(self, entry: ObjectEntry) -> bool:
        """Deletes it unless somebody keeps it since `entry` was found; returns whether it is gone.

        Raises BrokerError.
        """
        return await self._objects.delete_unchanged(entry)

    async def erase_object(self, name: str) -> None:
        """Delete it and overwrite its bytes: it is somebody's prompt. Raises BrokerError."""
        await self._objects.erase(name)

    async def has_workers(self, pool: str) -> bool:
        return bool(await self._workers.entries(f"{pool}."))

    async def _is_supervised(self, pool: str, but_by: str) -> bool:
        cards = PoolHeartbeats.of((), await self._roles.entries()).supervisors
        return any(card.id != but_by for card in cards.get(pool, ()))


def _same_age(card: ModelCard, stored: ModelCard) -> ModelCard:
    return msgspec.structs.replace(card, created=stored.created)


def _difference(served: ModelCard, own: ModelCard) -> str:
    """What a checkpoint that is to be served under the same name has otherwise."""
    if served.revision == own.revision:
        return "another tokenizer or chat template"
    return f"other weights (revision {served.revision}, this checkpoint is {own.revision})"
