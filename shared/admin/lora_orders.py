"""Loads and unloads LoRA adapters of a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shared.admin.control import ControlReply, LoadLora, UnloadLora
from shared.admin.control_plane import ControlPlane, Target
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.checkpoint.lora_files import LoraFiles
from shared.cluster import Cluster
from shared.errors import ConfigError, InvalidRequest, NotFound
from shared.protocol.model_cards import ModelCard

_LOAD_TIMEOUT_S = 90.0  # of a worker, to fetch and load it


class LoraResult(msgspec.Struct, frozen=True):
    """What came of an order; workers that did not answer find out by themselves."""

    name: str
    model: str  # that the adapter is for
    revision: str
    workers: Sequence[ControlReply]


class LoraOrders:
    """The catalog first, then the workers that live; whoever starts later reads the catalog."""

    def __init__(self, cluster: Cluster, plane: ControlPlane) -> None:
        self._plane = plane
        self._catalog = AdapterCatalog(cluster)

    async def load(self, name: str, path: str, model: str | None) -> LoraResult:
        """Loads it from a folder on this machine.

        Raises ConfigError, and nothing is changed, when the adapter or a worker's engine does not
        take it; NotFound, InvalidRequest or BrokerError.
        """
        base = await self._base(model)
        files = await asyncio.to_thread(LoraFiles.read, Path(path))
        is_new = all(adapter.name != name for adapter in base.adapters)
        await self._catalog.add(base.pool, name, files, path)
        replies = await self._plane.send(
            Target(base.name), LoadLora(files.revision), _LOAD_TIMEOUT_S
        )
        refusals = [f"{reply.worker}: {reply.refusal}" for reply in replies if reply.refusal]
        if refusals and is_new:
            await self.unload(name, base.name)
        if refusals:
            raise ConfigError(f"the LoRA adapter {name!r} is not loaded: {'; '.join(refusals)}")
        return LoraResult(name, base.name, files.revision, replies)

    async def unload(self, name: str, model: str | None) -> LoraResult:
        """What runs with it finishes, what waits ends. Raises NotFound or BrokerError."""
        models = await self._models(model)
        base = next(
            (card for card in models if any(each.name == name for each in card.adapters)), None
        )
        if base is None:
            raise NotFound(f"There is no LoRA adapter {name!r}.", param="lora_name")
        removed = await self._catalog.remove(base.pool, name)
        replies = await self._plane.send(Target(base.name), UnloadLora(removed.revision))
        return LoraResult(name, base.name, removed.revision, replies)

    async def _base(self, model: str | None) -> ModelCard:
        models = await self._models(model)
        if len(models) != 1:
            names = ", ".join(card.name for card in models) or "none"
            raise InvalidRequest(f"name the model: {names} is served", param="model")
        return models[0]

    async def _models(self, model: str | None) -> list[ModelCard]:
        cards = [card for card in await self._plane.models() if model in (None, card.name)]
        if model is not None and not cards:
            raise NotFound(f"No model {model!r} is served.", param="model")
        return cards
