"""The LoRA adapters of the models: named in the model cards, their files in the object store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from shared.catalog.model_catalog import ModelCatalog, read_card
from shared.checkpoint.lora_files import LoraFiles
from shared.cluster import Cluster
from shared.errors import CasConflict, ConfigError, MalformedMessage, NotFound
from shared.protocol.codec import encode
from shared.protocol.model_cards import AdapterCard

_MAX_NAME_LEN = 256
_ADAPTER = "lora-"

Cards = tuple[AdapterCard, ...]


class AdapterCatalog:
    """An adapter's files are in the store before its card names them, and as long as it does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._catalog = ModelCatalog(cluster)
        self._models = cluster.bucket(cluster.subjects.models_bucket)

    async def cards(self, pool: str) -> Cards:
        """The cards as the leader knows them; a model that is not there has none.

        Raises BrokerError, also while the model's card cannot be read.
        """
        entry = await self._models.get(pool)
        return () if entry is None else read_card(entry).adapters

    async def files(self, pool: str, revision: str) -> LoraFiles:
        """Raises ConfigError, MalformedMessage or BrokerUnavailable."""
        data = await self._catalog.object(adapter_object(pool, revision))
        files = await asyncio.to_thread(LoraFiles.from_bytes, data)
        if files.revision != revision:
            raise MalformedMessage(f"the adapter's object holds revision {files.revision}")
        return files

    async def add(
        self, pool: str, name: str, files: LoraFiles, path: str, *, may_replace: bool = False
    ) -> AdapterCard:
        """Idempotent. Another revision of the same name goes only if `may_replace`.

        Raises ConfigError when the name is taken, NotFound without such a model, or BrokerError.
        """
        await self._check_name(pool, name)
        card = AdapterCard(name, files.revision, files.rank, int(time.time()), path)
        await self._put_files(pool, files)

        def added(cards: Cards) -> Cards:
            existing = next((each for each in cards if each.name == name), None)
            if existing is None:
                return (*cards, card)
            if existing.revision == files.revision:
                return cards
            if may_replace:
                return tuple(card if each.name == name else each for each in cards)
            raise ConfigError(
                f"the LoRA adapter {name!r} is loaded with revision {existing.revision}, this one "
                f"is {files.revision}: unload it first, or take another name"
            )

        before = await self._change(pool, added)
        await self._put_files(pool, files)  # who unloaded the same meanwhile has deleted them
        for each in before:
            if each.name == name and each.revision != files.revision:
                await self._delete_files(pool, each.revision)
        return card

    async def remove(self, pool: str, name: str) -> AdapterCard:
        """Raises NotFound or BrokerError."""
        before = await self._change(
            pool, lambda cards: tuple(each for each in cards if each.name != name)
        )
        removed = next((each for each in before if each.name == name), None)
        if removed is None:
            raise NotFound(f"There is no LoRA adapter {name!r}.", param="lora_name")
        await self._delete_files(pool, removed.revision)
        return removed

    async def _check_name(self, pool: str, name: str) -> None:
        """Raises ConfigError."""
        if not name or len(name) > _MAX_NAME_LEN or not name.isprintable():
            raise ConfigError(f"a LoRA adapter cannot have the name {name[:_MAX_NAME_LEN]!r}")
        for model in await self._catalog.cards():
            others = {each.name for each in model.adapters} if model.pool != pool else set()
            if name == model.name or name in others:
                raise ConfigError(f"a LoRA adapter cannot have the name of {name!r}: it is served")

    async def _change(self, pool: str, change: Callable[[Cards], Cards]) -> Cards:
        """Changes the cards by compare-and-set; returns those before."""
        while True:
            entry = await self._models.get(pool)
            if entry is None:
                raise NotFound("The model is not served.", param="model")
            model = read_card(entry)
            adapters = change(model.adapters)
            if adapters == model.adapters:
                return model.adapters
            changed = msgspec.structs.replace(model, adapters=adapters)
            try:
                await self._models.put_if(pool, encode(changed), entry.revision)
                return model.adapters
            except CasConflict:
                continue

    async def _put_files(self, pool: str, files: LoraFiles) -> None:
        """Once. Raises LimitReached or BrokerError."""
        name = adapter_object(pool, files.revision)
        await self._catalog.keep_object(name, files.to_bytes, anew=True)

    async def _delete_files(self, pool: str, revision: str) -> None:
        """Deletes the files, unless another name stands for them, too. Raises BrokerError.

        They are looked up before the cards: who loads the same meanwhile keeps them anew, before
        its card is written or behind it, and what is deleted is what no card had named.
        """
        entry = await self._catalog.find_object(adapter_object(pool, revision))
        if entry is None or any(each.revision == revision for each in await self.cards(pool)):
            return
        await self._catalog.delete_object(entry)


def adapter_object(pool: str, revision: str) -> str:
    """Object store name of an adapter's files."""
    return f"{_ADAPTER}{pool}-{revision}"


def is_adapter_object(name: str) -> bool:
    """Whether an object of this name holds an adapter's files."""
    return name.startswith(_ADAPTER)
